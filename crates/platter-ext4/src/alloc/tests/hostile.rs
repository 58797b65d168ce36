//! Filesystems with random bytes where structures should be: what works, works, and the rest fails.

use std::sync::Weak;

use platter_block::{BlockDevice, MemoryDevice};

use super::sample::{self, Sample, Shape};
use super::*;
use crate::txn::CommitClient;

/// Steps of all kinds, whatever comes of them.
fn exercise(sample: &Sample, mut random: impl FnMut(u64) -> u64) {
    let (space, volume) = (&sample.space, &sample.volume);
    let blocks = volume.geometry.blocks_count;
    let mut window = Window::default();
    for _ in 0..60 {
        let goal = BlockNr(random(blocks + 10));
        let want = u32::try_from(1 + random(300)).unwrap();
        if let Ok(taken) = space.take_growing(volume, &mut window, goal, want, Reserve::Split) {
            let mut handle = volume.begin(RECORD_CREDITS).unwrap();
            let _ = space.record(volume, &mut handle, taken);
        }
        let start = random(blocks);
        let freed = BlockNr(start)..BlockNr(start + 1 + random(40));
        let mut handle = volume.begin(space.free_credits(41)).unwrap();
        let _ = space.free(volume, &mut handle, freed);
        drop(handle);
        let parent = u32::try_from(1 + random(150)).unwrap();
        let kind = [FileKind::Directory, FileKind::Regular][usize::try_from(random(2)).unwrap()];
        let _ = sample.alloc_inode(parent, kind, random(1000));
        let number = u32::try_from(1 + random(300)).unwrap();
        let _ = sample.free_inode(number, random(2) == 0);
        if random(10) == 0 {
            let _ = volume.log().unwrap().commit_all();
        }
    }
    space.close_window(&mut window);
}

#[test]
fn random_bytes_end_in_errors() {
    let mut state = 1u64;
    let mut random = |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let mut opened = 0;
    for round in 0..150 {
        let shape = Shape {
            ro_compat: RoCompat::SPARSE_SUPER,
            uninit: false,
            ..Shape::ALL[round % Shape::ALL.len()]
        };
        let mut changes = Vec::new();
        for _ in 0..=random(6) {
            // Descriptors, bitmaps and inode tables of any group, mostly at its start.
            changes.push((random(70), random(40), random(1024), random(256)));
        }
        let bytes = sample::damaged_bytes(shape, |bytes, geometry| {
            for &(group, block, offset, value) in &changes {
                let group = u32::try_from(group).unwrap() % geometry.groups_count;
                let first = geometry.group_first_block(GroupNr(group)).0;
                let at = (first + 1 + block) * 1024 + offset;
                if let Some(byte) = bytes.get_mut(usize::try_from(at).unwrap()) {
                    *byte = u8::try_from(value).unwrap();
                }
            }
        });
        let device = Arc::new(MemoryDevice::new("memory", bytes));
        let above: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let Some(sample) = Sample::try_through(device, above) else {
            continue;
        };
        let client: Weak<dyn CommitClient> = Arc::<Space>::downgrade(&sample.space);
        sample.volume.log().unwrap().attach(client);
        opened += 1;
        exercise(&sample, &mut random);
    }
    assert!(opened > 50, "{opened}");
}
