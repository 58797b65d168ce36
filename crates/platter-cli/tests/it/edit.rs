//! The commands that change an image: as their namesakes, all of it or nothing.

use std::os::unix::fs::MetadataExt;

use super::*;

/// Demands that nothing is wrong, without a replay.
fn demand_clean(workshop: &Workshop, image: &str) {
    let mut e2fsck = Command::new("e2fsck");
    e2fsck.arg("-fn").arg(workshop.path(image));
    run_tool(&mut e2fsck, "");
    let output = workshop.read(&["check", image]);
    assert!(output.starts_with(&format!("{image}: clean")), "{output}");
}

fn stat(workshop: &Workshop, operand: &str) -> serde_json::Value {
    let output = workshop.read(&["stat", "--json", operand]);
    let mut files: Vec<serde_json::Value> = serde_json::from_str(&output).unwrap();
    files.remove(0)
}

#[test]
fn names_come_go_and_move() {
    let workshop = Workshop::new();
    let image = |path: &str| format!("disk.img:{path}");
    workshop.read(&["mkdir", "disk.img:/one", "disk.img:two"]);
    workshop.read(&[
        "mkdir",
        "-p",
        "-m",
        "1777",
        "disk.img:/a/b/c/",
        "disk.img:/a",
    ]);
    workshop.read(&[
        "mv",
        "disk.img:/etc/passwd",
        "disk.img:/etc/group",
        "disk.img:/one",
    ]);
    workshop.read(&["mv", "-T", "disk.img:/one", "disk.img:/two"]);
    workshop.read(&["mv", "-t", "disk.img:/a/b/c", "disk.img:/sparse"]);
    workshop.read(&["mv", "-n", "disk.img:/dir/file", "disk.img:/dir/hard"]);
    workshop.read(&["ln", "disk.img:/dir/file", "disk.img:/two"]);
    workshop.read(&["ln", "-s", "../two", "disk.img:/a/link"]);
    workshop.read(&["ln", "-sf", "elsewhere", "disk.img:/dir/link"]);
    workshop.read(&["ln", "-s", "inside", "disk.img:/a/link"]);
    workshop.read(&["ln", "-sfn", "../etc", "disk.img:/a/link"]);
    workshop.read(&["rm", "-f", "disk.img:/none", "disk.img:/dir/.hidden"]);
    workshop.read(&["rm", "-d", "disk.img:/dir/sub"]);
    let listing = workshop.read(&["ls", "-R", "-A", "disk.img:/"]);
    assert_eq!(
        listing.replace("esc\u{1b}[31m", "esc"),
        "disk.img:/:\na\ndir\netc\nlost+found\ntwo\n\n\
         disk.img:/a:\nb\nlink\n\n\
         disk.img:/a/b:\nc\n\n\
         disk.img:/a/b/c:\nsparse\n\n\
         disk.img:/dir:\nesc\nfile\nhard\nlink\n\n\
         disk.img:/etc:\n\n\
         disk.img:/lost+found:\n\n\
         disk.img:/two:\nfile\ngroup\ninside\npasswd\n"
    );
    assert_eq!(stat(&workshop, &image("/a/b/c"))["mode_octal"], "1777");
    assert_eq!(stat(&workshop, &image("/two/file"))["links"], 3);
    assert_eq!(stat(&workshop, &image("/a/link"))["target"], "../etc");
    assert_eq!(stat(&workshop, &image("/dir/link"))["target"], "elsewhere");
    demand_clean(&workshop, "disk.img");
    workshop.read(&["rm", "-r", "disk.img:/a", "disk.img:/dir/", "disk.img:/two"]);
    assert_eq!(workshop.read(&["ls", "disk.img:"]), "etc\nlost+found\n");
    demand_clean(&workshop, "disk.img");
}

#[test]
fn attributes_change() {
    let workshop = Workshop::new();
    workshop.read(&["chmod", "-R", "u=rwX,go=", "disk.img:/dir"]);
    assert_eq!(stat(&workshop, "disk.img:/dir/file")["mode_octal"], "0600");
    assert_eq!(stat(&workshop, "disk.img:/dir/sub")["mode_octal"], "0700");
    workshop.read(&["chmod", "4755", "disk.img:/dir/link"]);
    assert_eq!(stat(&workshop, "disk.img:/dir/file")["mode_octal"], "4755");
    let owner = |path: &str| {
        let found = stat(&workshop, path);
        (
            found["uid"].as_u64().unwrap(),
            found["gid"].as_u64().unwrap(),
        )
    };
    workshop.read(&["chown", "user:staff", "disk.img:/dir/file"]);
    assert_eq!(owner("disk.img:/dir/file"), (1000, 0));
    assert_eq!(stat(&workshop, "disk.img:/dir/file")["mode_octal"], "0755");
    workshop.read(&["chown", "user:", "disk.img:/dir/sub"]);
    assert_eq!(owner("disk.img:/dir/sub"), (1000, 1000));
    workshop.read(&["chown", "-h", ":7", "disk.img:/dir/link"]);
    assert_eq!(owner("disk.img:/dir/link").1, 7);
    workshop.read(&["chown", "-R", "70000:80000", "disk.img:/dir"]);
    assert_eq!(owner("disk.img:/dir/link"), (70000, 80000));
    assert_eq!(owner("disk.img:/dir"), (70000, 80000));

    workshop.read(&[
        "xattr",
        "set",
        "user.text",
        "a b",
        "disk.img:/dir",
        "disk.img:/sparse",
    ]);
    workshop.read(&["xattr", "set", "user.bytes", "0x00ff", "disk.img:/dir"]);
    workshop.read(&["xattr", "set", "security.x", "0sAP8=", "disk.img:/dir"]);
    let listed = workshop.read(&["xattr", "list", "disk.img:/dir"]);
    assert_eq!(listed, "security.x\nuser.bytes\nuser.text\n");
    assert_eq!(
        workshop.read(&["xattr", "get", "user.text", "disk.img:/dir"]),
        "a b"
    );
    let get = |encoding| {
        workshop.read(&[
            "xattr",
            "get",
            "-e",
            encoding,
            "user.bytes",
            "disk.img:/dir",
        ])
    };
    assert_eq!([get("hex"), get("base64")], ["0x00ff\n", "0sAP8=\n"]);
    workshop.read(&["xattr", "remove", "user.bytes", "disk.img:/dir"]);
    let object = workshop.read(&["xattr", "list", "--json", "disk.img:/dir"]);
    let object: serde_json::Value = serde_json::from_str(&object).unwrap();
    assert_eq!(
        object,
        serde_json::json!({
            "image": "disk.img",
            "path": "/dir",
            "xattrs": [
                {"name": "security.x", "value_base64": "AP8="},
                {"name": "user.text", "value_base64": "YSBi"},
            ],
        })
    );

    workshop.read(&[
        "truncate",
        "-s",
        "-1",
        "disk.img:/dir/hard",
        "disk.img:/dir/new",
    ]);
    assert_eq!(workshop.read(&["cat", "disk.img:/dir/file"]), "contents");
    workshop.read(&["truncate", "-s", "%1K", "disk.img:/dir/file"]);
    assert_eq!(stat(&workshop, "disk.img:/dir/file")["size_bytes"], 1024);
    assert_eq!(stat(&workshop, "disk.img:/dir/new")["size_bytes"], 0);
    workshop.read(&["truncate", "-c", "-s", "0", "disk.img:/none"]);
    workshop.read(&["touch", "-d", "1999-12-31T23:59:59.5Z", "disk.img:/dir/new"]);
    workshop.read(&["touch", "-a", "-d", "@5", "disk.img:/dir/new"]);
    let found = stat(&workshop, "disk.img:/dir/new");
    let modified = serde_json::json!({"seconds": 946_684_799, "nanoseconds": 500_000_000});
    assert_eq!(found["modified"], modified);
    assert_eq!(found["accessed"]["seconds"], 5);
    workshop.read(&["touch", "disk.img:/dir/new"]);
    assert!(stat(&workshop, "disk.img:/dir/new")["modified"]["seconds"].as_u64() > Some(1 << 30));
    demand_clean(&workshop, "disk.img");
}

#[test]
fn files_are_copied_into_images() {
    let workshop = Workshop::new();
    fs::copy(workshop.path("disk.img"), workshop.path("other.img")).unwrap();
    fs::write(workshop.path("new"), "new contents").unwrap();
    workshop.read(&["cp", "new", "disk.img:/copy"]);
    assert_eq!(workshop.read(&["cat", "disk.img:/copy"]), "new contents");
    let us = rustix::process::geteuid().as_raw();
    assert_eq!(stat(&workshop, "disk.img:/copy")["uid"], us);
    workshop.read(&["cp", "new", "source/etc/passwd", "disk.img:/dir/"]);
    assert_eq!(workshop.read(&["cat", "disk.img:/dir/new"]), "new contents");
    // Through the link, and into the file that has another name.
    workshop.read(&["cp", "new", "disk.img:/dir/link"]);
    assert_eq!(
        workshop.read(&["cat", "disk.img:/dir/hard"]),
        "new contents"
    );
    workshop.read(&["cp", "-n", "source/etc/passwd", "disk.img:/copy"]);
    workshop.read(&["cp", "--owner", "user:staff", "new", "disk.img:/owned"]);
    assert_eq!(stat(&workshop, "disk.img:/owned")["user"], "user");
    assert_eq!(workshop.read(&["cat", "disk.img:/copy"]), "new contents");

    let ran = workshop.run(&["cp", "-av", "source", "disk.img:/tree"]);
    assert_eq!(ran.status, 0, "{}", ran.err);
    assert!(
        ran.err
            .contains("source/dir/file -> disk.img:/tree/dir/file\n"),
        "{}",
        ran.err
    );
    workshop.read(&["cp", "-a", "disk.img:/tree", "back"]);
    let mut diff = Command::new("diff");
    diff.args(["-r", "--no-dereference", "source", "back"])
        .current_dir(workshop.0.path());
    run_tool(&mut diff, "");
    let of = |name: &str| workshop.path(name).symlink_metadata().unwrap();
    assert_eq!(of("back/dir/file").ino(), of("back/dir/hard").ino());
    assert_eq!(of("back/dir").mtime(), i64::try_from(MODIFIED).unwrap());
    assert!(of("back/sparse").blocks() * 512 < of("back/sparse").size());

    // From image to image, and within one.
    workshop.read(&[
        "cp",
        "-a",
        "other.img:/dir",
        "disk.img:/dir/file",
        "disk.img:/tree/etc",
    ]);
    assert_eq!(
        workshop.read(&["cat", "disk.img:/tree/etc/dir/hard"]),
        "contents\n"
    );
    assert_eq!(
        workshop.read(&["cat", "disk.img:/tree/etc/file"]),
        "new contents"
    );
    workshop.read(&["cp", "-r", "source/dir/.", "disk.img:/lost+found"]);
    demand_clean(&workshop, "disk.img");
}

#[test]
fn further_names_are_no_links_to_what_was_overwritten() {
    let workshop = Workshop::new();
    for day in ["one", "two", "three"] {
        fs::create_dir(workshop.path(day)).unwrap();
    }
    fs::write(workshop.path("one/f"), "old").unwrap();
    fs::hard_link(workshop.path("one/f"), workshop.path("one/g")).unwrap();
    fs::hard_link(workshop.path("one/f"), workshop.path("three/f")).unwrap();
    fs::write(workshop.path("two/f"), "changed").unwrap();
    workshop.read(&["mkdir", "disk.img:/x", "disk.img:/y"]);
    workshop.read(&["cp", "-a", "one/f", "two/f", "one/g", "disk.img:/x"]);
    assert_eq!(workshop.read(&["cat", "disk.img:/x/f"]), "changed");
    assert_eq!(workshop.read(&["cat", "disk.img:/x/g"]), "old");
    workshop.read(&["cp", "-a", "one/f", "two/.", "three/.", "disk.img:/y"]);
    assert_eq!(workshop.read(&["cat", "disk.img:/y/f"]), "old");
    // What was not overwritten is still linked to.
    workshop.read(&["cp", "-a", "two/f", "one/f", "one/g", "disk.img:/x"]);
    let inode = |name: &str| stat(&workshop, name)["inode"].clone();
    assert_eq!(inode("disk.img:/x/f"), inode("disk.img:/x/g"));
    demand_clean(&workshop, "disk.img");
}

#[test]
fn image_is_not_copied_into_itself() {
    let workshop = Workshop::new();
    fs::create_dir(workshop.path("here")).unwrap();
    fs::write(workshop.path("here/file"), "here").unwrap();
    fs::rename(workshop.path("disk.img"), workshop.path("here/disk.img")).unwrap();
    let ran = workshop.run(&["cp", "-r", "here", "here/disk.img:/"]);
    let note = "here/disk.img: note: is the image that is copied into, and was left out";
    assert_eq!((ran.status, ran.err), (0, format!("platter: {note}\n")));
    assert_eq!(workshop.read(&["ls", "here/disk.img:/here"]), "file\n");
    let refused = workshop.refused(&["cp", "here/disk.img", "here/disk.img:/"]);
    assert!(refused.contains("would be copied into itself"), "{refused}");
    demand_clean(&workshop, "here/disk.img");
}

#[test]
fn capabilities_are_not_those_of_the_next_owner() {
    let workshop = Workshop::new();
    let files = ["disk.img:/dir/file", "disk.img:/sparse"];
    for file in files {
        let set = ["xattr", "set", "security.capability", "granted", file];
        workshop.read(&set);
    }
    let listed = |file: &str| workshop.read(&["xattr", "list", file]);
    assert!(listed(files[0]).contains("security.capability"));
    workshop.read(&["chown", "12:34", files[0]]);
    workshop.read(&["cp", "source/etc/group", files[1]]);
    for file in files {
        assert!(!listed(file).contains("security.capability"), "{file}");
    }
    demand_clean(&workshop, "disk.img");
}

#[test]
fn image_is_the_same_however_it_is_spelled() {
    let workshop = Workshop::new();
    symlink("disk.img", workshop.path("alias")).unwrap();
    workshop.read(&["cp", "./disk.img:/dir/file", "disk.img:/copy"]);
    workshop.read(&["cp", "alias:/dir/file", "disk.img:/other"]);
    workshop.read(&["rm", "disk.img:/copy", "alias:/other"]);
    workshop.read(&["mv", "alias:/dir/file", "./disk.img:/moved"]);
    assert_eq!(workshop.read(&["cat", "disk.img:/moved"]), "contents\n");
    demand_clean(&workshop, "disk.img");
}

#[test]
fn streams_are_copied_into_images() {
    let workshop = Workshop::new();
    let mut cp = workshop.command(&["cp", "/dev/stdin", "disk.img:/streamed"]);
    let mut child = cp.stdin(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"from a pipe")
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(workshop.read(&["cat", "disk.img:/streamed"]), "from a pipe");
}

#[test]
fn partitions_and_offsets_are_edited() {
    let workshop = Workshop::new();
    workshop.partition();
    let before = fs::read(workshop.path("gpt.img")).unwrap();
    workshop.read(&["mkdir", "gpt.img@2:/new"]);
    workshop.read(&[
        "--offset",
        "2M",
        "cp",
        "source/etc/group",
        "gpt.img:/new/file",
    ]);
    assert!(
        workshop
            .read(&["cat", "gpt.img@2:/new/file"])
            .starts_with("root:")
    );
    let after = fs::read(workshop.path("gpt.img")).unwrap();
    assert!(before[..2 << 20] == after[..2 << 20]);
    workshop.read(&["check", "gpt.img@2"]);
}

/// What is not done, and why; an empty reason is the library's own.
const REFUSED: &[(&[&str], &str)] = &[
    (
        &["mkdir", "disk.img:/x", "disk.img:/dir"],
        "disk.img:/dir: file exists",
    ),
    (
        &["mkdir", "disk.img"],
        "disk.img: names no file in an image; write IMAGE:PATH",
    ),
    (
        &["mkdir", "disk.img:/x", "other.img:/x"],
        "disk.img and other.img are two images; a command changes one",
    ),
    (
        &["rm", "disk.img:/etc/group", "disk.img:/none"],
        "disk.img:/none: no such file or directory",
    ),
    (&["rm", "disk.img:/dir"], "disk.img:/dir: is a directory"),
    (&["rm", "-r", "disk.img:/"], "disk.img:/: invalid argument"),
    (
        &["mv", "disk.img:/etc", "disk.img:/sparse", "disk.img:/none"],
        "target '/none' is not a directory",
    ),
    (&["mv", "disk.img:/etc"], "no target after 'disk.img:/etc'"),
    (
        &["mv", "disk.img:/dir", "disk.img:/dir/sub/x"],
        "disk.img:/dir/sub/x: invalid argument",
    ),
    (
        &["ln", "disk.img:/dir/file", "disk.img:/dir/hard"],
        "disk.img:/dir/hard: file exists",
    ),
    (
        &["ln", "-s", "disk.img:/dir", "disk.img:/x"],
        "disk.img:/dir: the target of a symbolic link is named without the image",
    ),
    (
        &["chown", "stranger", "disk.img:/dir"],
        "disk.img: 'stranger' is no user of the image",
    ),
    (
        &["chmod", "755", "disk.img:/dir", "disk.img:/none"],
        "disk.img:/none: no such file or directory",
    ),
    (
        &["xattr", "set", "nonsense", "x", "disk.img:/dir"],
        "disk.img:/dir: operation not supported",
    ),
    (
        &["xattr", "set", "user.x", "0xq", "disk.img:/dir"],
        "the value is not what 0x and 0s stand for",
    ),
    (&["truncate", "-s", "+8E", "disk.img:/dir/file"], ""),
    (
        &["touch", "disk.img:/none/x"],
        "disk.img:/none/x: no such file or directory",
    ),
    (
        &["cp", "source/etc", "disk.img:/x"],
        "source/etc: is a directory",
    ),
    (
        &["cp", "large", "disk.img:/x"],
        "disk.img:/x: no space left on device",
    ),
    (
        &["cp", "-r", "source/etc", "large", "disk.img:/dir"],
        "disk.img:/dir/large: no space left on device",
    ),
    (
        &[
            "cp",
            "source/etc/group",
            "disk.img:/dir/sub/../../etc/.",
            "disk.img:/x",
        ],
        "target '/x' is not a directory",
    ),
    (
        &["cp", "-T", "source/etc/group", "disk.img:/dir"],
        "disk.img:/dir: is a directory",
    ),
    (
        &["cp", "-r", "disk.img:/dir", "disk.img:/dir/sub"],
        "disk.img:/dir/sub/dir: would be copied into itself",
    ),
    (
        &["--no-lock", "mkdir", "disk.img:/x"],
        "--no-lock is for reading only",
    ),
    (
        &["--norecovery", "mkdir", "disk.img:/x"],
        "--norecovery is for reading only",
    ),
];

#[test]
fn edit_that_fails_says_why_in_a_line_and_changes_no_byte() {
    let workshop = Workshop::new();
    fs::copy(workshop.path("disk.img"), workshop.path("other.img")).unwrap();
    let large = fs::File::create(workshop.path("large")).unwrap();
    for megabyte in 0..12 {
        large
            .write_all_at(&vec![1; 1 << 20], megabyte << 20)
            .unwrap();
    }
    let before = fs::read(workshop.path("disk.img")).unwrap();
    for (arguments, reason) in REFUSED {
        let ran = workshop.run(arguments);
        // The command line alone is wrong.
        let is_usage = [
            "--no-lock is",
            "--norecovery is",
            "names no file",
            "no target",
            "no link",
            "stand for",
        ]
        .iter()
        .any(|words| reason.contains(words) || ran.err.contains("try '--help'"));
        assert_eq!(
            ran.status,
            1 + i32::from(is_usage),
            "{arguments:?}: {}",
            ran.err
        );
        if !reason.is_empty() {
            assert_eq!(ran.err, format!("platter: {reason}\n"), "{arguments:?}");
            assert_eq!(ran.err.lines().count(), 1);
        }
        assert_eq!(ran.out, "");
        assert!(
            fs::read(workshop.path("disk.img")).unwrap() == before,
            "{arguments:?}"
        );
    }
}

#[test]
fn image_in_use_is_not_edited() {
    let workshop = Workshop::new();
    let lock = fs::File::open(workshop.path("disk.img")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockShared).unwrap();
    let ran = workshop.run(&["mkdir", "disk.img:/x"]);
    assert_eq!(ran.status, 1);
    let own = std::process::id();
    let expected = format!("platter: disk.img: in use by another reader: process {own} (");
    assert!(ran.err.starts_with(&expected), "{}", ran.err);
}
