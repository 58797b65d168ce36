//! A directory and its archives, made in the memory filesystem, are the same.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{Condition, FileKind, FixedClock};
use rustix::io::Errno;
use tempfile::TempDir;

use super::*;

fn sample() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join("tree").join(name);
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
    dir
}

fn memory() -> MemFs {
    let clock = FixedClock::new(Timestamp::default(), 1);
    MemFs::new(Arc::new(clock), MemFsLimits::default())
}

/// All that was made, as text.
fn described(content: &Content) -> String {
    let fs = memory();
    content.fill(&fs, &Progress::default()).unwrap();
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
    let dir = sample();
    let tree = dir.path().join("tree");
    let expected = described(&Content::of_dir(&tree).unwrap());
    assert!(expected.contains("/dir/hard 100644"), "{expected}");
    for options in [
        &["--format=gnu", "--sparse"][..],
        &["--format=gnu"],
        &["--format=posix", "--sparse"],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
        &["--format=posix", "--sort=name"],
    ] {
        let archive = dir.path().join("archive.tar");
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
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("archive.tar");
    for contents in ["first", "second one"] {
        fs::write(dir.path().join("f"), contents).unwrap();
        let added = Command::new("tar")
            .arg("-C")
            .arg(dir.path())
            .arg("-rf")
            .arg(&archive)
            .arg("f")
            .status();
        assert!(added.unwrap().success());
    }
    let fs = memory();
    let filled = Content::of_archive(&archive)
        .unwrap()
        .fill(&fs, &Progress::default());
    assert_eq!(filled.unwrap().bytes, 10);
}

/// A member with a ustar header.
fn member(kind: u8, name: &str, target: &str, data: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_path(name).unwrap();
    if !target.is_empty() {
        header.set_link_name(target).unwrap();
    }
    header.set_size(data.len() as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = 3 + key.len() + value.len();
    let len = (1..1_000_000).find(|len| rest + len.to_string().len() == *len);
    let head = format!("{} {key}=", len.unwrap());
    [head.as_bytes(), value, b"\n"].concat()
}

fn archive(members: &[Vec<u8>]) -> Result<Content> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), [&members.concat()[..], &[0; 1024]].concat()).unwrap();
    Content::of_archive(file.path())
}

#[test]
fn name_that_is_linked_twice_is_for_the_last_target_alone() {
    let content = archive(&[
        member(b'0', "x", "", b"xx"),
        member(b'0', "y", "", b"yyy"),
        member(b'1', "b", "x", b""),
        member(b'1', "b", "y", b""),
        member(b'1', "c", "b", b""),
    ]);
    let text = described(&content.unwrap());
    let line = |name: &str| {
        let found = text.lines().find(|line| line.starts_with(name));
        found.unwrap().split_once(' ').unwrap().1.to_owned()
    };
    assert!(line("/x ").contains(" 1 Timestamp"), "{text}");
    assert!(line("/y ").contains(" 3 Timestamp"), "{text}");
    assert_eq!(line("/b "), line("/y "));
    assert_eq!(line("/c "), line("/y "));
}

#[test]
fn link_keeps_the_file_whose_name_is_taken_by_another() {
    let content = archive(&[
        member(b'0', "a", "", b"old"),
        member(b'1', "b", "a", b""),
        member(b'0', "a", "", b"newer"),
    ]);
    let text = described(&content.unwrap());
    let size = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').nth(2).unwrap().to_owned()
    };
    assert_eq!((&*size("/a "), &*size("/b ")), ("5", "3"), "{text}");
}

#[test]
fn link_to_what_is_not_there_is_refused() {
    let link = || member(b'1', "b", "a", b"");
    assert!(archive(&[link()]).is_err());
    assert!(archive(&[member(b'5', "a", "", b""), link()]).is_err());
    assert!(archive(&[member(b'1', "b", "b", b"")]).is_err());
}

#[test]
fn global_records_are_defaults_for_what_follows() {
    let globals = [record("comment", b"0123"), record("uid", b"7")].concat();
    let content = archive(&[
        member(b'0', "before", "", b""),
        member(b'g', "pax_global_header", "", &globals),
        member(b'0', "plain", "", b""),
        member(b'x', "records", "", &record("uid", b"8")),
        member(b'0', "own", "", b""),
        member(b'g', "pax_global_header", "", &record("uid", b"")),
        member(b'0', "after", "", b""),
    ]);
    let content = content.unwrap();
    let uids = content.members.iter().map(|(_, member)| member.uid);
    let names = content.members.iter().map(|(path, _)| path.text());
    let found: Vec<_> = names.zip(uids).collect();
    let expected = [("/after", 0), ("/before", 0), ("/own", 8), ("/plain", 7)];
    let expected = expected.map(|(name, uid)| (name.as_bytes().to_vec(), uid));
    assert_eq!(found, expected);
    let refused = archive(&[member(b'g', "g", "", &record("path", b"a"))]);
    assert!(refused.is_err());
}

#[test]
fn global_records_are_no_longer_than_what_takes_them() {
    let given = |key: &str, len: usize| {
        let records = record(key, &vec![b'x'; len]);
        let globals = member(b'g', "pax_global_header", "", &records);
        archive(&[globals, member(b'0', "file", "", b"")])
    };
    assert!(given("comment", 100_000).is_ok());
    assert!(given("SCHILY.xattr.user.x", 1000).is_ok());
    let refused = given("SCHILY.xattr.user.x", 5000).unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("global headers say too much"), "{refused}");
}

#[test]
fn values_of_attributes_are_bytes_of_any_kind() {
    let value = b"a\n12 uid=9\n\0\xff";
    let content = archive(&[
        member(b'x', "records", "", &record("SCHILY.xattr.user.x", value)),
        member(b'0', "a", "", b""),
    ]);
    let content = content.unwrap();
    let (_, member) = content.members.first().unwrap();
    assert_eq!(member.xattrs, [(b"user.x".to_vec(), value.to_vec())]);
    assert_eq!(member.uid, 0);
}

#[test]
fn members_that_end_past_the_archive_are_refused() {
    let mut header = tar::Header::new_ustar();
    header.set_path("a").unwrap();
    header.set_size(1 << 40);
    header.set_mode(0);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    assert!(archive(&[header.as_bytes().to_vec()]).is_err());
    let sparse = |real_size: &[u8], map: &[u8]| {
        let records = [
            record("GNU.sparse.major", b"0"),
            record("GNU.sparse.size", real_size),
            record("GNU.sparse.map", map),
        ];
        archive(&[
            member(b'x', "records", "", &records.concat()),
            member(b'0', "a", "", b"0123456789"),
        ])
    };
    assert!(sparse(b"100", b"0,5,90,5").is_ok());
    assert!(sparse(b"100", b"0,5,90,6").is_err());
    assert!(sparse(b"9223372036854775808", b"0,5").is_err());
    assert!(sparse(b"18446744073709551615", b"0,5,18446744073709551614,1").is_err());
    let longest = sparse(b"9223372036854775807", b"0,5").unwrap();
    assert_eq!(longest.data_bytes(&Progress::default()).unwrap(), 4096);
    let mut broken = member(b'0', "a", "", b"");
    broken[0] ^= 1;
    assert!(archive(&[broken]).is_err());
}

#[test]
fn broken_archives_have_a_code_of_their_own() {
    let code = |archive: Result<Content>| archive.unwrap_err().code();
    let mut unsummed = member(b'0', "a", "", b"");
    unsummed[0] ^= 1;
    let mut header = tar::Header::new_ustar();
    header.set_path("a").unwrap();
    // No digits.
    header.as_old_mut().uid = *b"??????\0\0";
    header.set_size(0);
    header.set_cksum();
    let numberless = header.as_bytes().to_vec();
    let mut truncated = member(b'0', "a", "", b"bytes");
    truncated.truncate(600);
    for members in [
        vec![unsummed],
        vec![numberless],
        vec![member(b'?', "a", "", b"")],
        vec![member(b'1', "a", "none", b"")],
        vec![member(b'x', "records", "", b"broken")],
    ] {
        assert_eq!(code(archive(&members)), "bad_archive", "{members:?}");
    }
    let stream = |bytes: &[u8]| Content::of_stream("stream", bytes, u64::MAX);
    let packed = filtered("gzip", &["-c"], &truncated);
    for bytes in [
        &truncated[..100],
        &packed[..packed.len() - 9],
        b"BZh91AY&SY and so on",
    ] {
        assert_eq!(code(stream(bytes)), "bad_archive");
    }
}

/// Cannot be read.
struct Unreadable;

impl Read for Unreadable {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(Errno::IO.into())
    }
}

#[test]
fn archive_that_cannot_be_read_is_not_called_corrupt() {
    let mixed = (0..500_000_u32).map(|number| number.wrapping_mul(0x9e37_79b1).to_be_bytes()[0]);
    let bytes: Vec<u8> = mixed.collect();
    let tape = [&member(b'0', "file", "", &bytes)[..], &[0; 1024]].concat();
    for (program, arguments) in [
        ("cat", &[][..]),
        ("gzip", &["-c"]),
        ("zstd", &["-c"]),
        ("xz", &["-c"]),
    ] {
        let packed = filtered(program, arguments, &tape);
        for len in [0, packed.len() / 2] {
            let read = packed[..len].chain(Unreadable);
            let content = Content::of_stream("stream", read, u64::MAX);
            assert_eq!(content.unwrap_err().code(), "io", "{program} {len}");
        }
    }
}

#[test]
fn an_archive_has_no_root_but_a_directory() {
    let next = || member(b'0', "next", "", b"its bytes");
    for root in [".", "./."] {
        assert!(archive(&[member(b'5', root, "", b""), next()]).is_ok());
        assert!(archive(&[member(b'0', root, "", b"bytes"), next()]).is_err());
        assert!(archive(&[next(), member(b'1', root, "next", b"")]).is_err());
    }
}

#[test]
fn owners_can_be_given() {
    let dir = sample();
    let mut content = Content::of_dir(&dir.path().join("tree")).unwrap();
    content.owned_by(12, 34);
    let fs = memory();
    content.fill(&fs, &Progress::default()).unwrap();
    let root = fs.root().unwrap().attr().unwrap();
    assert_eq!((root.uid, root.gid), (12, 34));
    let map = |from, to| IdMap::new(vec![IdRange { from, to, count: 1 }]);
    content.map_owners(&map(12, 1000), &map(35, 2000));
    let fs = memory();
    content.fill(&fs, &Progress::default()).unwrap();
    let root = fs.root().unwrap().attr().unwrap();
    assert_eq!((root.uid, root.gid), (1000, 34));
}

#[test]
fn image_in_a_directory_is_left_out() {
    let dir = sample();
    let tree = dir.path().join("tree");
    let names = |content: Content| content.members.len();
    let all = names(Content::of_dir(&tree).unwrap());
    let without = |name: &str| Content::of_dir_without(&tree, &tree.join(name)).unwrap();
    assert_eq!(names(without("dir/file")), all - 3, "by any of its names");
    assert_eq!(names(without("missing")), all);
}

/// What a program writes for `input`.
fn filtered(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), input).unwrap();
    let output = Command::new(program)
        .args(arguments)
        .stdin(fs::File::open(file.path()).unwrap())
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
    assert!(output.status.success(), "{program}");
    output.stdout
}

#[test]
fn compressed_archives_give_what_is_in_them() {
    let data: Vec<u8> = (0..400_000u32).flat_map(u32::to_le_bytes).collect();
    let tape = [
        &member(b'0', "file", "", &data)[..],
        &member(b'0', "zeros", "", &vec![0; 300_000]),
        &[0; 1024],
    ]
    .concat();
    let stream = |bytes: &[u8], most| Content::of_stream("stream", bytes, most);
    let expected = described(&stream(&tape, u64::MAX).unwrap());
    assert!(expected.contains("/file 100644"), "{expected}");
    let (head, tail) = tape.split_at(500_001);
    let skipped = [
        &0x184d_2a53u32.to_le_bytes()[..],
        &5u32.to_le_bytes(),
        b"12345",
    ]
    .concat();
    for (program, arguments, gap) in [
        ("gzip", &["-c"][..], &b""[..]),
        ("zstd", &["-c", "--check"], &skipped),
        ("xz", &["-c", "-T1"], b""),
    ] {
        let parts = [head, tail].map(|part| filtered(program, arguments, part));
        // Two members, frames or streams.
        let packed = [gap, &parts[0], gap, &parts[1], gap].concat();
        assert_eq!(
            described(&stream(&packed, u64::MAX).unwrap()),
            expected,
            "{program}"
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &packed).unwrap();
        let content = Content::of_archive(file.path()).unwrap();
        assert_eq!(described(&content), expected, "{program}");
        assert!(content.is_read_from(file.path()));
        let message = |bytes: &[u8]| stream(bytes, u64::MAX).unwrap_err().to_string();
        let cut = message(&packed[..packed.len() - gap.len() - 3]);
        assert!(
            cut.contains("ends too early") && cut.contains(" byte "),
            "{cut}"
        );
        let mut broken = packed.clone();
        broken[gap.len() + parts[0].len() / 2] ^= 0x10;
        let broken = message(&broken);
        let expected = format!("stream: {program} data is corrupt before byte ");
        assert!(broken.starts_with(&expected), "{broken}");
        // What is no zeros counts, and nothing else.
        assert!(stream(&packed, 1_700_000).is_ok(), "{program}");
        let full = stream(&packed, 1_000_000).unwrap_err().to_string();
        assert!(full.contains("more than the image can hold"), "{full}");
    }
    let padded = [&filtered("gzip", &["-c"], &tape)[..], &[0; 9000]].concat();
    assert!(stream(&padded, u64::MAX).is_ok());
    assert!(stream(&[&padded[..], b"x"].concat(), u64::MAX).is_err());
}

/// Applies archives as layers, and lists what is left.
fn layers(layers: &[&[Vec<u8>]]) -> Result<Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let mut stack = ContentLayers::new(u64::MAX);
    for members in layers {
        let path = dir.path().join("layer.tar");
        fs::write(&path, [&members.concat()[..], &[0; 1024]].concat()).unwrap();
        stack.add_layer(&path)?;
        fs::remove_file(&path).unwrap();
    }
    Ok(listed(&stack.finish()))
}

/// What the members are.
fn listed(content: &Content) -> Vec<String> {
    let lines = content.members.iter().map(|(path, member)| {
        let what = match &member.kind {
            MemberKind::Directory => "directory".to_owned(),
            MemberKind::File(contents) => contents.size_bytes().to_string(),
            MemberKind::Clone(first, size_bytes) => {
                format!(
                    "clone of {size_bytes} {}",
                    String::from_utf8(first.text()).unwrap()
                )
            }
            MemberKind::Link(first) => format!("link {}", String::from_utf8(first.text()).unwrap()),
            other @ (MemberKind::Symlink(_)
            | MemberKind::CharDevice(_)
            | MemberKind::BlockDevice(_)
            | MemberKind::Fifo
            | MemberKind::Socket) => format!("{other:?}"),
        };
        format!("{} {what}", String::from_utf8(path.text()).unwrap())
    });
    lines.collect()
}

fn file(name: &str, len: usize) -> Vec<u8> {
    member(b'0', name, "", &vec![b'x'; len])
}

fn directory(name: &str) -> Vec<u8> {
    member(b'5', name, "", b"")
}

#[test]
fn whiteouts_remove_files_of_lower_layers_only() {
    let base = [directory("d"), file("d/a", 1), file("d/b", 2), file("c", 3)];
    let found = layers(&[
        &base,
        &[
            file("d/new", 4),
            file("d/.wh.a", 0),
            file(".wh.c", 0),
            file(".wh.missing", 0),
        ],
    ]);
    assert_eq!(found.unwrap(), ["/d directory", "/d/b 2", "/d/new 4"]);
    // Of a directory, with all below it; a later member of the same layer stays.
    let found = layers(&[&base, &[file(".wh.d", 0), directory("d"), file("d/z", 1)]]);
    assert_eq!(found.unwrap(), ["/c 3", "/d directory", "/d/z 1"]);
    let found = layers(&[&base, &[file("d/z", 1), file(".wh.d", 0)]]);
    assert_eq!(found.unwrap(), ["/c 3", "/d/z 1"]);
}

#[test]
fn opaque_directories_keep_what_their_own_layer_has() {
    let base = [
        directory("d"),
        directory("d/e"),
        file("d/e/a", 1),
        file("da", 2),
    ];
    for order in [
        [file("d/.wh..wh..opq", 0), file("d/new", 3)],
        [file("d/new", 3), file("d/.wh..wh..opq", 0)],
    ] {
        let found = layers(&[&base, &order]).unwrap();
        assert_eq!(found, ["/d directory", "/d/new 3", "/da 2"]);
    }
    let found = layers(&[&base, &[file(".wh..wh..opq", 0), file("only", 1)]]);
    assert_eq!(found.unwrap(), ["/only 1"]);
    let found = layers(&[&base, &[file("d/.wh..wh.aufs", 0)]]).unwrap();
    assert_eq!(found, layers(&[&base]).unwrap());
}

#[test]
fn directories_merge_and_other_files_replace() {
    let base = [directory("d"), file("d/a", 1), file("f", 2)];
    let found = layers(&[&base, &[directory("d"), file("d/b", 3)]]);
    assert_eq!(found.unwrap(), ["/d directory", "/d/a 1", "/d/b 3", "/f 2"]);
    let found = layers(&[&base, &[file("d", 4), directory("f"), file("f/in", 5)]]);
    assert_eq!(found.unwrap(), ["/d 4", "/f directory", "/f/in 5"]);
}

#[test]
fn hard_links_reach_lower_layers() {
    let base = [file("a", 1), member(b'1', "b", "a", b"")];
    let found = layers(&[&base, &[member(b'1', "c", "a", b"")]]);
    assert_eq!(found.unwrap(), ["/a 1", "/b link /a", "/c link /a"]);
    // A replaced name leaves the other names with the old file.
    let found = layers(&[&base, &[file("a", 2)]]);
    assert_eq!(found.unwrap(), ["/a 2", "/b 1"]);
    assert!(layers(&[&base, &[file(".wh.a", 0), member(b'1', "c", "a", b"")]]).is_err());
}

#[test]
fn symbolic_links_of_lower_layers_are_followed_within_the_root() {
    let base = [
        directory("usr"),
        directory("usr/lib"),
        member(b'2', "lib", "usr/lib", b""),
        member(b'2', "out", "../../etc", b""),
        member(b'2', "loop", "loop", b""),
    ];
    let found = layers(&[&base, &[file("lib/x", 1), file("out/y", 2)]]).unwrap();
    assert!(found.contains(&"/usr/lib/x 1".to_owned()), "{found:?}");
    assert!(found.contains(&"/etc/y 2".to_owned()), "{found:?}");
    assert!(layers(&[&base, &[file("loop/x", 1)]]).is_err());
    let found = layers(&[&base, &[directory("lib"), file("lib/x", 1)]]).unwrap();
    assert!(found.contains(&"/lib/x 1".to_owned()), "{found:?}");
}

#[test]
fn whiteouts_without_a_valid_name_are_refused() {
    for name in [".wh.", ".wh..", ".wh...", "d/.wh."] {
        assert!(
            layers(&[&[file("a", 1)], &[file(name, 0)]]).is_err(),
            "{name}"
        );
    }
    // In an archive that is no layer they are files.
    let content = archive(&[file("a", 1), file(".wh.a", 0)]).unwrap();
    assert_eq!(content.members.len(), 2);
}

fn subvolume(path: &str) -> NewSubvolume {
    NewSubvolume {
        path: path.as_bytes().to_vec(),
        is_read_only: false,
        is_default: false,
    }
}

#[test]
fn links_into_other_subvolumes_become_clones() {
    let mut content = archive(&[
        directory("a"),
        file("a/first", 7),
        member(b'1', "a/second", "a/first", b""),
        directory("b"),
        member(b'1', "b/one", "a/first", b""),
        member(b'1', "b/two", "a/first", b""),
        member(b'2', "c", "target", b""),
        directory("d"),
        member(b'1', "d/symlink", "c", b""),
        member(b'1', "top", "a/first", b""),
    ])
    .unwrap();
    content
        .make_subvolumes(&[subvolume("a"), subvolume("/b/"), subvolume("d")])
        .unwrap();
    assert_eq!(
        listed(&content),
        [
            "/a directory",
            "/a/first 7",
            "/a/second link /a/first",
            "/b directory",
            "/b/one clone of 7 /a/first",
            "/b/two link /b/one",
            "/c Symlink([116, 97, 114, 103, 101, 116])",
            "/d directory",
            "/d/symlink Symlink([116, 97, 114, 103, 101, 116])",
            "/top clone of 7 /a/first",
        ]
    );
}

#[test]
fn directories_that_archives_imply_can_be_subvolumes() {
    let members = || archive(&[file("a/b/c", 1), file("ab", 1), file("d", 1)]).unwrap();
    for path in ["a", "a/b"] {
        members().make_subvolumes(&[subvolume(path)]).unwrap();
    }
    for (path, condition) in [
        ("a/b/c/e", Condition::NotFound),
        ("b", Condition::NotFound),
        ("d", Condition::NotDirectory),
        ("/", Condition::InvalidArgument),
    ] {
        let refused = members().make_subvolumes(&[subvolume(path)]).unwrap_err();
        let Cause::Filesystem(platter_vfs::Error::Condition(found)) = refused.cause else {
            panic!("{path}: {refused}");
        };
        assert_eq!(found, condition, "{path}");
    }
}

#[test]
fn zeros_are_cancelled_as_other_contents_are() {
    let zeros = vec![0; 200_000];
    let content = archive(&[member(b'0', "zeros", "", &zeros)]).unwrap();
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let progress = Progress::listening(move |_| set.store(true, Ordering::Relaxed));
    let error = content.fill(&memory(), &progress.cancelled_by(flag));
    assert_eq!(error.unwrap_err().code(), "cancelled");
}

/// Files of the host, and their contents.
fn written(files: &[(&str, &[u8])]) -> (TempDir, Content) {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let content = Content::of_dir(dir.path()).unwrap();
    (dir, content)
}

#[test]
fn equal_files_become_clones_of_the_first() {
    let mut long = vec![5; (1 << 20) + 9000];
    let same = long.clone();
    *long.last_mut().unwrap() = 6;
    let mut second = long.clone();
    second[7] = 6;
    let short = vec![7; 5000];
    let (dir, _) = written(&[
        ("a", &same),
        ("b", &long),
        ("c", &same),
        ("d", &second),
        ("e", &short),
        ("f", &short),
        ("g", &[0; 5000]),
        ("h", &[0; 5000]),
        ("i", &[1; 4000]),
        ("j", &[1; 4000]),
    ]);
    // However many holes the source has.
    let sparse = |name: &str| {
        let file = fs::File::create(dir.path().join(name)).unwrap();
        file.set_len(3 << 20).unwrap();
        file.write_all_at(b"end", (3 << 20) - 3).unwrap();
        file
    };
    sparse("x");
    sparse("y").write_all_at(&[0; 9000], 20_000).unwrap();
    let mut content = Content::of_dir(dir.path()).unwrap();
    let progress = Progress::new();
    content.share_equal_files(&progress).unwrap();
    let found: Vec<_> = listed(&content)
        .into_iter()
        .filter(|line| line.contains("clone"))
        .collect();
    assert_eq!(
        found,
        [
            "/c clone of 1057576 /a",
            "/f clone of 5000 /e",
            "/y clone of 3145728 /x"
        ]
    );
    // The beginnings of all, and all of those that begin alike.
    let beginnings = (6 << 20) + 4 * 5000;
    let wholes = 3 * same.len() as u64 + 2 * 4096;
    assert_eq!(progress.bytes(), beginnings + wholes);
    progress.cancel();
    let mut again = Content::of_dir(dir.path()).unwrap();
    let cancelled = again.share_equal_files(&progress).unwrap_err();
    assert!(matches!(cancelled.cause, Cause::Cancelled), "{cancelled}");
}

#[test]
fn contents_that_change_after_they_were_compared_are_refused() {
    for len in [5000, 100_000, 3 << 20] {
        let bytes = vec![7; len];
        let (dir, mut content) = written(&[("a", &bytes), ("b", &bytes), ("c", &[1; 10])]);
        content.share_equal_files(&Progress::default()).unwrap();
        assert!(content.has_clones());
        let first = fs::OpenOptions::new()
            .write(true)
            .open(dir.path().join("a"))
            .unwrap();
        first.write_all_at(b"new", len as u64 - 3).unwrap();
        let error = content.fill(&memory(), &Progress::default()).unwrap_err();
        let text = error.to_string();
        assert!(text.ends_with(":/a: changed while it was read"), "{text}");
    }
    // Nothing depends on what others do not share.
    let (dir, mut content) = written(&[("a", &[7; 5000]), ("b", &[8; 5000])]);
    content.share_equal_files(&Progress::default()).unwrap();
    fs::write(dir.path().join("a"), [9; 5000]).unwrap();
    content.fill(&memory(), &Progress::default()).unwrap();
}
