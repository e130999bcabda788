#!/bin/bash
# dracut module: what a Slipway slot needs before its root takes over. Called by dracut.

check() {
    return 0
}

depends() {
    echo fs-lib rootfs-block
}

installkernel() {
    # Every watchdog driver: a hardware watchdog wins over softdog.
    hostonly='' instmods ext4 overlay softdog =drivers/watchdog
    # Where a panic is kept over a restart; not every kernel has them as modules.
    hostonly='' instmods efi_pstore ramoops
}

install() {
    inst_multiple cat chmod cp df find ln mkdir mount mv readlink rm rmdir sync tail timeout umount
    inst_multiple -o e2fsck
    inst_simple "$moddir/slipway-mounts.sh" /usr/lib/slipway/mounts
    chmod 755 "$initdir/usr/lib/slipway/mounts"
    inst_hook cmdline 05 "$moddir/slipway-pstore.sh"
    inst_hook pre-mount 05 "$moddir/slipway-watchdog.sh"
    inst_hook pre-pivot 10 "$moddir/slipway-pre-pivot.sh"
    if [[ -e $dracutsysrootdir/usr/lib/systemd/system.conf.d/10-slipway.conf ]]; then
        inst_simple /usr/lib/systemd/system.conf.d/10-slipway.conf
    fi
}
