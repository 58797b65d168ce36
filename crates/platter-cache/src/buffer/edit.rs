//! Changes of blocks: in place while no other reference to the version exists, and on a copy otherwise.
//! What is changed again and again is sealed once, before it is written.

use std::sync::Arc;

use platter_ondisk::{Corruption, Verify};

use super::edited::{Edit, Edited};
use super::key::{BlockAt, Key};
use super::table::{Claim, cost_bytes};
use super::turns::Turn;
use super::version::Version;
use super::{BufferError, Core, Search};

/// See [`BufferCache::edit`](super::BufferCache::edit).
pub(super) fn edit<R, E: From<BufferError>>(
    core: &Core,
    block: BlockAt,
    verifier: &dyn Verify,
    round: u64,
    change: impl FnOnce(&mut [u8]) -> Result<Edit<R>, E>,
) -> Result<Edited<R>, E> {
    let key = core.key(block)?;
    // That of most changes: others came before.
    let change = match core.table.change_alone(key, verifier.key(), round, change) {
        Ok(edited) => return edited,
        Err(change) => change,
    };
    let (_turn, version) = validated_in_turn(core, key, verifier)?;
    let kept = version.is_sealed().then(|| verifier.kept()).flatten();
    if version.is_sealed() && kept.is_none() {
        return edit_copy(core, key, &version, verifier, round, change);
    }
    Editing::begin(core, key, version).change(kept, round, change)
}

/// Returns the block's version, sealed and validated. `None` if the block is not cached.
pub(super) fn seal(core: &Core, key: Key) -> Result<Option<Arc<Version>>, BufferError> {
    let _turn = core.turns.take(key);
    let Some(Claim::Cached(version)) = core.table.find(key) else {
        return Ok(None);
    };
    if version.is_sealed() {
        return Ok(Some(version));
    }
    let mut editing = Editing::begin(core, key, version);
    editing.version_mut().seal(core.addressing.address(key))?;
    Ok(Some(editing.seal()?))
}

/// The block's version, validated, and the turn to change it.
pub(super) fn validated_in_turn<'c>(
    core: &'c Core,
    key: Key,
    verifier: &dyn Verify,
) -> Result<(Turn<'c>, Arc<Version>), BufferError> {
    let read = || core.read(&mut Search::new(key, verifier, None));
    let mut is_read = false;
    loop {
        let turn = core.turns.take(key);
        match core.table.find(key) {
            Some(Claim::Cached(version)) if version.is_validated_by(verifier.key()) => {
                return Ok((turn, version));
            }
            // The budget has no space for it.
            None if is_read => return Ok((turn, read()?)),
            _ => {}
        }
        drop(turn);
        // Other threads may wait for the turn: it is not held while the block is read.
        read()?;
        is_read = true;
    }
}

/// Changes a copy, which is sealed at once.
fn edit_copy<R, E: From<BufferError>>(
    core: &Core,
    key: Key,
    version: &Version,
    verifier: &dyn Verify,
    round: u64,
    change: impl FnOnce(&mut [u8]) -> Result<Edit<R>, E>,
) -> Result<Edited<R>, E> {
    let mut bytes: Box<[u8]> = version.bytes().into();
    match change(&mut bytes)? {
        Edit::Kept(result) => Ok(Edited::Kept(result)),
        Edit::Changed(result) => {
            let version = core.sealed(key, bytes, verifier)?;
            let is_first = core.publish(key, version, Some(round));
            let is_first = is_first.map_err(BufferError::from)?;
            Ok(Edited::Changed { result, is_first })
        }
    }
}

/// A version that is being changed by the thread that has the turn of its block.
struct Editing<'c> {
    core: &'c Core,
    key: Key,
    /// The version, not shared with any other thread.
    version: Option<Arc<Version>>,
    /// The block's version, where a copy of it is being changed. Held, so that no other thread finds
    /// it unshared and changes it in place.
    original: Option<Arc<Version>>,
}

impl<'c> Editing<'c> {
    fn begin(core: &'c Core, key: Key, version: Arc<Version>) -> Self {
        let (version, original) = match core.table.check_out(key, version) {
            Ok(version) => (version, None),
            Err(original) => {
                let charge = core.budget.charge_beyond(cost_bytes(original.bytes()));
                (Arc::new(original.duplicate(charge)), Some(original))
            }
        };
        Self {
            core,
            key,
            version: Some(version),
            original,
        }
    }
}

impl Editing<'_> {
    fn version_mut(&mut self) -> &mut Version {
        let version = self.version.as_mut().and_then(Arc::get_mut);
        let Some(version) = version else {
            unreachable!("a version that is being changed is not shared");
        };
        version
    }

    /// Makes what `change` makes of the version the block's. `rules` are those of a version that was
    /// sealed.
    fn change<R, E: From<BufferError>>(
        mut self,
        rules: Option<Box<dyn Verify>>,
        round: u64,
        change: impl FnOnce(&mut [u8]) -> Result<Edit<R>, E>,
    ) -> Result<Edited<R>, E> {
        let version = self.version_mut();
        let result = match version.change(change)? {
            Edit::Kept(result) => return Ok(Edited::Kept(result)),
            Edit::Changed(result) => result,
        };
        if let Some(rules) = rules {
            version.changed_as(rules);
        }
        let version = self.take_charged();
        let is_first = self.core.publish(self.key, version, Some(round));
        let is_first = is_first.map_err(BufferError::from)?;
        Ok(Edited::Changed { result, is_first })
    }

    /// Makes the sealed version the block's.
    fn seal(mut self) -> Result<Arc<Version>, Corruption> {
        let version = self.take_charged();
        let sealed = Arc::clone(&version);
        self.core.publish(self.key, version, None)?;
        Ok(sealed)
    }

    fn take_charged(&mut self) -> Arc<Version> {
        let budget = &self.core.budget;
        let version = self.version_mut();
        if !version.is_charged() {
            version.charge_with(budget.charge_beyond(cost_bytes(version.bytes())));
        }
        let Some(version) = self.version.take() else {
            unreachable!("a version is checked in once");
        };
        version
    }
}

impl Drop for Editing<'_> {
    /// Where nothing was changed, the block's version is what it was.
    fn drop(&mut self) {
        let Some(version) = self.version.take() else {
            return;
        };
        if self.original.is_none() {
            self.core.table.put_back(self.key, version);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use platter_block::{BlockDevice, MemoryDevice};
    use platter_ondisk::verify::Unverified;
    use platter_ondisk::{Corruption, Locus, VerifierKey};

    use super::*;
    use crate::MemoryBudget;
    use crate::buffer::BufferCache;

    const BLOCK: u32 = 512;
    const BAD: u8 = 255;

    /// The last byte is the sum of the others, and of the seed; the first is not [`BAD`].
    #[derive(Debug, Clone)]
    struct Summed {
        seed: u8,
        is_kept: bool,
        seals: Arc<AtomicUsize>,
    }

    impl Summed {
        fn new(seed: u8) -> Self {
            Self {
                seed,
                is_kept: true,
                seals: Arc::default(),
            }
        }

        fn sum(&self, bytes: &[u8]) -> u8 {
            let others = &bytes[..bytes.len() - 1];
            others
                .iter()
                .fold(self.seed, |sum, byte| sum.wrapping_add(*byte))
        }
    }

    impl Verify for Summed {
        fn key(&self) -> VerifierKey {
            VerifierKey {
                structure: 7,
                seed: u64::from(self.seed),
            }
        }

        fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
            let locus = Locus::block(block);
            if bytes.first() == Some(&BAD) {
                return Err(Corruption::new("summed block", locus, "begins badly"));
            }
            if bytes.last() == Some(&self.sum(bytes)) {
                return Ok(());
            }
            Err(Corruption::new("summed block", locus, "the sum is wrong"))
        }

        fn seal(&self, _: u64, bytes: &mut [u8]) {
            self.seals.fetch_add(1, Ordering::Relaxed);
            let sum = self.sum(bytes);
            if let Some(last) = bytes.last_mut() {
                *last = sum;
            }
        }

        fn kept(&self) -> Option<Box<dyn Verify>> {
            self.is_kept
                .then(|| Box::new(self.clone()) as Box<dyn Verify>)
        }
    }

    fn cache_within(bytes: u64) -> (Arc<MemoryDevice>, BufferCache) {
        let device = Arc::new(MemoryDevice::new("memory", vec![0; 16 << 10]));
        let below: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let budget = Arc::new(MemoryBudget::new(bytes));
        (device, BufferCache::new(below, BLOCK, budget))
    }

    fn cache() -> (Arc<MemoryDevice>, BufferCache) {
        cache_within(1 << 20)
    }

    /// Sets the first byte, and returns whether that is the first change of the round.
    fn set(cache: &BufferCache, verifier: &Summed, round: u64, byte: u8) -> bool {
        let edited = cache.edit(2, verifier, round, |bytes| {
            bytes[0] = byte;
            Ok::<_, BufferError>(Edit::Changed(()))
        });
        match edited.unwrap() {
            Edited::Changed { is_first, .. } => is_first,
            Edited::Kept(()) => unreachable!(),
        }
    }

    fn seals(verifier: &Summed) -> usize {
        verifier.seals.load(Ordering::Relaxed)
    }

    #[test]
    fn a_block_changed_often_is_sealed_once() {
        let (device, cache) = cache();
        let verifier = Summed::new(0);
        assert!(set(&cache, &verifier, 1, 1));
        assert!((2..9).all(|byte| !set(&cache, &verifier, 1, byte)));
        assert!(set(&cache, &verifier, 2, 9));
        assert_eq!(cache.read(2, &verifier).unwrap()[0], 9);
        assert_eq!(seals(&verifier), 0);
        let sealed = cache.seal(2).unwrap().unwrap();
        assert_eq!((seals(&verifier), sealed[BLOCK as usize - 1]), (1, 9));
        assert_eq!(cache.write_dirty(0..9).unwrap(), 1);
        assert_eq!(seals(&verifier), 1);
        assert_eq!(device.snapshot()[2 * BLOCK as usize], 9);
        assert!(cache.seal(3).unwrap().is_none());
    }

    #[test]
    fn new_blocks_are_sealed_and_validated_when_they_are_written() {
        let (device, cache) = cache();
        let verifier = Summed::new(0);
        let block = || vec![3; BLOCK as usize];
        cache.publish_changed(2, block(), &verifier).unwrap();
        assert_eq!(cache.read(2, &verifier).unwrap()[..], block()[..]);
        assert!(set(&cache, &verifier, 1, 4));
        assert_eq!(seals(&verifier), 0);
        assert_eq!(cache.write_dirty(0..9).unwrap(), 1);
        assert_eq!(seals(&verifier), 1);
        assert_eq!(device.snapshot()[2 * BLOCK as usize], 4);
        let bad = vec![BAD; BLOCK as usize];
        cache.publish_changed(4, bad, &verifier).unwrap();
        assert!(cache.seal(4).is_err());
        assert!(cache.write_dirty(0..9).is_err());
        let mut at_once = Summed::new(0);
        at_once.is_kept = false;
        cache.publish_changed(6, block(), &at_once).unwrap();
        assert_eq!(seals(&at_once), 1);
    }

    #[test]
    fn bytes_that_break_a_rule_are_neither_sealed_nor_written() {
        let (device, cache) = cache();
        let verifier = Summed::new(0);
        set(&cache, &verifier, 1, 4);
        cache.write_dirty(0..9).unwrap();
        set(&cache, &verifier, 2, BAD);
        let error = cache.seal(2).unwrap_err().to_string();
        assert!(error.contains("begins badly"), "{error}");
        assert!(cache.write_dirty(0..9).is_err());
        assert_eq!(device.snapshot()[2 * BLOCK as usize], 4);
        assert_eq!(cache.dirty_len(), 1);
        set(&cache, &verifier, 2, 5);
        assert_eq!(cache.write_dirty(0..9).unwrap(), 1);
        assert_eq!(device.snapshot()[2 * BLOCK as usize], 5);
    }

    #[test]
    fn held_version_stays_unchanged() {
        let (_, cache) = cache();
        let verifier = Summed::new(0);
        set(&cache, &verifier, 1, 1);
        let held = cache.read(2, &verifier).unwrap();
        set(&cache, &verifier, 1, 2);
        let sealed = cache.seal(2).unwrap().unwrap();
        set(&cache, &verifier, 1, 3);
        let now = cache.current(2).unwrap();
        assert_eq!((held[0], sealed[0], now[0]), (1, 2, 3));
        assert_eq!(cache.dirty_len(), 1);
    }

    #[test]
    fn bytes_without_a_seal_are_sealed_for_others() {
        let (device, cache) = cache();
        let verifier = Summed::new(0);
        set(&cache, &verifier, 1, 5);
        let raw = cache.read(2, &Unverified).unwrap();
        assert_eq!((raw[0], raw[BLOCK as usize - 1]), (5, 5));
        assert!(cache.read(2, &Summed::new(1)).is_err());
        let edited = cache.edit(2, &Summed::new(1), 1, |_| {
            Ok::<_, BufferError>(Edit::Changed(()))
        });
        assert!(edited.is_err());
        drop(raw);
        set(&cache, &verifier, 1, 6);
        cache.write_dirty(0..9).unwrap();
        assert_eq!(device.snapshot()[3 * BLOCK as usize - 1], 6);
    }

    #[test]
    fn rules_that_cannot_be_kept_are_applied_at_once() {
        let (_, cache) = cache();
        let mut verifier = Summed::new(0);
        verifier.is_kept = false;
        assert!(set(&cache, &verifier, 1, 1));
        assert!(!set(&cache, &verifier, 1, 2));
        assert_eq!(seals(&verifier), 2);
        let raw = cache.read(2, &Unverified).unwrap();
        assert_eq!(raw[BLOCK as usize - 1], 2);
    }

    #[test]
    fn a_change_that_fails_leaves_the_block_as_it_was() {
        for bytes in [1 << 20, 100] {
            let (_, cache) = cache_within(bytes);
            let failed = cache.edit(2, &Summed::new(0), 1, |_| {
                let error = platter_block::IoError::new(
                    &Arc::from("memory"),
                    platter_block::Operation::Read,
                    0,
                    0,
                    std::io::Error::other("no"),
                );
                Err::<Edit<()>, BufferError>(error.into())
            });
            assert!(failed.is_err());
            let kept = cache.edit(2, &Summed::new(0), 1, |bytes| {
                Ok::<_, BufferError>(Edit::Kept(bytes[0]))
            });
            assert_eq!(kept.unwrap(), Edited::Kept(0));
            assert_eq!(cache.dirty_len(), 0);
            assert!(set(&cache, &Summed::new(0), 1, 4), "the first that came");
            assert_eq!(cache.read(2, &Summed::new(0)).unwrap()[0], 4);
        }
    }
}
