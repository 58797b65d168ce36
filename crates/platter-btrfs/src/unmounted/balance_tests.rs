//! Filters of a balance choose the chunks that they choose in the kernel.

use std::collections::BTreeMap;
use std::fs;

use platter_vfs::devices::Balance;

use super::tests::{request, to_the_end};
use crate::ondisk::LogicalAddr;
use crate::ondisk::chunk_item::Stripe;
use crate::txn::tests::image::Pool;

/// Data chunks that are used to different parts, and nothing that is empty.
const FILL: &str = r#"
mount -t btrfs -o "$options,nodatacow" "$device" "$root"
# One chunk after the other, each of 64 MiB.
for it in 1 2 3 4 5; do
    fallocate -l 40M "$root"/large$it
    for part in 1 2 3 4; do fallocate -l 6M "$root"/small$it.$part; done
    sync -f "$root"
done
rm "$root"/large2 "$root"/large4 "$root"/small2.[123] "$root"/small3.1
sync -f "$root"
btrfs balance start -dusage=0 -musage=0 "$root" > /dev/null
umount "$root"
mount -t btrfs -o "$options" "$device" "$root"
sync -f "$root"
umount "$root"
btrfs inspect-internal dump-tree -t chunk "$device" | sed -n 's/.*(FIRST_CHUNK_TREE CHUNK_ITEM \([0-9]*\)).*/\1/p'
"#;

/// The chunks of a filesystem with where they lie, by address.
fn chunks(pool: &Pool) -> BTreeMap<LogicalAddr, Vec<Stripe>> {
    let fs = request(pool).open().unwrap();
    let map = fs.blocks().store().map();
    let chunks = map.iter().map(|chunk| (chunk.start, chunk.stripes.clone()));
    chunks.collect()
}

/// How much is used of each chunk; of one that is gone, nothing.
fn used(pool: &Pool) -> BTreeMap<LogicalAddr, u64> {
    let fs = request(pool).open().unwrap();
    let groups = fs.groups().iter();
    groups.map(|it| (it.start(), it.space().used)).collect()
}

/// The addresses of chunks that the kernel moves, which get others.
fn moved_by_kernel(pool: &Pool, options: &str) -> Vec<LogicalAddr> {
    let before = chunks(pool);
    pool.run(&format!(
        "mount -t btrfs -o \"$options\" \"$device\" \"$root\"\nbtrfs balance start {options} \"$root\"\n"
    ));
    let after = chunks(pool);
    let moved = before.into_keys().filter(|it| !after.contains_key(it));
    moved.collect()
}

/// The addresses of chunks that we move, which keep them, or are gone.
fn moved_by_us(pool: &Pool, data: Option<&str>, metadata: Option<&str>) -> Vec<LogicalAddr> {
    let before = chunks(pool);
    let balance = Balance {
        data: data.map(str::to_owned),
        metadata: metadata.map(str::to_owned),
        system: None,
        is_forced: true,
    };
    let moved = request(pool).balance(&balance, &mut to_the_end).unwrap();
    let after = chunks(pool);
    pool.assert_clean();
    let different = before
        .into_iter()
        .filter(|(start, stripes)| after.get(start) != Some(stripes));
    let different: Vec<_> = different.map(|(start, _)| start).collect();
    assert_eq!(moved.moved, different.len() as u64);
    different
}

#[test]
fn filters_choose_the_chunks_of_the_kernel() {
    let pool = Pool::make(2, 320, &["-d", "single", "-m", "raid1"]);
    let printed = pool.run(FILL);
    let starts: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();
    let of_data = chunks(&pool).into_iter();
    let (third, stripes) = of_data.filter(|(_, it)| it.len() == 1).nth(2).unwrap();
    assert!(starts.contains(&third.0) && starts.len() > 6, "{starts:?}");
    let (vrange, stripe) = (third.0, stripes[0]);
    let device_range = format!(
        "devid={},drange={}..{}",
        stripe.device.0,
        stripe.offset.0 + 5,
        stripe.offset.0 + 6
    );
    let saved: Vec<_> = pool
        .images()
        .iter()
        .map(|it| it.with_extension("saved"))
        .collect();
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        let mut cp = std::process::Command::new("cp");
        cp.args(["--sparse=always"]).args([from, to]);
        assert!(cp.status().unwrap().success());
    };
    for (image, saved) in pool.images().iter().zip(&saved) {
        copy(image, saved);
    }
    let restore = || {
        for (image, saved) in pool.images().iter().zip(&saved) {
            fs::remove_file(image).unwrap();
            copy(saved, image);
        }
    };
    let mut counts = Vec::new();
    for words in [
        "usage=50",
        "usage=50..100",
        "usage=10..30",
        "usage=0",
        "usage=100",
        "limit=2",
        "limit=1..2",
        "limit=9..10",
        "usage=50,limit=2..",
        "profiles=single|dup",
        "profiles=raid1",
        "stripes=1..1",
        "stripes=2..3",
        "devid=1",
        "devid=2,limit=1",
        &device_range,
        &format!("vrange={}..{}", vrange + 1, vrange + 2),
        &format!("vrange=..{vrange}"),
        "convert=single,soft",
        "convert=raid1,limit=1",
    ] {
        let before = used(&pool);
        let by_us = moved_by_us(&pool, Some(words), None);
        let filled = used(&pool);
        restore();
        let by_kernel = moved_by_kernel(&pool, &format!("'-d{words}'"));
        restore();
        if words.contains("limit") {
            // The kernel begins with the highest addresses.
            assert_eq!(by_us.len(), by_kernel.len(), "{words}");
        } else {
            // One that others were emptied into may be too full for the filter by then.
            let is_filled = |start: &LogicalAddr| filled.get(start) > before.get(start);
            let filled = by_kernel.iter().filter(|it| !by_us.contains(it));
            let filled: Vec<_> = filled
                .filter(|it| words.contains("usage") && is_filled(it))
                .collect();
            let mut moved: Vec<_> = by_us.iter().chain(filled).copied().collect();
            moved.sort_unstable();
            assert_eq!(moved, by_kernel, "{words}");
        }
        counts.push(by_us.len());
    }
    assert!(
        counts.contains(&0) && counts.contains(&1) && counts.contains(&2),
        "{counts:?}"
    );
}

#[test]
fn mixed_chunks_have_the_filters_of_both() {
    let pool = Pool::make(1, 120, &["--mixed"]);
    for (data, metadata) in [
        (Some(""), None),
        (None, Some("")),
        (Some("limit=1"), Some("")),
    ] {
        let balance = Balance {
            data: data.map(str::to_owned),
            metadata: metadata.map(str::to_owned),
            ..Balance::default()
        };
        let refused = request(&pool)
            .balance(&balance, &mut to_the_end)
            .unwrap_err();
        assert!(refused.to_string().contains("share chunks"), "{refused}");
    }
    assert!(!moved_by_us(&pool, Some(""), Some("")).is_empty());
}
