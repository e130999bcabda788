#!/bin/bash
# boot.sh DISK SLOT TRIAL SCRIPT MOUNTS: plays the initramfs's part of a boot from a disk image: the slot at /sysroot, its command
# line in /proc/cmdline, then MOUNTS (slipway-mounts.sh), then SCRIPT in the result. All in a mount namespace of its own.
# RO=1: the disk takes no write. Runs as root; the loop device is given back whatever happens.
set -eu
export PATH=$PATH:/usr/sbin:/sbin
disk=$1 slot=$2 trial=$3 script=$4 mounts=$5
loop=$(losetup ${RO:+-r} -f --show "$disk")
trap 'partx -d "$loop" 2> /dev/null; losetup -d "$loop"' EXIT
partx -a "$loop"
mkdir -p /sysroot
number=2
[ "$slot" = A ] || number=3
export loop slot trial number script mounts
unshare -m bash -euc '
mount --make-rprivate /
mount -t tmpfs lab /run
[ -b ${loop}p$number ] || { echo "no device node ${loop}p$number"; exit 77; }
mount -o ro ${loop}p$number /sysroot
echo "ro os.slot=$slot os.boot=1 ${trial:+os.trial=$trial}" > /run/cmdline
mount --bind /run/cmdline /proc/cmdline
mount --bind /dev/null /dev/kmsg
# Partitions that partx added have no names in sysfs.
while read -r n name; do
    at=/sys/block/${loop##*/}/${loop##*/}p$n/uevent
    [ -e "$at" ] || continue
    { cat "$at"; echo "PARTNAME=$name"; } > /run/uevent$n
    mount --bind /run/uevent$n "$at"
done <<< "1 BOOT
2 ROOT-A
3 ROOT-B
4 PERSIST
6 os-state"
dash "$mounts" 2> /run/said
bash -euc "$script"
'
