//! Names with the same hash, of files and of extended attributes: their entries share an item.

use std::collections::HashMap;
use std::fmt::Write;

use anyhow::Result;
use platter_btrfs::MountOptions;
use platter_btrfs::ondisk::checksum::name_hash;
use platter_btrfs::ondisk::key::ItemKind;
use platter_btrfs::ondisk::{Key, TreeId};
use platter_vfs::{Filesystem, Name};
use testkit::prng::Prng;

use super::check;
use super::image::{Pool, mount};

/// Names that are tried; pairs of them are expected to collide.
const NAMES: u32 = 200_000;
const NAME_BYTES: usize = 12;

/// Pairs of names of one length with the same hash. With the same text in front of both, the hashes are equal too.
fn pairs() -> Vec<[String; 2]> {
    let mut prng = Prng::new(5);
    let mut seen = HashMap::new();
    let mut found = Vec::new();
    for _ in 0..NAMES {
        let letters = prng.bytes(NAME_BYTES).into_iter();
        let name: String = letters.map(|byte| char::from(b'a' + byte % 26)).collect();
        if let Some(other) = seen.insert(name_hash(name.as_bytes()), name.clone()) {
            found.push([other, name]);
        }
    }
    found
}

/// How many items of a kind an inode of the top has.
fn items(btrfs: &platter_btrfs::Btrfs, inode: u64, kind: ItemKind) -> Result<usize> {
    let context = btrfs.super_block().context();
    let mut cursor = context.cursor(context.required_tree(TreeId::FS)?);
    cursor.seek(Key::new(inode, kind, 0))?;
    let mut count = 0;
    while let Some((key, _)) = cursor.item() {
        if (key.object, key.kind) != (inode, kind) {
            break;
        }
        count += 1;
        cursor.step()?;
    }
    Ok(count)
}

#[test]
fn names_with_equal_hashes_are_read_as_by_the_kernel() -> Result<()> {
    let pairs = pairs();
    assert!(pairs.len() >= 3, "{} pairs", pairs.len());
    let mut script = "set -e\ncd $1\nmkdir dir\ntouch file\n".to_owned();
    for [one, other] in &pairs {
        for name in [one, other] {
            writeln!(script, "echo {name} > dir/{name}")?;
            writeln!(script, "setfattr -n user.{name} -v {name} file")?;
        }
    }
    // Of one pair the first is removed again, of another the second is a directory.
    let [gone, left] = &pairs[0];
    writeln!(script, "rm dir/{gone}\nsetfattr -x user.{gone} file")?;
    let [_, directory] = &pairs[1];
    writeln!(script, "rm dir/{directory}\nmkdir dir/{directory}")?;
    let pool = Pool::make(1, 120 << 10, &[])?;
    pool.run("", &script)?;
    let outcome = pool.compare(&MountOptions::default(), "", super::image::RULES)?;
    assert_eq!(outcome.differences, 0, "{outcome}");
    assert_eq!(outcome.xattrs, 2 * pairs.len() as u64 - 1, "{outcome}");
    check::is_clean(&pool.paths())?;

    let btrfs = mount(&pool.devices()?, &MountOptions::default())?;
    let root = btrfs.root()?;
    let dir = root.lookup(Name::new(b"dir")?)?;
    let file = root.lookup(Name::new(b"file")?)?;
    for (inode, kind) in [
        (dir.id().number, ItemKind::DIR_ITEM),
        (file.id().number, ItemKind::XATTR_ITEM),
    ] {
        assert_eq!(items(&btrfs, inode, kind)?, pairs.len());
    }
    assert!(dir.lookup(Name::new(gone.as_bytes())?).is_err());
    assert!(file.get_xattr(format!("user.{gone}").as_bytes()).is_err());
    for name in pairs[2..].iter().flatten().chain([left]) {
        let found = dir.lookup(Name::new(name.as_bytes())?)?;
        let mut text = vec![0; 100];
        let count = found.read_at(0, &mut text)?;
        assert_eq!(text[..count], *format!("{name}\n").as_bytes());
        let value = file.get_xattr(format!("user.{name}").as_bytes())?;
        assert_eq!(value, name.as_bytes());
    }
    Ok(())
}
