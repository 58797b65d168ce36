//! Items of new block groups whose extents are freed in the transaction that allocates them: what two faults of the kernel
//! left in them, in whole commits.

use std::sync::Arc;

use platter_ondisk::Locus;

use super::files::{create, unlink};
use super::image::Pool;
use crate::block_group::{BlockGroup, Persisted, Update};
use crate::ondisk::block_group::BlockGroupItem;
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Key, TreeId};
use crate::txn::{WriteContext, WriteOptions, chunks, commit, convert, trees};

const DATA: BlockGroupFlags = BlockGroupFlags::DATA;
const EXTENT: u64 = 32 << 10;

/// A new group for data, and the only one that data is allocated in.
fn new_group(fs: &WriteContext) -> Arc<BlockGroup> {
    let of_data = || fs.groups().iter().filter(|group| group.holds(DATA));
    let old: Vec<_> = of_data().collect();
    assert!(chunks::grow_space(fs, DATA, fs.groups().free_bytes(DATA)).unwrap());
    assert!(old.iter().all(|group| fs.groups().hold(group)));
    let is_new = |group: &Arc<BlockGroup>| old.iter().all(|it| it.start() != group.start());
    of_data().find(is_new).unwrap()
}

/// The item in the tree of the last commit.
fn item_of(fs: &WriteContext, group: &BlockGroup) -> BlockGroupItem {
    let key = Key::new(
        group.start().0,
        ItemKind::BLOCK_GROUP_ITEM,
        group.len_bytes(),
    );
    let handle = fs.begin(4).unwrap();
    let data = handle.edit(trees::block_group_tree(fs), |tree| tree.get(key));
    let data = data.unwrap().expect("an item");
    BlockGroupItem::decode(key, &data, Locus::UNKNOWN).unwrap()
}

/// What becomes of an update that was begun too early, in a filesystem whose commits compare items or do not.
fn examine(has_group_tree: bool, skips_unchanged_groups: bool) {
    let pool = Pool::make(1, 600, &[]);
    let mut fs = pool.open(WriteOptions {
        skips_unchanged_groups,
        ..WriteOptions::default()
    });
    if has_group_tree {
        convert::to_block_group_tree(&mut fs).unwrap();
    }
    let group = new_group(&fs);
    create(&fs, TreeId::FS, "file", &vec![7; 32 << 10], 32 << 10);
    // The pre-pass comes before the item.
    let too_early = group.begin_update(skips_unchanged_groups);
    assert!(matches!(too_early, Update::Absent));
    commit::prepare(&fs, fs.running()).unwrap();
    drop(too_early);
    assert_eq!(group.space().used, EXTENT);
    assert_eq!(item_of(&fs, &group).used_bytes, EXTENT);
    // One that fails after the insertion.
    let Update::Write(failing) = group.begin_update(false) else {
        panic!("there is an item");
    };
    drop(failing);
    unlink(&fs, TreeId::FS, "file");
    fs.sync().unwrap();
    let item = item_of(&fs, &group);
    assert_eq!((group.space().used, item.used_bytes), (0, 0));
    assert_eq!(group.persisted(), Persisted::Item(item));
    assert!(group.is_unused(), "it can be removed");
    drop(fs);
    pool.assert_clean();
}

#[test]
fn new_group_that_is_empty_again_says_so() {
    for has_group_tree in [false, true] {
        for skips in [false, true] {
            examine(has_group_tree, skips);
        }
    }
}
