#!/bin/sh
# Sourced by dracut before the root takes over.
/usr/lib/slipway/mounts

# Nothing stands between here and the new root's systemd but a file that may be missing or broken, so the watchdog must run
# now. If systemd holds it already, opening fails and that is right; if not, opening starts it and closing does not stop it.
case " $(cat /proc/cmdline) " in
    *" systemd.watchdog_sec=0 "* | *" systemd.watchdog_sec=off "*) ;;
    *" systemd.watchdog_sec="*) (: > /dev/watchdog0) 2> /dev/null ;;
esac
