//! Blocks that files share and exchange, compared with the same bytes in memory, `xfs_repair` and the kernel.

use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use platter::{ImageSpec, MountOptions, Volume, WriteOptions};
use platter_vfs::ranges::{Deduped, Exchange};
use platter_vfs::{
    Context, CreateKind, ExtendedFlags, Extent, FallocateMode, Inode, Name, SetAttr,
};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, xfs};
use testkit::prng::Prng;

const SHAPES: &[(&str, &[&str])] = &[
    ("default", &[]),
    ("rmapbt", &["-m", "rmapbt=1"]),
    (
        "blocks of 1 KiB",
        &["-b", "size=1024", "-m", "rmapbt=1", "-i", "nrext64=1"],
    ),
];
const NAMES: [&str; 3] = ["one", "two", "three"];
const OPERATIONS: u32 = 250;
const BLOCKS_MAX: u64 = 40;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn open(image: &Path) -> Volume {
    let spec = ImageSpec::parse(image).unwrap();
    let options = MountOptions::new().writing(WriteOptions {
        commit_interval: None,
        ..WriteOptions::default()
    });
    options.open(&spec).unwrap()
}

/// A file, and what it must hold.
struct Twin {
    file: Arc<dyn Inode>,
    bytes: Vec<u8>,
}

impl Twin {
    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap();
        let end = at + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[at..end].copy_from_slice(bytes);
    }

    fn check(&self, context: &str) {
        let mut found = vec![0; self.bytes.len() + 100];
        let len = self.file.read_at(0, &mut found).unwrap();
        assert_eq!(len, self.bytes.len(), "{context}");
        assert!(found[..len] == self.bytes[..], "{context}");
    }
}

/// Unshares a range of a file, from the block `at` on, which must be shared with none then.
fn unshare(twin: &mut Twin, at: u64, bytes: Range<u64>, keep_size: bool) -> String {
    let mode = FallocateMode::UnshareRange { keep_size };
    twin.file.fallocate(bytes.clone(), mode).unwrap();
    let end = usize::try_from(bytes.end).unwrap();
    if !keep_size && end > twin.bytes.len() {
        twin.bytes.resize(end, 0);
    }
    let size = twin.bytes.len() as u64;
    let mut shared = Vec::new();
    let mut collect = |extent: &Extent| {
        let is_inside = extent.file.start < bytes.end && extent.file.end > at;
        shared.extend((extent.shared && is_inside).then(|| extent.file.clone()));
        ControlFlow::Continue(())
    };
    let range = at.min(size)..bytes.end.min(size);
    twin.file
        .extents(range, &mut |extent| collect(&extent))
        .unwrap();
    assert!(shared.is_empty(), "unshare {bytes:?}: {shared:?}");
    format!("unshare {bytes:?}: Ok")
}

/// One random change of the files.
fn change(files: &mut [Twin], dice: &mut Prng, block: u64) -> String {
    let index = |dice: &mut Prng| usize::try_from(dice.below(NAMES.len() as u64)).unwrap();
    let (first, second) = (index(dice), index(dice));
    let at = dice.below(BLOCKS_MAX) * block;
    let count = 1 + dice.below(8);
    match dice.below(10) {
        0..=2 => {
            let at = at + dice.below(block);
            let len = usize::try_from(dice.below(count * block) + 1).unwrap();
            let fill = u8::try_from(dice.below(256)).unwrap();
            files[first].file.write_at(at, &vec![fill; len]).unwrap();
            files[first].put(at, &vec![fill; len]);
            format!("write {first} {at} {len}")
        }
        3 | 4 => {
            let source = &files[second];
            let size = source.bytes.len() as u64;
            let start = dice.below(BLOCKS_MAX) * block;
            // Exchanges then find blocks that both files have at the same places.
            let to = if dice.below(2) == 0 { start } else { at };
            let end = (start + count * block).min(size);
            let range = start..end;
            let file = Arc::clone(&source.file);
            let copied = files[first].file.clone_range(&*file, range.clone(), to);
            if copied.is_ok() {
                let part = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
                let bytes = files[second].bytes[part].to_vec();
                files[first].put(to, &bytes);
            }
            format!("clone {second} {range:?} to {first} {to}: {copied:?}")
        }
        5 => {
            let file = Arc::clone(&files[second].file);
            let range = 0..count * block;
            let deduped = files[first].file.dedupe_range(&*file, range.clone(), 0);
            if let Ok(outcome) = &deduped {
                let end = usize::try_from(range.end).unwrap();
                let same = files[first].bytes.get(..end) == files[second].bytes.get(..end);
                assert_eq!(same, *outcome != Deduped::Differs);
            }
            format!("dedupe {second} {first} {count}: {deduped:?}")
        }
        6 => {
            let file = Arc::clone(&files[second].file);
            let is_whole = dice.below(2) == 0;
            let exchange = Exchange {
                offset: if is_whole { 0 } else { at },
                other_offset: if is_whole { 0 } else { at },
                len_bytes: (!is_whole).then_some(count * block),
                written_only: false,
                dry_run: false,
            };
            let exchanged = files[first].file.exchange_range(&*file, &exchange);
            let end = usize::try_from(at + count * block).unwrap();
            let fits = |index: usize| is_whole || files[index].bytes.len() >= end;
            let is_possible = first != second && fits(first) && fits(second);
            assert_eq!(
                exchanged.is_ok(),
                is_possible,
                "{exchange:?}: {exchanged:?}"
            );
            if exchanged.is_ok() {
                let (low, high) = (first.min(second), first.max(second));
                let (left, right) = files.split_at_mut(high);
                let (one, two) = (&mut left[low].bytes, &mut right[0].bytes);
                if is_whole {
                    std::mem::swap(one, two);
                } else {
                    let part = usize::try_from(at).unwrap()..end;
                    one[part.clone()].swap_with_slice(&mut two[part]);
                }
            }
            format!("exchange {first} {second} {exchange:?}: {exchanged:?}")
        }
        7 => {
            let end = at + count * block;
            let punched = files[first]
                .file
                .fallocate(at..end, FallocateMode::PunchHole);
            punched.unwrap();
            let len = files[first].bytes.len();
            let part =
                usize::try_from(at).unwrap().min(len)..usize::try_from(end).unwrap().min(len);
            files[first].bytes[part].fill(0);
            format!("punch {first} {at}..{end}")
        }
        8 => {
            let bytes = at + dice.below(block)..at + count * block;
            unshare(&mut files[first], at, bytes, dice.below(2) == 0)
        }
        _ => {
            let size = at + dice.below(block);
            let changes = SetAttr {
                size_bytes: Some(size),
                ..SetAttr::default()
            };
            let set = files[first].file.set_attr(&Context::root(), &changes);
            set.unwrap();
            files[first].bytes.resize(usize::try_from(size).unwrap(), 0);
            format!("truncate {first} {size}")
        }
    }
}

#[test]
fn shared_and_exchanged_blocks_hold_what_they_should() {
    for (seed, (title, options)) in (1..).zip(SHAPES) {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        xfs::make(&image, 96 << 10, options).unwrap();
        let block = if options.contains(&"size=1024") {
            1024
        } else {
            4096
        };
        let mut dice = Prng::new(seed);
        let volume = open(&image);
        let root = volume.filesystem().root().unwrap();
        let mut files: Vec<Twin> = NAMES
            .iter()
            .map(|text| Twin {
                file: root
                    .create(&Context::root(), name(text), CreateKind::Regular, 0o644)
                    .unwrap(),
                bytes: Vec::new(),
            })
            .collect();
        let mut done = Vec::new();
        for _ in 0..OPERATIONS {
            done.push(change(&mut files, &mut dice, block));
            let last = &done[done.len().saturating_sub(6)..];
            for file in &files {
                file.check(&format!("{title}: {last:#?}"));
            }
        }
        let made = |what: &str| {
            let of_kind = done.iter().filter(|line| line.starts_with(what));
            of_kind.filter(|line| line.contains(": Ok")).count()
        };
        assert!(made("clone") > 5 && made("exchange") > 2, "{done:#?}");
        assert!(made("unshare") > 5, "{done:#?}");
        let expected: Vec<Vec<u8>> = files.iter().map(|file| file.bytes.clone()).collect();
        drop((files, root));
        volume.filesystem().unmount().unwrap();
        drop(volume);
        let (verdict, text) = xfs::report(&[&image]).unwrap();
        assert_eq!(verdict, Verdict::Clean, "{title}: {text}\n{done:#?}");
        let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadOnly).unwrap();
        for (text, bytes) in NAMES.iter().zip(&expected) {
            let found = fs::read(mount.root().join(text)).unwrap();
            assert!(found == *bytes, "{title}: {text}");
        }
        mount.unmount_all(&[&image]).unwrap();
    }
}

#[test]
fn file_with_more_blocks_than_the_filesystem_is_sound() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    xfs::make(&image, 96 << 10, &["-m", "rmapbt=1"]).unwrap();
    let volume = open(&image);
    let root = volume.filesystem().root().unwrap();
    let context = Context::root();
    let file = root
        .create(&context, name("file"), CreateKind::Regular, 0o644)
        .unwrap();
    let mut len = 16 << 20;
    file.write_at(0, &vec![7; 16 << 20]).unwrap();
    while len < 128 << 20 {
        file.clone_range(&*file, 0..len, len).unwrap();
        len *= 2;
    }
    drop((file, root));
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_eq!(xfs::check(&[&image]).unwrap(), Verdict::Clean);
    super::writing::assert_equal(&image, ("cloned onto itself", "unmounted"));
}

#[test]
fn extent_size_hints_are_kept_and_inherited() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    xfs::make(&image, 96 << 10, &[]).unwrap();
    let volume = open(&image);
    let root = volume.filesystem().root().unwrap();
    let context = Context::root();
    let directory = root
        .create(&context, name("dir"), CreateKind::Directory, 0o755)
        .unwrap();
    let hint = |xflags, bytes| SetAttr {
        xflags: Some(xflags),
        extent_size_bytes: Some(bytes),
        ..SetAttr::default()
    };
    let with_flags = SetAttr {
        flags: Some(0x40),
        ..hint(0x1000, 65536)
    };
    directory.set_attr(&context, &with_flags).unwrap();
    for refused in [hint(0x800, 65536), hint(0x1000, 65537), hint(0x1, 0)] {
        assert!(directory.set_attr(&context, &refused).is_err());
    }
    let file = directory
        .create(&context, name("file"), CreateKind::Regular, 0o644)
        .unwrap();
    let found = file.extended_flags().unwrap();
    let expected = ExtendedFlags {
        xflags: 0x800,
        extent_size_bytes: 65536,
        ..ExtendedFlags::default()
    };
    assert_eq!(found, expected);
    file.write_at(0, &[1; 5000]).unwrap();
    file.sync(false).unwrap();
    assert!(file.set_attr(&context, &hint(0x800, 131_072)).is_err());
    // Two files grow in turn, each by whole hints.
    let other = directory
        .create(&context, name("other"), CreateKind::Regular, 0o644)
        .unwrap();
    for at in (1..200_000_u64).step_by(3000) {
        for (file, byte) in [(&file, 2), (&other, 3)] {
            file.write_at(at, &[byte; 3000]).unwrap();
            file.sync(false).unwrap();
        }
    }
    for file in [&file, &other] {
        let mut pieces: Vec<(u64, u64, u64)> = Vec::new();
        file.extents(0..1 << 30, &mut |extent| {
            let place = extent.place.unwrap().offset;
            let len = extent.file.end - extent.file.start;
            match pieces.last_mut() {
                Some((start, at, known)) if *at + *known == place => {
                    assert_eq!(*start + *known, extent.file.start);
                    *known += len;
                }
                _ => pieces.push((extent.file.start, place, len)),
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        for (start, _, len) in &pieces {
            assert_eq!((start % 65536, len % 65536), (0, 0), "{pieces:?}");
        }
        let total: u64 = pieces.iter().map(|(_, _, len)| len).sum();
        assert_eq!(total, 4 * 65536, "{pieces:?}");
    }
    drop((file, other, directory, root));
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_eq!(xfs::check(&[&image]).unwrap(), Verdict::Clean);
    super::writing::assert_equal(&image, ("hints", "unmounted"));
}
