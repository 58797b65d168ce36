//! Archives of a filesystem in memory, judged by GNU tar and bsdtar.

mod corruption;
mod restore;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use platter_memfs::MemFs;
use platter_vfs::{CreateKind, Filesystem, SetAttr, SetTime};

use super::*;
use crate::sample::{dir, empty, regular, set, time};

/// The archive of everything, with the problems that were reported.
pub(super) fn archive_with(
    fs: Arc<dyn Filesystem>,
    members: &[&[u8]],
    options: &TarOptions,
) -> (Vec<u8>, TarSummary, Vec<Problem>) {
    let volume = Volume::new("memory", fs);
    let mut out = Vec::new();
    let mut problems = Vec::new();
    let mut observer = |event: TarEvent<'_>| {
        if let TarEvent::Problem(problem) = event {
            problems.push(problem.clone());
        }
    };
    let summary = write_tar(&volume, b"/", members, &mut out, options, &mut observer).unwrap();
    assert_eq!(summary.bytes, out.len() as u64);
    assert_eq!(summary.bytes % RECORD_BYTES, 0);
    (out, summary, problems)
}

pub(super) fn archive(fs: Arc<dyn Filesystem>) -> Vec<u8> {
    let (bytes, _, problems) = archive_with(fs, &[b"."], &TarOptions::default());
    assert!(problems.is_empty(), "{problems:?}");
    bytes
}

/// Runs a tar program on an archive; it must be there, succeed, and have nothing to say.
pub(super) fn judge(program: &str, arguments: &[&str], archive: &[u8], dir: &Path) -> Output {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(archive).unwrap();
    let output = Command::new(program)
        .args(arguments)
        .arg("-f")
        .arg(file.path())
        .current_dir(dir)
        .env("LC_ALL", "C.UTF-8")
        .env("TZ", "UTC")
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
    // GNU tar keeps names as they are anyway and needs no record to say so.
    let known = "tar: Ignoring unknown extended header keyword 'hdrcharset'\n";
    let message = String::from_utf8_lossy(&output.stderr).replace(known, "");
    assert!(output.status.success(), "{program}: {message}");
    assert_eq!(message, "", "{program}");
    output
}

/// What `tar -t` shows.
pub(super) fn names(archive: &[u8]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let output = judge(
        "tar",
        &["-t", "--quoting-style=escape"],
        archive,
        dir.path(),
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn members_are_sorted_and_the_same_for_any_number_of_threads() {
    let fs = empty();
    for name in ["z", "b", "a.x", "a", "B"] {
        dir(&fs, format!("/{name}").as_bytes());
        for number in (0..40).rev() {
            let path = format!("/{name}/{number:03}");
            regular(&fs, path.as_bytes(), path.repeat(number * 40).as_bytes());
        }
    }
    let expected = archive(fs.clone());
    let listed = names(&expected);
    assert_eq!(listed[..3], ["./", "./B/", "./B/000"]);
    assert_eq!(listed.len(), 1 + 5 * 41);
    let tops: Vec<_> = listed
        .iter()
        .filter(|name| name.matches('/').count() == 2)
        .collect();
    let tops: Vec<_> = tops.iter().filter(|name| name.ends_with('/')).collect();
    assert_eq!(tops, [&"./B/", &"./a/", &"./a.x/", &"./b/", &"./z/"]);
    for threads in [1, 3, 16] {
        let options = TarOptions {
            threads: NonZeroUsize::new(threads).unwrap(),
            ..TarOptions::default()
        };
        let (bytes, summary, _) = archive_with(fs.clone(), &[b"."], &options);
        assert_eq!(summary.members, 1 + 5 * 41);
        assert!(bytes == expected, "{threads} threads");
    }
}

#[test]
fn chosen_members_keep_the_paths_they_were_asked_by() {
    let fs = empty();
    dir(&fs, b"/etc");
    regular(&fs, b"/etc/passwd", b"root\n");
    regular(&fs, b"/etc/group", b"");
    regular(&fs, b"/other", b"");
    let options = TarOptions::default();
    let of = |members: &[&[u8]]| names(&archive_with(fs.clone(), members, &options).0);
    assert_eq!(of(&[b"etc"]), ["etc/", "etc/group", "etc/passwd"]);
    assert_eq!(of(&[b"./etc/passwd", b"/other"]), ["./etc/passwd", "other"]);

    let volume = Volume::new("memory", fs.clone() as Arc<dyn Filesystem>);
    for (member, shown) in [
        (
            &b"etc/../other"[..],
            "memory:/etc/../other: invalid argument",
        ),
        (b"none", "memory:/none: no such file or directory"),
    ] {
        let mut observer = |_: TarEvent<'_>| {};
        let error = write_tar(
            &volume,
            b"/",
            &[member],
            &mut Vec::new(),
            &options,
            &mut observer,
        );
        assert_eq!(error.unwrap_err().to_string(), shown);
    }
}

#[test]
fn member_that_exceeds_ustar_fields_is_archived() {
    let fs = empty();
    let owner = |uid, gid| SetAttr {
        uid: Some(uid),
        gid: Some(gid),
        ..SetAttr::default()
    };
    set(
        &regular(&fs, b"/big-owner", b""),
        owner(u32::MAX - 1, 2_097_152),
    );
    set(&regular(&fs, b"/owner", b""), owner(2_097_151, 0));
    let device = platter_vfs::attr::DeviceNumber {
        major: 4095,
        minor: 1_048_575,
    };
    fs.plant(b"/node", CreateKind::BlockDevice(device), 0o660)
        .unwrap();
    let sparse = regular(&fs, b"/sparse", b"");
    let size_bytes = Some(1 << 40);
    set(
        &sparse,
        SetAttr {
            size_bytes,
            ..SetAttr::default()
        },
    );
    for (path, modified) in [(&b"/old"[..], time(-2, 0)), (b"/far", time(1 << 34, 1))] {
        let modified = Some(SetTime::At(modified));
        let changes = SetAttr {
            modified,
            ..SetAttr::default()
        };
        set(&regular(&fs, path, b""), changes);
    }
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["--numeric-owner", "--full-time", "-tv"];
    let listed = judge("tar", &arguments, &archive(fs), dir.path()).stdout;
    let listed = String::from_utf8(listed).unwrap();
    let words: Vec<String> = listed
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        words,
        [
            "drwxr-xr-x 0/0 0 2023-11-14 22:13:20 ./",
            "-rw-r--r-- 4294967294/2097152 0 2023-11-14 22:13:20 ./big-owner",
            "-rw-r--r-- 0/0 0 2514-05-30 01:53:04.000000001 ./far",
            "brw-rw---- 0/0 4095,1048575 2023-11-14 22:13:20 ./node",
            "-rw-r--r-- 0/0 0 1969-12-31 23:59:58 ./old",
            "-rw-r--r-- 2097151/0 0 2023-11-14 22:13:20 ./owner",
            "-rw-r--r-- 0/0 1099511627776 2023-11-14 22:13:20 ./sparse",
        ]
    );
}
