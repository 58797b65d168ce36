//! Opening a filesystem for writing: what is refused, and what is read first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use platter_block::lock::Mutex;
use platter_cache::commit::Transactions;
use platter_vfs::{Clock, Error, Result, Unsupported};

use super::chunks::ChunkAllocator;
use super::log_trees::Logs;
use super::orphans::DelayedOrphans;
use super::quotas::Quotas;
use super::space::Reservations;
use super::stripes::StripedLocks;
use super::{InPlaceGate, Running, WriteContext, WriteOptions, ended, space, trees};
use crate::block_group::{BlockGroups, load_groups};
use crate::context::FsContext;
use crate::delayed_refs::DelayedRefs;
use crate::ondisk::chunk_item::Stripe;
use crate::ondisk::dev_replace::{DevReplace, ReplaceState};
use crate::ondisk::features::CompatRo;
use crate::ondisk::key::ItemKind;
use crate::ondisk::superblock::SuperblockFlags;
use crate::ondisk::{Generation, Key, TreeId};

impl WriteContext {
    /// Opens a filesystem for writing.
    ///
    /// # Errors
    /// `Unsupported`, by name, for what is not written; those of reading.
    pub fn open(context: FsContext, options: WriteOptions, clock: Arc<dyn Clock>) -> Result<Self> {
        if context.superblock.log_root.is_some() {
            let reason = "mount it for writing, and unmount it";
            return Err(unsupported(
                "changing an image with a log tree",
                Some(reason),
            ));
        }
        Self::open_with_log(context, options, clock)
    }

    /// As [`open`](Self::open), of a filesystem that may have a log tree, which the caller replays before anything
    /// else.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_with_log(
        context: FsContext,
        options: WriteOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        refuse_unwritable(&context)?;
        let quotas = Quotas::open(&context, options.counting)?;
        let superblock = context.superblock.clone();
        let first = Running {
            generation: first_generation(&context),
            blocks: 0,
            delayed_blocks: 0,
        };
        let has_group_tree = superblock.features.compat_ro;
        let group_tree = if has_group_tree.contains(CompatRo::BLOCK_GROUP_TREE) {
            TreeId::BLOCK_GROUP
        } else {
            TreeId::EXTENT
        };
        let tree = context.required_tree(group_tree)?;
        let map = context.blocks.store().map();
        let groups = load_groups(&context.blocks, tree, &map)?;
        let chunks = ChunkAllocator::new(&superblock);
        let opened = Self {
            features: Mutex::new(superblock.features),
            superblock: Mutex::new(superblock),
            trees: Mutex::new(BTreeMap::new()),
            snapshots: Mutex::default(),
            planned: Mutex::default(),
            relocation: Mutex::default(),
            refs: DelayedRefs::with_heads(|| options.heads()),
            groups: BlockGroups::new(groups),
            chunks,
            reservations: Reservations::default(),
            quotas,
            new_data: Mutex::default(),
            shared: StripedLocks::default(),
            in_place: InPlaceGate::default(),
            logs: Logs::default(),
            orphans: DelayedOrphans::default(),
            pinned: Mutex::default(),
            new_blocks: Mutex::new(BTreeSet::new()),
            transactions: Transactions::new(first, options.blocks_max, ended()),
            options,
            clock,
            stops_moving: AtomicBool::new(false),
            copied: AtomicU64::new(0),
            extent_searches: AtomicU64::new(0),
            inodes_recorded: AtomicU64::new(0),
            inode_items_written: AtomicU64::new(0),
            leaf_searches: AtomicU64::new(0),
            leaf_changes: AtomicU64::new(0),
            reported: Mutex::default(),
            prepared: Mutex::default(),
            last_commit: Mutex::default(),
            context,
        };
        // Trees that change while others are locked are open before.
        let always = [TreeId::ROOT, TreeId::CHUNK, TreeId::EXTENT, TreeId::DEV];
        for id in always.into_iter().chain([TreeId::CSUM, group_tree]) {
            opened.tree(id)?;
        }
        if trees::has_free_space_tree(&opened) {
            opened.tree(TreeId::FREE_SPACE)?;
        }
        if opened.quotas.is_some() {
            opened.tree(TreeId::QUOTA)?;
        }
        space::count_global_reserve(&opened)?;
        Ok(opened)
    }
}

/// How much older a device's generation may be than that of others: superblocks are written in sequence.
const GENERATION_LAG_MAX: u64 = 1;

/// The generation of the first transaction. Without all devices one is left out, so that those that were missing are
/// known from it however few commits there are.
fn first_generation(context: &FsContext) -> Generation {
    let members = context.blocks.store().members();
    let mut missing = members.missing();
    let step = if missing.next().is_some() {
        GENERATION_LAG_MAX + 1
    } else {
        1
    };
    Generation(context.superblock.generation.0.saturating_add(step))
}

/// Refuses a filesystem that would not be right after it was written.
fn refuse_unwritable(context: &FsContext) -> Result<()> {
    let superblock = &context.superblock;
    let compat_ro = superblock.features.compat_ro;
    if superblock.flags.contains(SuperblockFlags::SEEDING) {
        return Err(unsupported("writing to a seed device", None));
    }
    let unknown = compat_ro.difference(CompatRo::all());
    if !unknown.is_empty() || !superblock.features.unreadable().is_empty() {
        let feature = format!("writing with the features {:#x}", unknown.bits());
        return Err(unsupported(&feature, None));
    }
    let is_valid = CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
    let has_tree = compat_ro.contains(CompatRo::FREE_SPACE_TREE);
    if has_tree && !compat_ro.contains(is_valid) {
        let feature = "writing with a free space tree that is not valid";
        return Err(unsupported(feature, None));
    }
    // Free space caches of version 1 are void from the first commit on: the superblock does not say that they
    // are of its generation.
    refuse_relocation(context)?;
    refuse_replacement(context)?;
    refuse_devices(context)?;
    read_roots(context)
}

/// Reads the roots of trees that are changed later: a commit must not be the first to fail on them.
fn read_roots(context: &FsContext) -> Result<()> {
    let compat_ro = context.superblock.features.compat_ro;
    let has_space = compat_ro.contains(CompatRo::FREE_SPACE_TREE);
    let space = has_space.then_some(TreeId::FREE_SPACE);
    let changed = [TreeId::UUID, TreeId::DATA_RELOC].into_iter().chain(space);
    for id in changed {
        if let Some(tree) = context.tree(id)? {
            context.blocks.read_root(tree)?;
        }
    }
    Ok(())
}

/// Refuses a filesystem in which a crash of the kernel left trees of a chunk that was being moved: the kernel takes
/// blocks of them for blocks of the subvolumes, which must not have changed. The item of a paused balance stays as it
/// is: there are no such trees until the kernel resumes it.
fn refuse_relocation(context: &FsContext) -> Result<()> {
    let mut cursor = context.cursor(context.root_tree());
    let first = Key::new(TreeId::TREE_RELOC.0, ItemKind::ROOT_ITEM, 0);
    cursor.seek(first)?;
    let is_left = |key: Key| (key.object, key.kind) == (first.object, first.kind);
    if cursor.key().is_some_and(is_left) {
        let reason = "mount it by the kernel, which ends that";
        return Err(unsupported(
            "writing while a chunk is being moved",
            Some(reason),
        ));
    }
    Ok(())
}

/// Refuses a device replacement that was not finished: what is written has to reach the target as well.
fn refuse_replacement(context: &FsContext) -> Result<()> {
    let tree = context.required_tree(TreeId::DEV)?;
    let key = Key::new(0, ItemKind::DEV_REPLACE, 0);
    let replace = context.find(tree, key, |data| {
        Ok(DevReplace::decode(data, tree.locus(key))?)
    })?;
    match replace.map(|replace| replace.state) {
        Some(ReplaceState::Started | ReplaceState::Suspended) => {
            Err(unsupported("writing during a device replacement", None))
        }
        Some(ReplaceState::NeverStarted | ReplaceState::Finished | ReplaceState::Canceled)
        | None => Ok(()),
    }
}

/// Refuses stale, truncated and seed devices, missing ones that are needed, and chunks that are not written.
fn refuse_devices(context: &FsContext) -> Result<()> {
    let store = context.blocks.store();
    let members = store.members();
    let superblock = &context.superblock;
    if members.iter().any(|it| it.fsid != superblock.metadata_uuid) {
        return Err(unsupported(
            "writing to a filesystem with seed devices",
            None,
        ));
    }
    for member in members.iter() {
        let is_stale = |generation: Generation| {
            generation.0.saturating_add(GENERATION_LAG_MAX) < superblock.generation.0
        };
        if member.generation.is_some_and(is_stale) {
            let reason = "scrub it, or leave it out, with -o degraded";
            let feature = format!("writing with device {}, which is stale", member.id);
            return Err(unsupported(&feature, Some(reason)));
        }
        let total_bytes = member.total_bytes.unwrap_or_default();
        let device = member.device.as_ref();
        if device.is_some_and(|device| device.geometry().len_bytes < total_bytes) {
            let feature = format!("writing with device {}, which is truncated", member.id);
            let reason = "it is shorter than the filesystem on it";
            return Err(unsupported(&feature, Some(reason)));
        }
    }
    for chunk in store.map().iter() {
        // What is written there may be beyond the parts of devices that the chunk has.
        if chunk.has_incomplete_row() {
            let name = chunk.profile.name();
            let feature = format!("writing to {name} chunks with an incomplete row");
            return Err(unsupported(&feature, None));
        }
        let is_present = |stripe: &Stripe| {
            let member = members.of_stripe(stripe);
            member.is_some_and(|member| member.device.is_some())
        };
        let missing = chunk.stripes.iter().filter(|it| !is_present(it)).count();
        if missing > chunk.profile.tolerated_failures().into() {
            let name = chunk.profile.name();
            let feature = format!("writing to {name} chunks without {missing} devices");
            return Err(unsupported(&feature, None));
        }
    }
    Ok(())
}

fn unsupported(feature: &str, reason: Option<&'static str>) -> Error {
    let unsupported = Unsupported {
        filesystem: "btrfs",
        feature: feature.to_owned(),
        reason,
    };
    unsupported.into()
}

#[cfg(test)]
mod tests {
    use platter_ondisk::Uuid;

    use super::*;
    use crate::context::tests::sample;
    use crate::ondisk::DeviceId;
    use crate::ondisk::chunk_item::Profile;
    use crate::ondisk::chunk_item::tests::sample as chunk;

    const ANY: Key = Key::new(256, ItemKind::ORPHAN_ITEM, 0);

    #[test]
    fn chunks_with_an_incomplete_row_are_not_written() {
        let refused = |profile, stripes, len_bytes| {
            let mut context = sample(&[(ANY, b"")], &[]);
            let store = context.blocks.store();
            store.change_members(|members| {
                for id in 1..=4 {
                    let mut member = members.iter().next().unwrap().clone();
                    member.id = DeviceId(id);
                    member.uuid = Uuid::from_u128(id.into());
                    members.add(member);
                }
            });
            let mut chunk = chunk(1 << 40, profile, stripes);
            chunk.len_bytes = len_bytes;
            store.add_chunk(chunk).unwrap();
            let fsid = store.members().iter().next().unwrap().fsid;
            context.superblock.metadata_uuid = fsid;
            refuse_devices(&context).map_err(|error| error.to_string())
        };
        let (stripe, mib) = (64 << 10, 1 << 20);
        for (profile, stripes) in [
            (Profile::Raid0, 4),
            (Profile::Raid10, 4),
            (Profile::Raid5, 3),
        ] {
            let error = refused(profile, stripes, stripe).unwrap_err();
            assert!(error.contains("an incomplete row"), "{error}");
            refused(profile, stripes, 4 * mib).unwrap();
        }
        refused(Profile::Raid1, 2, stripe + 4096).unwrap();
    }
}
