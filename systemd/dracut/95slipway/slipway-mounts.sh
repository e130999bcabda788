#!/bin/sh
# Mounts what a slot needs beside its read-only root: /persist, /etc, /var and /opt, below /sysroot.
#
# PERSIST is the partition with number 4 and that name on the disk of the root itself; labels and UUIDs are not asked,
# because another disk may carry the same. Whatever is wrong with PERSIST, the slot still boots: its upper layers are then
# in memory and /run/os-agent/persist-missing says why.

set -f
umask 022
new=/sysroot
marks=/run/os-agent
links=/run/slipway
volatile=$links/volatile

say() {
    echo "slipway: $*" >&2
    echo "<3>slipway: $*" > /dev/kmsg
}

# ---- command line: os.slot=A|B, os.trial=N
slot= trial=
for word in $(cat /proc/cmdline); do
    case $word in
        os.slot=A) slot=A ;;
        os.slot=B) slot=B ;;
        os.trial=*) trial=${word#os.trial=} ;;
    esac
done

# ---- the root's own disk, as sysfs knows it
devno=
while read -r _ _ number _ where _; do
    [ "$where" = "$new" ] && devno=$number
done < /proc/self/mountinfo
part=$(readlink -f "/sys/dev/block/$devno")
set +f
while [ -d "$part/dm" ]; do
    # A mapped root stands on exactly one device; otherwise nobody can say which disk is meant.
    set -- "$part"/slaves/*
    [ $# = 1 ] && [ -e "$1" ] || { part=; break; }
    part=$(readlink -f "$1")
done
disk=
[ -n "$part" ] && [ -e "$part/partition" ] && disk=${part%/*}

mkdir -p "$links" "$marks"
persist= layout=kubeos
link() {
    ln -sfn "/dev/$2" "$links/$1"
}
if [ -n "$disk" ]; then
    link disk "${disk##*/}"
    for event in "$disk"/*/uevent; do
        [ -e "${event%/uevent}/partition" ] || continue
        dev= number= name=
        while IFS='=' read -r key value; do
            case $key in
                DEVNAME) dev=$value ;;
                PARTN) number=$value ;;
                PARTNAME) name=$value ;;
            esac
        done < "$event"
        case $number-$name in
            1-BOOT) link boot "$dev" ;;
            2-ROOT-A) link root-a "$dev" ;;
            3-ROOT-B) link root-b "$dev" ;;
            # A partition table without names has numbers only.
            4-PERSIST | 4-) persist=/dev/$dev; link persist "$dev" ;;
            6-os-state) layout=slipway; link os-state "$dev" ;;
        esac
    done
fi
[ -n "$slot" ] || layout=kubeos

# ---- PERSIST, or memory
missing() {
    say "PERSIST: $1; /etc, /var and /opt are in memory until it is repaired"
    echo "$1" > "$marks/persist-missing"
    [ -d "$volatile" ] && return
    mkdir -p "$volatile"
    mount -t tmpfs -o mode=0755,size=25% slipway-volatile "$volatile"
}

open_persist() {
    [ -n "$disk" ] || { missing "the disk of the root is not known"; return 1; }
    [ -n "$persist" ] || { missing "no partition 4 with the name PERSIST on ${disk##*/}"; return 1; }
    # A clean file system or one with a journal to replay takes no time; a long check is not worth a dead node.
    timeout -k 5 240 e2fsck -p "$persist" > /run/slipway/e2fsck.log 2>&1
    result=$?
    [ $result -lt 4 ] || say "e2fsck of $persist ended with $result, see /run/slipway/e2fsck.log"
    mount -t ext4 -o rw "$persist" "$new/persist" || { missing "$persist cannot be mounted"; return 1; }
    if ! [ -w "$new/persist" ]; then
        umount "$new/persist"
        missing "$persist is read-only"
        return 1
    fi
}

if open_persist; then
    base=$new/persist
    (umask 077; mkdir -p "$base/os-agent")
else
    base=$volatile
fi

# overlay DIRECTORY UPPER WORK: the upper layer may meet another lower one after an update. The kernel allows that as long
# as none of these features was used.
overlay() {
    mkdir -p "$base/$2" "$base/$3"
    layers="lowerdir=${lower:-$new/$1},upperdir=$base/$2,workdir=$base/$3"
    mount -t overlay -o "$layers,index=off,metacopy=off,xino=off,redirect_dir=off" "overlay-$1" "$new/$1" && return
    mount -t overlay -o "$layers" "overlay-$1" "$new/$1"
}

# The same, and on failure with the upper layer in memory.
overlay_or_memory() {
    overlay "$@" && return
    [ "$base" = "$volatile" ] && { say "/$1 stays read-only"; return 1; }
    missing "no overlay on /$1 with its upper layer there"
    kept=$base
    base=$volatile
    overlay "$@" || say "/$1 stays read-only"
    base=$kept
}

# ---- /etc: an upper layer per slot. A trial starts with a fresh copy of the other slot's, and what the trial changes is
# never seen by the slot that it may fall back to.
copy_etc() {
    case $slot in A) other=B ;; *) other=A ;; esac
    rm -rf "$base/etc/.$slot.new" "$base/etc/.$slot.old"
    mkdir -p "$base/etc"
    if [ -d "$base/etc/$other" ]; then
        # All attributes: overlayfs keeps opaque directories in trusted.overlay.*, deleted files as character devices.
        timeout -k 5 120 cp -a "$base/etc/$other" "$base/etc/.$slot.new" || return 1
    else
        mkdir "$base/etc/.$slot.new" || return 1
    fi
    sync -f "$base/etc" || return 1
    # Whole or not at all: the copy takes its place by rename, so a power cut leaves no half layer.
    [ ! -d "$base/etc/$slot" ] || mv "$base/etc/$slot" "$base/etc/.$slot.old" || return 1
    mv "$base/etc/.$slot.new" "$base/etc/$slot" || return 1
    rm -rf "$base/etc/.$slot.old" "$base/etc/$slot.work"
    sync -f "$base/etc"
}

lower=
if [ $layout = kubeos ]; then
    overlay_or_memory etc etc etcwork
else
    if [ -n "$trial" ] && [ "$base" != "$volatile" ] && ! copy_etc; then
        # The settings are shown all the same, but boot-complete.target refuses, so nobody commits without them.
        say "the other slot's /etc cannot be copied; this trial will not be committed"
        echo "cannot copy the other slot's upper layer" > "$marks/etc-not-copied"
        rm -rf "$base/etc/.$slot.new"
        [ -d "$base/etc/$other" ] && lower=$base/etc/$other:$new/etc
    fi
    overlay_or_memory etc "etc/$slot" "etc/$slot.work"
    lower=
fi

# ---- /var: one for both slots, a bind mount, since containerd cannot put its own overlays on an overlay.
# Begins as a copy of the image's own. A later image's new directories are added when it is on trial; nothing that exists
# is touched.
take() {
    # take FROM TO: whole or not at all
    rm -rf "$base/.var.new"
    timeout -k 5 300 cp -a "$1" "$base/.var.new" && sync -f "$base" && mv "$base/.var.new" "$2"
}
if [ ! -d "$base/var" ] || [ -z "$(find "$base/var" -mindepth 1 -maxdepth 1 ! -name lost+found -print -quit)" ]; then
    rm -rf "$base/var"
    if ! take "$new/var" "$base/var"; then
        say "the image's /var cannot be copied, /var starts empty"
        mkdir -p "$base/var"
    fi
    # A machine's identity is its own.
    [ -L "$base/var/lib/dbus/machine-id" ] || rm -f "$base/var/lib/dbus/machine-id"
    rm -f "$base/var/lib/systemd/random-seed"
elif [ -n "$trial" ]; then
    find "$new/var" -xdev -mindepth 1 -type d | while IFS= read -r dir; do
        to=$base/var/${dir#"$new/var/"}
        [ -e "$to" ] || [ -L "$to" ] || take "$dir" "$to" || say "cannot add ${dir#"$new"}"
    done
fi
mount --bind "$base/var" "$new/var" || say "/var stays read-only"

# ---- /opt: an overlay with KubeOS's directory names. A package's own opt.mount finds it mounted and has nothing to do.
[ ! -d "$new/opt" ] || overlay_or_memory opt opt optwork
exit 0
