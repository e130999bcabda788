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
# Three ways: it is mounted read-write ($base is it); it can only be read ($kept is it, $base is memory above it); it is not
# there ($base is memory). In memory nothing outlives the boot, so the kubelet's unit refuses to start then.
base= kept=
memory() {
    [ -d "$volatile" ] && return
    mkdir -p "$volatile"
    mount -t tmpfs -o mode=0755,size=25% slipway-volatile "$volatile"
}
missing() {
    say "PERSIST: $1; /etc, /var and /opt are in memory until it is repaired"
    echo "$1" > "$marks/persist-missing"
    memory
    base=$volatile
}

open_persist() {
    [ -n "$disk" ] || { missing "the disk of the root is not known"; return; }
    [ -n "$persist" ] || { missing "no partition 4 with the name PERSIST on ${disk##*/}"; return; }
    # A clean file system or one with a journal to replay takes no time; a long check is not worth a dead node.
    timeout -k 5 240 e2fsck -p "$persist" > $links/e2fsck.log 2>&1
    result=$?
    if [ $result -ne 0 ] && [ $result -ne 8 ]; then
        # 1 and 2 are repairs. An ordinary replay of the journal ends with 0.
        say "e2fsck of $persist ended with $result, see $links/e2fsck.log"
        { echo "PERSIST was checked at boot, e2fsck -p ended with $result:"; tail -n 5 $links/e2fsck.log; } > "$marks/persist-repaired"
    fi
    if mount -t ext4 -o rw "$persist" "$new/persist" 2> $links/mount.log; then
        if [ -w "$new/persist" ]; then
            base=$new/persist
            return
        fi
        umount "$new/persist"
    fi
    read -r why < $links/mount.log
    read -r said < $links/e2fsck.log
    # A device that cannot be written, a journal that cannot be replayed, a first superblock that is lost (copies lie at
    # fixed places for blocks of 4 and of 1 KiB): what is stored can be read all the same.
    for options in ro,noload ro,noload,sb=131072 ro,noload,sb=8193; do
        if mount -t ext4 -o $options "$persist" "$new/persist" 2> /dev/null; then
            kept=$new/persist
            missing "$persist can only be read ($options): ${why:-it is read-only}; e2fsck: $said"
            return
        fi
    done
    missing "$persist cannot be mounted: $why; e2fsck: $said"
}

open_persist
[ "$base" = "$volatile" ] || (umask 077; mkdir -p "$base/os-agent")

# One line of proof that this boot came so far; the agent reads them after a trial that it never saw.
if [ -n "$trial" ] && [ "$base" != "$volatile" ]; then
    read -r up _ < /proc/uptime
    echo "$(cat /proc/sys/kernel/random/boot_id) ${up%%.*} initramfs" >> "$base/os-agent/trial-signs" &&
        sync -f "$base/os-agent"
fi

# overlay DIRECTORY UPPER WORK LOWER: the upper layer may meet another lower one after an update. The kernel allows that as
# long as none of these features was used.
overlay() {
    mkdir -p "$base/$2" "$base/$3" || return
    layers="lowerdir=$4,upperdir=$base/$2,workdir=$base/$3"
    mount -t overlay -o "$layers,index=off,metacopy=off,xino=off,redirect_dir=off" "overlay-$1" "$new/$1" ||
        mount -t overlay -o "$layers" "overlay-$1" "$new/$1" || return
    # Without room for its work directory an overlay is mounted all the same, but read-only.
    [ -w "$new/$1" ] || { umount "$new/$1"; return 1; }
}

# The same with what is stored below. If it cannot be the upper layer, it is one more lower layer below one in memory: the
# node's settings are seen, and changes are lost with the next boot.
layered() {
    lower=${4:-$new/$1}
    if [ "$base" != "$volatile" ]; then
        overlay "$1" "$2" "$3" "$lower" && return
        kept=$base
        memory
        echo "/$1 has its upper layer in memory, changes there are lost with the next boot: $(df -hi "$kept" 2> /dev/null |
            tail -n 1)" > "$marks/$1-in-memory"
        say "/$1 cannot be written to PERSIST, its upper layer is in memory"
    fi
    [ -z "$kept" ] || [ ! -d "$kept/$2" ] || lower=$kept/$2:$lower
    was=$base
    base=$volatile
    overlay "$1" "$2" "$3" "$lower" || say "/$1 stays read-only"
    base=$was
}

# ---- /etc: an upper layer per slot. A trial starts with a fresh copy of the other slot's, and what the trial changes is
# never seen by the slot that it may fall back to.
copy_etc() {
    case $slot in A) other=B ;; *) other=A ;; esac
    # A way back to a slot that is as it was when it was last committed: its own layer, as it was then.
    word=
    [ ! -e "$base/os-agent/etc-keep" ] || read -r word _ < "$base/os-agent/etc-keep"
    if [ "$word" = "$slot" ] && [ -d "$base/etc/$slot" ]; then
        say "slot $slot keeps its own /etc"
        return 0
    fi
    rm -rf "$base/etc/.$slot.new" "$base/etc/.$slot.old"
    mkdir -p "$base/etc" || return 1
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

if [ $layout = kubeos ]; then
    layered etc etc etcwork
elif [ -z "$trial" ]; then
    layered etc "etc/$slot" "etc/$slot.work"
elif [ "$base" = "$volatile" ]; then
    # Nobody can tell what is wrong, the image or the disk, and a commit would be one without settings.
    echo "$(cat "$marks/persist-missing")" > "$marks/etc-not-copied"
    layered etc "etc/$slot" "etc/$slot.work"
elif copy_etc; then
    layered etc "etc/$slot" "etc/$slot.work"
else
    # The settings are shown all the same, but boot-complete.target refuses, so nobody commits without them.
    say "the other slot's /etc cannot be copied; this trial will not be committed"
    echo "PERSIST has no room for a copy of the other slot's upper layer" > "$marks/etc-not-copied"
    rm -rf "$base/etc/.$slot.new"
    [ -d "$base/etc/$slot" ] || [ ! -d "$base/etc/.$slot.old" ] || mv "$base/etc/.$slot.old" "$base/etc/$slot"
    kept=$base
    base=$volatile
    memory
    layered etc "etc/$other" "etc/$slot.work"
    base=$kept
fi

# ---- /var: one for both slots, a bind mount, since containerd cannot put its own overlays on an overlay.
# Begins as a copy of the image's own. A later image's new directories are added when it is on trial; nothing that exists
# is touched.
take() {
    # take FROM TO: whole or not at all
    rm -rf "$base/.var.new"
    timeout -k 5 300 cp -a "$1" "$base/.var.new" && sync -f "$base" && mv "$base/.var.new" "$2"
}
if [ "$base" = "$volatile" ] && [ -n "$kept" ] && [ -d "$kept/var" ]; then
    # Stored, but not writable: what is there is seen.
    layered var var varwork
else
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
fi

# ---- /opt: an overlay with KubeOS's directory names. A package's own opt.mount finds it mounted and has nothing to do.
[ ! -d "$new/opt" ] || layered opt opt optwork
exit 0
