//! The mount object in its three layouts.

use std::fmt::Write;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::ondisk::superblock::tests::sample;

/// The page that shows the tables.
const PAGE: &str = include_str!("../../../../docs/design/xfs-mount.md");

fn mount<L: MountLayout>() -> XfsMount<L> {
    XfsMount::new(&sample().decode().unwrap())
}

fn number(number: u64) -> InodeNr {
    InodeNr::new(number).unwrap()
}

fn table<L: MountLayout>() -> String {
    let mut table = String::from("| field | class | offset | size |\n|---|---|---|---|\n");
    for (prefix, start, layout) in XfsMount::<L>::tables() {
        for field in layout.fields {
            let (class, offset) = (field.class.name(), start + field.offset_bytes);
            let name = format!("`{prefix}{}`", field.name);
            writeln!(
                table,
                "| {name} | {class} | {offset} | {} |",
                field.len_bytes
            )
            .unwrap();
        }
    }
    table
}

#[test]
fn page_shows_the_tables_of_the_three_layouts() {
    for table in [
        table::<Packed>(),
        table::<Separated>(),
        table::<Counterless>(),
    ] {
        assert!(PAGE.contains(&table), "{table}");
    }
}

/// The address of the byte that the mount reads, from its start.
fn shift_at<L: MountLayout>(mount: &XfsMount<L>) -> usize {
    let start = std::ptr::from_ref(mount).addr();
    let apart = std::ptr::from_ref(&mount.sector_shift).addr();
    let adjacent = std::ptr::from_ref(&mount.written.sector_shift).addr();
    let at = if mount.sector_shift.get().is_some() {
        apart
    } else {
        adjacent
    };
    at - start
}

fn check_layout<L: MountLayout>(is_packed: bool) {
    let mount = mount::<L>();
    let pair = |at: usize| at / platter_cache::layout::LINES_BYTES;
    let counter =
        std::mem::offset_of!(XfsMount<L>, written) + std::mem::offset_of!(Written<L>, active);
    assert_eq!(
        pair(shift_at(&mount)) == pair(counter),
        is_packed,
        "{}",
        L::NAME
    );
    assert_eq!(mount.sector_shift(), 0);
    let is_valid = |inode: u64| mount.locate_inode(number(inode)).is_some();
    assert!(
        is_valid(131) && !is_valid(7) && !is_valid(4 << 15),
        "{}",
        L::NAME
    );
    let one = mount.begin();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _two = mount.begin();
            assert!(mount.active().is_none_or(|active| active == 2));
        });
    });
    drop(one);
    assert!(mount.active().is_none_or(|active| active == 0));
}

#[test]
fn byte_is_next_to_the_counter_in_one_layout_only() {
    check_layout::<Packed>(true);
    check_layout::<Separated>(false);
    check_layout::<Counterless>(false);
    assert!(mount::<Counterless>().active().is_none());
    assert_eq!(mount::<Packed>().active(), Some(0));
}

#[test]
fn transaction_is_not_counted_while_it_waits_for_the_thaw() {
    let mount = mount::<Separated>();
    mount.freeze().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| drop(mount.begin()));
        for _ in 0..100 {
            assert_eq!(mount.active(), Some(0));
            std::thread::yield_now();
        }
        mount.thaw().unwrap();
        waiting.join().unwrap();
    });
}

#[test]
fn counters_are_exact_and_never_negative_when_frozen() {
    const FREEZES: usize = 50;
    let mount = mount::<Counterless>();
    let is_over = AtomicBool::new(false);
    let start = mount.free_blocks().sum();
    let taken = std::sync::atomic::AtomicI64::new(0);
    std::thread::scope(|scope| {
        for thread in 1..=2 {
            let (mount, taken, is_over) = (&mount, &taken, &is_over);
            scope.spawn(move || {
                // More than there is is asked for, and some of it given back.
                for turn in 0_i64.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let running = mount.begin();
                    let amount = 1 + turn % 500 * thread;
                    if mount.free_blocks().try_sub(amount, 0) {
                        taken.fetch_add(amount, Ordering::SeqCst);
                    } else if turn % 3 == 0 {
                        let back = taken.swap(0, Ordering::SeqCst);
                        mount.free_blocks().add(back);
                    }
                    drop(running);
                }
            });
        }
        for _ in 0..FREEZES {
            mount.freeze().unwrap();
            let left = mount.free_blocks().sum();
            assert!(left >= 0, "{left}");
            assert_eq!(left, start - taken.load(Ordering::SeqCst));
            mount.thaw().unwrap();
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn inode_numbers_are_checked_while_the_filesystem_grows() {
    const GROWTHS: u32 = 1_000;
    let mount = mount::<Counterless>();
    let is_over = AtomicBool::new(false);
    // Groups are whole but for the last one: with a torn pair one would be too long, or too short.
    let size = |turn: u32| {
        let (groups, rest) = (4 + turn / 2, u64::from(turn % 2) * 1024);
        FsSize {
            ag_count: groups + turn % 2,
            data_blocks: u64::from(groups) * 4096 + rest,
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut checked = 0_u64;
                while !is_over.load(Ordering::Relaxed) || checked < 1_000 {
                    let known = mount.geometry().ag_count();
                    let FsSize {
                        ag_count,
                        data_blocks,
                    } = mount.geometry().growth.size();
                    let whole = u64::from(ag_count) * 4096;
                    assert!(data_blocks == whole || data_blocks == whole - 3072);
                    assert!(ag_count >= known);
                    let inode = (u64::from(ag_count - 2) << 15) + 131;
                    assert!(mount.locate_inode(number(inode)).is_some());
                    checked += 1;
                }
            });
        }
        for turn in 0..GROWTHS {
            mount.grow(size(turn));
            // An inode of the last group, in its first 1024 blocks.
            let last = mount.geometry().ag_count() - 1;
            let inode = (u64::from(last) << 15) | (1020 << 3);
            assert!(mount.locate_inode(number(inode)).is_some());
            let group = mount.group(AgNr(last));
            assert_eq!(group.len_blocks(), mount.geometry().ag_len(AgNr(last)));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(mount.set_aside(), 8 * u64::from(size(GROWTHS - 1).ag_count));
}

#[test]
fn counters_begin_with_what_the_superblock_holds() {
    let superblock = sample().decode().unwrap();
    let mount = mount::<Counterless>();
    let sums = [mount.free_blocks(), mount.inodes(), mount.free_inodes()].map(StripedCounter::sum);
    let held = [
        superblock.free_data_blocks,
        superblock.inode_count,
        superblock.free_inodes,
    ];
    assert_eq!(sums.map(i64::unsigned_abs), held);
    let turns: Vec<_> = (0..5).map(|_| mount.next_directory_group().0).collect();
    assert_eq!(turns, [0, 1, 2, 3, 0]);
}

#[test]
fn counters_stay_exact_near_the_floor_when_the_filesystem_grows() {
    let mount = mount::<Counterless>();
    // So many that stripes are open where the counter need not be exact.
    mount.free_blocks().add(1 << 20);
    let floor = mount.free_blocks().sum() - 10;
    mount.free_blocks().set_exact_below(|| floor);
    mount.grow(FsSize {
        ag_count: 5,
        data_blocks: 5 * 4096,
    });
    assert!(!mount.free_blocks().try_sub(11, floor));
    assert!(mount.free_blocks().try_sub(10, floor));
}
