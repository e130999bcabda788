#!/bin/sh
# Sourced by dracut before the root is mounted. systemd opens the watchdog when it reads its configuration again, which it
# does right after the root is mounted. udev has loaded a hardware watchdog's driver by now, if there is one.
case " $(cat /proc/cmdline) " in
    *" systemd.watchdog_sec=0 "* | *" systemd.watchdog_sec=off "*) ;;
    *" systemd.watchdog_sec="*)
        udevadm settle --timeout=10
        [ -e /sys/class/watchdog/watchdog0 ] || modprobe -q softdog
        ;;
esac
