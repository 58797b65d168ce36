//! What is known of each inode, by chunk.

use std::collections::BTreeMap;

use platter_vfs::FileKind;

use crate::ondisk::InodeNr;
use crate::ondisk::geometry::CHUNK_INODES;

/// What is known of an inode.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InodeState {
    /// Its type; `None` for one that is free, or could not be read.
    pub(super) kind: Option<FileKind>,
    /// It could not be read.
    pub(super) is_corrupt: bool,
    /// It is of the metadata directory tree.
    pub(super) is_metadata: bool,
    /// It is in a list of unlinked inodes.
    pub(super) is_unlinked: bool,
    /// The number of links that it counts.
    pub(super) links: u32,
    /// The number of links found.
    pub(super) found: u32,
    /// `di_gen`.
    pub(super) generation: u32,
}

/// The inodes of the chunks found.
#[derive(Debug, Default)]
pub(super) struct InodeStates {
    chunks: BTreeMap<u64, Box<[InodeState]>>,
}

impl InodeStates {
    /// Adds a chunk that begins with this number; returns whether no other one overlaps it.
    pub(super) fn add_chunk(&mut self, first: u64) -> bool {
        let end = first.saturating_add(CHUNK_INODES.into());
        let start = first.saturating_sub(u64::from(CHUNK_INODES) - 1);
        if self.chunks.range(start..end).next().is_some() {
            return false;
        }
        let states = vec![InodeState::default(); CHUNK_INODES as usize];
        self.chunks.insert(first, states.into());
        true
    }

    /// The state of an inode; `None` if no chunk holds it.
    pub(super) fn get(&self, inode: InodeNr) -> Option<&InodeState> {
        let (first, states) = self.chunks.range(..=inode.get()).next_back()?;
        states.get(usize::try_from(inode.get() - first).ok()?)
    }

    /// The state of an inode, to be changed.
    pub(super) fn get_mut(&mut self, inode: InodeNr) -> Option<&mut InodeState> {
        let (first, states) = self.chunks.range_mut(..=inode.get()).next_back()?;
        states.get_mut(usize::try_from(inode.get() - first).ok()?)
    }

    /// The inodes that are in use, and those that could not be read.
    pub(super) fn iter(&self) -> impl Iterator<Item = (InodeNr, &InodeState)> {
        self.chunks.iter().flat_map(|(&first, states)| {
            (first..)
                .zip(states.iter())
                .filter_map(|(number, state)| Some((InodeNr::new(number)?, state)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_is_found_in_its_chunk() {
        let mut states = InodeStates::default();
        assert!(states.add_chunk(128) && !states.add_chunk(190) && states.add_chunk(192));
        let number = |number| InodeNr::new(number).unwrap();
        states.get_mut(number(191)).unwrap().links = 3;
        assert_eq!(states.get(number(191)).unwrap().links, 3);
        assert!(states.get(number(127)).is_none() && states.get(number(256)).is_none());
        assert_eq!(states.iter().count(), 128);
    }
}
