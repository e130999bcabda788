//! Buffers whose start is aligned for direct I/O, without unsafe code: a few bytes of slack are skipped.

/// Alignment in bytes; enough for every logical block size that is supported.
pub const ALIGN: usize = 4096;

/// A zeroed buffer that starts at a multiple of [`ALIGN`].
#[derive(Debug)]
pub struct AlignedBuf {
    store: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let store = vec![0u8; len + ALIGN];
        let start = store.as_ptr().align_offset(ALIGN).min(ALIGN);
        AlignedBuf { store, start, len }
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.store.get(self.start..self.start + self.len).unwrap_or(&[])
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.store
            .get_mut(self.start..self.start + self.len)
            .unwrap_or(&mut [])
    }
}

/// Whether every byte is zero.
pub fn is_zero(b: &[u8]) -> bool {
    // Compared in blocks, which compiles to vector instructions; the first difference ends it.
    const ZEROS: [u8; 4096] = [0; 4096];
    b.chunks(ZEROS.len())
        .all(|c| ZEROS.get(..c.len()).is_some_and(|z| z == c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_start_aligned() {
        for len in [0, 1, 512, 4096, 1 << 20] {
            let mut b = AlignedBuf::zeroed(len);
            assert_eq!(b.len(), len);
            assert_eq!(b.as_ptr().align_offset(ALIGN), 0);
            assert!(is_zero(&b));
            if let Some(last) = b.last_mut() {
                *last = 1;
                assert!(!is_zero(&b));
            }
        }
    }
}
