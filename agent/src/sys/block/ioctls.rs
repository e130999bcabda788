//! The ioctls that rustix has no safe wrapper for: the only unsafe code of the device side.
#![allow(unsafe_code)] // ioctl(2) is a protocol with the kernel; each call states what it relies on.

use rustix::ioctl::{NoArg, Setter, ioctl, opcode};
use std::ffi::c_void;
use std::fs::File;

const BLKFLSBUF: rustix::ioctl::Opcode = opcode::none(0x12, 97);
const BLKPG: rustix::ioctl::Opcode = opcode::none(0x12, 105);
const EXT4_IOC_RESIZE_FS: rustix::ioctl::Opcode = opcode::write::<u64>(b'f', 16);
const BLKPG_RESIZE_PARTITION: i32 = 3;

/// Writes back and drops the cached pages of a block device.
///
/// # Errors
/// The kernel's.
pub fn flush_buffers(disk: &File) -> rustix::io::Result<()> {
    // SAFETY: BLKFLSBUF (linux/fs.h) takes no argument and touches no memory of ours.
    unsafe { ioctl(disk, NoArg::<BLKFLSBUF>::new()) }
}

/// `struct blkpg_partition` of linux/blkpg.h.
#[repr(C)]
struct Partition {
    start: i64,
    length: i64,
    pno: i32,
    devname: [u8; 64],
    volname: [u8; 64],
}

/// `struct blkpg_ioctl_arg` of linux/blkpg.h.
#[repr(C)]
struct BlkpgArg {
    op: i32,
    flags: i32,
    datalen: i32,
    data: *mut c_void,
}

/// Tells the kernel the new length of a partition, also while it is mounted. Bytes.
///
/// # Errors
/// The kernel's.
pub fn resize_partition(disk: &File, number: u32, start: u64, length: u64) -> rustix::io::Result<()> {
    let inval = |_| rustix::io::Errno::INVAL;
    let mut part = Partition {
        start: i64::try_from(start).map_err(inval)?,
        length: i64::try_from(length).map_err(inval)?,
        pno: i32::try_from(number).map_err(inval)?,
        devname: [0; 64],
        volname: [0; 64],
    };
    let arg = BlkpgArg {
        op: BLKPG_RESIZE_PARTITION,
        flags: 0,
        datalen: size_of::<Partition>() as i32,
        data: (&raw mut part).cast(),
    };
    // SAFETY: BLKPG reads one blkpg_ioctl_arg and, through its pointer, one blkpg_partition; both live across the call
    // and have the layout of linux/blkpg.h.
    unsafe { ioctl(disk, Setter::<BLKPG, BlkpgArg>::new(arg)) }
}

/// Grows a mounted ext4 to `blocks` file system blocks.
///
/// # Errors
/// The kernel's.
pub fn resize_ext4(mount: &File, blocks: u64) -> rustix::io::Result<()> {
    // SAFETY: EXT4_IOC_RESIZE_FS (linux/ext4.h) reads one u64 that lives across the call.
    unsafe { ioctl(mount, Setter::<EXT4_IOC_RESIZE_FS, u64>::new(blocks)) }
}
