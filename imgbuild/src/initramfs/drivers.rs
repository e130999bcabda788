//! Drivers that an initramfs for any machine carries, and which of them a kernel package has. Pure but for [`Table::read`].

use camino::Utf8Path;
use std::collections::BTreeSet;

/// Wanted where the kernel has them: disks of servers and virtual machines, file systems, watchdogs. dracut adds more by
/// itself; these are checked.
pub(super) const WANTED: &[&str] = &[
    // NVMe, SATA, SCSI, USB, SD and eMMC
    "nvme",
    "vmd",
    "ahci",
    "ata_piix",
    "ata_generic",
    "sd_mod",
    "sr_mod",
    "usb_storage",
    "uas",
    "xhci_pci",
    "xhci_hcd",
    "ehci_pci",
    "mmc_block",
    "sdhci",
    "sdhci_pci",
    "sdhci_acpi",
    "ufshcd_pci",
    // hardware RAID and SAS
    "megaraid_sas",
    "mpt3sas",
    "mpi3mr",
    "aacraid",
    "hpsa",
    "smartpqi",
    "pm80xx",
    "arcmsr",
    "hisi_sas_v3_hw",
    // virtual machines
    "virtio",
    "virtio_ring",
    "virtio_pci",
    "virtio_mmio",
    "virtio_blk",
    "virtio_scsi",
    "virtio_console",
    "xen_blkfront",
    "hv_vmbus",
    "hv_storvsc",
    "pci_hyperv",
    "vmw_pvscsi",
    // layers and file systems
    "dm_mod",
    "dm_verity",
    "md_mod",
    "raid0",
    "raid1",
    "raid10",
    "raid456",
    "loop",
    "ext4",
    "xfs",
    "vfat",
    "nls_cp437",
    "nls_ascii",
    "nls_iso8859_1",
    "nls_utf8",
    "overlay",
    "squashfs",
    "erofs",
    // watchdogs
    "softdog",
    "iTCO_wdt",
    "i6300esb",
    "sp5100_tco",
    "wdat_wdt",
    "ipmi_watchdog",
    "ipmi_si",
];

/// Without these no slot boots.
pub(super) const REQUIRED: &[&str] = &["ext4", "overlay"];

/// What a kernel package has.
#[derive(Debug, Default)]
pub(super) struct Table {
    modules: BTreeSet<String>,
    builtin: BTreeSet<String>,
}

impl Table {
    /// Reads `modules.dep` and `modules.builtin` of a kernel's module directory.
    pub(super) fn read(dir: &Utf8Path) -> std::io::Result<Table> {
        let dep = fs_err::read_to_string(dir.join("modules.dep"))?;
        let builtin = fs_err::read_to_string(dir.join("modules.builtin"))?;
        Ok(Table::parse(&dep, &builtin))
    }

    /// `kernel/a/b.ko.xz: …` and `kernel/a/b.ko`, one a line.
    pub(super) fn parse(dep: &str, builtin: &str) -> Table {
        Table {
            modules: dep
                .lines()
                .filter_map(|l| name_of(l.split(':').next()?))
                .collect(),
            builtin: builtin.lines().filter_map(name_of).collect(),
        }
    }

    /// Whether the kernel has a driver, as module or built in.
    pub(super) fn has(&self, driver: &str) -> bool {
        self.modules.contains(driver) || self.builtin.contains(driver)
    }

    /// Those of `wanted` that are modules, in their order.
    pub(super) fn modules_of(&self, wanted: &[&str]) -> Vec<String> {
        wanted
            .iter()
            .filter(|w| self.modules.contains(**w))
            .map(|w| (*w).to_owned())
            .collect()
    }
}

/// Name of the module in a file: `…/dm-mod.ko.zst` → `dm_mod`. `None` for other files.
pub(super) fn name_of(path: &str) -> Option<String> {
    let file = path.trim().rsplit('/').next()?;
    let (name, ending) = file.split_once(".ko")?;
    let known = ["", ".gz", ".xz", ".zst", ".bz2"].contains(&ending);
    known.then(|| name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(
            name_of("kernel/drivers/md/dm-mod.ko.zst").as_deref(),
            Some("dm_mod")
        );
        assert_eq!(name_of("kernel/x/softdog.ko").as_deref(), Some("softdog"));
        assert_eq!(name_of("etc/a.kok"), None);
        assert_eq!(name_of("bin/sh"), None);
    }

    #[test]
    fn modules_and_built_in() {
        let table = Table::parse(
            "kernel/drivers/block/virtio_blk.ko: kernel/virtio.ko\nkernel/fs/overlayfs/overlay.ko.xz:\n",
            "kernel/fs/ext4/ext4.ko\n",
        );
        assert!(table.has("ext4") && table.has("overlay") && !table.has("nvme"));
        assert_eq!(
            table.modules_of(&["nvme", "ext4", "overlay", "virtio_blk"]),
            ["overlay", "virtio_blk"]
        );
    }
}
