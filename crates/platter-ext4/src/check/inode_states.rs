//! A record for every inode: twelve bytes each, allocated only for tables with inodes in use.

use platter_vfs::FileKind;

use crate::ondisk::InodeNr;

const CHUNK_LEN: usize = 512;

/// The use of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Use {
    /// Free, or deleted.
    #[default]
    Unused,
    /// In use, referenced by directory entries.
    Named,
    /// In use, referenced by attributes.
    AttributeValue,
    /// Unlinked, on the orphan list.
    Orphan,
    /// Reserved for the filesystem.
    Reserved,
}

/// The record of one inode.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InodeState {
    pub(super) used_as: Use,
    /// Its type; `None` if the inode is corrupt.
    pub(super) kind: Option<FileKind>,
    pub(super) is_encrypted: bool,
    /// `i_links_count`.
    pub(super) links: u16,
    /// Number of directory entries found, saturating.
    pub(super) names: u16,
    /// The first directory found to reference it.
    pub(super) parent: Option<InodeNr>,
}

const _: () = assert!(size_of::<InodeState>() == 12);

impl InodeState {
    /// Counts a directory entry.
    pub(super) fn add_name(&mut self) {
        self.names = self.names.saturating_add(1);
    }
}

/// The records of all inodes.
#[derive(Debug, Default)]
pub(super) struct InodeStates {
    chunks: Vec<Option<Box<[InodeState; CHUNK_LEN]>>>,
}

impl InodeStates {
    pub(super) fn get(&self, inode: InodeNr) -> InodeState {
        let (chunk, index) = place(inode);
        let chunk = self.chunks.get(chunk).and_then(Option::as_ref);
        chunk.map_or_else(InodeState::default, |chunk| chunk[index])
    }

    pub(super) fn get_mut(&mut self, inode: InodeNr) -> &mut InodeState {
        let (chunk, index) = place(inode);
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let chunk = &mut self.chunks[chunk];
        &mut chunk.get_or_insert_with(|| Box::new([InodeState::default(); CHUNK_LEN]))[index]
    }

    /// Returns the inodes in use, in ascending order.
    pub(super) fn used(&self) -> impl Iterator<Item = (InodeNr, InodeState)> + '_ {
        let chunks = self.chunks.iter().enumerate();
        let chunks = chunks.filter_map(|(number, chunk)| Some((number, chunk.as_ref()?)));
        chunks.flat_map(|(number, chunk)| {
            let states = chunk.iter().enumerate();
            let used = states.filter(|(_, state)| state.used_as != Use::Unused);
            used.filter_map(move |(index, state)| {
                let inode = u32::try_from(number * CHUNK_LEN + index).ok()?;
                Some((InodeNr::new(inode)?, *state))
            })
        })
    }
}

fn place(inode: InodeNr) -> (usize, usize) {
    let number = inode.get() as usize;
    (number / CHUNK_LEN, number % CHUNK_LEN)
}
