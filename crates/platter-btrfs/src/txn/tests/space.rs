//! Chunks that are allocated until the devices are full, and what can still be done then.

use std::fs::File;
use std::thread;

use platter_ondisk::Uuid;
use platter_vfs::{Condition, Error, Result, SystemClock};
use zerocopy::IntoBytes;

use super::concurrent::wait_until;
use super::files::{create, unlink};
use super::image::Pool;
use crate::mkfs::{self, MkfsOptions, Target};
use crate::ondisk::checksum::name_hash;
use crate::ondisk::chunk_item::{BlockGroupFlags, Profile};
use crate::ondisk::dir_item::Xattr;
use crate::ondisk::features::Incompat;
use crate::ondisk::file_extent::{Compression, ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::FIRST_FREE_OBJECT;
use crate::ondisk::{Key, TreeId};
use crate::txn::{
    FileRange, WriteContext, WriteOptions, chunks, convert, data_extents, log_trees, space, unused,
};

const PIECE: u64 = 4 << 20;

fn is_full<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::Condition(Condition::NoSpace)))
}

/// Preallocates a piece at the end of the file `inode`.
fn preallocate(fs: &WriteContext, inode: u64, offset: u64) -> Result<()> {
    space::reserve_data(fs, TreeId::FS, PIECE)?;
    let handle = fs.begin(64);
    let handle = handle.inspect_err(|_| space::release_reserved_data(fs, TreeId::FS, PIECE))?;
    let mut at = offset;
    while at < offset + PIECE {
        // What was reserved can be allocated, though not in one piece.
        let (logical, len_bytes) =
            data_extents::allocate_part(&handle, offset + PIECE - at).unwrap();
        space::release_reserved_data(fs, TreeId::FS, len_bytes);
        let place = ExtentPlace {
            logical,
            disk_bytes: len_bytes,
            offset: 0,
        };
        let extent = FileExtent {
            generation: handle.generation(),
            ram_bytes: len_bytes,
            compression: Compression::None,
            file_bytes: len_bytes,
            kind: FileExtentKind::Prealloc(place),
        };
        handle.edit(TreeId::FS, |tree| {
            tree.insert(Key::new(inode, ItemKind::EXTENT_DATA, at), &extent.encode())?;
            let key = Key::new(inode, ItemKind::INODE_ITEM, 0);
            let data = tree.get(key)?.unwrap();
            let mut item = InodeItem::decode(&data, tree.tree().locus(key))?;
            item.allocated_bytes += len_bytes;
            tree.set(key, item.encode().as_bytes())
        })?;
        let range = FileRange {
            tree: TreeId::FS,
            inode,
            offset: at,
        };
        data_extents::add(&handle, range, &place)?;
        at += len_bytes;
    }
    Ok(())
}

/// Preallocates until there is no space. Returns how many pieces there was space for.
fn fill(fs: &WriteContext, inode: u64) -> u64 {
    for count in 0.. {
        let done = preallocate(fs, inode, count * PIECE);
        if is_full(&done) {
            return count;
        }
        done.unwrap();
    }
    0
}

fn attribute_name(number: u64) -> String {
    format!("user.{number}")
}

fn attribute_key(number: u64) -> Key {
    let hash = name_hash(attribute_name(number).as_bytes());
    Key::new(FIRST_FREE_OBJECT, ItemKind::XATTR_ITEM, hash)
}

/// Sets attributes of the root directory until there is no space. Returns how many.
fn fill_metadata(fs: &WriteContext, from: u64) -> u64 {
    for count in from.. {
        let name = attribute_name(count);
        let handle = fs.begin(16);
        if is_full(&handle) {
            return count;
        }
        let handle = handle.unwrap();
        let mut item = Vec::new();
        Xattr {
            transaction: handle.generation(),
            name: name.as_bytes(),
            value: &[7; 3000],
        }
        .encode(&mut item);
        let key = attribute_key(count);
        handle
            .edit(TreeId::FS, |tree| tree.set(key, &item))
            .unwrap();
    }
    0
}

/// The kernel removes what was preallocated.
const GO_ON: &str = "
mount -t btrfs -o $options $device $root
stat -c %b $root/full
rm $root/full
sync -f $root
umount $root
";

fn examine(devices: usize, size_mib: u64, mkfs: &[&str], has_group_tree: bool) {
    let pool = Pool::make(devices, size_mib, mkfs);
    let mut fs = pool.open(WriteOptions::default());
    if has_group_tree {
        convert::to_block_group_tree(&mut fs).unwrap();
    }
    let chunks = fs.groups().iter().count();
    create(&fs, TreeId::FS, "full", &[], 4096);
    create(&fs, TreeId::FS, "small", &[], 4096);
    let inode = FIRST_FREE_OBJECT + 1;
    let count = fill(&fs, inode);
    assert!(fs.groups().iter().count() > chunks, "a chunk was allocated");
    assert!(space::available_bytes(&fs, BlockGroupFlags::DATA) < PIECE);
    fs.sync().unwrap();
    pool.assert_clean();
    // Metadata has no more chunks, either.
    let attributes = fill_metadata(&fs, 0);
    assert!(attributes > 0);
    assert!(fs.failure().is_none());
    fs.sync().unwrap();
    pool.assert_clean();
    let refused = fs.begin(16);
    assert!(is_full(&refused));
    drop(refused);
    // Files can be removed, which frees space.
    drop(fs.begin_freeing(16).unwrap());
    drop(fs);
    let blocks: u64 = pool.run(GO_ON).trim().parse().unwrap();
    assert_eq!(blocks, count * PIECE / 512);
    pool.assert_clean();
    let fs = pool.open(WriteOptions::default());
    unlink(&fs, TreeId::FS, "small");
    for number in 0..attributes {
        let handle = fs.begin_freeing(16).unwrap();
        let key = attribute_key(number);
        handle.edit(TreeId::FS, |tree| tree.remove(key)).unwrap();
    }
    create(&fs, TreeId::FS, "full", &[], 4096);
    assert!(fill(&fs, inode) > 0);
    fs.sync().unwrap();
    drop(fs);
    pool.assert_clean();
}

#[test]
fn space_of_removed_files_serves_other_types() {
    for (devices, mkfs) in [(1, &[][..]), (3, &["-d", "raid0", "-m", "raid1c3"])] {
        let pool = Pool::make(devices, 200, mkfs);
        let fs = pool.open(WriteOptions::default());
        create(&fs, TreeId::FS, "full", &[], 4096);
        let inode = FIRST_FREE_OBJECT + 1;
        let count = fill(&fs, inode);
        let attributes = fill_metadata(&fs, 0);
        fs.sync().unwrap();
        let used = fs.superblock().dev_item.bytes_used;
        unlink(&fs, TreeId::FS, "full");
        // Metadata takes what data had.
        let more = fill_metadata(&fs, attributes);
        assert!(more > 2 * attributes, "{attributes} and then {more}");
        fs.sync().unwrap();
        assert!(fs.superblock().dev_item.bytes_used <= used + (64 << 20));
        pool.assert_clean();
        // And the other way round.
        for number in 0..more {
            let handle = fs.begin_freeing(16).unwrap();
            let key = attribute_key(number);
            handle.edit(TreeId::FS, |tree| tree.remove(key)).unwrap();
        }
        create(&fs, TreeId::FS, "full", &[], 4096);
        assert!(fill(&fs, inode) >= count - 8);
        fs.sync().unwrap();
        drop(fs);
        pool.assert_clean();
        let blocks: u64 = pool.run(GO_ON).trim().parse().unwrap();
        assert!(blocks >= (count - 8) * PIECE / 512);
        pool.assert_clean();
    }
}

#[test]
fn unused_groups_are_removed_but_for_one() {
    let pool = Pool::make(1, 600, &[]);
    let fs = pool.open(WriteOptions::default());
    let count = fs.groups().iter().count();
    for kind in [BlockGroupFlags::DATA, BlockGroupFlags::METADATA] {
        assert!(chunks::grow_space(&fs, kind, fs.groups().free_bytes(kind)).unwrap());
    }
    create(&fs, TreeId::FS, "file", &[7; 9000], 4096);
    fs.sync().unwrap();
    assert_eq!(fs.groups().iter().count(), count + 2);
    assert!(unused::remove_groups(&fs).unwrap() > 0);
    assert_eq!(unused::remove_groups(&fs).unwrap(), 0);
    fs.sync().unwrap();
    pool.assert_clean();
    let left = fs.groups().iter().filter(|group| group.is_unused()).count();
    assert!(left <= 1, "{left} unused groups");
    drop(fs);
    let fs = pool.open(WriteOptions::default());
    create(&fs, TreeId::FS, "more", &[7; 9000], 4096);
    fs.sync().unwrap();
    drop(fs);
    pool.assert_clean();
}

#[test]
fn items_of_a_chunk_are_inserted_after_it_is_a_group() {
    let pool = Pool::make(1, 600, &[]);
    let fs = pool.open(WriteOptions::default());
    let count = fs.groups().iter().count();
    let kind = BlockGroupFlags::METADATA;
    thread::scope(|scope| {
        let pending = fs.chunks.pending.lock();
        let adding = scope.spawn(|| chunks::grow_space(&fs, kind, fs.groups().free_bytes(kind)));
        // A thread that found it pending before would not find its group.
        wait_until(|| fs.groups().iter().count() > count);
        assert!(pending.is_empty() && fs.chunks.has_uncreated());
        drop(pending);
        assert!(adding.join().unwrap().unwrap());
    });
    create(&fs, TreeId::FS, "file", &[7; 9000], 4096);
    fs.sync().unwrap();
    drop(fs);
    pool.assert_clean();
}

#[test]
fn log_with_a_block_in_a_new_chunk_is_not_written() {
    let pool = Pool::make(1, 600, &[]);
    let fs = pool.open(WriteOptions::default());
    let handle = fs.begin(16).unwrap();
    let log = |chunk: bool| {
        let mut turn = log_trees::start(&handle).unwrap();
        if chunk {
            // Another thread found the log possible before, and waits for the trees.
            let kind = BlockGroupFlags::METADATA;
            let grow = || chunks::grow_space(&fs, kind, fs.groups().free_bytes(kind));
            let grown = thread::scope(|scope| scope.spawn(grow).join());
            assert!(grown.unwrap().unwrap());
        }
        let key = Key::new(FIRST_FREE_OBJECT, ItemKind::XATTR_ITEM, u64::from(chunk));
        let edited = turn.edit(TreeId::FS, |editor| editor.set(key, b"logged"));
        edited.unwrap();
    };
    log(false);
    let written = log_trees::write_closed(&fs, handle.generation()).unwrap();
    assert_eq!(written.map(|(number, _)| number), Some(1));
    log(true);
    let written = log_trees::write_closed(&fs, handle.generation()).unwrap();
    assert_eq!(written, None);
    assert!(!log_trees::sync(&handle, 2));
    drop(handle);
    create(&fs, TreeId::FS, "file", &[7; 9000], 4096);
    fs.sync().unwrap();
    drop(fs);
    pool.assert_clean();
}

#[test]
fn chunk_for_the_chunk_tree_is_in_the_superblock() {
    for (devices, mkfs) in [(1, &[][..]), (2, &["-d", "raid1", "-m", "raid1"])] {
        let pool = Pool::make(devices, 400, mkfs);
        let fs = pool.open(WriteOptions::default());
        let before = fs.superblock().sys_chunks.len();
        for kind in [BlockGroupFlags::SYSTEM, BlockGroupFlags::METADATA] {
            assert!(chunks::grow_space(&fs, kind, fs.groups().free_bytes(kind)).unwrap());
        }
        // Their items are inserted with the next change: a commit that is being closed does not list it.
        assert_eq!(fs.chunks.system().len(), before);
        create(&fs, TreeId::FS, "file", &[7; 9000], 4096);
        fs.sync().unwrap();
        assert_eq!(fs.superblock().sys_chunks.len(), before + 1);
        drop(fs);
        pool.assert_clean();
        pool.run("mount -t btrfs -o $options $device $root; touch $root/new; umount $root");
        pool.assert_clean();
        assert_eq!(
            pool.open(WriteOptions::default())
                .superblock()
                .sys_chunks
                .len(),
            before + 1
        );
    }
}

#[test]
fn chunk_in_another_profile_comes_with_its_feature() {
    for (profile, feature) in [
        (Profile::Raid1C3, Incompat::RAID1C34),
        (Profile::Raid5, Incompat::RAID56),
    ] {
        let pool = Pool::make(3, 400, &["-d", "single", "-m", "raid1"]);
        let fs = pool.open(WriteOptions::default());
        let data = BlockGroupFlags::DATA;
        // As while data is converted.
        fs.chunks.placing.lock().profiles = vec![(data, profile)];
        let free = fs.groups().free_bytes(data);
        assert!(chunks::grow_space(&fs, data, free).unwrap());
        create(&fs, TreeId::FS, "file", &[7; 9000], 4096);
        fs.sync().unwrap();
        let incompat = fs.superblock().features.incompat;
        assert!(incompat.contains(feature), "{incompat:?}");
        drop(fs);
        pool.assert_clean();
        pool.run("mount -t btrfs -o $options $device $root; touch $root/new; umount $root");
        pool.assert_clean();
    }
}

#[test]
fn system_chunk_has_no_more_stripes_than_mkfs_btrfs_makes() {
    let width = |pool: &Pool| {
        let fs = pool.open(WriteOptions::default());
        let system = fs.superblock().sys_chunks;
        system
            .iter()
            .map(|chunk| chunk.stripes.len())
            .collect::<Vec<_>>()
    };
    let striped = Pool::make(64, 128, &["-d", "raid0", "-m", "raid0"]);
    assert_eq!(width(&striped), [58]);
    let made = Pool::empty(64);
    for image in made.images() {
        File::create(image).unwrap().set_len(128 << 20).unwrap();
    }
    let devices = made.devices();
    let target = Target {
        devices: &devices,
        is_zero: true,
    };
    let options = MkfsOptions {
        data: Some(Profile::Raid0),
        metadata: Some(Profile::Raid0),
        ..MkfsOptions::new(Uuid::from_u128(1))
    };
    mkfs::mkfs(&target, &options, &SystemClock::new()).unwrap();
    drop(devices);
    assert_eq!(width(&made), [58]);
    made.assert_clean();
    let pool = Pool::make(64, 128, &["-d", "single", "-m", "single"]);
    let fs = pool.open(WriteOptions::default());
    let system = BlockGroupFlags::SYSTEM;
    fs.chunks.placing.lock().profiles = vec![(system, Profile::Raid0)];
    let free = fs.groups().free_bytes(system);
    assert!(chunks::grow_space(&fs, system, free).unwrap());
    create(&fs, TreeId::FS, "file", &[7; 9000], 4096);
    fs.sync().unwrap();
    let added = fs.superblock().sys_chunks;
    assert_eq!(added[1].stripes.len(), 58);
    drop(fs);
    pool.assert_clean();
}

macro_rules! layouts {
    ($($name:ident: $devices:literal x $size_mib:literal, [$($mkfs:literal),*], $tree:literal;)+) => {
        $(
            #[test]
            fn $name() {
                examine($devices, $size_mib, &[$($mkfs),*], $tree);
            }
        )+
    };
}

layouts! {
    chunks_fill_one_device: 1 x 220, [], false;
    chunks_fill_one_device_with_group_tree: 1 x 220, [], true;
    chunks_fill_without_free_space_tree: 1 x 220, ["-R", "^free-space-tree", "-n", "4096"], false;
    chunks_fill_in_mixed_groups: 1 x 120, ["-M"], false;
    chunks_fill_raid0: 3 x 140, ["-d", "raid0", "-m", "raid0"], false;
    chunks_fill_raid1: 2 x 220, ["-d", "raid1", "-m", "raid1"], false;
    chunks_fill_raid1c3: 3 x 220, ["-d", "raid1c3", "-m", "raid1c3"], false;
    chunks_fill_raid1c4: 4 x 220, ["-d", "single", "-m", "raid1c4"], false;
    chunks_fill_raid5: 3 x 160, ["-d", "raid5", "-m", "raid5"], false;
    chunks_fill_raid6: 4 x 160, ["-d", "raid6", "-m", "raid6"], false;
    chunks_fill_raid10: 4 x 140, ["-d", "raid10", "-m", "raid10"], false;
}
