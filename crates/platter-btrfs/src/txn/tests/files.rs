//! Removal of files that the kernel wrote: inline, with extents, reflinked, shared with snapshots.

use std::collections::BTreeMap;

use platter_ondisk::Locus;
use zerocopy::IntoBytes;

use super::image::Pool;
use crate::delayed_refs::Action;
use crate::ondisk::checksum::name_hash;
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::file_extent::{FileExtent, FileExtentKind};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::FIRST_FREE_OBJECT;
use crate::ondisk::{Key, TreeId};
use crate::txn::{WriteContext, WriteOptions};

const ROOT: u64 = FIRST_FREE_OBJECT;

/// Removes a file from the root directory of a subvolume, item by item.
fn unlink(fs: &WriteContext, id: TreeId, name: &str) {
    let name = name.as_bytes();
    let handle = fs.begin(32).unwrap();
    let extents = handle.edit(id, |tree| {
        let entry_key = Key::new(ROOT, ItemKind::DIR_ITEM, name_hash(name));
        let entry = tree.get(entry_key)?.unwrap();
        let entries = DirItem::decode_all(entry_key, &entry, Locus::UNKNOWN)?;
        let Location::Inode(inode) = entries[0].location else {
            panic!("a subvolume");
        };
        let ref_key = Key::new(inode, ItemKind::INODE_REF, ROOT);
        let names = tree.get(ref_key)?.unwrap();
        let index = InodeRef::decode_all(&names, ROOT, Locus::UNKNOWN)?[0].index;
        let mut extents = Vec::new();
        let mut next = Key::new(inode, ItemKind::EXTENT_DATA, 0);
        while let Some((key, data)) = tree.at_or_after(next)?
            && key.object == inode
        {
            let extent = FileExtent::decode(&data, key.offset, 4096, Locus::UNKNOWN)?;
            if let FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) = extent.kind {
                extents.push((inode, key.offset, place));
            }
            next = key.successor().unwrap();
        }
        tree.remove(entry_key)?;
        tree.remove(Key::new(ROOT, ItemKind::DIR_INDEX, index))?;
        let last = Key::new(inode, ItemKind(u8::MAX), u64::MAX);
        tree.remove_range(Key::new(inode, ItemKind(0), 0), last)?;
        let dir_key = Key::new(ROOT, ItemKind::INODE_ITEM, 0);
        let dir = tree.get(dir_key)?.unwrap();
        let mut dir = InodeItem::decode(&dir, Locus::UNKNOWN)?;
        dir.size_bytes -= 2 * name.len() as u64;
        tree.set(dir_key, dir.encode().as_bytes())?;
        Ok(extents)
    });
    for (inode, offset, place) in extents.unwrap() {
        handle
            .change_data(id, (inode, offset), &place, Action::Drop)
            .unwrap();
    }
}

const FILL: &str = r"
mount -t btrfs -o $options $device $root
cd $root
i=1
while [ $i -le 300 ]; do
    head -c $((i * 211 % 9000)) /dev/urandom > f$i
    i=$((i + 1))
done
head -c 3000000 /dev/urandom > big
sync
cp --reflink=always big clone
fallocate -l 100000 prealloc
btrfs subvolume snapshot $root $root/snap > /dev/null
btrfs subvolume snapshot $root/snap $root/third > /dev/null
while [ $i -le 400 ]; do
    head -c $((i * 211 % 9000)) /dev/urandom > f$i
    i=$((i + 1))
done
cd /
umount $root
";

const SUM: &str = r"
mount -t btrfs -o ro,$options $device $root
cd $root
find . -type f | xargs sha256sum
cd /
umount $root
";

/// All files with their checksums.
fn sums(pool: &Pool) -> BTreeMap<String, String> {
    let lines = pool.run(SUM);
    let lines = lines.lines().filter_map(|line| line.split_once("  ./"));
    lines
        .map(|(sum, path)| (path.to_owned(), sum.to_owned()))
        .collect()
}

fn examine(size_mib: u64, mkfs: &[&str]) {
    let pool = Pool::make(1, size_mib, mkfs);
    pool.run(FILL);
    let mut expected = sums(&pool);
    assert_eq!(expected.len(), 403 + 2 * 303);
    let (snap, third) = (TreeId(256), TreeId(257));
    let fs = pool.open(WriteOptions::default());
    let mut remove = |id, directory: &str, names: &mut dyn Iterator<Item = String>| {
        for name in names {
            unlink(&fs, id, &name);
            assert!(expected.remove(&format!("{directory}{name}")).is_some());
        }
        fs.sync().unwrap();
        pool.assert_clean();
    };
    let numbered = |from: u64, step: usize| (from..=300).step_by(step).map(|it| format!("f{it}"));
    let single = |name: &str| [name.to_owned()].into_iter();
    remove(TreeId::FS, "", &mut numbered(1, 3));
    remove(snap, "snap/", &mut numbered(1, 2));
    remove(TreeId::FS, "", &mut single("big"));
    remove(third, "third/", &mut single("clone").chain(single("big")));
    remove(
        TreeId::FS,
        "",
        &mut single("clone").chain(single("prealloc")),
    );
    remove(snap, "snap/", &mut single("clone").chain(single("big")));
    remove(third, "third/", &mut numbered(1, 1));
    assert_eq!(fs.delayed_refs().checksum_deletions(), 0);
    drop(fs);
    assert_eq!(sums(&pool), expected);
    pool.assert_clean();
}

#[test]
fn removed_files_leave_snapshots_alone() {
    examine(200, &[]);
}

#[test]
fn removed_files_leave_snapshots_alone_with_small_nodes() {
    examine(200, &["-n", "4096", "-R", "^free-space-tree"]);
}
