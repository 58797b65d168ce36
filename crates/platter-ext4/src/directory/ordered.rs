//! Listing in hash order: leaf by leaf along the index, or, if it is missing or corrupt, by passes
//! over all blocks that collect the next names.

use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use platter_vfs::{DirSink, Error, FileKind, Result};

use super::contents::Contents;
use super::hash::NameHash;
use super::index::Walker;
use super::naming::Hashing;
use super::position::{Position, major_at, place_of_hash, place_of_major, without_ordinal};
use super::{DirEntryRule, Directory, HtreeRule, listed};
use crate::ondisk::{FileBlock, InodeNr};

/// Maximum number of leaves that continue one hash.
const CHAIN_LEAVES_MAX: u32 = 1024;
/// Minimum number of names kept in one pass: more than the cursor can distinguish.
const PASS_NAMES_MIN: usize = 4 * Position::ORDINALS;
/// Maximum number of names kept in one pass over all blocks.
const PASS_NAMES_MAX: usize = 1 << 18;
/// The hash that `..` is listed with in an indexed directory; that of `.` is zero.
const DOTDOT_HASH: u32 = 2;

/// A directory that is listed in hash order.
pub(super) struct Ordered<'a, 'b> {
    directory: &'a Directory<'b>,
    hashing: Hashing,
}

/// A name to list, ordered as in the listing.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    hash: NameHash,
    name: Box<[u8]>,
    inode: InodeNr,
    kind: Option<FileKind>,
    chunk: u32,
    offset: usize,
}

/// State of a listing.
struct Progress {
    /// The first position not listed yet.
    place: u64,
    is_corrupt: bool,
    corruption: Option<Error>,
}

/// The sink stopped the listing.
struct Broke;

impl<'a, 'b> Ordered<'a, 'b> {
    pub(super) fn new(directory: &'a Directory<'b>, hashing: Hashing) -> Self {
        Self { directory, hashing }
    }

    pub(super) fn read(&self, from: Position, sink: &mut DirSink<'_>) -> Result<()> {
        let mut progress = Progress {
            place: from.place,
            is_corrupt: from.is_corrupt,
            corruption: None,
        };
        let mut is_done = false;
        if self.directory.is_indexed() && !from.is_corrupt {
            match self.walk(&mut progress, sink) {
                Ok(ControlFlow::Break(Broke)) => return Ok(()),
                Ok(ControlFlow::Continue(())) => is_done = true,
                Err(error) => progress.leave_out(error),
            }
        }
        if !is_done && self.pass_through(&mut progress, sink).is_break() {
            return Ok(());
        }
        match progress.corruption {
            Some(error) => Err(error),
            // Skipped entries are before `from`: a listing from the start finds them again.
            None if from.is_corrupt => {
                self.read(Position::default(), &mut |_| ControlFlow::Continue(()))
            }
            None => Ok(()),
        }
    }

    /// Lists along the index.
    fn walk(&self, progress: &mut Progress, sink: &mut DirSink<'_>) -> Result<ControlFlow<Broke>> {
        let mut walker = Walker::open(self.directory)?;
        walker.seek(major_at(progress.place))?;
        loop {
            let lower = walker.boundary()? & !1;
            let mut batch = Vec::new();
            let upper = self.collect_chain(&mut walker, &mut batch)?;
            let is_within = |major: u32| major >= lower && upper.is_none_or(|upper| major < upper);
            if !batch.iter().all(|listed| is_within(listed.hash.major)) {
                let block = batch.first().map_or(0, |listed| listed.chunk);
                return Err(self
                    .directory
                    .broken_index(FileBlock(block), HtreeRule::Placement));
            }
            self.add_dots(&mut batch, is_within)?;
            batch.sort_unstable();
            if self.emit(batch, progress, sink).is_break() {
                return Ok(ControlFlow::Break(Broke));
            }
            let Some(upper) = upper else {
                return Ok(ControlFlow::Continue(()));
            };
            progress.place = progress.place.max(place_of_major(upper));
            walker.advance()?;
        }
    }

    /// Collects a leaf and following ones that continue its last hash. Returns the lowest hash
    /// after them.
    fn collect_chain(
        &self,
        walker: &mut Walker<'_, '_>,
        batch: &mut Vec<Listed>,
    ) -> Result<Option<u32>> {
        for _ in 0..CHAIN_LEAVES_MAX {
            walker.announce()?;
            let (block, leaf) = walker.read_leaf()?;
            for entry in self.directory.format.entries(&leaf) {
                let entry = entry.map_err(|broken| self.directory.broken_entry(block.0, broken))?;
                batch.extend(self.prepare(block.0, &entry));
            }
            match walker.next_boundary()? {
                Some(next) if next & 1 == 1 => walker.advance()?,
                upper => return Ok(upper),
            };
        }
        Err(self
            .directory
            .broken_index(FileBlock(0), HtreeRule::Collisions))
    }

    /// Adds `.` and `..`, which are in the root and are listed first.
    fn add_dots(&self, batch: &mut Vec<Listed>, is_within: impl Fn(u32) -> bool) -> Result<()> {
        if !is_within(0) && !is_within(DOTDOT_HASH) {
            return Ok(());
        }
        let root = self.directory.contents.read(0)?;
        for entry in root
            .iter()
            .flat_map(|root| self.directory.format.entries(root))
        {
            let entry = entry.map_err(|broken| self.directory.broken_entry(0, broken))?;
            let dot = self.prepare(0, &entry);
            batch.extend(dot.filter(|dot| is_within(dot.hash.major)));
        }
        Ok(())
    }

    /// Lists by passes over all blocks, as many as needed. Each pass makes progress: it keeps more
    /// names than the cursor's ordinals distinguish.
    fn pass_through(&self, progress: &mut Progress, sink: &mut DirSink<'_>) -> ControlFlow<Broke> {
        let chunks = self.directory.contents.chunk_count() as usize;
        let names_max = chunks
            .saturating_mul(8)
            .clamp(PASS_NAMES_MIN, PASS_NAMES_MAX);
        loop {
            let (batch, is_last) = self.next_names(progress, names_max);
            self.emit(batch, progress, sink)?;
            if is_last {
                return ControlFlow::Continue(());
            }
        }
    }

    /// Returns the next names in order, at most `names_max`, and whether they are the last.
    fn next_names(&self, progress: &mut Progress, names_max: usize) -> (Vec<Listed>, bool) {
        let first = without_ordinal(progress.place);
        let mut is_last = true;
        let mut next: BinaryHeap<Listed> = BinaryHeap::new();
        let mut keep = |listed: Listed| {
            if place_of_hash(listed.hash) < first {
                return;
            }
            next.push(listed);
            if next.len() > names_max {
                next.pop();
                is_last = false;
            }
        };
        self.implied_dots().into_iter().for_each(&mut keep);
        let contents = &self.directory.contents;
        for number in 0..contents.chunk_count() {
            let chunk = match contents.read_in_order(number) {
                Ok(Some(chunk)) => chunk,
                Ok(None) => continue,
                Err(error) => {
                    progress.leave_out(error);
                    continue;
                }
            };
            for entry in self.directory.format.entries(&chunk) {
                match entry {
                    Ok(entry) => self.prepare(number, &entry).into_iter().for_each(&mut keep),
                    Err(broken) => {
                        progress.leave_out(self.directory.broken_entry(number, broken));
                    }
                }
            }
        }
        (next.into_sorted_vec(), is_last)
    }

    /// Returns `.` and `..` of an inline directory, which does not store them.
    fn implied_dots(&self) -> Vec<Listed> {
        let Contents::Inline(inline) = &self.directory.contents else {
            return Vec::new();
        };
        [
            (&b"."[..], self.directory.inode.number),
            (b"..", inline.parent),
        ]
        .into_iter()
        .map(|(name, inode)| Listed {
            hash: self.hashing.order(name),
            name: name.into(),
            inode,
            kind: Some(FileKind::Directory),
            chunk: 0,
            offset: 0,
        })
        .collect()
    }

    /// Converts an entry in use into a name to list.
    fn prepare(&self, chunk: u32, entry: &super::Entry<'_>) -> Option<Listed> {
        let is_root = chunk == 0 && self.directory.is_indexed();
        let hash = match entry.name {
            b"." if is_root => NameHash::default(),
            b".." if is_root => NameHash {
                major: DOTDOT_HASH,
                minor: 0,
            },
            name => self.hashing.order(name),
        };
        Some(Listed {
            hash,
            name: entry.name.into(),
            inode: entry.inode?,
            kind: entry.kind,
            chunk,
            offset: entry.offset,
        })
    }

    /// Passes names in order to the sink, from the current position on.
    fn emit(
        &self,
        batch: Vec<Listed>,
        progress: &mut Progress,
        sink: &mut DirSink<'_>,
    ) -> ControlFlow<Broke> {
        let (mut group, mut ordinal) = (None, 0);
        for name in batch {
            let first = place_of_hash(name.hash);
            ordinal = if group == Some(first) { ordinal + 1 } else { 0 };
            group = Some(first);
            if ordinal >= Position::ORDINALS {
                let block = FileBlock(name.chunk);
                progress.leave_out(self.directory.broken_index(block, HtreeRule::Collisions));
                continue;
            }
            let place = first.saturating_add(ordinal as u64);
            if place < progress.place {
                continue;
            }
            progress.place = place.saturating_add(1);
            match listed(&name.name, name.inode, name.kind, progress.position()) {
                Some(entry) if sink(entry).is_break() => return ControlFlow::Break(Broke),
                Some(_) => {}
                None => {
                    let broken = (name.offset, DirEntryRule::NameBytes);
                    progress.leave_out(self.directory.broken_entry(name.chunk, broken));
                }
            }
        }
        ControlFlow::Continue(())
    }
}

impl Progress {
    fn leave_out(&mut self, error: Error) {
        self.is_corrupt = true;
        self.corruption.get_or_insert(error);
    }

    fn position(&self) -> Position {
        Position {
            place: self.place,
            is_corrupt: self.is_corrupt,
        }
    }
}
