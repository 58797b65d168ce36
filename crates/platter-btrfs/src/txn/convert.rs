//! Changes of the form of a filesystem: features, the free space tree, and the block group tree.
//!
//! Trees are built and removed by a commit, when no handle is open: before, threads run references, and write the items
//! of block groups to the tree that they are in.

use platter_cache::commit::RunningTransaction;
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::{Result, Unsupported};

use super::free_space::GroupSpace;
use super::{Cow, Handle, WriteContext, chunks, delayed_inodes, refs, roots, superblocks, trees};
use crate::block_group::{FreeSpaceForm, Persisted, load_free_space};
use crate::context::TreesRule;
use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem};
use crate::ondisk::features::{CompatRo, Incompat};
use crate::ondisk::header::HEADER_BYTES;
use crate::ondisk::key::ItemKind;
use crate::ondisk::leaf::ITEM_BYTES;
use crate::ondisk::{Features, Generation, Key, LogicalAddr, TreeId};
use crate::tree::edit::CopyOnWrite;

rules! {
    /// The rules of trees that are removed.
    pub(super) enum RemovedTreeRule of "block group tree" {
        /// All of its items are those of block groups that there are.
        Items => "item of no block group",
    }
}

/// The features that say which trees there are.
const TREES: CompatRo = CompatRo::FREE_SPACE_TREE
    .union(CompatRo::FREE_SPACE_TREE_VALID)
    .union(CompatRo::BLOCK_GROUP_TREE);
/// Tree blocks that the way to an item takes, of which others are copied already: its leaf, and what is split or
/// merged.
const BLOCKS_OF_ITEM: u64 = 8;
/// Tree blocks that a new tree takes besides its leaves, and changes of the tree of roots.
const BLOCKS_OF_TREE: u64 = 32;

/// What a tree block takes in the extent tree at least: an item with a reference.
const EXTENT_BYTES_MIN: u64 = ITEM_BYTES as u64 + 24 + 9;

/// `cache_generation` of a filesystem whose caches of version 1, if there are any, are void. The kernel removes them, and
/// the checker verifies the free space tree.
const NO_CACHES: u64 = u64::MAX;

/// What a commit builds and removes.
#[derive(Debug, Default)]
pub(super) struct PlannedTrees {
    /// The features of trees after it, where they change.
    features: Option<CompatRo>,
    /// What is reserved for it.
    reserved_bytes: u64,
}

/// A change of features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FeatureChange {
    /// Those of the superblock without it.
    pub(crate) before: Features,
    /// Those with it.
    pub(crate) after: Features,
}

impl FeatureChange {
    /// The trees that it builds or removes.
    fn trees(&self) -> CompatRo {
        self.before
            .compat_ro
            .symmetric_difference(self.after.compat_ro)
            .intersection(TREES)
    }
}

/// The features that the superblock has once the running transaction is committed.
pub(crate) fn planned_features(fs: &WriteContext) -> Features {
    // Read before `features`: a commit updates these first, and clears `planned` after that.
    let planned = fs.planned.lock().features;
    let mut features = fs.features();
    if let Some(planned) = planned {
        features.compat_ro = features.compat_ro.difference(TREES) | planned;
    }
    features
}

/// Tree blocks that a change of features takes at most, besides those of any change of a superblock.
///
/// # Errors
/// `Unsupported` for features that the kernel does not mount together, and for trees that are there without their
/// feature; those of reading; those of extents and items of block groups that a commit could not move. The caller has
/// no handle.
pub(crate) fn credits_of(fs: &WriteContext, change: &FeatureChange) -> Result<u64> {
    let (changed, after) = (change.trees(), change.after);
    let has_all = after.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
        && after.incompat.contains(Incompat::NO_HOLES);
    if changed.contains(CompatRo::BLOCK_GROUP_TREE)
        && after.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE)
        && !has_all
    {
        let feature = "a block group tree without free-space-tree and no-holes";
        return Err(unsupported(feature));
    }
    let is_built = |feature: CompatRo| {
        changed.contains(feature)
            && after.compat_ro.contains(feature)
            && !fs.features().compat_ro.contains(feature)
    };
    let built = [
        (CompatRo::FREE_SPACE_TREE, TreeId::FREE_SPACE),
        (CompatRo::BLOCK_GROUP_TREE, TreeId::BLOCK_GROUP),
    ];
    for (_, id) in built.iter().filter(|(feature, _)| is_built(*feature)) {
        if fs.context.read_root_item(*id)?.is_some() {
            let feature = format!("tree {}, which is there without its feature", id.0);
            return Err(unsupported(&feature));
        }
    }
    let is_removed = changed.contains(CompatRo::BLOCK_GROUP_TREE)
        && !after.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE);
    if is_removed && fs.features().compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
        refuse_other_items(fs)?;
    }
    let free_blocks = if is_built(CompatRo::FREE_SPACE_TREE) {
        read_free_ranges(fs)?
    } else {
        0
    };
    let extent_blocks = extent_blocks(fs)?;
    let groups = fs.groups.iter().count() as u64;
    let mut blocks = 0u64;
    if changed.contains(CompatRo::FREE_SPACE_TREE) {
        // A free range takes less than half of what the item of an extent between two of them does.
        let items = extent_blocks.max(free_blocks);
        blocks = blocks.saturating_add(items + groups + BLOCKS_OF_TREE);
    }
    if changed.contains(CompatRo::BLOCK_GROUP_TREE) {
        // No more of the extent tree is copied than there is.
        let items = (BLOCKS_OF_ITEM * groups).min(extent_blocks + 3 * groups);
        blocks = blocks.saturating_add(items + BLOCKS_OF_TREE);
    }
    Ok(blocks)
}

/// Tree blocks that a change of trees may take: half of a transaction, as other changes go on until the commit; of one
/// that has all changes, what is left of it. The caller has no handle.
///
/// # Errors
/// Those of the trees; the transaction is aborted.
pub(crate) fn credits_max(fs: &WriteContext) -> Result<u32> {
    let most = fs.blocks_max();
    if !fs.is_one_transaction() {
        return Ok(most / 2);
    }
    // Changes of inodes that wait copy fewer blocks than are counted for them.
    delayed_inodes::write_for_space(fs)?;
    let taken = fs.transactions.inspect(RunningTransaction::len_blocks);
    Ok(most.saturating_sub(taken))
}

/// Refuses a block group tree with other items than those of block groups: a commit must not be the first to find them.
fn refuse_other_items(fs: &WriteContext) -> Result<()> {
    let tree = fs.tree(TreeId::BLOCK_GROUP)?.view().now.tree;
    // An item is removed before its chunk, and inserted after it: the tree stays as it is from here on.
    let mut cursor = fs.context.cursor(tree);
    cursor.seek(Key::MIN)?;
    let map = fs.blocks().store().map();
    while let Some(key) = cursor.key() {
        let chunk = map.find(LogicalAddr(key.object)).ok();
        let is_its_item = |chunk: &ChunkItem| {
            key == Key::new(chunk.start.0, ItemKind::BLOCK_GROUP_ITEM, chunk.len_bytes)
        };
        if !chunk.is_some_and(is_its_item) {
            return Err(Corrupt::new(tree.locus(key), RemovedTreeRule::Items).into());
        }
        cursor.step()?;
    }
    Ok(())
}

/// Reads the free ranges of all block groups: a commit must not be the first to find an extent across the end of its
/// group. Returns the tree blocks that their items take where these are half full.
fn read_free_ranges(fs: &WriteContext) -> Result<u64> {
    // No commit ends before it: what the one before has is not written over.
    let handle = fs.begin(0)?;
    let mut items = 0;
    for group in fs.groups.iter() {
        // Its info takes less than two of them, and bitmaps take less than what they replace.
        items += trees::read_free_space(fs, &group)?.count() as u64 + 2;
    }
    drop(handle);
    let item_bytes = 2 * ITEM_BYTES as u64;
    Ok((items * item_bytes).div_ceil(fs.node_bytes() - HEADER_BYTES as u64))
}

/// Tree blocks of the extent tree. Its root item may say less than the items of tree blocks take.
fn extent_blocks(fs: &WriteContext) -> Result<u64> {
    let node_bytes = fs.node_bytes();
    let groups = fs.groups.iter();
    let of_trees = groups.filter(|group| !group.holds(BlockGroupFlags::DATA));
    let used_bytes: u64 = of_trees.map(|group| group.space().used).sum();
    let least = used_bytes / node_bytes * EXTENT_BYTES_MIN;
    let said = fs.tree(TreeId::EXTENT)?.view().now.used_bytes;
    Ok(said.max(least) / node_bytes)
}

/// Changes features with the commit of this transaction, which builds and removes trees. The handle was begun with
/// [so many](credits_of) credits, which are left to the commit.
///
/// # Errors
/// Those of the trees; the transaction is aborted.
pub(crate) fn change_features(
    handle: &mut Handle<'_>,
    change: &FeatureChange,
    credits: u32,
) -> Result<()> {
    let fs = handle.fs;
    let FeatureChange { before, after } = change;
    let added = after.incompat.difference(before.incompat);
    fs.features.lock().incompat |= added;
    let changed = change.trees();
    if !changed.is_empty() {
        keep(handle, credits);
        let now = fs.features().compat_ro;
        let mut planned = fs.planned.lock();
        let trees = planned.features.unwrap_or(now).difference(changed);
        let trees = trees | after.compat_ro.intersection(changed);
        planned.features = Some(trees.intersection(TREES));
    }
    superblocks::write_device_items(handle)
}

/// Leaves so many credits of a handle, and the space that is reserved for them, to the commit.
fn keep(handle: &mut Handle<'_>, credits: u32) {
    let fs = handle.fs;
    let credits = credits.min(handle.credits);
    let reserved = handle.reserved_bytes.get_mut();
    let kept = (u64::from(credits) * fs.node_bytes()).min(*reserved);
    *reserved -= kept;
    handle.credits -= credits;
    fs.transactions
        .change(credits, |running| running.blocks += credits);
    fs.planned.lock().reserved_bytes += kept;
}

/// Moves the items of block groups to a tree of their own, in one transaction.
///
/// # Errors
/// `Unsupported` without the features that the kernel asks for.
pub fn to_block_group_tree(fs: &mut WriteContext) -> Result<()> {
    let mut features = planned_features(fs);
    if features.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
        return Ok(());
    }
    features.compat_ro |= CompatRo::BLOCK_GROUP_TREE;
    commit_features(fs, features)
}

fn commit_features(fs: &WriteContext, after: Features) -> Result<()> {
    let before = planned_features(fs);
    let change = FeatureChange { before, after };
    let credits = u32::try_from(credits_of(fs, &change)?).unwrap_or(u32::MAX);
    let mut handle = fs.begin(credits)?;
    change_features(&mut handle, &change, credits)?;
    drop(handle);
    fs.sync()
}

/// Builds and removes the trees that the running transaction is to change. No handle is open.
pub(super) fn change_trees(fs: &WriteContext, generation: Generation) -> Result<()> {
    // Cleared only after `features` is updated: `planned_features` reads both concurrently.
    let planned = fs.planned.lock().features;
    let Some(features) = planned else {
        return Ok(());
    };
    let changed = features.symmetric_difference(fs.features().compat_ro);
    if changed.contains(CompatRo::FREE_SPACE_TREE) {
        build_free_space_tree(fs, generation)?;
    }
    if changed.contains(CompatRo::BLOCK_GROUP_TREE) {
        if features.contains(CompatRo::BLOCK_GROUP_TREE) {
            build_group_tree(fs, generation)?;
        } else {
            remove_group_tree(fs, generation)?;
        }
    }
    let planned = std::mem::take(&mut *fs.planned.lock());
    fs.reservations.release_metadata(planned.reserved_bytes);
    Ok(())
}

/// Builds the free space tree of what the extent tree leaves.
fn build_free_space_tree(fs: &WriteContext, generation: Generation) -> Result<()> {
    roots::create_tree(fs, generation, TreeId::FREE_SPACE)?;
    fs.tree(TreeId::FREE_SPACE)?;
    let groups: Vec<_> = loop {
        run_references(fs, generation)?;
        // Reservations add chunks without a handle: from here on these get items in the tree with all others.
        let _turn = fs.chunks.turn.lock();
        if !fs.chunks.has_uncreated() {
            let features = CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
            fs.features.lock().compat_ro |= features;
            break fs.groups.iter().collect();
        }
    };
    let extents = fs.tree(TreeId::EXTENT)?.view().now.tree;
    let sector_bytes = fs.context.superblock.sector_bytes.into();
    for group in groups {
        let free = load_free_space(fs.blocks(), FreeSpaceForm::Extents(extents), &group)?;
        fs.edit(generation, TreeId::FREE_SPACE, |editor| {
            let mut space = GroupSpace {
                editor,
                group: &group,
                sector_bytes,
            };
            space.fill(&free)
        })?;
    }
    let mut superblock = fs.superblock.lock();
    if superblock.cache_generation != 0 {
        superblock.cache_generation = NO_CACHES;
    }
    Ok(())
}

/// Runs references until none is left, so that the extent tree has all extents.
pub(super) fn run_references(fs: &WriteContext, generation: Generation) -> Result<()> {
    loop {
        chunks::create_pending(fs, generation)?;
        refs::run(fs, generation, usize::MAX)?;
        if fs.refs.is_empty() && !fs.chunks.has_uncreated() {
            return Ok(());
        }
        // A walk is in progress that began before some of them.
        fs.refs.wait_for_walks();
    }
}

fn build_group_tree(fs: &WriteContext, generation: Generation) -> Result<()> {
    roots::create_tree(fs, generation, TreeId::BLOCK_GROUP)?;
    move_group_items(fs, generation, (TreeId::EXTENT, TreeId::BLOCK_GROUP))?;
    fs.features.lock().compat_ro |= CompatRo::BLOCK_GROUP_TREE;
    Ok(())
}

fn remove_group_tree(fs: &WriteContext, generation: Generation) -> Result<()> {
    move_group_items(fs, generation, (TreeId::BLOCK_GROUP, TreeId::EXTENT))?;
    let open = fs.tree(TreeId::BLOCK_GROUP)?;
    let (state, item) = (open.view().now, open.item_key());
    let left = fs.edit(generation, TreeId::BLOCK_GROUP, |editor| {
        editor.key_from(Key::MIN)
    })?;
    if let Some(key) = left {
        return Err(Corrupt::new(state.tree.locus(key), RemovedTreeRule::Items).into());
    }
    let missing = || Corrupt::new(Locus::tree(state.id().0), TreesRule::MissingTree);
    let item = item.ok_or_else(missing)?;
    fs.edit(generation, TreeId::ROOT, |editor| editor.remove(item))?;
    fs.context.forget_root_item(TreeId::BLOCK_GROUP);
    open.set_removed();
    // Last: a tree that is there without its feature is not built over.
    fs.features
        .lock()
        .compat_ro
        .remove(CompatRo::BLOCK_GROUP_TREE);
    // A tree without items is a leaf.
    let root = state.tree.root;
    Cow::new(fs, generation).freed(&state, root.logical, root.level)
}

/// Moves the items of block groups from one tree to another. Groups without one get it there.
fn move_group_items(
    fs: &WriteContext,
    generation: Generation,
    (from, to): (TreeId, TreeId),
) -> Result<()> {
    for group in fs.groups.iter() {
        if group.persisted() == Persisted::Absent {
            continue;
        }
        let (start, len_bytes) = (group.start().0, group.len_bytes());
        let key = Key::new(start, ItemKind::BLOCK_GROUP_ITEM, len_bytes);
        let item = fs.edit(generation, from, |editor| {
            let item = editor.get(key)?;
            editor.remove(key)?;
            Ok(item)
        })?;
        let missing = || Corrupt::new(Locus::tree(from.0), TreesRule::MissingTree);
        let item = item.ok_or_else(missing)?;
        fs.edit(generation, to, |editor| editor.insert(key, &item))?;
    }
    Ok(())
}

fn unsupported(feature: &str) -> platter_vfs::Error {
    let unsupported = Unsupported {
        filesystem: "btrfs",
        feature: feature.to_owned(),
        reason: None,
    };
    unsupported.into()
}

#[cfg(test)]
mod tests {
    use platter_ondisk::Rule as _;
    use platter_vfs::Error;

    use super::*;
    use crate::context::tests::rule;
    use crate::txn::WriteOptions;
    use crate::txn::tests::image::Pool;

    fn commit(fs: &WriteContext, change: impl FnOnce(&mut Features)) -> Result<()> {
        let mut features = planned_features(fs);
        change(&mut features);
        commit_features(fs, features)
    }

    /// Inserts an item of no block group.
    fn insert_other(handle: &Handle<'_>) {
        let key = Key::new(1 << 50, ItemKind::BLOCK_GROUP_ITEM, 1 << 20);
        let inserted = handle.edit(TreeId::BLOCK_GROUP, |editor| editor.insert(key, &[0; 24]));
        inserted.unwrap();
    }

    #[test]
    fn items_of_no_group_keep_the_group_tree() {
        let pool = Pool::make(1, 128, &["-m", "single"]);
        let mut fs = pool.open(WriteOptions::default());
        to_block_group_tree(&mut fs).unwrap();
        insert_other(&fs.begin(16).unwrap());
        let removed = commit(&fs, |features| {
            features.compat_ro.remove(CompatRo::BLOCK_GROUP_TREE);
        });
        assert_eq!(rule(removed), RemovedTreeRule::Items.text());
        assert!(fs.failure().is_none());
        drop(fs);
        pool.assert_clean();
    }

    #[test]
    fn failed_commit_leaves_features_planned() {
        let pool = Pool::make(1, 128, &["-m", "single"]);
        let mut fs = pool.open(WriteOptions::default());
        to_block_group_tree(&mut fs).unwrap();
        let before = planned_features(&fs);
        let mut after = before;
        after.compat_ro.remove(CompatRo::BLOCK_GROUP_TREE);
        let change = FeatureChange { before, after };
        let credits = u32::try_from(credits_of(&fs, &change).unwrap()).unwrap();
        let mut handle = fs.begin(credits + 16).unwrap();
        change_features(&mut handle, &change, credits).unwrap();
        insert_other(&handle);
        drop(handle);
        assert_eq!(rule(fs.sync()), RemovedTreeRule::Items.text());
        assert_eq!(planned_features(&fs), after);
        assert_eq!(fs.features(), before);
        drop(fs);
        pool.assert_clean();
    }

    #[test]
    fn extent_across_the_end_of_its_group_is_refused() {
        let pool = Pool::make(1, 128, &["-m", "single", "-R", "^free-space-tree"]);
        let fs = pool.open(WriteOptions::default());
        let mut groups = fs.groups.iter();
        let group = groups.find(|group| group.holds(BlockGroupFlags::DATA));
        let end = group.unwrap().end().0;
        let handle = fs.begin(16).unwrap();
        let key = Key::new(end - 4096, ItemKind::EXTENT_ITEM, 8192);
        let inserted = handle.edit(TreeId::EXTENT, |editor| editor.insert(key, &[0; 24]));
        inserted.unwrap();
        drop(handle);
        fs.sync().unwrap();
        let built = commit(&fs, |features| {
            features.compat_ro |= CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
        });
        let text = rule(built);
        assert!(text.contains("outside of the block group"), "{text}");
        assert!(fs.failure().is_none());
    }

    #[test]
    fn tree_without_its_feature_is_not_built_over() {
        let pool = Pool::make(1, 128, &["-m", "single"]);
        let mut fs = pool.open(WriteOptions::default());
        let handle = fs.begin(64).unwrap();
        roots::create_tree(&fs, handle.generation(), TreeId::BLOCK_GROUP).unwrap();
        drop(handle);
        let refused = to_block_group_tree(&mut fs).unwrap_err();
        assert!(matches!(&refused, Error::Unsupported(_)), "{refused}");
        assert!(refused.to_string().contains("without its feature"));
        assert!(fs.failure().is_none());
    }

    #[test]
    fn root_item_at_another_offset_is_not_the_trees() {
        let pool = Pool::make(1, 128, &["-m", "single"]);
        let mut fs = pool.open(WriteOptions::default());
        let handle = fs.begin(64).unwrap();
        roots::create_tree(&fs, handle.generation(), TreeId::BLOCK_GROUP).unwrap();
        let key = |offset| Key::new(TreeId::BLOCK_GROUP.0, ItemKind::ROOT_ITEM, offset);
        let moved = handle.edit(TreeId::ROOT, |editor| {
            let item = editor.get(key(0))?.unwrap();
            editor.remove(key(0))?;
            editor.insert(key(5), &item)
        });
        moved.unwrap();
        fs.context.forget_root_item(TreeId::BLOCK_GROUP);
        drop(handle);
        to_block_group_tree(&mut fs).unwrap();
        drop(fs);
        let fs = pool.open(WriteOptions::default());
        let features = fs.features().compat_ro;
        assert!(features.contains(CompatRo::BLOCK_GROUP_TREE));
    }

    #[test]
    fn too_small_size_of_the_extent_tree_is_not_trusted() {
        let mkfs = ["-n", "4096", "-m", "single", "-R", "^free-space-tree"];
        let pool = Pool::make(1, 128, &mkfs);
        pool.run(
            "mount -t btrfs -o \"$options\" \"$device\" \"$root\"\nmkdir \"$root\"/d\ncd \"$root\"/d\nseq 3000 | xargs touch\ncd /\n",
        );
        let fs = pool.open(WriteOptions::default());
        let before = planned_features(&fs);
        let mut after = before;
        after.compat_ro |= CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
        let change = FeatureChange { before, after };
        let honest = credits_of(&fs, &change).unwrap();
        fs.tree(TreeId::EXTENT).unwrap().lock().now.used_bytes = 0;
        let found = credits_of(&fs, &change).unwrap();
        assert!(extent_blocks(&fs).unwrap() > 0);
        let least = fs.groups.iter().count() as u64 + BLOCKS_OF_TREE;
        assert!(least < found && found <= honest, "{found} of {honest}");
    }

    #[test]
    fn space_for_new_trees_is_reserved_until_the_commit() {
        let pool = Pool::make(1, 128, &["-m", "single", "-R", "^free-space-tree"]);
        let fs = pool.open(WriteOptions::default());
        let before = planned_features(&fs);
        let mut after = before;
        after.compat_ro |= CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
        let change = FeatureChange { before, after };
        let credits = u32::try_from(credits_of(&fs, &change).unwrap()).unwrap();
        let mut handle = fs.begin(credits).unwrap();
        change_features(&mut handle, &change, credits).unwrap();
        drop(handle);
        assert_eq!(planned_features(&fs), after);
        assert_eq!(fs.features(), before);
        let kept = fs.planned.lock().reserved_bytes;
        assert_eq!(kept, u64::from(credits) * fs.node_bytes());
        let blocks = fs.transactions.inspect(|running| running.blocks);
        assert!(blocks > credits, "{blocks}");
        fs.sync().unwrap();
        assert_eq!(fs.features(), after);
        assert_eq!(fs.planned.lock().reserved_bytes, 0);
        drop(fs);
        pool.assert_clean();
    }
}
