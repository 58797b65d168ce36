//! One workload in each index of delayed references: the images are equal, byte for byte.

use std::sync::Arc;

use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::MemoryBudget;
use platter_ondisk::Uuid;
use platter_vfs::{Context, CreateKind, Filesystem, FixedClock, Inode, Name, SetAttr, Timestamp};

use crate::delayed_refs::{DelayedRefCounters, IndexKind};
use crate::mkfs::{MkfsOptions, Target, mkfs};
use crate::mount::{Btrfs, MountOptions};
use crate::txn::WriteOptions;
use crate::txn::tests::Random;
use crate::txn::tests::image::Pool;

const IMAGE_BYTES: usize = 256 << 20;

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap()
}

fn clock() -> FixedClock {
    FixedClock::new(Timestamp::default(), 1)
}

/// Files that are made, written, cloned, truncated and removed, with commits and a snapshot among that.
fn work(mounted: &Btrfs) {
    let context = Context::root();
    let root = mounted.root().unwrap();
    let subvolumes = mounted.subvolumes().unwrap();
    let mut random = Random(1);
    let mut files: Vec<(String, Arc<dyn Inode>)> = Vec::new();
    for number in 0..3000 {
        let path = format!("{number:04}");
        let file = root.create(&context, name(&path), CreateKind::Regular, 0o644);
        let file = file.unwrap();
        let len = random.below(3) * random.below(20_000);
        file.write_at(0, &random.bytes(len)).unwrap();
        files.push((path, file));
        let at = usize::try_from(random.below(files.len() as u64)).unwrap();
        let other = &files[at].1;
        match random.below(6) {
            0 => {
                let (path, file) = files.swap_remove(at);
                drop(file);
                root.unlink(&context, name(&path)).unwrap();
            }
            1 => {
                let size = SetAttr {
                    size_bytes: Some(random.below(30_000)),
                    ..SetAttr::default()
                };
                other.set_attr(&context, &size).unwrap();
            }
            2 => {
                let source = &files[files.len() - 1].1;
                let len = source.attr().unwrap().size_bytes & !4095;
                if len > 0 && at != files.len() - 1 {
                    other.clone_range(&**source, 0..len, 0).unwrap();
                }
            }
            3 => {
                other.write_at(random.below(8) << 12, &[7; 4096]).unwrap();
                other.sync(false).unwrap();
            }
            _ => {}
        }
        if number % 500 == 499 {
            mounted.sync().unwrap();
        }
        if number == 1600 {
            let taken =
                subvolumes.snapshot(&context, root.id().tree, root.id(), name("snap"), false);
            taken.unwrap();
        }
    }
}

/// What the workload leaves, and what was counted meanwhile.
fn image_of(index: IndexKind) -> (Vec<u8>, DelayedRefCounters) {
    let memory = Arc::new(MemoryDevice::new("disk", vec![0; IMAGE_BYTES]));
    let devices: [Arc<dyn BlockDevice>; 1] = [Arc::clone(&memory) as _];
    let target = Target {
        devices: &devices,
        is_zero: true,
    };
    let made = MkfsOptions::new(Uuid::from_u128(0x77));
    mkfs(&target, &made, &clock()).unwrap();
    let options = MountOptions {
        transactions: WriteOptions {
            index,
            ..WriteOptions::default()
        },
        commit_interval: None,
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(64 << 20));
    let mounted = Btrfs::mount_writable(&devices, &options, budget, Arc::new(clock())).unwrap();
    work(&mounted);
    mounted.sync().unwrap();
    let counters = mounted.super_block().writing().unwrap().delayed_refs();
    let counters = counters.counters();
    mounted.unmount().unwrap();
    drop(mounted);
    (memory.snapshot(), counters)
}

#[test]
fn all_indexes_leave_the_same_image() {
    let first = image_of(IndexKind::ALL[0]);
    let counters = first.1;
    assert!(counters.heads > 1000 && counters.cancelled > 0 && counters.merged_refs > 0);
    for &index in &IndexKind::ALL[1..] {
        let other = image_of(index);
        assert_eq!(other.1, first.1, "{}", index.name());
        let differs = first
            .0
            .iter()
            .zip(&other.0)
            .position(|(one, other)| one != other);
        assert_eq!(differs, None, "{}", index.name());
    }
    let pool = Pool::empty(1);
    std::fs::write(&pool.images()[0], &first.0).unwrap();
    pool.assert_clean();
}
