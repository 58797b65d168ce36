//! The bytes of an image in blocks that are copied when they are written: a mutant holds what differs
//! from its seed, and a seed holds no blocks of zeros.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use platter_block::{BlockDevice, FileDevice, OpenOptions};

/// A node of a btrfs mostly lies in one block.
const BLOCK_BYTES: usize = 16 << 10;
static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// The bytes of an image. A copy shares those of its original.
///
/// # Invariants
/// - Every block has the full size; bytes after the end are zeros.
#[derive(Clone)]
pub struct Contents {
    len: usize,
    shared: Arc<BTreeMap<usize, Box<[u8]>>>,
    changed: BTreeMap<usize, Box<[u8]>>,
}

impl Contents {
    /// Reads files, one after the other, as one image.
    pub fn read_files(paths: &[impl AsRef<Path>]) -> Result<Self> {
        let mut contents = Self {
            len: 0,
            shared: Arc::default(),
            changed: BTreeMap::new(),
        };
        for path in paths {
            let device = FileDevice::open(path.as_ref(), OpenOptions::default())?;
            let start = contents.len;
            contents.len += usize::try_from(device.geometry().len_bytes)?;
            let mut piece = vec![0; BLOCK_BYTES];
            let mut at = 0;
            while let Some(data) = device.next_data(at)? {
                for offset in data.clone().step_by(BLOCK_BYTES) {
                    let count = usize::try_from(data.end - offset)?.min(BLOCK_BYTES);
                    device.read_at(offset, &mut piece[..count])?;
                    contents.put(start + usize::try_from(offset)?, &piece[..count]);
                }
                at = data.end;
            }
        }
        Ok(contents.into_shared())
    }

    /// The same bytes, all of which copies share.
    #[must_use]
    pub fn into_shared(self) -> Self {
        let mut blocks = Arc::unwrap_or_clone(self.shared);
        blocks.extend(self.changed);
        blocks.retain(|_, block| **block != ZEROS);
        Self {
            len: self.len,
            shared: Arc::new(blocks),
            changed: BTreeMap::new(),
        }
    }

    /// The length of the image.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the image has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many bytes are held that are not shared.
    #[must_use]
    pub fn changed_bytes(&self) -> usize {
        self.changed.len() * BLOCK_BYTES
    }

    fn block(&self, index: usize) -> &[u8] {
        let block = self.changed.get(&index).or_else(|| self.shared.get(&index));
        block.map_or(&ZEROS, |block| block)
    }

    /// The bytes of a range; none if it is not all in the image.
    #[must_use]
    pub fn slice(&self, at: usize, len: usize) -> Cow<'_, [u8]> {
        if at.checked_add(len).is_none_or(|end| end > self.len) || len == 0 {
            return Cow::Borrowed(&[]);
        }
        let within = at % BLOCK_BYTES;
        if within + len <= BLOCK_BYTES {
            return Cow::Borrowed(&self.block(at / BLOCK_BYTES)[within..within + len]);
        }
        let mut bytes = vec![0; len];
        self.read(at, &mut bytes);
        Cow::Owned(bytes)
    }

    /// Fills `bytes` with what is at `at`; after the end of the image are zeros.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let within = (at + done) % BLOCK_BYTES;
            let count = (BLOCK_BYTES - within).min(bytes.len() - done);
            let block = self.block((at + done) / BLOCK_BYTES);
            bytes[done..done + count].copy_from_slice(&block[within..within + count]);
            done += count;
        }
    }

    /// Replaces bytes, if they are all in the image.
    pub fn put(&mut self, at: usize, value: &[u8]) {
        if at.checked_add(value.len()).is_none_or(|end| end > self.len) {
            return;
        }
        let mut done = 0;
        while done < value.len() {
            let (index, within) = ((at + done) / BLOCK_BYTES, (at + done) % BLOCK_BYTES);
            let count = (BLOCK_BYTES - within).min(value.len() - done);
            let shared = &self.shared;
            let copied = || shared.get(&index).map_or(&ZEROS[..], |block| block).into();
            let block = self.changed.entry(index).or_insert_with(copied);
            block[within..within + count].copy_from_slice(&value[done..done + count]);
            done += count;
        }
    }

    /// The first range at or after `at` that may hold bytes other than zero, at most a block of them.
    #[must_use]
    pub fn next_held(&self, at: usize) -> Option<Range<usize>> {
        let from = at / BLOCK_BYTES..;
        let shared = self.shared.range(from.clone()).next();
        let changed = self.changed.range(from).next();
        let (index, _) = shared
            .into_iter()
            .chain(changed)
            .min_by_key(|(index, _)| **index)?;
        let start = (index * BLOCK_BYTES).max(at);
        let end = ((index + 1) * BLOCK_BYTES).min(self.len);
        (start < end).then_some(start..end)
    }

    /// The ranges that may hold bytes other than zero, in order.
    pub fn held(&self) -> impl Iterator<Item = Range<usize>> {
        let next = |held: &Range<usize>| self.next_held(held.end);
        std::iter::successors(self.next_held(0), next)
    }

    /// All bytes of a range that is in the image.
    #[must_use]
    pub fn to_vec(&self, range: Range<usize>) -> Vec<u8> {
        self.slice(range.start, range.len()).into_owned()
    }

    /// Where two images of one length first differ.
    #[cfg(test)]
    pub(crate) fn first_difference(&self, other: &Self) -> Option<usize> {
        let differs = |range: Range<usize>| {
            let bytes = self.slice(range.start, range.len());
            let others = other.slice(range.start, range.len());
            let within = bytes.iter().zip(others.iter()).position(|(a, b)| a != b);
            within.map(|within| range.start + within)
        };
        self.held().chain(other.held()).filter_map(differs).min()
    }

    /// Writes a range as a file with holes.
    pub fn write_file(&self, range: Range<usize>, path: &Path) -> Result<()> {
        ensure!(range.end <= self.len, "no such range");
        let file = File::create(path)?;
        file.set_len(range.len() as u64)?;
        for held in self.held() {
            let (start, end) = (held.start.max(range.start), held.end.min(range.end));
            if start < end {
                let bytes = self.slice(start, end - start);
                file.write_all_at(&bytes, (start - range.start) as u64)?;
            }
        }
        Ok(())
    }
}

impl From<Vec<u8>> for Contents {
    fn from(bytes: Vec<u8>) -> Self {
        let mut contents = Self {
            len: bytes.len(),
            shared: Arc::default(),
            changed: BTreeMap::new(),
        };
        contents.put(0, &bytes);
        contents.into_shared()
    }
}

impl PartialEq for Contents {
    fn eq(&self, other: &Self) -> bool {
        let differs = |range: Range<usize>| {
            let len = range.len();
            self.slice(range.start, len) != other.slice(range.start, len)
        };
        self.len == other.len && !self.held().chain(other.held()).any(differs)
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Contents")
            .field("len", &self.len)
            .field("shared", &self.shared.len())
            .field("changed", &self.changed.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::prng::Prng;

    #[test]
    fn writes_change_what_a_vector_of_bytes_would() {
        let mut prng = Prng::new(3);
        let mut model = vec![0; 100_000];
        model[20_000..60_000].fill(7);
        let original = Contents::from(model.clone());
        let mut copy = original.clone();
        for _ in 0..200 {
            let at = usize::try_from(prng.below(100_010)).unwrap();
            let len = usize::try_from(prng.below(40_000)).unwrap();
            let value = vec![u8::try_from(prng.below(256)).unwrap(); len];
            copy.put(at, &value);
            if at + len <= model.len() {
                model[at..at + len].copy_from_slice(&value);
                assert_eq!(*copy.slice(at, len), value);
            } else {
                assert!(copy.slice(at, len).is_empty());
            }
            assert!(copy.to_vec(0..100_000) == model);
        }
        assert!(original != copy && copy == Contents::from(model));
        assert_eq!(original.held().collect::<Vec<_>>().len(), 3);
        assert_eq!(original.changed_bytes(), 0);
    }

    #[test]
    fn files_have_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["one", "two"].map(|name| dir.path().join(name));
        let mut contents = Contents::from(vec![0; 90_000]);
        contents.put(40_000, &[1; 12_000]);
        contents.write_file(0..50_000, &paths[0]).unwrap();
        contents.write_file(50_000..90_000, &paths[1]).unwrap();
        let read = Contents::read_files(&paths).unwrap();
        assert!(read == contents && read.len() == 90_000);
    }
}
