//! Blocks that a balance of the kernel moved, and those that they refer to.

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_cache::MemoryBudget;
use platter_vfs::{Filesystem, Name, SystemClock};

use super::Findings;
use crate::mount::{Btrfs, MountOptions};
use crate::txn::tests::image::Pool;

/// The kernel moves blocks of a chunk, and those below them in another one stay.
const BALANCED: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
cd "$root"
btrfs -q subvolume create sub
head -c 1000000 /dev/urandom > sub/data
for it in $(seq 14000); do printf '%02000d' $it > sub/f$it; done
sync -f .
btrfs -q subvolume snapshot sub snap1
for it in $(seq 1 300 14000); do echo x > snap1/f$it; done
sync -f .
btrfs -q subvolume snapshot snap1 snap2
for it in $(seq 1 40 14000); do printf '%01000d' 7 > snap2/f$it; done
sync -f .
btrfs -q balance start -mlimit=1 .
cd /
"#;

/// It moves all of them.
const ALL_BALANCED: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
btrfs -q balance start -m "$root"
"#;

#[test]
fn blocks_that_the_kernel_moved_are_shared_and_clean() {
    let pool = Pool::make(1, 200, &["-d", "single", "-m", "single"]);
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    for script in [BALANCED, ALL_BALANCED] {
        pool.run(script);
        pool.assert_clean();
        let mut found = Findings::default();
        let options = MountOptions::default();
        Btrfs::check(&pool.devices(), &options, &budget, &mut found).unwrap();
        assert!(found.0.is_empty(), "{:?}", found.0);
    }
    let clock = Arc::new(SystemClock::new());
    let options = MountOptions::default();
    let mounted = Btrfs::mount(&pool.devices(), &options, budget, clock).unwrap();
    let root = mounted.root().unwrap();
    for subvolume in ["sub", "snap1", "snap2"] {
        let dir = root.lookup(name(subvolume)).unwrap();
        let file = dir.lookup(name("data")).unwrap();
        let mut shared = Vec::new();
        file.extents(0..1_000_000, &mut |extent| {
            shared.push(extent.shared);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(shared, [true], "{subvolume}");
    }
}

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap()
}
