//! The writer's side of the buffer cache: changes, new versions, and getting them to the store.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use platter_ondisk::{Corruption, Locus, VerifierKey, Verify};

use super::edited::{Edit, Edited};
use super::key::{BlockAt, Key};
use super::table::Claim;
use super::version::{Buffer, Version};
use super::{BufferCache, BufferError, Core, edit};

/// Blocks in one request: well under what a vectored system call takes.
const RUN_BLOCKS_MAX: usize = 512;

impl<S> BufferCache<S> {
    /// Changes a block, validated by `verifier`, in place; a new version is made only if another
    /// reference to the current one exists. It is dirty from then on, and is sealed and validated at
    /// the latest when it is [sealed](Self::seal).
    ///
    /// Changes are counted in rounds, whose number the caller passes: each block has a first one
    /// in each round.
    ///
    /// `change` runs under the lock of the part of the table that the block is in: it looks at no block
    /// through the cache, and takes no lock that is held by a thread that does. Where it fails, or keeps
    /// the block, it has to leave the bytes as they were.
    ///
    /// # Errors
    /// As of [`read`](Self::read), and what `change` gives.
    pub fn edit<R, E: From<BufferError>>(
        &self,
        block: impl Into<BlockAt>,
        verifier: &dyn Verify,
        round: u64,
        change: impl FnOnce(&mut [u8]) -> Result<Edit<R>, E>,
    ) -> Result<Edited<R>, E> {
        edit::edit(&self.core, block.into(), verifier, round, change)
    }

    /// Looks at a block, validated by `verifier`, while no thread changes it. `look` takes no lock but
    /// those that are taken with the turn to change a block.
    pub fn inspect<R>(
        &self,
        block: impl Into<BlockAt>,
        verifier: &dyn Verify,
        look: impl FnOnce(&Buffer) -> R,
    ) -> Result<R, BufferError> {
        let key = self.core.key(block.into())?;
        let (_turn, version) = edit::validated_in_turn(&self.core, key, verifier)?;
        Ok(look(&Buffer { version }))
    }

    /// Returns the block's version, sealed and validated. It does not change any more: the next change
    /// makes a new one. `None` if the block is not cached.
    pub fn seal(&self, block: impl Into<BlockAt>) -> Result<Option<Buffer>, BufferError> {
        let Some(key) = self.core.addressing.locate(block.into()) else {
            return Ok(None);
        };
        let version = edit::seal(&self.core, key)?;
        Ok(version.map(|version| Buffer { version }))
    }

    /// The block's version as it is, sealed or not, if it is cached.
    #[must_use]
    pub fn current(&self, block: impl Into<BlockAt>) -> Option<Buffer> {
        let key = self.core.addressing.locate(block.into())?;
        loop {
            match self.core.table.find(key)? {
                Claim::Cached(version) => return Some(Buffer { version }),
                Claim::Edited => self.core.turns.wait(key),
                Claim::Wait(_) | Claim::Claimed(_) => return None,
            }
        }
    }

    /// The bytes of a version in memory of their own, to be changed and [published](Self::publish).
    #[must_use]
    pub fn copy(&self, buffer: &Buffer) -> Box<[u8]> {
        self.core.budget.copy_block(buffer)
    }

    /// Makes `bytes` the block's current version, sealed and validated by `verifier`, and dirty.
    ///
    /// References to an older version keep it. The new one stays in memory, beyond the budget if need
    /// be, until [`written`](Self::written), [`write_dirty`](Self::write_dirty) or
    /// [`forget`](Self::forget). Bytes that break a rule are refused: nothing changes.
    ///
    /// # Panics
    /// If `bytes` is not one block long.
    pub fn publish(
        &self,
        block: impl Into<BlockAt>,
        bytes: impl Into<Box<[u8]>>,
        verifier: &dyn Verify,
    ) -> Result<Buffer, BufferError> {
        let core = &*self.core;
        let key = core.key(block.into())?;
        let version = core.sealed(key, of_one_block(key, bytes), verifier)?;
        make_current(core, key, version)
    }

    /// As [`publish`](Self::publish), but sealed and validated later, as after an [edit](Self::edit): at the latest
    /// when it is [sealed](Self::seal).
    ///
    /// # Panics
    /// If `bytes` is not one block long.
    pub fn publish_changed(
        &self,
        block: impl Into<BlockAt>,
        bytes: impl Into<Box<[u8]>>,
        verifier: &dyn Verify,
    ) -> Result<(), BufferError> {
        let Some(rules) = verifier.kept() else {
            return self.publish(block, bytes, verifier).map(drop);
        };
        let core = &*self.core;
        let key = core.key(block.into())?;
        let mut version = core.charged_beyond(of_one_block(key, bytes));
        version.changed_as(rules);
        make_current(core, key, Arc::new(version)).map(drop)
    }

    /// Makes `bytes` the block's current version, dirty, without a seal: the caller writes a copy that it seals,
    /// and says when that is [written](Self::written). Until the block is read from the store again it passes as
    /// what `validated` says, which is not checked.
    ///
    /// [`write`](Self::write) and [`write_dirty`](Self::write_dirty) refuse the version.
    ///
    /// # Panics
    /// If `bytes` is not one block long.
    pub fn publish_unsealed(
        &self,
        block: impl Into<BlockAt>,
        bytes: impl Into<Box<[u8]>>,
        validated: VerifierKey,
    ) -> Result<Buffer, BufferError> {
        let core = &*self.core;
        let key = core.key(block.into())?;
        let version = core.charged_beyond(of_one_block(key, bytes));
        make_current(core, key, Arc::new(version.sealed_by_owner(validated)))
    }

    /// Says that `buffer` has reached its place in the store: it is clean from now on, unless a
    /// newer version took its place, which stays dirty.
    pub fn written(&self, block: impl Into<BlockAt>, buffer: &Buffer) {
        let core = &*self.core;
        if let Some(key) = core.addressing.locate(block.into()) {
            core.table.written(core.owner(), key, &buffer.version);
        }
    }

    /// Says that `buffer` will never reach its place, as the block was freed: it is forgotten, unless
    /// a newer version took its place.
    pub fn abandon(&self, block: impl Into<BlockAt>, buffer: &Buffer) {
        if let Some(key) = self.core.addressing.locate(block.into()) {
            self.core.table.abandon(key, &buffer.version);
        }
    }

    /// Writes versions of blocks to their places, neighbours that follow one another in one request. A
    /// version that is still that of its block turns clean. Returns the number of requests.
    ///
    /// The versions have to be [sealed](Self::seal). Durable only after a flush of the devices.
    pub fn write<B: Copy + Into<BlockAt>>(
        &self,
        blocks: &[(B, Buffer)],
    ) -> Result<usize, BufferError> {
        let mut versions = Vec::with_capacity(blocks.len());
        for (block, buffer) in blocks {
            let key = self.core.key((*block).into())?;
            versions.push((key, Arc::clone(&buffer.version)));
        }
        write_versions(&self.core, &versions)
    }

    /// Writes the dirty blocks that begin in `range` in ascending order, neighbours in one request, and
    /// turns them clean. Blocks made dirty meanwhile may be left. Returns how many were written.
    ///
    /// Durable only after a flush of the devices. One call writes at a time: two versions of one
    /// block must not race to the store.
    pub fn write_dirty(&self, range: Range<u64>) -> Result<usize, BufferError> {
        let core = &*self.core;
        let _turn = core.write_turn.lock();
        let mut written = 0;
        let mut rest = core.addressing.keys(&range);
        loop {
            let mut dirty = core.table.dirty_run(rest.clone(), RUN_BLOCKS_MAX);
            let Some(&(last, _)) = dirty.last() else {
                return Ok(written);
            };
            for (key, version) in dirty.iter_mut().filter(|(_, it)| !it.is_sealed()) {
                if let Some(sealed) = edit::seal(core, *key)? {
                    *version = sealed;
                }
            }
            write_versions(core, &dirty)?;
            written += dirty.len();
            rest.start = last.after();
        }
    }

    /// How many blocks are dirty.
    #[must_use]
    pub fn dirty_len(&self) -> usize {
        self.core.table.dirty_len()
    }

    /// Forgets a block, an unwritten version too: it was freed, or changed in the store without the
    /// cache. Versions that callers hold stay readable.
    pub fn forget(&self, block: impl Into<BlockAt>) {
        let repair = self.core.addressing.locate(block.into());
        let repair = repair.and_then(|key| self.core.table.forget(key));
        if let Some(repair) = repair {
            repair.wait();
        }
    }

    /// [Forgets](Self::forget) all blocks that begin in `range`, whatever their length. Looks at all that
    /// is cached.
    pub fn invalidate(&self, range: Range<u64>) {
        let keys = self.core.addressing.keys(&range);
        for repair in self.core.table.forget_all(&keys) {
            repair.wait();
        }
    }
}

/// Writes versions to all copies of their blocks, and turns them clean. Returns the number of requests.
fn write_versions(core: &Core, versions: &[(Key, Arc<Version>)]) -> Result<usize, BufferError> {
    let unsealed = versions.iter().find(|(_, it)| it.is_sealed_by_owner());
    if let Some((key, _)) = unsealed {
        let locus = Locus::block(core.addressing.address(*key));
        return Err(Corruption::new("metadata block", locus, "is not sealed here").into());
    }
    let mut requests = 0;
    for run in versions.chunk_by(|(left, _), (right, _)| left.end() == right.at()) {
        for run in run.chunks(RUN_BLOCKS_MAX) {
            let bufs: Vec<_> = run
                .iter()
                .map(|(_, version)| IoSlice::new(version.bytes()))
                .collect();
            core.store.write(run[0].0.at(), &bufs)?;
            requests += 1;
            for (key, version) in run {
                core.table.written(core.owner(), *key, version);
            }
        }
    }
    Ok(requests)
}

fn make_current(core: &Core, key: Key, version: Arc<Version>) -> Result<Buffer, BufferError> {
    let _turn = core.turns.take(key);
    core.publish(key, Arc::clone(&version), None)?;
    Ok(Buffer { version })
}

fn of_one_block(key: Key, bytes: impl Into<Box<[u8]>>) -> Box<[u8]> {
    let bytes = bytes.into();
    assert_eq!(
        bytes.len(),
        key.len_bytes() as usize,
        "a version is one block long"
    );
    bytes
}
