//! PURE: reads a GUID partition table from bytes (UEFI specification 2.10, chapter 5.3), and moves its last partition's end.
//!
//! Read-only but for [`Table::grown`], which yields the bytes of both copies after the disk became larger. Nothing here
//! ever repairs a table: a damaged primary is reported and the backup used as it stands.

use os_proto::layout::MIB;
use uuid::Uuid;

/// Bytes of a header that carry fields.
const HEADER_BYTES: usize = 92;
/// Most entries that are looked at; the specification's minimum and everybody's choice is 128.
const MAX_ENTRIES: u32 = 1024;
/// Most bytes of an entry; everybody writes 128.
const MAX_ENTRY_BYTES: u32 = 4096;

/// One used entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Partition number, from 1.
    pub number: u32,
    /// Name, as far as it is valid UTF-16.
    pub name: String,
    /// Type.
    pub type_guid: Uuid,
    /// Unique identity, the kernel's PARTUUID.
    pub part_uuid: Uuid,
    /// First byte on the disk.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
}

/// A parsed table with what is needed to write it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Disk GUID.
    pub disk_guid: Uuid,
    /// Used entries by number.
    pub entries: Vec<Entry>,
    /// Where the other copy of the header lies, in bytes.
    pub other_header: u64,
    header: Vec<u8>,
    array: Vec<u8>,
    sector: u32,
}

/// Why bytes are not a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTable {
    /// Nothing that looks like a header.
    #[error("no GPT header")]
    NoSignature,
    /// The header's checksum is wrong.
    #[error("the GPT header's checksum is wrong")]
    HeaderCrc,
    /// The entries' checksum is wrong.
    #[error("the checksum of the GPT entries is wrong")]
    EntriesCrc,
    /// A field cannot be.
    #[error("GPT field {field} is {value}, which cannot be")]
    Field {
        /// Which field.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
    /// Fewer bytes than the table needs.
    #[error("the disk ends before its partition table does")]
    Short,
}

/// What a header says about where its entries are: enough to read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte of the entries on the disk.
    pub entries_at: u64,
    /// Their size in bytes.
    pub entries_bytes: usize,
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?))
}

fn guid_at(b: &[u8], at: usize) -> Option<Uuid> {
    Some(Uuid::from_bytes_le(b.get(at..at + 16)?.try_into().ok()?))
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut c = flate2::Crc::new();
    c.update(bytes);
    c.sum()
}

/// Checks a header sector read from `at` (bytes) and says where its entries lie.
///
/// # Errors
/// [`BadTable`].
pub fn header(sector_bytes: &[u8], at: u64, sector: u32) -> Result<Extent, BadTable> {
    let h = sector_bytes;
    if h.get(..8) != Some(b"EFI PART") {
        return Err(BadTable::NoSignature);
    }
    let field = |field: &'static str, value: u64| BadTable::Field { field, value };
    let size = u32_at(h, 12).ok_or(BadTable::Short)?;
    let size_ok = (HEADER_BYTES..=h.len()).contains(&(size as usize));
    let mut copy = h
        .get(..size as usize)
        .filter(|_| size_ok)
        .ok_or(field("header size", u64::from(size)))?
        .to_vec();
    let stored = u32_at(h, 16).ok_or(BadTable::Short)?;
    if let Some(c) = copy.get_mut(16..20) {
        c.fill(0);
    }
    if crc32(&copy) != stored {
        return Err(BadTable::HeaderCrc);
    }
    let my_lba = u64_at(h, 24).ok_or(BadTable::Short)?;
    if my_lba.checked_mul(u64::from(sector)) != Some(at) {
        return Err(field("my LBA", my_lba));
    }
    let lba = u64_at(h, 72).ok_or(BadTable::Short)?;
    let count = u32_at(h, 80).ok_or(BadTable::Short)?;
    let entry = u32_at(h, 84).ok_or(BadTable::Short)?;
    if !(1..=MAX_ENTRIES).contains(&count) {
        return Err(field("number of entries", u64::from(count)));
    }
    if !(128..=MAX_ENTRY_BYTES).contains(&entry) || !entry.is_multiple_of(8) {
        return Err(field("entry size", u64::from(entry)));
    }
    Ok(Extent {
        entries_at: lba
            .checked_mul(u64::from(sector))
            .ok_or(field("entries LBA", lba))?,
        entries_bytes: count as usize * entry as usize,
    })
}

/// Parses a header sector that [`header`] accepted, with its entries.
///
/// # Errors
/// [`BadTable`].
pub fn table(sector_bytes: &[u8], at: u64, sector: u32, array: &[u8]) -> Result<Table, BadTable> {
    let ext = header(sector_bytes, at, sector)?;
    let array = array.get(..ext.entries_bytes).ok_or(BadTable::Short)?;
    if crc32(array) != u32_at(sector_bytes, 88).ok_or(BadTable::Short)? {
        return Err(BadTable::EntriesCrc);
    }
    let entry_bytes = u32_at(sector_bytes, 84).ok_or(BadTable::Short)? as usize;
    let other = u64_at(sector_bytes, 32).ok_or(BadTable::Short)?;
    let mut entries = Vec::new();
    for (number, e) in (1u32..).zip(array.chunks_exact(entry_bytes)) {
        if let Some(entry) = entry(e, number, sector)? {
            entries.push(entry);
        }
    }
    Ok(Table {
        disk_guid: guid_at(sector_bytes, 56).ok_or(BadTable::Short)?,
        entries,
        other_header: other.saturating_mul(u64::from(sector)),
        header: sector_bytes.to_vec(),
        array: array.to_vec(),
        sector,
    })
}

fn entry(e: &[u8], number: u32, sector: u32) -> Result<Option<Entry>, BadTable> {
    let type_guid = guid_at(e, 0).ok_or(BadTable::Short)?;
    if type_guid.is_nil() {
        return Ok(None);
    }
    let first = u64_at(e, 32).ok_or(BadTable::Short)?;
    let last = u64_at(e, 40).ok_or(BadTable::Short)?;
    let bad = |field, value| BadTable::Field { field, value };
    let sectors = last
        .checked_sub(first)
        .and_then(|n| n.checked_add(1))
        .ok_or(bad("last LBA", last))?;
    let units: Vec<u16> = e
        .get(56..128)
        .ok_or(BadTable::Short)?
        .chunks_exact(2)
        .filter_map(|c| Some(u16::from_le_bytes(c.try_into().ok()?)))
        .take_while(|u| *u != 0)
        .collect();
    Ok(Some(Entry {
        number,
        name: String::from_utf16_lossy(&units),
        type_guid,
        part_uuid: guid_at(e, 16).ok_or(BadTable::Short)?,
        start: first
            .checked_mul(u64::from(sector))
            .ok_or(bad("first LBA", first))?,
        size: sectors
            .checked_mul(u64::from(sector))
            .ok_or(bad("last LBA", last))?,
    }))
}

/// Both copies of a table, ready to be written in the order of the fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copies {
    /// Byte offset and content of the backup's entries.
    pub backup_entries: (u64, Vec<u8>),
    /// Byte offset and content of the backup's header sector.
    pub backup_header: (u64, Vec<u8>),
    /// Byte offset and content of the primary's entries.
    pub primary_entries: (u64, Vec<u8>),
    /// Byte offset and content of the primary's header sector.
    pub primary_header: (u64, Vec<u8>),
    /// New size of the grown partition in bytes.
    pub size: u64,
}

impl Table {
    /// The table after partition `number`, which must be physically last, was extended to the end of a disk of
    /// `disk_bytes`; `None` when it cannot become larger. The end is a multiple of one MiB.
    ///
    /// # Errors
    /// A message when the partition is missing or not last.
    pub fn grown(&self, number: u32, disk_bytes: u64) -> Result<Option<Copies>, String> {
        let s = u64::from(self.sector);
        if u64_at(&self.header, 72) != Some(2) {
            return Err("the entries do not follow the header".into());
        }
        let part = self
            .entries
            .iter()
            .find(|e| e.number == number)
            .ok_or(format!("partition {number} does not exist"))?;
        if let Some(later) = self.entries.iter().find(|e| e.start > part.start) {
            return Err(format!(
                "partition {number} ({}) is not the last one: partition {} ({}) lies behind it",
                part.name, later.number, later.name
            ));
        }
        let array_sectors = (self.array.len() as u64).div_ceil(s);
        let disk_sectors = disk_bytes / s;
        let backup_lba = disk_sectors.checked_sub(1).ok_or("the disk is empty")?;
        let backup_array = backup_lba
            .checked_sub(array_sectors)
            .ok_or("the disk is too small for a partition table")?;
        // The partition may use everything below the backup entries, rounded down to a whole MiB.
        let end = (backup_array * s) / MIB * MIB;
        let old_end = part.start + part.size;
        if end <= old_end {
            return Ok(None);
        }
        let entry_bytes = u32_at(&self.header, 84).unwrap_or(128) as usize;
        let mut array = self.array.clone();
        let at = (number as usize - 1) * entry_bytes + 40;
        let slot = array
            .get_mut(at..at + 8)
            .ok_or("the entry lies outside the table")?;
        slot.copy_from_slice(&(end / s - 1).to_le_bytes());
        let entries_crc = crc32(&array);
        array.resize((array_sectors * s) as usize, 0);
        let last_usable = backup_array - 1;
        let primary_array = s * 2;
        Ok(Some(Copies {
            backup_entries: (backup_array * s, array.clone()),
            backup_header: (
                backup_lba * s,
                self.header_sector(backup_lba, 1, backup_array, last_usable, entries_crc),
            ),
            primary_entries: (primary_array, array),
            primary_header: (s, self.header_sector(1, backup_lba, 2, last_usable, entries_crc)),
            size: end - part.start,
        }))
    }

    fn header_sector(&self, my: u64, other: u64, array: u64, last_usable: u64, crc: u32) -> Vec<u8> {
        let mut h = self.header.clone();
        let size = u32_at(&h, 12).unwrap_or(HEADER_BYTES as u32) as usize;
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(d) = h.get_mut(at..at + bytes.len()) {
                d.copy_from_slice(bytes);
            }
        };
        put(16, &[0; 4]);
        put(24, &my.to_le_bytes());
        put(32, &other.to_le_bytes());
        put(48, &last_usable.to_le_bytes());
        put(72, &array.to_le_bytes());
        put(88, &crc.to_le_bytes());
        let sum = crc32(h.get(..size).unwrap_or_default());
        if let Some(d) = h.get_mut(16..20) {
            d.copy_from_slice(&sum.to_le_bytes());
        }
        h
    }
}

#[cfg(test)]
mod tests;
