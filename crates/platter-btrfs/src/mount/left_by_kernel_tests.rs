//! What the kernel was doing with chunks when it stopped, and seeds.

use std::sync::Arc;

use platter_cache::MemoryBudget;
use platter_vfs::{Condition, Context, CreateKind, Error, Filesystem, SystemClock};
use zerocopy::{FromZeros, IntoBytes};

use super::devices_in_use_tests::{devices, everything, to_the_end};
use super::write_tests;
use super::{Btrfs, MountOptions};
use crate::ondisk::balance::DiskBalance;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::BALANCE_OBJECT;
use crate::ondisk::{Key, TreeId};
use crate::txn::WriteOptions;
use crate::txn::tests::image::Pool;

/// Puts an item into the root tree.
fn insert(pool: &Pool, key: Key, data: impl Fn(Vec<u8>) -> Vec<u8>) {
    let fs = pool.open(WriteOptions::default());
    let handle = fs.begin(4).unwrap();
    let root_item = Key::new(TreeId::FS.0, ItemKind::ROOT_ITEM, 0);
    let inserted = handle.edit(TreeId::ROOT, |tree| {
        let root = tree.get(root_item)?.unwrap();
        tree.insert(key, &data(root))
    });
    inserted.unwrap();
    drop(handle);
    fs.sync().unwrap();
}

/// A filesystem with a paused balance of data.
fn with_paused_balance() -> Pool {
    let pool = Pool::make(1, 256, &["-m", "single"]);
    let mut balance = DiskBalance::new_zeroed();
    // Of data.
    balance.flags = 1.into();
    let key = Key::new(BALANCE_OBJECT, ItemKind::TEMPORARY_ITEM, 0);
    insert(&pool, key, |_| balance.as_bytes().to_vec());
    pool
}

/// Goes on with it by the kernel.
fn resume(pool: &Pool) {
    const RESUME: &str = r#"
mount -t btrfs -o "skip_balance,$options" "$device" "$root"
btrfs balance status "$root" || :
cat "$root"/file
btrfs balance resume "$root"
btrfs balance status "$root" || :
"#;
    let shown = pool.run(RESUME);
    assert!(shown.contains("is paused"), "{shown}");
    assert!(shown.contains("contents"), "{shown}");
    assert!(shown.contains("No balance found"), "{shown}");
    pool.assert_clean();
}

/// Mounts it and makes a file, which [`resume`] looks at.
fn make_file(pool: &Pool) -> Btrfs {
    let mounted = write_tests::mount(pool);
    let root = mounted.root().unwrap();
    let name = write_tests::name("file");
    let file = root.create(&Context::root(), name, CreateKind::Regular, 0o644);
    file.unwrap().write_at(0, b"contents").unwrap();
    mounted
}

#[test]
fn paused_balance_is_left_to_the_kernel() {
    let pool = with_paused_balance();
    let mounted = make_file(&pool);
    write_tests::finish(&pool, mounted);
    resume(&pool);
}

#[test]
fn paused_balance_stays_through_another() {
    let pool = with_paused_balance();
    let mounted = make_file(&pool);
    mounted.sync().unwrap();
    let moved = devices(&mounted).balance(&everything(), &mut to_the_end);
    assert!(moved.unwrap().moved > 1);
    write_tests::finish(&pool, mounted);
    resume(&pool);
}

#[test]
fn chunk_that_was_being_moved_is_refused() {
    let pool = Pool::make(1, 160, &[]);
    let key = Key::new(TreeId::TREE_RELOC.0, ItemKind::ROOT_ITEM, TreeId::FS.0);
    insert(&pool, key, |root| root);
    let refused = pool.try_open(WriteOptions::default()).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("while a chunk is being moved"), "{text}");
}

#[test]
fn seed_is_mounted_for_reading_only() {
    let pool = Pool::make(1, 160, &[]);
    pool.run("btrfstune -f -S 1 $device");
    let mount = |is_writable| {
        let budget = Arc::new(MemoryBudget::new(8 << 20));
        let (options, clock) = (MountOptions::default(), Arc::new(SystemClock::new()));
        if is_writable {
            Btrfs::mount_writable(&pool.devices(), &options, budget, clock)
        } else {
            Btrfs::mount(&pool.devices(), &options, budget, clock)
        }
    };
    let refused = mount(true).unwrap_err();
    assert!(
        matches!(refused, Error::Condition(Condition::ReadOnly)),
        "{refused}"
    );
    assert!(mount(false).unwrap().is_read_only());
    let refused = pool.try_open(WriteOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("seed device"), "{refused}");
}
