//! Sealing what the tools made changes nothing, and everything that must be found is.

use std::collections::BTreeSet;

use super::*;
use crate::seeds;

#[test]
fn checksums_of_good_images_are_right_already() {
    for (fixture, image) in seeds::files().unwrap() {
        let devices = seeds::devices(fixture, &image);
        let layout = Layout::read(fixture.fs_type, &image, &devices).unwrap();
        let mut sealed = image.clone();
        layout.seal(&mut sealed, &layout.parts);
        let changed = image.first_difference(&sealed);
        let parts: Vec<_> = changed
            .into_iter()
            .flat_map(|at| layout.touched(at, at + 1))
            .collect();
        assert_eq!((changed, &*parts), (None, &[][..]), "{}", fixture.name);
    }
}

/// The names of all kinds of parts that the seeds of a format have.
fn kinds(fs_type: FsType) -> BTreeSet<String> {
    let mut kinds = BTreeSet::new();
    for (fixture, image) in seeds::files().unwrap() {
        if fixture.fs_type != fs_type {
            continue;
        }
        let devices = seeds::devices(fixture, &image);
        for part in Layout::read(fs_type, &image, &devices).unwrap().parts {
            kinds.insert(match part.kind {
                Kind::Ext4(kind) => {
                    let name = format!("{kind:?}");
                    let end = name.find(['(', ' ']).unwrap_or(name.len());
                    name[..end].to_owned()
                }
                Kind::Btrfs(kind) => format!("{kind:?}"),
                Kind::Xfs(xfs::Kind::Magic(magic, _)) => {
                    let [high, low, ..] = magic;
                    if magic.is_ascii() && magic[2..] != [0; 2] {
                        String::from_utf8(magic.to_vec()).unwrap()
                    } else {
                        format!("{high:02x}{low:02x}")
                    }
                }
                Kind::Xfs(xfs::Kind::LogRecord) => "log".to_owned(),
                Kind::Xfs(xfs::Kind::LogRegion(item)) => format!("{item:04x}"),
            });
        }
    }
    kinds
}

#[test]
fn every_kind_of_part_of_ext4_occurs() {
    let kinds = kinds(FsType::Ext4);
    assert_eq!(kinds.len(), 15, "{kinds:?}");
}

#[test]
fn every_kind_of_part_of_btrfs_occurs() {
    let kinds = kinds(FsType::Btrfs);
    for kind in [
        "Superblock",
        "SystemChunks",
        "Node",
        "Leaf",
        "Data",
        "Compressed",
    ] {
        assert!(kinds.contains(kind), "{kind} of {kinds:?}");
    }
    // Inodes, names, attributes, logged names, extents and their checksums, trees and their names, chunks,
    // block groups, devices, free space, quotas.
    for item in [
        1, 12, 24, 72, 84, 96, 108, 128, 132, 144, 156, 168, 169, 192, 198, 204, 216, 228, 240, 242,
    ] {
        assert!(
            kinds.contains(&format!("Item({item})")),
            "{item} of {kinds:?}"
        );
    }
}

#[test]
fn every_kind_of_part_of_xfs_occurs() {
    let kinds = kinds(FsType::Xfs);
    for magic in [
        "XFSB", "XAGF", "XAGI", "XAFL", "AB3B", "AB3C", "IAB3", "FIB3", "RMB3", "R3FC", "XDB3",
        "XDD3", "XDF3", "3df1", "3dff", "3ebe", "3bee", "BMA3", "XSLM", "XARM", "log", "ABTB",
        "IABT", "XD2B", "XD2D", "d2f1", "123b", "123c",
    ] {
        assert!(kinds.contains(magic), "{magic} of {kinds:?}");
    }
    assert!(
        kinds.iter().any(|kind| kind.starts_with("494e")),
        "inodes in {kinds:?}"
    );
}

#[test]
fn sealed_changes_leave_nothing_to_seal() {
    let mut prng = testkit::prng::Prng::new(5);
    for (fixture, good) in seeds::files().unwrap() {
        if fixture.fs_type == FsType::Ext4 {
            continue;
        }
        let devices = seeds::devices(fixture, &good);
        let layout = Layout::read(fixture.fs_type, &good, &devices).unwrap();
        for _ in 0..10 {
            let which = usize::try_from(prng.below(layout.parts.len() as u64)).unwrap();
            let range = layout.parts[which].range.clone();
            let at = range.start + range.len() / 2;
            let mut image = good.clone();
            let byte = image.slice(at, 1)[0];
            image.put(at, &[byte ^ 1]);
            let touched: Vec<Part> = layout.touched(at, at + 1).cloned().collect();
            let of_data = Kind::Btrfs(btrfs::Kind::Item(128));
            if touched.iter().any(|part| part.kind == of_data) {
                // A wrong checksum of data that is right itself.
                continue;
            }
            layout.seal(&mut image, &touched);
            let mut again = image.clone();
            layout.seal(&mut again, &layout.parts);
            let differs = image.first_difference(&again);
            assert_eq!(differs, None, "{}: {at} of {touched:?}", fixture.name);
        }
    }
}

#[test]
fn seeds_do_not_depend_on_when_they_were_made() {
    for seed in seeds::of(&[FsType::Ext4]).unwrap() {
        let mut later = seed.contents.clone();
        for part in &seed.layout.parts {
            let at = part.range.start;
            if matches!(part.kind, Kind::Ext4(ext4::Kind::Inode(_)))
                && !ext4::holds_value(&later, at)
            {
                let time = later.slice(at + 0x0c, 1)[0];
                later.put(at + 0x0c, &[time ^ 0x55]);
            }
        }
        seed.layout.seal(&mut later, &seed.layout.parts);
        assert!(later != seed.contents, "{}", seed.name);
        seed.layout.make_still(&mut later);
        assert!(later == seed.contents, "{}", seed.name);
    }
}
