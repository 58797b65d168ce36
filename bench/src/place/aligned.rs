//! A buffer at a multiple of 4096, as direct I/O wants it.

const ALIGNMENT: usize = 4096;

/// Bytes whose first one lies at a multiple of 4096.
#[derive(Debug)]
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self {
        let bytes = vec![0; len + ALIGNMENT];
        // Fewer than the alignment, if the address is known.
        let start = bytes.as_ptr().align_offset(ALIGNMENT) % ALIGNMENT;
        Self { bytes, start, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_at_multiples_of_4096() {
        for len in [1, 4096, 10_000] {
            let mut buffer = Aligned::zeroed(len);
            assert_eq!(buffer.bytes().as_ptr().addr() % ALIGNMENT, 0);
            assert_eq!(buffer.bytes_mut().len(), len);
        }
    }
}
