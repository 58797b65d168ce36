//! Removal of files that the kernel wrote: inline, with extents, reflinked, shared with snapshots; and files that
//! it reads.

use std::collections::BTreeMap;
use std::io::IoSlice;

use platter_ondisk::{Locus, Rule};
use platter_vfs::FileKind;
use zerocopy::IntoBytes;

use super::Random;
use super::image::Pool;
use crate::context::tests::rule;
use crate::delayed_refs::Action;
use crate::ondisk::checksum::name_hash;
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::file_extent::{Compression, ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::{FIRST_FREE_OBJECT, LAST_FREE_OBJECT};
use crate::ondisk::{Key, TreeId};
use crate::txn::data_extents::DataRule;
use crate::txn::{FileRange, Handle, WriteContext, WriteOptions, data_extents};

const ROOT: u64 = FIRST_FREE_OBJECT;

/// Removes a file from the root directory of a subvolume, item by item.
pub(crate) fn unlink(fs: &WriteContext, id: TreeId, name: &str) {
    let name = name.as_bytes();
    let handle = fs.begin_freeing(32).unwrap();
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
        let range = FileRange {
            tree: id,
            inode,
            offset,
        };
        data_extents::change(&handle, range, &place, Action::Drop).unwrap();
    }
}

/// What the extents of a new file are.
fn write(
    handle: &Handle<'_>,
    range: FileRange,
    contents: &[u8],
    extent_max: usize,
) -> Vec<ExtentPlace> {
    let mut places = Vec::new();
    for (piece, offset) in contents.chunks(extent_max).zip((0..).step_by(extent_max)) {
        let mut bytes = piece.to_vec();
        bytes.resize(piece.len().next_multiple_of(4096), 0);
        let disk_bytes = bytes.len() as u64;
        let logical = data_extents::allocate(handle, disk_bytes).unwrap();
        data_extents::write(handle.fs(), logical, &[IoSlice::new(&bytes)]).unwrap();
        data_extents::add_checksums(handle, logical, &bytes).unwrap();
        let place = ExtentPlace {
            logical,
            disk_bytes,
            offset: 0,
        };
        let range = FileRange { offset, ..range };
        data_extents::add(handle, range, &place).unwrap();
        places.push(place);
    }
    places
}

/// Creates a file in the root directory of a subvolume, item by item.
pub(crate) fn create(
    fs: &WriteContext,
    tree: TreeId,
    name: &str,
    contents: &[u8],
    extent_max: usize,
) {
    let name = name.as_bytes();
    let handle = fs.begin(32).unwrap();
    let transaction = handle.generation();
    let last = handle.edit(tree, |tree| {
        tree.at_or_before(Key::new(LAST_FREE_OBJECT, ItemKind(0), 0))
    });
    let inode = last.unwrap().unwrap().0.object + 1;
    let range = FileRange {
        tree,
        inode,
        offset: 0,
    };
    let is_inline = contents.len() <= 2048;
    let places = if is_inline {
        Vec::new()
    } else {
        write(&handle, range, contents, extent_max)
    };
    let created = handle.edit(tree, |tree| {
        let dir_key = Key::new(ROOT, ItemKind::INODE_ITEM, 0);
        let dir = tree.get(dir_key)?.unwrap();
        let mut dir = InodeItem::decode(&dir, Locus::UNKNOWN)?;
        let last = tree.at_or_before(Key::new(ROOT, ItemKind::DIR_INDEX, u64::MAX))?;
        let last = last.filter(|(key, _)| key.kind == ItemKind::DIR_INDEX);
        let index = last.map_or(2, |(key, _)| key.offset + 1);
        let mut names = Vec::new();
        InodeRef {
            parent: ROOT,
            index,
            name,
        }
        .encode(&mut names);
        let mut entry = Vec::new();
        DirItem {
            location: Location::Inode(inode),
            transaction,
            kind: Some(FileKind::Regular),
            name,
        }
        .encode(&mut entry);
        let size_bytes = contents.len() as u64;
        let item = InodeItem {
            generation: transaction,
            transaction,
            size_bytes,
            allocated_bytes: if is_inline {
                size_bytes
            } else {
                size_bytes.next_multiple_of(4096)
            },
            links: 1,
            kind: FileKind::Regular,
            permissions: 0o644,
            ..dir
        };
        tree.insert(
            Key::new(inode, ItemKind::INODE_ITEM, 0),
            item.encode().as_bytes(),
        )?;
        tree.insert(Key::new(inode, ItemKind::INODE_REF, ROOT), &names)?;
        tree.insert(Key::new(ROOT, ItemKind::DIR_ITEM, name_hash(name)), &entry)?;
        tree.insert(Key::new(ROOT, ItemKind::DIR_INDEX, index), &entry)?;
        let mut extent = FileExtent {
            generation: transaction,
            ram_bytes: size_bytes,
            compression: Compression::None,
            file_bytes: size_bytes,
            kind: FileExtentKind::Inline(contents),
        };
        if is_inline && size_bytes > 0 {
            tree.insert(Key::new(inode, ItemKind::EXTENT_DATA, 0), &extent.encode())?;
        }
        let mut offset = 0;
        for place in places {
            (extent.ram_bytes, extent.file_bytes) = (place.disk_bytes, place.disk_bytes);
            extent.kind = FileExtentKind::Regular(place);
            tree.insert(
                Key::new(inode, ItemKind::EXTENT_DATA, offset),
                &extent.encode(),
            )?;
            offset += place.disk_bytes;
        }
        dir.size_bytes += 2 * name.len() as u64;
        tree.set(dir_key, dir.encode().as_bytes())
    });
    created.unwrap();
}

#[test]
fn kernel_reads_files_that_were_created() {
    for mkfs in [&[][..], &["-n", "4096", "--csum", "sha256"], &["-M"]] {
        let pool = Pool::make(1, 120, mkfs);
        let fs = pool.open(WriteOptions::default());
        let mut random = Random(7);
        let mut files = BTreeMap::new();
        for number in 0..300 {
            let name = format!("file{number}");
            let len = random.below(12_000);
            let contents = random.bytes(len);
            create(&fs, TreeId::FS, &name, &contents, 8192);
            files.insert(name, contents);
            if number % 3 == 0 {
                let gone = format!("file{}", random.below(number + 1));
                if files.remove(&gone).is_some() {
                    unlink(&fs, TreeId::FS, &gone);
                }
            }
            if number % 70 == 0 {
                fs.sync().unwrap();
                pool.assert_clean();
            }
        }
        let handle = fs.begin(1).unwrap();
        let unused = data_extents::allocate(&handle, 4096).unwrap();
        data_extents::release(handle.fs(), unused, 4096).unwrap();
        let metadata = fs.superblock().root.logical;
        let refused = data_extents::write(handle.fs(), metadata, &[IoSlice::new(&[0; 4096])]);
        assert_eq!(rule(refused), DataRule::NotAllocated.text());
        drop(handle);
        fs.sync().unwrap();
        drop(fs);
        pool.assert_clean();
        let found = sums(&pool);
        assert_eq!(found.len(), files.len());
        for (name, contents) in files {
            let sum = <sha2::Sha256 as sha2::Digest>::digest(&contents);
            let hex = sum
                .iter()
                .fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
            assert_eq!(found[&name], hex, "{name}");
        }
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
