//! Directories without an index, in the order of storage. Spec: `ext4/directory` (linear
//! directories).

use platter_vfs::{Condition, DirSink, Error, FileKind, Name, Result};

use super::contents::{Contents, verifier};
use super::naming::Wanted;
use super::position::Position;
use super::{DirEntryRule, Directory, Found, Slot, Survey, Vacancy, listed};
use crate::ondisk::FileBlock;
use crate::ondisk::dir_entry::{self, Surveyed};

/// Offset of an implied `..`.
const DOTDOT_PLACE: u64 = 12;
/// Offset of the first entry after an implied `..`.
const DOTS_END: u64 = 24;

/// Searches all blocks. Returns an error only if the name was not found in another block.
pub(super) fn survey(directory: &Directory<'_>, wanted: &Wanted<'_>) -> Result<Survey> {
    let contents = &directory.contents;
    let mut corruption = None;
    let (mut gap, mut has_first) = (None, true);
    for number in 0..contents.chunk_count() {
        let chunk = match contents.read_in_order(number) {
            Ok(Some(chunk)) => chunk,
            Ok(None) => {
                has_first &= number > 0;
                continue;
            }
            Err(error) => {
                corruption.get_or_insert(error);
                continue;
            }
        };
        match look_through(directory, number, &chunk, wanted) {
            Ok(Survey::Missing(vacancy)) => gap = gap.or(vacancy.gap),
            Ok(there) => return Ok(there),
            Err(error) => {
                corruption.get_or_insert(error);
            }
        }
    }
    // A directory with a corrupt first block gets no new names.
    let gap = gap.filter(|_| has_first);
    corruption.map_or(Ok(Survey::Missing(Vacancy { gap })), Err)
}

/// Searches the entries of one block or region.
pub(super) fn look_through(
    directory: &Directory<'_>,
    chunk: u32,
    bytes: &[u8],
    wanted: &Wanted<'_>,
) -> Result<Survey> {
    let gaps_end = directory.names_end(chunk, bytes);
    let surveyed = dir_entry::survey(
        directory.format,
        bytes,
        (wanted.stored_len(), gaps_end),
        wanted.test(),
    );
    match surveyed.map_err(|broken| directory.broken_entry(chunk, broken))? {
        Surveyed::There { entry, before } => {
            let inode = entry.inode;
            let broken = (entry.offset, DirEntryRule::Inode);
            let inode = inode.ok_or_else(|| directory.broken_entry(chunk, broken))?;
            let kind = entry.kind;
            Ok(Survey::There(Slot {
                found: Found { inode, kind },
                chunk,
                before,
                offset: entry.offset,
            }))
        }
        Surveyed::Missing { gap } => {
            let gap = gap.map(|gap| (chunk, gap));
            Ok(Survey::Missing(Vacancy { gap }))
        }
    }
}

/// Where a new name is inserted into a directory without an index.
pub(super) enum Spot {
    /// Into a gap in this block.
    Gap(u32),
    /// Into this block, which is a hole.
    Hole(u32),
    /// Every block is full.
    Full,
}

impl Directory<'_> {
    /// Finds where to insert a name, after checking that it does not exist yet.
    pub(super) fn spot(&self, name: Name<'_>) -> Result<Spot> {
        let wanted = self.wanted(name)?;
        let (mut gap, mut hole) = (None, None);
        for number in 0..self.contents.chunk_count() {
            let Some(chunk) = self.contents.read_in_order(number)? else {
                if number == 0 {
                    return Err(self.broken_entry(0, (0, DirEntryRule::Dots)));
                }
                hole.get_or_insert(number);
                continue;
            };
            match look_through(self, number, &chunk, &wanted)? {
                Survey::There(_) => return Err(Condition::Exists.into()),
                Survey::Missing(vacancy) => gap = gap.or(vacancy.gap.map(|(chunk, _)| chunk)),
            }
        }
        if self.contents.chunk_count() == 0 {
            return Err(self.broken_entry(0, (0, DirEntryRule::Dots)));
        }
        Ok(match (gap, hole) {
            (Some(chunk), _) => Spot::Gap(chunk),
            (None, Some(block)) => Spot::Hole(block),
            (None, None) => Spot::Full,
        })
    }

    /// Returns the end of the part of a block or region that accepts new names.
    fn names_end(&self, chunk: u32, bytes: &[u8]) -> usize {
        if matches!(self.contents, Contents::Inline(_)) {
            return bytes.len();
        }
        let verifier = verifier(self.fs, self.inode, FileBlock(chunk));
        if verifier.checksum_seed.is_some() && verifier.is_index_block(bytes) {
            return 0;
        }
        self.content_len()
    }
}

/// Lists entries from a byte of the directory on. `corruption` is corruption found before.
pub(super) fn read(
    directory: &Directory<'_>,
    from: Position,
    corruption: Option<Error>,
    sink: &mut DirSink<'_>,
) -> Result<()> {
    let mut listing = Listing {
        directory,
        from: from.place,
        is_corrupt: from.is_corrupt,
        corruption,
    };
    if listing.list(sink) {
        return Ok(());
    }
    match listing.corruption {
        Some(error) => Err(error),
        // Skipped entries are before `from`: a listing from the start finds them again.
        None if from.is_corrupt => read(directory, Position::default(), None, &mut |_| {
            std::ops::ControlFlow::Continue(())
        }),
        None => Ok(()),
    }
}

struct Listing<'a, 'b> {
    directory: &'a Directory<'b>,
    from: u64,
    is_corrupt: bool,
    corruption: Option<Error>,
}

impl Listing<'_, '_> {
    /// Lists entries; returns whether the sink stopped.
    fn list(&mut self, sink: &mut DirSink<'_>) -> bool {
        let contents = &self.directory.contents;
        if self.list_implied(sink) {
            return true;
        }
        // An entry at `from` may have been merged with the preceding one: its block is searched.
        for number in contents.chunk_at(self.from)..contents.chunk_count() {
            let chunk = match contents.read_in_order(number) {
                Ok(Some(chunk)) => chunk,
                Ok(None) => continue,
                Err(error) => {
                    self.leave_out(error);
                    continue;
                }
            };
            if self.list_chunk(number, &chunk, sink) {
                return true;
            }
        }
        false
    }

    fn list_implied(&mut self, sink: &mut DirSink<'_>) -> bool {
        let Contents::Inline(inline) = &self.directory.contents else {
            return false;
        };
        let dots: [(u64, u64, &[u8], _); 2] = [
            (0, DOTDOT_PLACE, b".", self.directory.inode.number),
            (DOTDOT_PLACE, DOTS_END, b"..", inline.parent),
        ];
        dots.into_iter().any(|(place, next, name, inode)| {
            let entry = listed(name, inode, Some(FileKind::Directory), self.at(next));
            place >= self.from && entry.is_some_and(|entry| sink(entry).is_break())
        })
    }

    fn list_chunk(&mut self, number: u32, bytes: &[u8], sink: &mut DirSink<'_>) -> bool {
        let base = self.directory.contents.base(number);
        for entry in self.directory.format.entries(bytes) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(broken) => {
                    self.leave_out(self.directory.broken_entry(number, broken));
                    return false;
                }
            };
            let place = base.saturating_add(entry.offset as u64);
            let Some(inode) = entry.inode.filter(|_| place >= self.from) else {
                continue;
            };
            let next = self.at(base.saturating_add(entry.end as u64));
            let Some(listed) = listed(entry.name, inode, entry.kind, next) else {
                let broken = (entry.offset, DirEntryRule::NameBytes);
                self.leave_out(self.directory.broken_entry(number, broken));
                continue;
            };
            if sink(listed).is_break() {
                return true;
            }
        }
        false
    }

    fn leave_out(&mut self, error: Error) {
        self.is_corrupt = true;
        self.corruption.get_or_insert(error);
    }

    fn at(&self, place: u64) -> Position {
        Position {
            place,
            is_corrupt: self.is_corrupt,
        }
    }
}
