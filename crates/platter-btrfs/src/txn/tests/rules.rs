//! Trees that contradict each other, and commits that fail.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use platter_cache::MemoryBudget;
use platter_ondisk::Rule;
use platter_vfs::{Context, CreateKind, Error, Filesystem, Name, SystemClock};

use super::image::Pool;
use crate::block_group::{BlockGroup, Persisted, load_groups};
use crate::context::tests::rule;
use crate::delayed_refs::{Action, ExtentKind, ExtentOp, RefKey};
use crate::ondisk::block_group::BlockGroupItem;
use crate::ondisk::checksum::extent_data_ref_hash;
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::extent_item::{ExtentFlags, ExtentItem, ExtentKind as ItemExtent, ExtentRef};
use crate::ondisk::file_extent::ExtentPlace;
use crate::ondisk::header::Header;
use crate::ondisk::key::ItemKind;
use crate::ondisk::node::{KeyPointer, encode};
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::tree_block::{Expected, TreeBlockRule};
use crate::ondisk::{DeviceAddr, Key, LogicalAddr, TreeId};
use crate::subvolume;
use crate::tree::edit::{CopyOnWrite, TreeEditor};
use crate::txn::commit::CommitRule;
use crate::txn::cow::{Cow, RefCountRule};
use crate::txn::data_extents::DataRule;
use crate::txn::extents::{Extent, ExtentTreeRule};
use crate::txn::free_space::{FreeSpaceTreeRule, GroupSpace, thresholds};
use crate::txn::partly_dropped::{self, ProgressRule};
use crate::txn::{FileRange, WriteContext, WriteOptions, compact, data_extents, refs, trees};
use crate::{Btrfs, MountOptions, Rescue};

fn opened() -> (Pool, WriteContext) {
    let pool = Pool::make(1, 160, &[]);
    let fs = pool.open(WriteOptions::default());
    (pool, fs)
}

#[test]
fn truncated_device_is_read_and_not_written() {
    let pool = Pool::make(1, 160, &[]);
    let image = File::options().write(true).open(&pool.images()[0]);
    image.unwrap().set_len((160 << 20) - 4096).unwrap();
    let refused = pool.try_open(WriteOptions::default()).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("device 1, which is truncated"), "{text}");
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let clock = Arc::new(SystemClock::new());
    let mounted = Btrfs::mount(&pool.devices(), &MountOptions::default(), budget, clock);
    mounted.unwrap().root().unwrap().attr().unwrap();
}

/// A subvolume with a tree of three levels, and a snapshot of it.
const FILL: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
btrfs -q subvolume create "$root"/sub
text=$(head -c 900 /dev/zero | tr '\0' x)
for file in $(seq 900); do echo $text > "$root"/sub/$file; done
sync -f "$root"
btrfs -q subvolume snapshot "$root"/sub "$root"/later
"#;

/// The root of the root tree.
fn root_block(fs: &WriteContext) -> Extent {
    let root = fs.superblock().root;
    Extent {
        address: root.logical,
        len_bytes: fs.node_bytes(),
        kind: ExtentKind::TreeBlock {
            level: root.level,
            is_system: false,
        },
    }
}

#[test]
fn tree_that_was_not_partly_dropped_is_not_cut() {
    let pool = Pool::make(1, 160, &["-m", "single", "-n", "4096"]);
    pool.run(FILL);
    let cut = |level| {
        let fs = pool.open(WriteOptions::default());
        let handle = fs.begin(64).unwrap();
        let last = Key::new(u64::MAX, ItemKind(u8::MAX), u64::MAX);
        let refused = rule(partly_dropped::cut(&handle, TreeId(256), last, level));
        drop(handle);
        fs.sync().unwrap();
        refused
    };
    for level in [0, 7] {
        assert_eq!(cut(level), ProgressRule::Level.text());
    }
    assert_eq!(cut(1), ProgressRule::Shared.text());
}

/// What the other subvolume has of the files.
const SUM: &str = r#"
mount -t btrfs -o "ro,$options" "$device" "$root"
cd "$root"
tar -c sub/[0-9]* | md5sum
cd /
"#;

/// Leaves the deletion of the snapshot as kernels before 5.0 may have: references were dropped after a key had been
/// stored. With `is_last` it is that of the last pointer of the root, which leads to a node that is shared.
fn leave_deletion(pool: &Pool, is_last: bool) {
    let mounted = pool.mount_without_thread();
    let root = mounted.root().unwrap();
    let (subvolumes, name) = (mounted.subvolumes().unwrap(), Name::new(b"later"));
    let deleted = subvolumes.delete(&Context::root(), root.id(), name.unwrap(), None);
    deleted.unwrap();
    drop(root);
    // As after a crash.
    mounted.super_block().writing().unwrap().sync().unwrap();
    drop(mounted);
    let fs = pool.open(WriteOptions::default());
    let id = TreeId(257);
    let handle = fs.begin(64).unwrap();
    let root = fs.tree(id).unwrap().view().now.tree.root;
    let read = |logical| fs.blocks().read(logical, &Expected::default()).unwrap();
    let changed = Key::new(256 + 400, ItemKind::INODE_ITEM, 0);
    let top = read(root.logical);
    let at = top.node().index_for(changed);
    let alone = top.node().pointer(at).unwrap();
    let below = read(alone.logical);
    let cow = Cow::new(&fs, handle.generation());
    let references = |logical| cow.extent_info(logical, 1).unwrap().0;
    assert_eq!((top.level(), below.level()), (2, 1));
    assert_eq!(references(alone.logical), 1);
    let (start, dropped_below) = if is_last {
        let last = top.node().len() - 1;
        assert!(at < last);
        assert_eq!(references(top.node().pointer(last).unwrap().logical), 2);
        (last, 0)
    } else {
        (at, below.node().index_for(changed))
    };
    let of_top: Vec<_> = top.node().iter().take(start).collect();
    let mut of_below: Vec<_> = below.node().iter().take(dropped_below).collect();
    // The kernel may have moved pointers to a neighbour of the changed node, which is then a copy as well.
    for node in of_top.iter().filter(|it| references(it.logical) == 1) {
        of_below.extend(read(node.logical).node().iter());
    }
    assert!(!of_below.is_empty());
    let of_top = of_top.iter().map(|it| (it.logical, 1));
    let of_below = of_below.iter().map(|it| (it.logical, 0));
    for (logical, level) in of_top.chain(of_below) {
        let by_tree = RefKey::TreeBlock { tree: id };
        let change = cow.change(logical, level, by_tree, Action::Drop, false);
        refs::queue(&fs, &change).unwrap();
    }
    let key = top.node().pointer(start).unwrap().key;
    let stored = subvolume::change_root(&handle, id, |item| {
        item.drop_progress = key;
        item.drop_level = 2;
    });
    stored.unwrap();
    drop(handle);
    fs.sync().unwrap();
}

#[test]
fn references_dropped_below_the_stored_key_are_passed_over() {
    for is_changed in [false, true] {
        let pool = Pool::make(1, 256, &["-m", "single", "-n", "4096"]);
        pool.run(&format!("{FILL}echo more > \"$root\"/later/400\n"));
        let sum = pool.run(SUM);
        leave_deletion(&pool, is_changed);
        let mounted = pool.mount_without_thread();
        if is_changed {
            // The subvolume copies the shared node: its reference to that is queued to be dropped.
            let sub = mounted.root().unwrap().lookup(Name::new(b"sub").unwrap());
            let name = Name::new(b"new").unwrap();
            let file = sub
                .unwrap()
                .create(&Context::root(), name, CreateKind::Regular, 0o644);
            drop(file.unwrap());
        }
        mounted.sync().unwrap();
        assert!(mounted.super_block().dead_subvolumes.is_empty());
        mounted.unmount().unwrap();
        drop(mounted);
        pool.assert_clean();
        assert_eq!(pool.run(SUM), sum);
    }
}

#[test]
fn node_beyond_the_next_pointer_of_an_ancestor_is_corrupt() {
    let pool = Pool::make(1, 160, &["-m", "single", "-n", "4096"]);
    let fs = pool.open(WriteOptions::default());
    let tree = fs.tree(TreeId::FS).unwrap();
    let state = tree.view().now;
    let old = fs.blocks().read_root(state.tree).unwrap();
    let handle = fs.begin(64).unwrap();
    let cow = Cow::new(&fs, handle.generation());
    let pointer = |object, logical| KeyPointer {
        key: Key::new(object, ItemKind::INODE_ITEM, 0),
        logical,
        generation: handle.generation(),
    };
    let node = |level, pointers: &[KeyPointer]| {
        let first = pointers[0];
        let logical = cow.allocate(&state, level, first.key, old.logical());
        let logical = logical.unwrap();
        let header = Header {
            logical,
            level,
            generation: handle.generation(),
            ..old.header().unwrap()
        };
        let mut bytes = vec![0; 4096].into_boxed_slice();
        assert!(encode(&mut bytes, &header, pointers));
        fs.blocks().create(logical, bytes).unwrap();
        KeyPointer { logical, ..first }
    };
    // Of two leaves, the second one belongs to the next node but one above.
    let leaf = old.logical();
    let lowest = node(1, &[pointer(256, leaf), pointer(900, leaf)]);
    let middle = node(2, &[lowest]);
    let root = node(3, &[middle, pointer(600, leaf)]);
    tree.lock().now.tree.root = RootPointer {
        logical: root.logical,
        generation: root.generation,
        level: 3,
    };
    drop(handle);
    fs.sync().unwrap();
    let handle = fs.begin(64).unwrap();
    let refused = partly_dropped::cut(&handle, TreeId::FS, Key::MIN, 3);
    assert_eq!(rule(refused), TreeBlockRule::EndKey.text());
}

#[test]
fn references_that_cannot_be_changed_are_corrupt() {
    let (_pool, fs) = opened();
    let generation = fs.running();
    let node_bytes = fs.context.superblock.node_bytes;
    let block = root_block(&fs);
    let by_tree = RefKey::TreeBlock { tree: TreeId::ROOT };
    let by_other = RefKey::TreeBlock { tree: TreeId::FS };
    let add = |extent: Extent, key, count| {
        fs.edit(generation, TreeId::EXTENT, |editor| {
            extent.add(editor, key, count, None, node_bytes)
        })
    };
    let drop_ref = |extent: Extent, key, count| {
        fs.edit(generation, TreeId::EXTENT, |editor| {
            extent.drop_ref(editor, key, count, None)
        })
    };
    let twice = rule(add(block, by_tree, 1));
    assert_eq!(twice, ExtentTreeRule::Twice.text());
    let none = rule(drop_ref(block, by_other, 1));
    assert_eq!(none, ExtentTreeRule::NoRef.text());
    let nowhere = Extent {
        address: LogicalAddr(1 << 40),
        ..block
    };
    let missing = rule(add(nowhere, by_other, 1));
    assert_eq!(missing, ExtentTreeRule::NoItem.text());
    let cow = Cow::new(&fs, generation);
    let refs = rule(cow.extent_info(nowhere.address, 0));
    assert_eq!(refs, RefCountRule::NoRefs.text());
    assert_eq!(cow.extent_info(block.address, 0).unwrap().0, 1);
}

/// Writes bytes to an image, past the filesystem.
fn overwrite(pool: &Pool, image: usize, at: DeviceAddr, bytes: &[u8]) {
    let image = File::options().write(true).open(&pool.images()[image]);
    image.unwrap().write_all_at(bytes, at.0).unwrap();
}

type Change<'c> = dyn Fn(&mut TreeEditor<'_, Cow<'_>>) -> platter_vfs::Result<bool> + 'c;

fn of_file(inode: u64) -> RefKey {
    RefKey::Data {
        tree: TreeId::FS,
        inode,
        offset: 0,
    }
}

#[test]
fn references_of_data_are_inline_until_the_item_is_full() {
    let (_pool, fs) = opened();
    let generation = fs.running();
    let node_bytes = fs.context.superblock.node_bytes;
    let extent = Extent {
        address: LogicalAddr(1 << 40),
        len_bytes: 4096,
        kind: ExtentKind::Data,
    };
    let edit = |change: &Change<'_>| fs.edit(generation, TreeId::EXTENT, change);
    let op = ExtentOp::default();
    edit(&|editor| {
        extent.insert(editor, vec![of_file(0).counted(2)], op, generation, true)?;
        for inode in 1..200 {
            extent.add(editor, of_file(inode), 1, None, node_bytes)?;
            extent.add(editor, of_file(inode), 2, None, node_bytes)?;
        }
        let parent = LogicalAddr(4096);
        extent.add(editor, RefKey::SharedData { parent }, 1, None, node_bytes)?;
        let keyed = editor.at_or_after(Key::new(1 << 40, ItemKind::EXTENT_DATA_REF, 0))?;
        Ok(keyed.is_some_and(|(key, _)| key.kind == ItemKind::EXTENT_DATA_REF))
    })
    .map(|has_keyed| assert!(has_keyed))
    .unwrap();
    let overflow = edit(&|editor| {
        extent.add(editor, of_file(5), u32::MAX, None, node_bytes)?;
        Ok(false)
    });
    assert_eq!(rule(overflow), ExtentTreeRule::Count.text());
    let too_many = edit(&|editor| Ok(extent.drop_ref(editor, of_file(5), 9, None)?.is_some()));
    assert_eq!(rule(too_many), ExtentTreeRule::NoRef.text());
    // The last reference takes all items along.
    let is_gone = edit(&|editor| {
        let parent = LogicalAddr(4096);
        extent.drop_ref(editor, RefKey::SharedData { parent }, 1, None)?;
        for inode in (1..200).rev() {
            assert!(extent.drop_ref(editor, of_file(inode), 3, None)?.is_none());
        }
        let is_last = extent.drop_ref(editor, of_file(0), 2, None)?;
        let rest = editor.at_or_after(Key::new(1 << 40, ItemKind(0), 0))?;
        Ok(is_last.is_some() && rest.is_none_or(|(key, _)| key.object != 1 << 40))
    });
    assert!(is_gone.unwrap());
}

#[test]
fn free_space_that_contradicts_the_extents_is_corrupt() {
    let (_pool, fs) = opened();
    let change = |group: &BlockGroup, at: u64, is_freed: bool| {
        fs.edit(fs.running(), TreeId::FREE_SPACE, |editor| {
            let mut space = GroupSpace {
                editor,
                group,
                sector_bytes: 4096,
            };
            let range = at..at + 16384;
            if is_freed {
                space.add(&range)
            } else {
                space.remove(&range)
            }
        })
    };
    let root = fs.superblock().root.logical;
    let group = fs.groups().find(root, 1).unwrap();
    let used = rule(change(&group, root.0, false));
    assert_eq!(used, FreeSpaceTreeRule::Range.text());
    let free = rule(change(&group, group.end().0 - 16384, true));
    assert_eq!(free, FreeSpaceTreeRule::Range.text());
    let unknown = BlockGroupItem {
        start: LogicalAddr(1 << 40),
        len_bytes: 1 << 20,
        used_bytes: 0,
        chunk_object: 256,
        flags: BlockGroupFlags::METADATA,
    };
    let unknown = BlockGroup::new(unknown, true, Vec::new());
    let missing = rule(change(&unknown, 1 << 40, false));
    assert_eq!(missing, FreeSpaceTreeRule::NoInfo.text());
}

#[test]
fn failed_commit_leaves_the_last_one_and_ends_writing() {
    let (pool, fs) = opened();
    let orphan = |object| Key::new(object, ItemKind::ORPHAN_ITEM, 1);
    let change = |object| {
        let handle = fs.begin(4)?;
        handle.edit(TreeId::FS, |tree| tree.insert(orphan(object), &[]))
    };
    change(5).unwrap();
    fs.new_blocks.lock().insert(LogicalAddr(1 << 40));
    let failed = rule(fs.sync());
    assert_eq!(failed, CommitRule::Block.text());
    assert!(fs.failure().is_some());
    assert!(change(6).is_err() && fs.delayed_refs().is_empty());
    let old = fs.superblock().generation;
    drop(fs);
    pool.assert_clean();
    // What groups knew of their items was ahead of the disk: they are read anew.
    let fs = pool.open(WriteOptions::default());
    assert_eq!(fs.superblock().generation, old);
    assert_items_are_as_their_groups(&fs);
    let handle = fs.begin(4).unwrap();
    let inserted = handle.edit(TreeId::FS, |tree| tree.insert(orphan(7), &[]));
    inserted.unwrap();
    drop(handle);
    fs.sync().unwrap();
    assert_items_are_as_their_groups(&fs);
    drop(fs);
    pool.assert_clean();
}

#[test]
fn commit_without_changed_trees_has_a_root_of_its_own() {
    let (pool, fs) = opened();
    let old = fs.superblock().generation;
    // As where a log has a block.
    let handle = fs.begin(4).unwrap();
    let address = data_extents::allocate(&handle, fs.node_bytes()).unwrap();
    data_extents::release(handle.fs(), address, fs.node_bytes()).unwrap();
    drop(handle);
    data_extents::keep_log_block(&fs, address).unwrap();
    drop(fs.begin_replay().unwrap());
    fs.sync().unwrap();
    let superblock = fs.superblock();
    assert!(superblock.generation > old);
    assert_eq!(superblock.root.generation, superblock.generation);
    assert_items_are_as_their_groups(&fs);
    drop(fs);
    pool.assert_clean();
    let fs = pool.open(WriteOptions::default());
    assert_eq!(fs.superblock().generation, superblock.generation);
}

/// After a commit, the item of each group is as the group, and none is dirty.
pub(super) fn assert_items_are_as_their_groups(fs: &WriteContext) {
    assert!(!fs.groups().is_dirty());
    let tree = fs
        .tree(trees::block_group_tree(fs))
        .unwrap()
        .view()
        .now
        .tree;
    let map = fs.blocks().store().map();
    let stored = load_groups(fs.blocks(), tree, &map).unwrap();
    assert_eq!(stored.len(), fs.groups().iter().count());
    for (group, stored) in fs.groups().iter().zip(stored) {
        assert_eq!(group.persisted(), stored.persisted());
        let Persisted::Item(item) = stored.persisted() else {
            panic!("{group:?} has no item");
        };
        assert_eq!(item.used_bytes, group.space().used);
        assert_eq!(item.flags, group.flags());
    }
}

/// Lets the kernel allocate a group for data that is larger than those that `mkfs.btrfs` makes.
const GROW: &str = "
mount -t btrfs -o $options $device $root
head -c 20000000 /dev/zero > $root/x
sync -f $root
head -c 20000000 /dev/zero > $root/y
umount $root
";

#[test]
fn free_space_turns_into_bitmaps_and_back() {
    let pool = Pool::make(1, 1400, &[]);
    pool.run(GROW);
    let fs = pool.open(WriteOptions::default());
    let groups = fs
        .groups()
        .iter()
        .filter(|group| group.holds(BlockGroupFlags::DATA));
    let group = groups.max_by_key(|group| group.len_bytes()).unwrap();
    let (high, low) = thresholds(group.len_bytes(), 4096);
    assert!(low > 1, "a group that is large enough");
    let uses_bitmaps = || {
        let key = Key::new(
            group.start().0,
            ItemKind::FREE_SPACE_INFO,
            group.len_bytes(),
        );
        let info = fs.edit(fs.running(), TreeId::FREE_SPACE, |editor| editor.get(key));
        info.unwrap().unwrap()[4] == 1
    };
    // Runs that touch, cross bitmaps, and reach the end of the group.
    let change = |is_freed: bool| {
        for index in 0..=u64::from(high) {
            let at = group.end().0 - (2 * index + 1) * 131_072;
            fs.edit(fs.running(), TreeId::FREE_SPACE, |editor| {
                let mut space = GroupSpace {
                    editor,
                    group: &group,
                    sector_bytes: 4096,
                };
                let range = at..at + 131_072;
                if is_freed {
                    space.add(&range)
                } else {
                    space.remove(&range)
                }
            })
            .unwrap();
        }
    };
    let free = trees::read_free_space(&fs, &group).unwrap();
    change(false);
    assert!(uses_bitmaps());
    change(true);
    assert!(!uses_bitmaps());
    fs.sync().unwrap();
    assert_eq!(trees::read_free_space(&fs, &group).unwrap(), free);
    drop(fs);
    pool.assert_clean();
}

/// An extent of data with references `inline` and a count, in the extent tree.
fn with_refs(fs: &WriteContext, refs: u64, inline: &[RefKey]) -> Extent {
    let extent = Extent {
        address: LogicalAddr(1 << 40),
        len_bytes: 4096,
        kind: ExtentKind::Data,
    };
    let item = ExtentItem {
        refs,
        generation: fs.running(),
        flags: ExtentFlags::DATA,
        kind: ItemExtent::Data,
        inline: inline.iter().map(|key| key.counted(1)).collect(),
    };
    let key = Key::new(extent.address.0, ItemKind::EXTENT_ITEM, extent.len_bytes);
    let inserted = fs.edit(fs.running(), TreeId::EXTENT, |editor| {
        editor.insert(key, &item.encode())
    });
    inserted.unwrap();
    extent
}

#[test]
fn reference_after_removed_ones_of_its_hash_is_found() {
    let (_pool, fs) = opened();
    let node_bytes = fs.context.superblock.node_bytes;
    let extent = with_refs(&fs, 2, &[of_file(0)]);
    let hash = extent_data_ref_hash(TreeId::FS.0, 9, 0);
    let key = Key::new(extent.address.0, ItemKind::EXTENT_DATA_REF, hash + 2);
    let edit = |change: &Change<'_>| fs.edit(fs.running(), TreeId::EXTENT, change);
    let count = edit(&|editor| {
        editor.insert(key, &of_file(9).counted(1).encode_keyed())?;
        extent.add(editor, of_file(9), 2, None, node_bytes)?;
        let data = editor.get(key)?.unwrap();
        let found = ExtentRef::decode_keyed(key, &data, editor.tree().locus(key))?;
        assert_eq!(found.count(), 3);
        assert!(extent.drop_ref(editor, of_file(9), 3, None)?.is_none());
        Ok(editor.get(key)?.is_none())
    });
    assert!(count.unwrap());
}

#[test]
fn extent_with_references_left_is_not_freed() {
    let (_pool, fs) = opened();
    let extent = with_refs(&fs, 1, &[of_file(0)]);
    let edit = |change: &Change<'_>| fs.edit(fs.running(), TreeId::EXTENT, change);
    let inline = edit(&|editor| {
        let key = extent.ref_key(of_file(9));
        editor.insert(key, &of_file(9).counted(1).encode_keyed())?;
        Ok(extent.drop_ref(editor, of_file(9), 1, None)?.is_some())
    });
    assert_eq!(rule(inline), ExtentTreeRule::Left.text());
    let (_pool, fs) = opened();
    let extent = with_refs(&fs, 1, &[of_file(0)]);
    let edit = |change: &Change<'_>| fs.edit(fs.running(), TreeId::EXTENT, change);
    let keyed = edit(&|editor| {
        let key = Key::new(extent.address.0, ItemKind::SHARED_DATA_REF, 4096);
        let parent = LogicalAddr(4096);
        let reference = RefKey::SharedData { parent }.counted(1);
        editor.insert(key, &reference.encode_keyed())?;
        Ok(extent.drop_ref(editor, of_file(0), 1, None)?.is_some())
    });
    assert_eq!(rule(keyed), ExtentTreeRule::Left.text());
}

#[test]
fn reference_that_cannot_be_queued_aborts_the_transaction() {
    let (_pool, fs) = opened();
    let handle = fs.begin(4).unwrap();
    let orphan = Key::new(5, ItemKind::ORPHAN_ITEM, 1);
    let inserted = handle.edit(TreeId::FS, |tree| tree.insert(orphan, &[]));
    inserted.unwrap();
    let logical = *fs.new_blocks.lock().first().unwrap();
    let range = FileRange {
        tree: TreeId::FS,
        inode: 257,
        offset: 0,
    };
    let place = ExtentPlace {
        logical,
        disk_bytes: 4096,
        offset: 0,
    };
    let queued = data_extents::change(&handle, range, &place, Action::Drop);
    queued.unwrap_err();
    assert!(fs.failure().is_some());
}

/// Makes the second device the only one of a filesystem that is written, over the first as its seed.
const SPROUT: &str = "
set -- $devices
mkfs.btrfs -q -f $1
btrfstune -f -S 1 $1
wipefs -q -a $2
mount -t btrfs $1 $root
btrfs device add -f $2 $root > /dev/null
mount -o remount,rw $root
touch $root/file
umount $root
";

#[test]
fn what_is_not_written_is_refused_by_name() {
    let refused = |mkfs: &[&str], devices: usize, script: &str| {
        let pool = Pool::make(devices, 1400, mkfs);
        if !script.is_empty() {
            pool.run(script);
        }
        let Err(error) = pool.try_open(WriteOptions::default()) else {
            panic!("{mkfs:?} is not refused");
        };
        error.to_string()
    };
    let sprout = refused(&[], 2, SPROUT);
    assert!(sprout.contains("seed devices"), "{sprout}");
}

#[test]
fn unfinished_device_replacement_is_refused() {
    let (pool, fs) = opened();
    let handle = fs.begin(4).unwrap();
    let mut item = [0; 72];
    item[24 + 8] = 4;
    let key = Key::new(0, ItemKind::DEV_REPLACE, 0);
    let inserted = handle.edit(TreeId::DEV, |tree| tree.insert(key, &item));
    inserted.unwrap();
    drop(handle);
    fs.sync().unwrap();
    drop(fs);
    let refused = pool.try_open(WriteOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("replacement"), "{refused}");
}

#[test]
fn unreadable_roots_are_refused_before_writing() {
    for id in [TreeId::UUID, TreeId::DATA_RELOC, TreeId::FREE_SPACE] {
        let (pool, fs) = opened();
        let root = fs.context.required_tree(id).unwrap().root.logical;
        for copy in 0..fs.blocks().copies(root) {
            let (member, at) = fs.blocks().store().location(root, copy).unwrap();
            overwrite(&pool, usize::from(member.index), at, &[1; 4096]);
        }
        drop(fs);
        let budget = Arc::new(MemoryBudget::new(8 << 20));
        let clock = Arc::new(SystemClock::new());
        Btrfs::mount(&pool.devices(), &MountOptions::default(), budget, clock).unwrap();
        let refused = pool.try_open(WriteOptions::default()).unwrap_err();
        assert!(matches!(refused, Error::Corrupt(_)), "{id}: {refused}");
    }
}

#[test]
fn options_of_corrupt_filesystems_are_refused() {
    let pool = Pool::make(1, 160, &[]);
    let rescue = MountOptions {
        rescue: Rescue::ALL,
        ..MountOptions::default()
    };
    let copy = MountOptions {
        superblock_offset: Some(64 << 20),
        ..MountOptions::default()
    };
    for (options, name) in [(rescue, "rescue"), (copy, "copy of the superblock")] {
        let refused = pool.open_with(&options).unwrap_err();
        assert!(refused.to_string().contains(name), "{refused}");
    }
}

/// A chunk with something in it that has no right copy stays where it is.
#[test]
fn chunk_that_cannot_be_copied_is_not_moved() {
    let (pool, fs) = opened();
    super::files::create(&fs, TreeId::FS, "file", &vec![7; 90_000], 4096);
    fs.sync().unwrap();
    let data = fs
        .groups()
        .iter()
        .find(|group| group.holds(BlockGroupFlags::DATA) && group.space().used > 0);
    let start = data.unwrap().start();
    let chunk = fs.blocks().store().map().find(start).unwrap().clone();
    overwrite(&pool, 0, chunk.stripes[0].offset, &vec![1; 90_000]);
    let moved = compact::move_chunk(&fs, start, chunk.profile, &BTreeSet::new());
    assert_eq!(rule(moved), DataRule::NoCopy.text());
    assert!(fs.failure().is_none());
    assert_eq!(*fs.blocks().store().map().find(start).unwrap(), chunk);
    // It is used as before.
    super::files::create(&fs, TreeId::FS, "more", &[7; 9000], 4096);
    fs.sync().unwrap();
    drop(fs);
    pool.assert_clean();
}
