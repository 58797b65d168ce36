//! Files with fs-verity: the kernel here has none, so `fsverity digest` makes their Merkle trees and descriptors, and
//! transactions put these into images.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use platter_block::{Access as DeviceAccess, BlockDevice, FileDevice, OpenOptions};
use platter_btrfs::ondisk::inode_item::InodeFlags;
use platter_btrfs::ondisk::key::ItemKind;
use platter_btrfs::ondisk::verity::DiskVerityDescriptor;
use platter_btrfs::ondisk::{Key, TreeId};
use platter_btrfs::txn::{WriteContext, WriteOptions};
use platter_btrfs::{Btrfs, MountOptions, open_for_writing};
use platter_cache::MemoryBudget;
use platter_vfs::inode::read_dir_all;
use platter_vfs::{Error, Filesystem, PathWalk, SystemClock};
use testkit::tool;
use zerocopy::{FromZeros, IntoBytes};

use super::check;
use super::image::{Pool, mount};

/// How large the items are that the kernel makes of descriptors and Merkle trees.
const ITEM_BYTES: usize = 2048;

/// Sizes of files; the last two have trees of two levels at most and at least.
const SIZES: [usize; 8] = [0, 1, 1024, 4096, 4097, 100_000, 500_000, 1_500_001];

/// Options of `fsverity digest`.
const FORMS: [&[&str]; 4] = [
    &[],
    &["--hash-alg=sha512"],
    &["--block-size=1024", "--salt=00112233445566778899"],
    &["--hash-alg=sha512", "--block-size=1024", "--salt=aa"],
];

fn content(form: usize, size: usize) -> Vec<u8> {
    let text = (0u64..).flat_map(|line| format!("{form} {line} {}\n", line * line).into_bytes());
    text.take(size).collect()
}

fn name(form: usize, size: usize) -> String {
    format!("file.{form}.{size}")
}

/// A filesystem with files of all forms and sizes, and what goes into their items.
struct Files {
    pool: Pool,
    dir: tempfile::TempDir,
}

impl Files {
    fn make(mount_options: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        for form in 0..FORMS.len() {
            for size in SIZES {
                std::fs::write(dir.path().join(name(form, size)), content(form, size))?;
            }
        }
        let pool = Pool::make(1, 200 << 10, &["-n", "4096"])?;
        let path = dir.path().to_str().context("a path")?;
        pool.run(mount_options, &format!(r#"cp {path}/* "$1""#))?;
        let files = Self { pool, dir };
        let numbers = files.numbers()?;
        let fs = files.open()?;
        for (form, options) in FORMS.iter().enumerate() {
            for size in SIZES {
                let number = numbers(&name(form, size))?;
                let (tree, descriptor) = files.digest(&name(form, size), options)?;
                protect(&fs, number, &tree, &descriptor)?;
            }
        }
        fs.sync()?;
        Ok(files)
    }

    /// The Merkle tree and the descriptor of a file.
    fn digest(&self, name: &str, options: &[&str]) -> Result<(Vec<u8>, Vec<u8>)> {
        let of = |suffix: &str| self.dir.path().join(format!("{name}.{suffix}"));
        let (tree, descriptor) = (of("tree"), of("descriptor"));
        let mut fsverity = tool::command("fsverity");
        fsverity.arg("digest").args(options);
        let out = |option: &str, path: &Path| format!("--out-{option}={}", path.display());
        fsverity.arg(out("merkle-tree", &tree));
        fsverity.arg(out("descriptor", &descriptor));
        tool::succeed(fsverity.arg(self.dir.path().join(name)))?;
        Ok((std::fs::read(tree)?, std::fs::read(descriptor)?))
    }

    /// The numbers of files by their names. Nothing is open then.
    fn numbers(&self) -> Result<impl Fn(&str) -> Result<u64> + use<>> {
        let mut numbers = HashMap::new();
        for entry in read_dir_all(&*self.mount()?.root()?)? {
            numbers.insert(String::from_utf8(entry.name.to_vec())?, entry.id.number);
        }
        Ok(move |name: &str| numbers.get(name).copied().context("a file"))
    }

    fn open(&self) -> Result<WriteContext> {
        let options = OpenOptions {
            access: DeviceAccess::Write,
            direct: false,
        };
        let device = FileDevice::open(&self.pool.images[0], options)?;
        let devices: [Arc<dyn BlockDevice>; 1] = [Arc::new(device)];
        let budget = Arc::new(MemoryBudget::new(16 << 20));
        let clock = Arc::new(SystemClock::new());
        let (options, writing) = (MountOptions::default(), WriteOptions::default());
        Ok(open_for_writing(
            &devices, &options, writing, &budget, clock,
        )?)
    }

    fn mount(&self) -> Result<Btrfs> {
        mount(&self.pool.devices()?, &MountOptions::default())
    }
}

/// Puts a Merkle tree and a descriptor into the items of an inode, as the kernel does.
fn protect(fs: &WriteContext, number: u64, tree: &[u8], descriptor: &[u8]) -> Result<()> {
    let mut about = DiskVerityDescriptor::new_zeroed();
    about.len_bytes.set(descriptor.len() as u64);
    put(
        fs,
        Key::new(number, ItemKind::VERITY_DESC, 0),
        about.as_bytes(),
    )?;
    for (kind, bytes, first) in [
        (ItemKind::VERITY_DESC, descriptor, 1),
        (ItemKind::VERITY_MERKLE, tree, 0),
    ] {
        for (index, part) in bytes.chunks(ITEM_BYTES).enumerate() {
            let offset = first + (index * ITEM_BYTES) as u64;
            put(fs, Key::new(number, kind, offset), part)?;
        }
    }
    let handle = fs.begin(8)?;
    handle.edit(TreeId::FS, |editor| {
        platter_btrfs::inode::change::update(editor, number, |item| {
            item.flags |= InodeFlags::VERITY;
        })
    })?;
    Ok(())
}

fn put(fs: &WriteContext, key: Key, data: &[u8]) -> Result<()> {
    let handle = fs.begin(8)?;
    handle.edit(TreeId::FS, |editor| editor.set(key, data))?;
    Ok(())
}

fn read(mounted: &Btrfs, name: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
    let inode = PathWalk::new(mounted).resolve(name.as_bytes())?;
    let mut buf = vec![0; len];
    let count = inode.read_at(offset, &mut buf)?;
    buf.truncate(count);
    Ok(buf)
}

#[test]
fn contents_agree_with_merkle_trees_of_fsverity() -> Result<()> {
    for options in ["compress=zstd", "nodatasum"] {
        let files = Files::make(options)?;
        check::is_clean(&files.pool.paths())?;
        let mounted = files.mount()?;
        for form in 0..FORMS.len() {
            for size in SIZES {
                let (name, expected) = (name(form, size), content(form, size));
                assert_eq!(read(&mounted, &name, 0, size + 1)?, expected, "{name}");
                for (offset, len) in [(1, 10), (4095, 2), (5000, 70_000), (99_999, 200_000)] {
                    let expected = expected.get(offset..).unwrap_or_default();
                    let expected = &expected[..len.min(expected.len())];
                    // Nothing is in memory.
                    let fresh = files.mount()?;
                    assert_eq!(read(&fresh, &name, offset as u64, len)?, expected, "{name}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn contents_that_were_changed_are_not_read() -> Result<()> {
    let files = Files::make("nodatasum")?;
    // The same bytes elsewhere: no checksum of btrfs says that they are others.
    let changed = [
        (0, 100_000, 50_000),
        (1, 500_000, 499_999),
        (2, 4097, 4096),
        (3, 1024, 7),
    ];
    {
        let numbers = files.numbers()?;
        let fs = files.open()?;
        for (form, size, at) in changed {
            let mut other = content(form, size);
            other[at] ^= 1;
            let path = files.dir.path().join(name(form, size));
            std::fs::write(path, other)?;
            let (tree, descriptor) = files.digest(&name(form, size), FORMS[form])?;
            protect(&fs, numbers(&name(form, size))?, &tree, &descriptor)?;
        }
        fs.sync()?;
    }
    let mounted = files.mount()?;
    for (form, size, at) in changed {
        let (name, expected) = (name(form, size), content(form, size));
        let refused = read(&mounted, &name, 0, size).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("hash mismatch"), "{name}: {text}");
        let block = if form < 2 { 4096 } else { 1024 };
        for start in (0..size).step_by(block) {
            let end = size.min(start + block);
            let part = read(&files.mount()?, &name, start as u64, end - start);
            // What is read with it, in one page, is refused with it.
            if start / 4096 == at / 4096 {
                assert!(part.is_err(), "{name} at {start}");
            } else {
                assert_eq!(part?, &expected[start..end], "{name} at {start}");
            }
        }
    }
    Ok(())
}

#[test]
fn merkle_trees_and_descriptors_that_are_corrupt_are_refused() -> Result<()> {
    let files = Files::make("")?;
    let numbers = files.numbers()?;
    let of = |form, size| numbers(&name(form, size));
    let (root, leaf, gone, none, size) = (
        of(0, 500_000)?,
        of(0, 1_500_001)?,
        of(2, 500_000)?,
        of(0, 4097)?,
        of(0, 4096)?,
    );
    let fs = files.open()?;
    let zeros = [0; ITEM_BYTES];
    put(&fs, Key::new(root, ItemKind::VERITY_MERKLE, 0), &zeros)?;
    put(&fs, Key::new(leaf, ItemKind::VERITY_MERKLE, 4096), &zeros)?;
    for key in [
        Key::new(gone, ItemKind::VERITY_MERKLE, 2048),
        Key::new(none, ItemKind::VERITY_DESC, 0),
    ] {
        let handle = fs.begin(8)?;
        handle.edit(TreeId::FS, |editor| editor.remove(key).map(drop))?;
    }
    let (_, descriptor) = files.digest(&name(0, 4097), &[])?;
    put(&fs, Key::new(size, ItemKind::VERITY_DESC, 1), &descriptor)?;
    fs.sync()?;
    drop(fs);
    let mounted = files.mount()?;
    for (form, size, expected) in [
        (0, 500_000, "Merkle tree block hash mismatch"),
        (0, 1_500_001, "Merkle tree block hash mismatch"),
        (2, 500_000, "incomplete"),
        (0, 4097, "no verity descriptor"),
        (0, 4096, "wrong data_size"),
    ] {
        let name = name(form, size);
        let text = read(&mounted, &name, 0, size).unwrap_err().to_string();
        assert!(text.contains(expected), "{name}: {text}");
    }
    Ok(())
}
