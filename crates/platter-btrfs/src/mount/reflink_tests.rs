//! Clones over files of many extents.

use platter_vfs::{Context, CreateKind, Filesystem, SetAttr};

use super::write_tests::{name, read};
use crate::txn::tests::image::Pool;

/// Extents of the target: more than two handles drop.
const EXTENTS: u64 = 2100;
const PIECE: [u8; 4096] = [7; 4096];

/// The kernel compares both files.
const COMPARE: &str = r#"
mount -t btrfs -o "ro,$options" "$device" "$root"
cmp "$root"/source "$root"/target
"#;

fn examine(options: &[&str], is_hole: bool) {
    let pool = Pool::make(1, 256, options);
    let mounted = pool.mount_without_thread();
    let root = mounted.root().unwrap();
    let [source, target] = ["source", "target"].map(|path| {
        let made = root.create(&Context::root(), name(path), CreateKind::Regular, 0o644);
        made.unwrap()
    });
    for index in 0..EXTENTS {
        target.write_at(index * 8192, &PIECE).unwrap();
    }
    let size_bytes = target.attr().unwrap().size_bytes;
    if is_hole {
        let size = SetAttr {
            size_bytes: Some(size_bytes),
            ..SetAttr::default()
        };
        source.set_attr(&Context::root(), &size).unwrap();
    } else {
        let len = usize::try_from(size_bytes).unwrap();
        let contents: Vec<u8> = (0..=250).cycle().take(len).collect();
        source.write_at(0, &contents).unwrap();
    }
    mounted.sync().unwrap();
    let before = mounted.super_block().change_count();
    target.clone_range(&*source, 0..size_bytes, 0).unwrap();
    let handles = mounted.super_block().change_count() - before;
    println!("{options:?}: {handles} handles");
    assert!(handles > 3, "{handles}");
    assert!(read(&*target) == read(&*source));
    let allocated = if is_hole { 0 } else { size_bytes };
    assert_eq!(target.attr().unwrap().sectors, allocated / 512);
    drop((root, source, target));
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
    pool.run(COMPARE);
}

#[test]
fn clone_over_many_extents_takes_several_handles() {
    examine(&["-m", "single"], false);
    examine(&["-m", "single"], true);
    examine(&["-m", "single", "-O", "^no-holes"], true);
}
