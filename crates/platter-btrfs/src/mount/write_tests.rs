//! Mounts for writing: files that are changed against a model, judged by `btrfs check` and read by the kernel.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_ondisk::Locus;
use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclEntry, AclSubject, PosixAcl};
use platter_vfs::{
    Condition, Context, CreateKind, Defragment, Error, FallocateMode, Filesystem, FixedClock,
    Inode, Name, RenameMode, SetAttr, SystemClock, Timestamp, XattrMode,
};
use zerocopy::IntoBytes;

use super::{Btrfs, MountOptions};
use crate::compress::Method;
use crate::ondisk::file_extent::{Compression, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Key, TreeId};
use crate::ops::DataPolicy;
use crate::txn::WriteOptions;
use crate::txn::tests::Random;
use crate::txn::tests::image::Pool;

pub(super) fn mount(pool: &Pool) -> Btrfs {
    mount_with(pool, DataPolicy::default())
}

pub(super) fn mount_with(pool: &Pool, data: DataPolicy) -> Btrfs {
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let clock = Arc::new(SystemClock::new());
    let options = MountOptions {
        data,
        ..MountOptions::default()
    };
    Btrfs::mount_writable(&pool.devices(), &options, budget, clock).unwrap()
}

/// Writes in place. The clock stands still, so that writing does not change the time of a file.
pub(super) fn mount_in_place(devices: &[Arc<dyn BlockDevice>]) -> Btrfs {
    let budget = Arc::new(MemoryBudget::new(32 << 20));
    let clock = Arc::new(FixedClock::new(Timestamp::default(), 0));
    let options = MountOptions {
        data: DataPolicy {
            in_place: true,
            ..DataPolicy::default()
        },
        ..MountOptions::default()
    };
    Btrfs::mount_writable(devices, &options, budget, clock).unwrap()
}

/// As `mount -o compress=`.
pub(super) fn compressing(method: &str) -> DataPolicy {
    DataPolicy {
        compression: Method::parse(method),
        ..DataPolicy::default()
    }
}

pub(super) fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap()
}

pub(super) fn create(dir: &dyn Inode, path: &str) -> Arc<dyn Inode> {
    let file = dir.create(&Context::root(), name(path), CreateKind::Regular, 0o644);
    file.unwrap()
}

pub(super) fn read(file: &dyn Inode) -> Vec<u8> {
    let size = usize::try_from(file.attr().unwrap().size_bytes).unwrap();
    let mut bytes = vec![0; size];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), size);
    bytes
}

/// Unmounts, and panics unless `btrfs check` finds nothing then.
pub(super) fn finish(pool: &Pool, mounted: Btrfs) {
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

/// Names with one hash, of which 58 fit into an item of a leaf of 16 KiB.
pub(super) fn colliding(number: u8) -> [u8; 250] {
    /// A multiple of the polynomial.
    const COLLIDING: [u8; 5] = [0xf1, 0x76, 0xec, 0x05, 0x01];
    let mut bytes = [b'a'; 250];
    for bit in (0..8).filter(|bit| (number >> bit) & 1 == 1) {
        let place = bytes.iter_mut().skip(bit * COLLIDING.len());
        place
            .zip(COLLIDING)
            .for_each(|(byte, other)| *byte ^= other);
    }
    bytes
}

type Model = BTreeMap<String, Vec<u8>>;

fn assert_reads(root: &dyn Inode, model: &Model) {
    let mut found: Vec<_> = platter_vfs::inode::read_dir_all(root)
        .unwrap()
        .into_iter()
        .map(|entry| String::from_utf8(entry.name.as_name().to_vec()).unwrap())
        .collect();
    found.sort();
    assert_eq!(found, model.keys().cloned().collect::<Vec<_>>());
    for (path, bytes) in model {
        let file = root.lookup(name(path)).unwrap();
        assert!(read(&*file) == *bytes, "{path}");
    }
}

/// Compares the files that the kernel reads with the model.
pub(super) fn assert_kernel_reads(pool: &Pool, model: &Model) {
    let dir = pool.images()[0].with_extension("model");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    for (path, bytes) in model {
        std::fs::write(dir.join(path), bytes).unwrap();
    }
    pool.run(&format!(
        "mount -t btrfs -o ro \"$device\" \"$root\"\ndiff -r \"$root\" {}\n",
        dir.display()
    ));
}

fn noise(random: &mut Random, len: usize) -> Vec<u8> {
    let byte = |_| u8::try_from(random.below(256)).unwrap();
    (0..len).map(byte).collect()
}

/// Copies or clones a range of the file `from` in `to`.
fn share(random: &mut Random, root: &dyn Inode, model: &mut Model, (from, to): (&str, &str)) {
    let (source, target) = (root.lookup(name(from)), root.lookup(name(to)));
    let (source, target) = (source.unwrap(), target.unwrap());
    let is_aligned = random.below(3) > 0;
    let mut at = |most| {
        let at = random.below(most);
        if is_aligned { at & !4095 } else { at }
    };
    let (start, place, len) = (at(60_000), at(60_000), at(40_000) + 4096);
    let size = model[from].len() as u64;
    let (range, clones) = (start..(start + len).min(size), random.below(2) == 0);
    let mut copied = range.end.saturating_sub(start);
    if clones {
        match target.clone_range(&*source, range.clone(), place) {
            Ok(()) => {}
            Err(error) => {
                let invalid = Condition::InvalidArgument;
                assert!(matches!(error, platter_vfs::Error::Condition(it) if it == invalid));
                return;
            }
        }
    } else if from == to || copied == 0 {
        return;
    } else {
        copied = target.copy_range(&*source, range, place).unwrap();
    }
    let start = usize::try_from(start).unwrap();
    let bytes = model[from][start..start + usize::try_from(copied).unwrap()].to_vec();
    let place = usize::try_from(place).unwrap();
    let model = model.get_mut(to).unwrap();
    model.resize(model.len().max(place + bytes.len()), 0);
    model[place..place + bytes.len()].copy_from_slice(&bytes);
}

/// Makes a file as with `chattr +C`, `chattr +c`, or neither.
fn create_flagged(random: &mut Random, root: &dyn Inode, path: &str) {
    let context = Context::root();
    let file = root
        .create(&context, name(path), CreateKind::Regular, 0o644)
        .unwrap();
    let flags = [Some(0x80_0000), Some(4), None, None];
    let changes = SetAttr {
        flags: flags[usize::try_from(random.below(4)).unwrap()],
        ..SetAttr::default()
    };
    file.set_attr(&context, &changes).unwrap();
}

fn change(random: &mut Random, root: &dyn Inode, model: &mut Model) {
    let context = Context::root();
    let path = format!("file{}", random.below(12));
    let other = format!("file{}", random.below(12));
    if model.contains_key(&path) && model.contains_key(&other) && random.below(4) == 0 {
        return share(random, root, model, (&path, &other));
    }
    let Some(bytes) = model.get_mut(&path) else {
        create_flagged(random, root, &path);
        model.insert(path, Vec::new());
        return;
    };
    let file = root.lookup(name(&path)).unwrap();
    let at = random.below(60_000);
    let len = usize::try_from(random.below(30_000) + 1).unwrap();
    let start = usize::try_from(at).unwrap();
    match random.below(15) {
        14 => {
            let methods = [None, Some("zstd"), Some("lzo"), None];
            let method = methods[usize::try_from(random.below(4)).unwrap()];
            let request = Defragment {
                range: at..at + random.below(60_000),
                compression: method.map(str::to_owned),
                ..Defragment::default()
            };
            file.defragment(&request).unwrap();
        }
        10 => {
            let keep_size = random.below(2) == 0;
            let mode = FallocateMode::Allocate { keep_size };
            file.fallocate(at..at + len as u64, mode).unwrap();
            if !keep_size {
                bytes.resize(bytes.len().max(start + len), 0);
            }
        }
        11 => {
            let mode = FallocateMode::ZeroRange { keep_size: true };
            file.fallocate(at..at + len as u64, mode).unwrap();
            let end = bytes.len().min(start + len);
            if start < end {
                bytes[start..end].fill(0);
            }
        }
        12 | 13 => {
            // Short files, which are in the item.
            let (at, len) = (at % 1500, len % 700 + 1);
            let start = usize::try_from(at).unwrap();
            let noise = noise(random, len);
            file.write_at(at, &noise).unwrap();
            bytes.resize(bytes.len().max(start + len), 0);
            bytes[start..start + len].copy_from_slice(&noise);
            if random.below(2) == 0 {
                file.sync(true).unwrap();
            }
        }
        0..=3 => {
            let fill = u8::try_from(random.below(255) + 1).unwrap();
            file.write_at(at, &vec![fill; len]).unwrap();
            bytes.resize(bytes.len().max(start + len), 0);
            bytes[start..start + len].fill(fill);
        }
        4 => {
            let at = if random.below(2) == 0 { at % 3000 } else { at };
            let (size_bytes, start) = (Some(at), usize::try_from(at).unwrap());
            let changes = SetAttr {
                size_bytes,
                ..SetAttr::default()
            };
            file.set_attr(&context, &changes).unwrap();
            bytes.resize(start, 0);
        }
        5 => {
            file.fallocate(at..at + len as u64, FallocateMode::PunchHole)
                .unwrap();
            let end = bytes.len().min(start + len);
            if start < end {
                bytes[start..end].fill(0);
            }
        }
        6 if path != other => {
            root.rename(
                &context,
                name(&path),
                root.id(),
                name(&other),
                RenameMode::Replace,
            )
            .unwrap();
            let bytes = model.remove(&path).unwrap();
            model.insert(other, bytes);
        }
        7 => {
            root.unlink(&context, name(&path)).unwrap();
            model.remove(&path);
        }
        8 => {
            file.set_xattr(&context, b"user.key", &vec![3; len % 900], XattrMode::Set)
                .unwrap();
            assert_eq!(file.get_xattr(b"user.key").unwrap().len(), len % 900);
        }
        _ => file.sync(false).unwrap(),
    }
}

#[test]
fn changed_files_are_those_of_the_model() {
    let forms = [
        &["-m", "single"][..],
        &["--mixed", "-n", "4096"],
        &["-m", "single", "-O", "^no-holes"],
    ];
    for (seed, options) in (1..).zip(forms) {
        let pool = Pool::make(1, 128, options);
        let mut random = Random(seed);
        let mut model = Model::new();
        let none = DataPolicy::default();
        let policies = [
            none,
            compressing("zstd"),
            compressing("lzo"),
            compressing("zlib"),
        ];
        for policy in policies {
            let mounted = mount_with(&pool, policy);
            let root = mounted.root().unwrap();
            for _ in 0..150 {
                change(&mut random, &*root, &mut model);
            }
            assert_reads(&*root, &model);
            drop(root);
            finish(&pool, mounted);
            assert_kernel_reads(&pool, &model);
            let mounted = mount(&pool);
            assert_reads(&*mounted.root().unwrap(), &model);
            mounted.unmount().unwrap();
        }
    }
}

#[test]
fn contents_are_stored_as_options_and_flags_say() {
    let pool = Pool::make(1, 256, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount_with(&pool, compressing("zstd"));
    let root = mounted.root().unwrap();
    let mut model = Model::new();
    let mut make = |path: &str, bytes: Vec<u8>, property: Option<&[u8]>| {
        let file = root
            .create(&context, name(path), CreateKind::Regular, 0o644)
            .unwrap();
        if let Some(value) = property {
            file.set_xattr(&context, b"btrfs.compression", value, XattrMode::Set)
                .unwrap();
        }
        file.write_at(0, &bytes).unwrap();
        file.sync(false).unwrap();
        model.insert(path.to_owned(), bytes);
        let mut encoded = Vec::new();
        file.extents(0..u64::MAX, &mut |extent| {
            encoded.push((
                extent.encoded,
                extent.inline,
                extent.file.end - extent.file.start,
            ));
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        encoded
    };
    let text: Vec<u8> = (0..40_000)
        .flat_map(|n: u32| n.to_string().into_bytes())
        .collect();
    let mut random = Random(3);
    let noise = noise(&mut random, 300_000);
    let chunks = make("text", text.clone(), None);
    assert!(
        chunks
            .iter()
            .all(|(encoded, _, len)| (*encoded && *len <= 128 << 10) || *len <= 4096)
    );
    assert!(
        make("noise", noise.clone(), None)
            .iter()
            .all(|(encoded, ..)| !encoded)
    );
    assert!(
        make("none", text.clone(), Some(b"none"))
            .iter()
            .all(|(encoded, ..)| !encoded)
    );
    assert!(
        make("lzo", text.clone(), Some(b"lzo"))
            .iter()
            .all(|(encoded, _, len)| *encoded || *len <= 4096)
    );
    assert_eq!(
        make("short", text[..3000].to_vec(), None),
        [(true, true, 4096)]
    );
    assert_eq!(
        make("few", noise[..300].to_vec(), None),
        [(false, true, 4096)]
    );
    let long = root.lookup(name("short")).unwrap();
    long.write_at(100_000, b"end").unwrap();
    let bytes = model.get_mut("short").unwrap();
    bytes.resize(100_000, 0);
    bytes.extend(b"end");
    drop((root, long));
    finish(&pool, mounted);
    assert_kernel_reads(&pool, &model);
}

#[test]
fn empty_property_is_removed_as_by_the_kernel() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let (property, unset) = (b"btrfs.compression", Condition::NoAttribute);
    let is_unset = |result: platter_vfs::Result<()>| matches!(result, Err(platter_vfs::Error::Condition(it)) if it == unset);
    for value in [None, Some(&b"zstd"[..]), Some(b"none")] {
        let path = value.map_or("unset", |value| std::str::from_utf8(value).unwrap());
        let file = root
            .create(&context, name(path), CreateKind::Regular, 0o644)
            .unwrap();
        let set = |value, mode| file.set_xattr(&context, property, value, mode);
        if let Some(value) = value {
            set(value, XattrMode::Create).unwrap();
            assert_eq!(file.get_xattr(property).unwrap(), value);
            assert_ne!(file.attr().unwrap().flags, 0);
        }
        set(b"", XattrMode::Set).unwrap();
        assert!(is_unset(file.get_xattr(property).map(drop)));
        assert!(is_unset(set(b"", XattrMode::Replace)));
        assert_eq!(file.attr().unwrap().flags, 0);
        // The flag goes without the property, too.
        let flags = SetAttr {
            flags: Some(0x400),
            ..SetAttr::default()
        };
        file.set_attr(&context, &flags).unwrap();
        set(b"", XattrMode::Create).unwrap();
        assert_eq!(file.attr().unwrap().flags, 0);
    }
    drop(root);
    finish(&pool, mounted);
    let kernels = pool.run(
        "mount -t btrfs \"$device\" \"$root\"\ncd \"$root\"\nsetfattr -n btrfs.compression -v zstd zstd\nchattr +m none\nfor it in zstd none; do setfattr -n btrfs.compression -v '' $it; done\ngetfattr -m - -d *\nlsattr * | cut -d' ' -f1 | tr -d -\ncd /\n",
    );
    assert_eq!(kernels.trim(), "", "the kernel removes it");
}

/// One that permission bits cannot express.
fn extended_acl() -> PosixAcl {
    use AclSubject::{Group, Mask, Other, Owner, OwningGroup, User};
    let subjects = [Owner, User(5), OwningGroup, Group(6), Mask, Other];
    let entry = |subject| AclEntry {
        subject,
        permissions: 0o6,
    };
    PosixAcl::new(subjects.map(entry).to_vec()).unwrap()
}

#[test]
fn acls_are_set_in_any_mode() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let acl = extended_acl().encode();
    let directory = root
        .create(&context, name("directory"), CreateKind::Directory, 0o700)
        .unwrap();
    for attribute in [ACL_ACCESS_NAME, ACL_DEFAULT_NAME] {
        // First there is none, and then there is one.
        for mode in [XattrMode::Replace, XattrMode::Create] {
            directory
                .set_xattr(&context, attribute, &acl, mode)
                .unwrap();
            assert_eq!(directory.get_xattr(attribute).unwrap(), acl);
        }
    }
    assert_eq!(directory.attr().unwrap().permissions, 0o666);
    drop((root, directory));
    finish(&pool, mounted);
}

#[test]
fn clone_of_an_inline_extent_of_several_sectors_is_whole() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let source = root
        .create(&context, name("source"), CreateKind::Regular, 0o644)
        .unwrap();
    source.write_at(0, b"short").unwrap();
    let number = source.id().number;
    drop((root, source));
    mounted.unmount().unwrap();
    drop(mounted);
    let bytes = noise(&mut Random(7), 10_000);
    let fs = pool.open(WriteOptions::default());
    let handle = fs.begin(4).unwrap();
    let edited = handle.edit(TreeId::FS, |tree| {
        let key = Key::new(number, ItemKind::INODE_ITEM, 0);
        let item = tree.get(key)?.unwrap();
        let mut item = InodeItem::decode(&item, Locus::UNKNOWN)?;
        item.size_bytes = bytes.len() as u64;
        tree.set(key, item.encode().as_bytes())?;
        let inline = FileExtent {
            generation: handle.generation(),
            ram_bytes: item.size_bytes,
            compression: Compression::None,
            file_bytes: item.size_bytes,
            kind: FileExtentKind::Inline(&bytes),
        };
        tree.set(Key::new(number, ItemKind::EXTENT_DATA, 0), &inline.encode())
    });
    edited.unwrap();
    drop(handle);
    fs.sync().unwrap();
    drop(fs);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let source = root.lookup(name("source")).unwrap();
    let target = root
        .create(&context, name("target"), CreateKind::Regular, 0o644)
        .unwrap();
    target.clone_range(&*source, 0..10_000, 4096).unwrap();
    drop((root, source, target));
    mounted.unmount().unwrap();
    drop(mounted);
    let mounted = mount(&pool);
    let target = mounted.root().unwrap().lookup(name("target")).unwrap();
    let cloned = read(&*target);
    assert!(cloned[..4096].iter().all(|&byte| byte == 0) && cloned[4096..] == bytes);
    assert_eq!(target.attr().unwrap().sectors, 24);
}

#[test]
fn preallocated_and_unshared_space_is_written_where_it_is() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let place = |file: &dyn Inode| {
        let mut places = Vec::new();
        file.extents(0..u64::MAX, &mut |extent| {
            places.push((extent.place.map(|place| place.offset), extent.unwritten));
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        places
    };
    let make = |path| {
        root.create(&context, name(path), CreateKind::Regular, 0o644)
            .unwrap()
    };
    let allocated = make("allocated");
    let mode = FallocateMode::Allocate { keep_size: false };
    allocated.fallocate(0..1 << 20, mode).unwrap();
    let before = place(&*allocated);
    assert!(before.len() == 1 && before[0].1);
    allocated.write_at(0, &vec![1; 1 << 20]).unwrap();
    allocated.sync(false).unwrap();
    assert_eq!(place(&*allocated), [(before[0].0, false)]);
    // Now it has checksums.
    allocated.write_at(0, &[2; 4096]).unwrap();
    allocated.sync(false).unwrap();
    assert_eq!(place(&*allocated).len(), 2);
    let file = make("in_place");
    let flags = SetAttr {
        flags: Some(0x80_0000),
        ..SetAttr::default()
    };
    file.set_attr(&context, &flags).unwrap();
    file.write_at(0, &vec![3; 65_536]).unwrap();
    file.sync(false).unwrap();
    let before = place(&*file);
    file.write_at(4096, &[4; 8192]).unwrap();
    file.sync(false).unwrap();
    assert_eq!(place(&*file), before);
    let copy = make("copy");
    copy.set_attr(&context, &flags).unwrap();
    copy.clone_range(&*file, 0..65_536, 0).unwrap();
    file.write_at(4096, &[5; 4096]).unwrap();
    file.sync(false).unwrap();
    assert_eq!(place(&*file).len(), 3, "shared extents are copied");
    let mut expected = vec![3; 65_536];
    expected[4096..12_288].fill(4);
    assert!(read(&*copy) == expected);
    let mut model = Model::from([("copy".to_owned(), expected.clone())]);
    expected[4096..8192].fill(5);
    model.insert("in_place".to_owned(), expected);
    let mut allocated = vec![1; 1 << 20];
    allocated[..4096].fill(2);
    model.insert("allocated".to_owned(), allocated);
    drop((root, file, copy));
    finish(&pool, mounted);
    assert_kernel_reads(&pool, &model);
}

#[test]
fn punched_space_beyond_the_end_is_freed() {
    const MIB: u64 = 1 << 20;
    let pool = Pool::make(1, 128, &["-m", "single", "-O", "^no-holes"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
    let file = file.unwrap();
    let allocate = |range, keep_size| {
        let mode = FallocateMode::Allocate { keep_size };
        file.fallocate(range, mode).unwrap();
    };
    allocate(0..MIB, false);
    allocate(MIB..2 * MIB, true);
    file.write_at(0, &[3; 5000]).unwrap();
    file.sync(false).unwrap();
    let sectors = || file.attr().unwrap().sectors * 512;
    assert_eq!(sectors(), 2 * MIB);
    let punch = |range| file.fallocate(range, FallocateMode::PunchHole).unwrap();
    for end in [MIB, MIB + 8192] {
        let start = MIB + 8192;
        let none = file.fallocate(Range { start, end }, FallocateMode::PunchHole);
        let error = none.unwrap_err();
        let is_right = matches!(error, Error::Condition(Condition::InvalidArgument));
        assert!(is_right, "{error}");
    }
    // Sectors that are in the range as a whole.
    punch(MIB + 1..MIB + 8191);
    assert_eq!(sectors(), 2 * MIB);
    punch(MIB + 4096..MIB + 8192);
    assert_eq!(sectors(), 2 * MIB - 4096);
    punch(MIB + 100_000..3 * MIB);
    assert_eq!(sectors(), MIB + 98_304);
    mounted.sync().unwrap();
    punch(MIB / 2..4 * MIB);
    assert_eq!(sectors(), MIB / 2);
    assert_eq!(file.attr().unwrap().size_bytes, MIB);
    let mut expected = vec![0; 1 << 20];
    expected[..5000].fill(3);
    assert!(read(&*file) == expected);
    drop((file, root));
    finish(&pool, mounted);
    assert_kernel_reads(&pool, &Model::from([("file".to_owned(), expected)]));
}

#[test]
fn space_is_estimated_where_dirty_sectors_replace_others() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let create = |path| {
        let kind = CreateKind::Regular;
        let made = root.create(&Context::root(), name(path), kind, 0o644);
        made.unwrap()
    };
    let shown = |file: &dyn Inode| {
        let attr = file.attr().unwrap();
        (attr.sectors, attr.space_is_estimated)
    };
    let (file, short) = (create("file"), create("short"));
    file.write_at(0, &[7; 8192]).unwrap();
    short.write_at(0, b"inside of the item").unwrap();
    for _ in 0..2 {
        assert_eq!([shown(&*file), shown(&*short)], [(16, false), (8, false)]);
        file.sync(false).unwrap();
        short.sync(false).unwrap();
    }
    file.write_at(0, &[8; 4096]).unwrap();
    assert_eq!(shown(&*file), (24, true));
    file.sync(false).unwrap();
    assert_eq!(shown(&*file), (16, false));
    drop((file, short, root));
    mounted.unmount().unwrap();
}

#[test]
fn equal_files_of_the_kernel_are_deduped() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    pool.run(
        "mount -t btrfs \"$device\" \"$root\"\nhead -c 300000 /dev/urandom > \"$root\"/a\ncat \"$root\"/a > \"$root\"/b\nprintf small > \"$root\"/inline\nbtrfs -q subvolume create \"$root\"/sub\n",
    );
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let (a, b) = (
        root.lookup(name("a")).unwrap(),
        root.lookup(name("b")).unwrap(),
    );
    let deduped = b.dedupe_range(&*a, 0..300_000, 0).unwrap();
    assert_eq!(deduped, platter_vfs::Deduped::Shared(300_000));
    let mut other = [0];
    b.read_at(5000, &mut other).unwrap();
    b.write_at(5000, &[!other[0]]).unwrap();
    let deduped = b.dedupe_range(&*a, 0..8192, 0).unwrap();
    assert_eq!(deduped, platter_vfs::Deduped::Differs);
    let sub = root.lookup(name("sub")).unwrap();
    let context = Context::root();
    let across = sub
        .create(&context, name("c"), CreateKind::Regular, 0o644)
        .unwrap();
    across.clone_range(&*a, 0..300_000, 0).unwrap();
    let small = root.lookup(name("inline")).unwrap();
    let copy = sub
        .create(&context, name("d"), CreateKind::Regular, 0o644)
        .unwrap();
    copy.clone_range(&*small, 0..5, 0).unwrap();
    assert_eq!(read(&*copy), b"small");
    drop((root, a, b, sub, across, small, copy));
    finish(&pool, mounted);
    let seen = pool.run(
        "mount -t btrfs -o ro \"$device\" \"$root\"\ncd \"$root\"\ncmp a sub/c\ncmp inline sub/d\ncmp a b | cut -d' ' -f5 | tr -d ,\nfilefrag -v a | grep -c shared\ncd /\n",
    );
    assert_eq!(seen.trim(), "5001\n1");
}

#[test]
fn file_in_use_without_a_name_is_deleted_by_the_next_mount() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let file = root
        .create(&context, name("gone"), CreateKind::Regular, 0o600)
        .unwrap();
    file.write_at(0, &[5; 9000]).unwrap();
    file.sync(false).unwrap();
    root.unlink(&context, name("gone")).unwrap();
    mounted.sync().unwrap();
    assert_eq!(read(&*file), [5; 9000]);
    drop(mounted);
    drop((root, file));
    pool.assert_clean();
    let mounted = mount(&pool);
    finish(&pool, mounted);
    assert_kernel_reads(&pool, &Model::new());
}

#[test]
fn full_filesystem_is_truncated_and_emptied() {
    fill_and_empty(&Pool::make(1, 64, &["--mixed", "-n", "4096"]));
    fill_and_empty(&Pool::make(1, 128, &["-m", "single"]));
}

fn fill_and_empty(pool: &Pool) {
    let context = Context::root();
    let mounted = mount(pool);
    let root = mounted.root().unwrap();
    let create = |name: Name<'_>| root.create(&context, name, CreateKind::Regular, 0o600);
    let full = |error| matches!(error, platter_vfs::Error::Condition(Condition::NoSpace));
    let mut data = 0;
    let refused = loop {
        let file = match create(name(&format!("data{data}"))) {
            Ok(file) => file,
            Err(error) => break error,
        };
        data += 1;
        let written = file.write_at(0, &vec![7; 300_000]).map(drop);
        if let Err(error) = written.and_then(|()| file.sync(true)) {
            break error;
        }
    };
    assert!(full(refused) && data > 20);
    let mut names = 0;
    let refused = loop {
        match create(name(&format!("name{names}"))) {
            Ok(_) => names += 1,
            Err(error) => break error,
        }
    };
    assert!(full(refused));
    for number in 0..data {
        let file = root.lookup(name(&format!("data{number}"))).unwrap();
        let changes = SetAttr {
            size_bytes: Some(5000),
            ..SetAttr::default()
        };
        file.set_attr(&context, &changes).unwrap();
        root.unlink(&context, name(&format!("data{number}")))
            .unwrap();
    }
    for number in 0..names {
        root.unlink(&context, name(&format!("name{number}")))
            .unwrap();
    }
    mounted.sync().unwrap();
    let mut model = Model::new();
    for number in 0..20 {
        let path = format!("again{number}");
        create(name(&path))
            .unwrap()
            .write_at(0, &vec![9; 300_000])
            .unwrap();
        model.insert(path, vec![9; 300_000]);
    }
    drop(root);
    finish(pool, mounted);
    assert_kernel_reads(pool, &model);
}

#[test]
fn feature_that_names_need_is_demanded() {
    let pool = Pool::make(1, 128, &["-m", "single", "-O", "^extref"]);
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let clock = Arc::new(SystemClock::new());
    let options = MountOptions::default();
    let refused = Btrfs::mount_writable(&pool.devices(), &options, budget, clock);
    assert!(refused.unwrap_err().to_string().contains("extref"));
}

#[test]
fn caches_of_free_space_are_void_after_a_commit() {
    let pool = Pool::make(1, 512, &["-m", "single", "-R", "^free-space-tree"]);
    pool.run(
        "mount -t btrfs -o space_cache=v1 \"$device\" \"$root\"\nhead -c 9000000 /dev/urandom > \"$root\"/a\nsync\nrm \"$root\"/a\nhead -c 3000000 /dev/urandom > \"$root\"/b\n",
    );
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let context = Context::root();
    let file = root
        .create(&context, name("c"), CreateKind::Regular, 0o644)
        .unwrap();
    file.write_at(0, &vec![6; 9_000_000]).unwrap();
    drop((root, file));
    finish(&pool, mounted);
    let seen = pool.run(
        "mount -t btrfs -o space_cache=v1 \"$device\" \"$root\"\nhead -c 30000000 /dev/zero | tr '\\0' x > \"$root\"/d\nsync\ntr -d '\\006' < \"$root\"/c | wc -c\n",
    );
    assert_eq!(seen.trim(), "0", "the kernel wrote over nothing");
    pool.assert_clean();
}

/// What the kernel did and made durable by `fsync` alone, in files and names.
const LOGGED: &str = r#"
mount -t btrfs -o commit=300 "$device" "$root"
cd "$root"
mkdir dir
head -c 200000 /dev/urandom > old
head -c 60000 /dev/urandom > cut
fallocate -l 1000000 allocated
echo gone > dir/gone
echo moved > dir/moved
btrfs -q subvolume create sub
cp --reflink=always old clone
sync
head -c 300000 /dev/urandom > new
sync new
printf changed | dd of=old conv=notrunc,fsync bs=1 seek=5000 2>/dev/null
head -c 5000 /dev/urandom | dd of=allocated conv=notrunc,fsync bs=4096 seek=3 2>/dev/null
truncate -s 1000 cut
sync cut
cp --reflink=always old sub/clone
sync sub/clone
echo short > sub/short
setfattr -n user.name -v value sub/short
sync sub/short
mv dir/moved dir/here
rm dir/gone
ln new dir/again
sync dir new
cp --sparse=always "$image" "$image.cut"
find . -type f | sort | xargs md5sum
cd /
"#;

#[test]
fn log_trees_of_the_kernel_become_part_of_the_trees() {
    for options in [
        &["-m", "single"][..],
        &["-m", "dup", "-n", "4096", "-O", "^no-holes"],
    ] {
        let pool = Pool::make(1, 256, options);
        let logged = pool.run(LOGGED);
        let image = &pool.images()[0];
        let mut cut = image.clone().into_os_string();
        cut.push(".cut");
        std::fs::rename(cut, image).unwrap();
        let mounted = mount(&pool);
        let root = mounted.root().unwrap();
        let context = Context::root();
        let file = root
            .create(&context, name("late"), CreateKind::Regular, 0o644)
            .unwrap();
        file.write_at(0, &vec![6; 2_000_000]).unwrap();
        root.unlink(&context, name("late")).unwrap();
        drop((root, file));
        finish(&pool, mounted);
        let read = pool.run(
            "mount -t btrfs -o ro \"$device\" \"$root\"\ncd \"$root\"\nfind . -type f | sort | xargs md5sum\ncd /\n",
        );
        assert_eq!(read, logged);
    }
}

#[test]
fn extents_are_listed_while_shared_leaves_are_copied() {
    let pool = Pool::make(1, 128, &["-m", "single", "-n", "4096"]);
    pool.run(
        "mount -t btrfs \"$device\" \"$root\"\nbtrfs -q subvolume create \"$root\"/sub\nfor i in $(seq 200); do head -c 9000 /dev/zero > \"$root\"/sub/file$i; done\nsync\nbtrfs -q subvolume snapshot \"$root\"/sub \"$root\"/snapshot\n",
    );
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let sub = root.lookup(name("sub")).unwrap();
    let (read, written) = (sub.lookup(name("file1")).unwrap(), 2..=200);
    let written: Vec<_> = written
        .map(|number| sub.lookup(name(&format!("file{number}"))).unwrap())
        .collect();
    let mut listed = 0;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for file in &written {
                file.write_at(0, &[8; 5000]).unwrap();
                file.sync(true).unwrap();
            }
        });
        while !writer.is_finished() {
            read.extents(0..u64::MAX, &mut |_| {
                listed += 1;
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        }
    });
    assert!(listed > 0);
    drop((root, sub, read, written));
    finish(&pool, mounted);
}

#[test]
fn clones_whose_references_collide_are_deleted() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let create = |path| {
        let file = root.create(&Context::root(), name(path), CreateKind::Regular, 0o644);
        file.unwrap()
    };
    let (source, target) = (create("source"), create("target"));
    source.write_at(0, &[7; 12_288]).unwrap();
    mounted.sync().unwrap();
    // References from these offsets have the same hash.
    let offset = |number: u64| {
        let shifts = (0..9).filter(|bit| (number >> bit) & 1 == 1);
        shifts.fold(0, |offset, bit| offset ^ (0x105e_c76f_1000 << bit))
    };
    for at in (0..400).map(offset) {
        target.clone_range(&*source, 0..12_288, at).unwrap();
    }
    mounted.sync().unwrap();
    for at in (0..400).map(offset) {
        let hole = at + 4096..at + 8192;
        target.fallocate(hole, FallocateMode::PunchHole).unwrap();
    }
    drop((source, target, root));
    finish(&pool, mounted);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    root.unlink(&Context::root(), name("target")).unwrap();
    mounted.sync().unwrap();
    drop(root);
    finish(&pool, mounted);
}
