//! Trees of the running transaction as readers see them, and changes that belong together.

use platter_vfs::{Condition, Error, Result};

use super::image::Pool;
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Key, TreeId};
use crate::txn::{WriteContext, WriteOptions, data_extents, space, trees};

fn key(number: u64) -> Key {
    Key::new(9000, ItemKind::XATTR_ITEM, number)
}

fn pool() -> Pool {
    Pool::make(1, 128, &["-m", "single"])
}

fn insert(fs: &WriteContext, number: u64) {
    let handle = fs.begin(16).unwrap();
    let inserted = handle.edit(TreeId::FS, |tree| tree.insert(key(number), &[0; 100]));
    inserted.unwrap();
}

/// The items of the test, by a tree that was looked up before any was inserted.
fn count(fs: &WriteContext, tree: crate::tree::Tree) -> usize {
    let mut cursor = fs.context().cursor(tree);
    cursor.seek(key(0)).unwrap();
    let mut count = 0;
    while cursor.key().is_some_and(|key| key.object == 9000) {
        count += 1;
        cursor.step().unwrap();
    }
    count
}

#[test]
fn reader_sees_items_of_the_running_transaction() {
    let pool = pool();
    let fs = pool.open(WriteOptions::default());
    let tree = fs.context().required_tree(TreeId::FS).unwrap();
    trees::follow(&fs, TreeId::FS).unwrap();
    for number in 0..300 {
        insert(&fs, number);
        assert_eq!(count(&fs, tree), usize::try_from(number).unwrap() + 1);
        if number % 100 == 50 {
            fs.sync().unwrap();
        }
    }
}

#[test]
fn tree_stays_as_it_is_while_it_is_read() {
    let pool = pool();
    let fs = pool.open(WriteOptions::default());
    let tree = fs.context().required_tree(TreeId::FS).unwrap();
    insert(&fs, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..400 {
                insert(&fs, number);
            }
        });
        let mut last = 0;
        while last < 400 {
            let found = count(&fs, tree);
            assert!(found >= last);
            last = found;
        }
    });
}

#[test]
fn changes_that_belong_together_end_the_transaction() {
    let pool = pool();
    let fs = pool.open(WriteOptions::default());
    let handle = fs.begin(16).unwrap();
    let refused = || -> Result<()> { Err(Condition::NoSpace.into()) };
    handle.whole(|_| refused()).unwrap_err();
    assert!(fs.failure().is_none(), "nothing was changed");
    let failed = handle.whole(|handle| {
        handle.edit(TreeId::FS, |tree| tree.insert(key(0), b"half"))?;
        refused()
    });
    failed.unwrap_err();
    let is_full = |error| matches!(error, Error::Condition(Condition::NoSpace));
    assert!(fs.failure().is_some_and(is_full));
    drop(handle);
    fs.sync().unwrap_err();
}

#[test]
fn ended_filesystem_takes_no_changes() {
    let pool = pool();
    let fs = pool.open(WriteOptions::default());
    insert(&fs, 0);
    fs.sync().unwrap();
    insert(&fs, 1);
    fs.end();
    fs.begin(16).unwrap_err();
    drop(fs);
    let fs = pool.open(WriteOptions::default());
    let tree = fs.context().required_tree(TreeId::FS).unwrap();
    assert_eq!(count(&fs, tree), 1, "what was not committed is lost");
}

#[test]
fn delayed_sectors_hold_space_of_both_types() {
    let pool = pool();
    let fs = pool.open(WriteOptions::default());
    let kinds = [BlockGroupFlags::DATA, BlockGroupFlags::METADATA];
    space::reserve_delayed(&fs, TreeId::FS, 10).unwrap();
    let before = kinds.map(|kind| space::available_bytes(&fs, kind));
    space::release_delayed(&fs, TreeId::FS, 10);
    let after = kinds.map(|kind| space::available_bytes(&fs, kind));
    assert!(after[0] >= before[0] + 10 * 4096);
    assert!(after[1] >= before[1] + 10 * 1024);
    let error = space::reserve_delayed(&fs, TreeId::FS, 1 << 30).unwrap_err();
    assert!(matches!(error, Error::Condition(Condition::NoSpace)));
    assert_eq!(
        kinds.map(|kind| space::available_bytes(&fs, kind))[1],
        after[1]
    );
}

#[test]
fn data_is_referred_to_in_a_later_transaction() {
    use crate::file::change::ExtentChange;
    use crate::ondisk::file_extent::{Compression, ExtentPlace, FileExtent, FileExtentKind};
    let pool = pool();
    let fs = pool.open(WriteOptions::default());
    let bytes = vec![7; 8192];
    let handle = fs.begin(16).unwrap();
    let logical = data_extents::allocate(&handle, 8192).unwrap();
    drop(handle);
    insert(&fs, 0);
    fs.sync().unwrap();
    data_extents::write(&fs, logical, &[std::io::IoSlice::new(&bytes)]).unwrap();
    insert(&fs, 1);
    fs.sync().unwrap();
    let handle = fs.begin(64).unwrap();
    let checksums = data_extents::checksums_of(&fs, &bytes);
    assert_eq!(checksums.len(), 8);
    data_extents::insert_checksums(&handle, logical, checksums).unwrap();
    let extents = ExtentChange {
        handle: &handle,
        tree: TreeId::FS,
        inode: 9001,
    };
    let place = ExtentPlace {
        logical,
        disk_bytes: 8192,
        offset: 0,
    };
    let extent = FileExtent {
        generation: handle.generation(),
        ram_bytes: 8192,
        compression: Compression::None,
        file_bytes: 8192,
        kind: FileExtentKind::Regular(place),
    };
    extents.insert(0, &extent, true).unwrap();
    extents.drop_range(0..8192, 1).unwrap();
    drop(handle);
    for number in 0..2 {
        let handle = fs.begin(16).unwrap();
        handle
            .edit(TreeId::FS, |tree| tree.remove(key(number)))
            .unwrap();
    }
    fs.sync().unwrap();
    drop(fs);
    pool.assert_clean();
}
