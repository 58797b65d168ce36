//! A directory and its archives, made in the memory filesystem, are the same.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::process::Command;

use platter_vfs::FixedClock;
use platter_vfs::memory::{MemFs, MemFsLimits};
use tempfile::TempDir;

use super::*;

fn sample() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join("tree").join(name);
    fs::create_dir_all(at("dir/sub")).unwrap();
    fs::write(at("dir/file"), b"contents").unwrap();
    fs::write(at("a-file"), vec![7; 10_000]).unwrap();
    fs::hard_link(at("dir/file"), at("dir/hard")).unwrap();
    fs::hard_link(at("dir/file"), at("z-hard")).unwrap();
    symlink("dir/file", at("link")).unwrap();
    symlink("x".repeat(200), at("dir/long")).unwrap();
    fs::write(at("dir").join("n".repeat(200)), b"").unwrap();
    let sparse = fs::File::create(at("sparse")).unwrap();
    sparse.write_all_at(b"start", 0).unwrap();
    sparse.write_all_at(b"middle", 1_000_000).unwrap();
    sparse.set_len(3_000_000).unwrap();
    fs::set_permissions(at("a-file"), PermissionsExt::from_mode(0o4711)).unwrap();
    fs::set_permissions(at("dir"), PermissionsExt::from_mode(0o2750)).unwrap();
    folder
}

fn memory() -> MemFs {
    let clock = FixedClock::new(Timestamp::default(), 1);
    MemFs::new(Arc::new(clock), MemFsLimits::default())
}

/// All that was made, as text.
fn described(content: &Content) -> String {
    let fs = memory();
    content.fill(&fs, &mut |_| {}).unwrap();
    let mut text = String::new();
    let mut stack = vec![(Vec::new(), fs.root().unwrap())];
    while let Some((path, inode)) = stack.pop() {
        let attr = inode.attr().unwrap();
        let shown = String::from_utf8_lossy(&path).into_owned();
        let mode = attr.mode();
        let (uid, links, size) = (attr.uid, attr.links, attr.size_bytes);
        let _ = write!(text, "{shown} {mode:o} {uid} {links} {:?}", attr.modified);
        match attr.kind {
            FileKind::Directory => {
                for entry in platter_vfs::inode::read_dir_all(&*inode).unwrap() {
                    let below = [&path[..], b"/", &entry.name].concat();
                    stack.push((below, fs.inode(entry.id).unwrap()));
                }
                stack.sort_by(|(left, _), (right, _)| left.cmp(right));
            }
            FileKind::Symlink => {
                let target = inode.read_link().unwrap();
                let _ = write!(text, " {}", String::from_utf8_lossy(&target));
            }
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {}
            FileKind::Regular => {
                let mut bytes = vec![0; usize::try_from(size).unwrap()];
                inode.read_at(0, &mut bytes).unwrap();
                let sum = bytes.iter().fold(0u64, |sum, &byte| {
                    sum.wrapping_mul(31).wrapping_add(u64::from(byte))
                });
                let _ = write!(text, " {size} {sum:x} {}", attr.sectors);
            }
        }
        text.push('\n');
    }
    text
}

#[test]
fn a_directory_and_its_archives_give_the_same() {
    let folder = sample();
    let tree = folder.path().join("tree");
    let expected = described(&Content::of_folder(&tree).unwrap());
    assert!(expected.contains("/dir/hard 100644"), "{expected}");
    for options in [
        &["--format=gnu", "--sparse"][..],
        &["--format=gnu"],
        &["--format=posix", "--sparse"],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
        &["--format=posix", "--sort=name"],
    ] {
        let archive = folder.path().join("archive.tar");
        let made = Command::new("tar")
            .arg("-C")
            .arg(&tree)
            .args(options)
            .arg("-cf")
            .arg(&archive)
            .arg(".")
            .status();
        assert!(made.unwrap().success());
        let content = Content::of_archive(&archive).unwrap();
        let mut made = described(&content);
        let mut expected = expected.clone();
        if options[0] == "--format=gnu" {
            // It has whole seconds only.
            for text in [&mut made, &mut expected] {
                *text = without_nanoseconds(text);
            }
        }
        assert_eq!(made, expected, "{options:?}");
    }
}

fn without_nanoseconds(text: &str) -> String {
    let parts: Vec<&str> = text.split("nanoseconds: ").collect();
    let cut = parts
        .iter()
        .map(|part| part.trim_start_matches(|character: char| character.is_ascii_digit()));
    cut.collect::<Vec<_>>().join("")
}

#[test]
fn what_is_there_twice_is_taken_as_it_came_last() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive.tar");
    for contents in ["first", "second one"] {
        fs::write(folder.path().join("f"), contents).unwrap();
        let added = Command::new("tar")
            .arg("-C")
            .arg(folder.path())
            .arg("-rf")
            .arg(&archive)
            .arg("f")
            .status();
        assert!(added.unwrap().success());
    }
    let fs = memory();
    let filled = Content::of_archive(&archive)
        .unwrap()
        .fill(&fs, &mut |_| {});
    assert_eq!(filled.unwrap().bytes, 10);
}

#[test]
fn paths_lead_nowhere_outside() {
    assert_eq!(MemberPath::parse(b"./a//b/").unwrap().text(), b"/a/b");
    assert_eq!(MemberPath::parse(b"/a").unwrap().text(), b"/a");
    assert!(MemberPath::parse(b"a/../../b").is_err());
}

#[test]
fn owners_can_be_given() {
    let folder = sample();
    let mut content = Content::of_folder(&folder.path().join("tree")).unwrap();
    content.owned_by(12, 34);
    let fs = memory();
    content.fill(&fs, &mut |_| {}).unwrap();
    let root = fs.root().unwrap().attr().unwrap();
    assert_eq!((root.uid, root.gid), (12, 34));
}
