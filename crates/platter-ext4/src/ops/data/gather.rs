//! Short new files on their way to the device together: what comes to lie side by side is written by
//! one request.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{MutexGuard, RwLockReadGuard};
use platter_cache::page::{DirtyPages, LockedPages};
use platter_vfs::writing::WRITEBACK_BATCH_MAX;
use platter_vfs::{Error, FileKind, Result};

use super::super::{Node, Tree};
use super::FileEnd;
use super::writeback::{Piece, Placement, Request, Target};
use crate::mapping::Backing;
use crate::ondisk::FileBlock;

/// Pages of a file that is short.
const SHORT_PAGES_MAX: u64 = 16;

/// A file whose dirty pages were taken.
struct Taken<'n> {
    node: &'n Node,
    /// Its end before that.
    end: FileEnd,
    pages: DirtyPages<Error>,
}

/// What became of the pages that were taken.
enum Outcome {
    Written,
    Failed(Error),
    /// It is no case for this: they are to be written on their own.
    Unfit,
}

/// A file with a place for all its dirty pages, which nobody else gives one.
struct Placed<'n> {
    node: &'n Node,
    offset: u64,
    end: u64,
    bufs: Vec<IoSlice<'n>>,
    piece: Piece,
    placement: MutexGuard<'n, Placement>,
    _stay: RwLockReadGuard<'n, ()>,
}

impl Tree {
    /// Writes files back. Errors are told to whoever syncs them, and noted.
    pub(in crate::ops) fn write_back_all(&self, nodes: &[Arc<Node>]) {
        for nodes in nodes.chunks(WRITEBACK_BATCH_MAX) {
            for node in self.write_together(nodes) {
                let _ = node.write_back();
            }
        }
    }

    /// Writes those of some files that are short and new. Gives the others.
    fn write_together<'n>(&self, nodes: &'n [Arc<Node>]) -> Vec<&'n Node> {
        let mut others = Vec::new();
        let mut taken = Vec::new();
        for node in nodes {
            match node.take_short() {
                Some(file) => taken.push(file),
                None => others.push(&**node),
            }
        }
        let outcomes = self.write_taken(&taken);
        for (file, outcome) in taken.into_iter().zip(outcomes) {
            let Taken { node, end, pages } = file;
            let written = match outcome {
                Outcome::Written => {
                    pages.end();
                    if node.pages.is_unwritten() {
                        // Another one writes the rest of it, which has to be waited for.
                        others.push(node);
                        continue;
                    }
                    Ok(())
                }
                Outcome::Failed(error) => {
                    pages.fail(error.clone());
                    Err(error)
                }
                Outcome::Unfit => {
                    drop(pages);
                    others.push(node);
                    continue;
                }
            };
            let _ = node.end_write_back(written, end);
        }
        others
    }

    fn write_taken(&self, taken: &[Taken<'_>]) -> Vec<Outcome> {
        // All pages are locked before anything of a file is, for which who has a page may wait.
        let locked: Vec<_> = taken.iter().map(|file| file.pages.lock()).collect();
        let mut placed: Vec<Option<Placed<'_>>> = taken
            .iter()
            .zip(&locked)
            .map(|(file, pages)| file.node.place_short(pages))
            .collect();
        let written = self.write_placed(&placed);
        let outcomes = placed.iter_mut().zip(written).map(|(placed, written)| {
            let Some(placed) = placed.take() else {
                return Outcome::Unfit;
            };
            match placed.map(written) {
                Ok(()) => Outcome::Written,
                Err(error) => Outcome::Failed(error),
            }
        });
        outcomes.collect()
    }

    /// Writes what lies side by side by one request. Gives what came of each file.
    fn write_placed(&self, placed: &[Option<Placed<'_>>]) -> Vec<Result<()>> {
        let bits = self.volume.geometry.block_bits;
        let mut order: Vec<(Range<u64>, usize)> = placed
            .iter()
            .enumerate()
            .filter_map(|(file, placed)| Some((placed.as_ref()?.place()?, file)))
            .collect();
        order.sort_unstable_by_key(|(place, _)| place.start);
        let mut results: Vec<Result<()>> = placed.iter().map(|_| Ok(())).collect();
        for run in order.chunk_by(|(left, _), (right, _)| left.end == right.start) {
            let files = || run.iter().filter_map(|&(_, file)| placed[file].as_ref());
            let requests: Vec<_> = files().map(|file| (file.request(), file)).collect();
            let bufs: Vec<_> = requests
                .iter()
                .flat_map(|(request, file)| request.blocks(&file.piece.run, bits))
                .collect();
            let offset = run[0].0.start << bits;
            if let Err(error) = self.write_data(offset, &bufs) {
                for &(_, file) in run {
                    results[file] = Err(error.clone());
                }
            }
        }
        results
    }
}

impl Node {
    /// Takes the dirty pages of a short file.
    fn take_short(&self) -> Option<Taken<'_>> {
        let is_new = !self.core.read().delayed.dirty().is_empty();
        if self.kind != FileKind::Regular || !is_new || self.journals_data() {
            return None;
        }
        let end = self.end();
        let pages = self.pages.take_dirty(SHORT_PAGES_MAX)?;
        self.data.is_replaced.store(false, Ordering::Release);
        Some(Taken {
            node: self,
            end,
            pages,
        })
    }

    /// Gives dirty pages that are new a place, if that can be had without waiting for others who write
    /// the file: they may wait for those who write another one.
    fn place_short<'n>(&'n self, pages: &'n LockedPages<'_, Error>) -> Option<Placed<'n>> {
        let stay = self.data.places.try_read()?;
        let mut placement = self.data.placement.try_lock()?;
        let pieces = pages.pieces(self.size_bytes());
        let offset = pieces.first()?.0;
        let mut end = offset;
        for (at, bytes) in &pieces {
            if *at != end {
                return None;
            }
            end += bytes.len() as u64;
        }
        let blocks = self.blocks_of(offset..end).ok()?;
        let (target, count) = self.target(blocks.clone()).ok()?;
        if !matches!(target, Target::New) || FileBlock(blocks.start.0 + count) != blocks.end {
            return None;
        }
        let piece = self.take(blocks, &mut placement).ok()?;
        if piece.run.count < count {
            let _ = self.give_back(piece);
            return None;
        }
        Some(Placed {
            node: self,
            offset,
            end,
            bufs: pieces
                .into_iter()
                .map(|(_, bytes)| IoSlice::new(bytes))
                .collect(),
            piece,
            placement,
            _stay: stay,
        })
    }
}

impl Placed<'_> {
    fn request(&self) -> Request<'_> {
        Request {
            offset: self.offset,
            end: self.end,
            bufs: &self.bufs,
        }
    }

    /// The blocks on the device.
    fn place(&self) -> Option<Range<u64>> {
        match self.piece.run.backing {
            Backing::Written(start) => Some(start.0..start.0 + u64::from(self.piece.run.count)),
            Backing::Hole | Backing::Unwritten(_) => None,
        }
    }

    /// Has the file's map name the place, once the bytes are there.
    fn map(mut self, written: Result<()>) -> Result<()> {
        let (run, end) = (self.piece.run, self.end);
        let mapped = written.and_then(|()| self.node.map_piece(&mut self.piece, end, None));
        match mapped {
            Ok(()) => {
                self.placement.note(&run);
                Ok(())
            }
            Err(error) => {
                self.node.give_back(self.piece)?;
                Err(error)
            }
        }
    }
}
