//! `mkfs`.

use super::*;

#[test]
fn a_new_image_is_clean_and_shows_what_was_asked_for() {
    let workshop = Workshop::new();
    let asked = [
        "mkfs", "ext4", "new.img", "--size", "64M", "-L", "a label", "-U", UUID,
    ];
    assert_eq!(workshop.read(&asked), "");
    let length = fs::metadata(workshop.path("new.img")).unwrap().len();
    assert_eq!(length, 64 << 20);
    assert!(
        workshop
            .read(&["check", "new.img"])
            .starts_with("new.img: clean")
    );
    let info = workshop.read(&["info", "new.img"]);
    assert!(info.contains(UUID) && info.contains("a label"), "{info}");
    assert_eq!(workshop.read(&["ls", "new.img:/"]), "lost+found\n");
}

#[test]
fn nothing_is_overwritten_unasked() {
    let workshop = Workshop::new();
    let before = fs::read(workshop.path("disk.img")).unwrap();
    for asked in [
        &["mkfs", "ext2", "disk.img"][..],
        &["mkfs", "ext2", "disk.img", "--size", "4M"],
    ] {
        let ran = workshop.run(asked);
        assert_eq!(ran.status, 1);
        let expected = "platter: disk.img: holds ext4, which would be overwritten\n";
        assert_eq!(ran.err, expected);
    }
    assert!(fs::read(workshop.path("disk.img")).unwrap() == before);
    workshop.read(&["mkfs", "ext2", "disk.img", "--force"]);
    assert!(workshop.read(&["info", "disk.img"]).contains("ext2"));
}

#[test]
fn what_cannot_be_made_is_refused_and_leaves_no_file() {
    let workshop = Workshop::new();
    for (arguments, expected) in [
        (
            &["-O", "compression"][..],
            "making a filesystem with compression",
        ),
        (
            &["-O", "metadata_csum_seed,^metadata_csum"],
            "needs metadata_csum",
        ),
        (&["-b", "3000"], "invalid argument"),
        (&["-N", "4000000"], "8388608 bytes are too few"),
        (
            &["-J", "1M", "-O", "^has_journal"],
            "-J is the size of a journal",
        ),
        (&["-C", "16384"], "-C is the size of clusters"),
        (
            &["-G", "8", "-O", "^flex_bg"],
            "-G is the size of flexible groups",
        ),
    ] {
        let asked = [&["mkfs", "ext4", "new.img", "--size", "8M"], arguments].concat();
        let ran = workshop.run(&asked);
        let is_usage = expected.starts_with('-');
        assert_eq!(ran.status, 1 + i32::from(is_usage), "{arguments:?}");
        assert!(ran.err.contains(expected), "{}", ran.err);
        assert!(!workshop.path("new.img").exists());
    }
}

#[test]
fn a_directory_and_its_archive_make_the_same_image() {
    let workshop = Workshop::new();
    let archived = Command::new("tar")
        .args([
            "--format=posix",
            "--sparse",
            "-C",
            "source",
            "-cf",
            "source.tar",
            ".",
        ])
        .current_dir(workshop.path(""))
        .status();
    assert!(archived.unwrap().success());
    let make = |image: &str, from: &str| {
        let asked = ["mkfs", "ext4", image, "--from", from, "-U", UUID];
        let mut command = workshop.command(&asked);
        let input = fs::File::open(workshop.path("source.tar")).unwrap();
        let made = command
            .env("SOURCE_DATE_EPOCH", "1000000000")
            .stdin(input)
            .status();
        assert!(made.unwrap().success());
        fs::read(workshop.path(image)).unwrap()
    };
    let of_dir = make("subdir.img", "source");
    assert!(make("archive.img", "source.tar") == of_dir);
    assert!(make("input.img", "-") == of_dir);
    assert!(
        workshop
            .read(&["check", "subdir.img"])
            .starts_with("subdir.img: clean")
    );
    assert_eq!(
        workshop.read(&["cat", "subdir.img:/dir/file"]),
        "contents\n"
    );
    let stat = workshop.read(&["stat", "subdir.img:/sparse"]);
    assert!(stat.contains("1048576"), "{stat}");
}

#[test]
fn options_that_do_not_go_with_the_image_are_refused() {
    let workshop = Workshop::new();
    let before = fs::read(workshop.path("disk.img")).unwrap();
    let asked = [
        "mkfs",
        "ext2",
        "disk.img@1",
        "--from",
        "source",
        "--minimize",
    ];
    let ran = workshop.run(&asked);
    assert_eq!(ran.status, 2);
    let expected = "platter: disk.img@1: --minimize makes a new file, no partition or device\n";
    assert_eq!(ran.err, expected);
    assert!(fs::read(workshop.path("disk.img")).unwrap() == before);
}

#[test]
fn directory_may_be_named_by_a_link() {
    let workshop = Workshop::new();
    symlink("source", workshop.path("result")).unwrap();
    symlink("dir", workshop.path("source/inner")).unwrap();
    let make = |from: &str, image: &str| {
        let arguments = ["mkfs", "ext4", image, "--from", from, "--size", "8M"];
        workshop.read(&[&arguments[..], &["--seed", "1"]].concat());
        fs::read(workshop.path(image)).unwrap()
    };
    let made = make("result", "link.img");
    assert!(made == make("source", "directory.img"));
    workshop.read(&["cp", "-r", "link.img:/inner", "inner"]);
    assert_eq!(
        fs::read_link(workshop.path("inner")).unwrap(),
        Path::new("dir")
    );
}

#[test]
fn owners_become_others() {
    let workshop = Workshop::new();
    let source = fs::metadata(workshop.path("source")).unwrap();
    let map = format!("{}:4321", std::os::unix::fs::MetadataExt::uid(&source));
    let asked = [
        "mkfs",
        "ext4",
        "new.img",
        "--from",
        "source",
        "--uid-map",
        &map,
        "--gid-map",
        "9:9:2",
    ];
    assert_eq!(workshop.read(&asked), "");
    let stat = workshop.read(&["stat", "new.img:/dir/file"]);
    assert!(stat.contains("4321"), "{stat}");
}

#[test]
fn an_image_in_its_own_directory_does_not_go_into_itself() {
    let workshop = Workshop::new();
    for _ in 0..2 {
        let asked = [
            "mkfs",
            "ext4",
            "source/own.img",
            "--size",
            "8M",
            "--force",
            "--from",
            "source",
        ];
        workshop.read(&asked);
        let listed = workshop.read(&["ls", "source/own.img:/"]);
        assert!(!listed.contains("own.img"), "{listed}");
    }
}

/// Owner and group of a file of an image.
fn owner(workshop: &Workshop, file: &str) -> (u64, u64) {
    let text = workshop.read(&["stat", "--json", file]);
    let stat: serde_json::Value = serde_json::from_str(&text).unwrap();
    let id = |name: &str| stat[0][name].as_u64().unwrap();
    (id("uid"), id("gid"))
}

#[test]
fn root_directory_of_an_empty_filesystem_belongs_to_the_caller() {
    use std::os::unix::process::CommandExt;
    let workshop = Workshop::new();
    fs::set_permissions(workshop.path(""), PermissionsExt::from_mode(0o777)).unwrap();
    copy_program(&workshop.path("platter"));
    let make = |image: &str, arguments: &[&str]| {
        let mut command = Command::new(workshop.path("platter"));
        command.args(["mkfs", "ext4", image, "--size", "8M"]);
        command.args(arguments).current_dir(workshop.path(""));
        let ran = Ran::of(&command.uid(65534).gid(65533).output().unwrap());
        assert_eq!((ran.status, &*ran.out), (0, ""), "{}", ran.err);
        ran.err
    };
    let note = make("own.img", &[]);
    let expected = "platter: own.img: note: the root directory belongs to the caller, 65534:65533; \
                    --root-owner 0:0 makes it root's\n";
    assert_eq!(note, expected);
    assert_eq!(owner(&workshop, "own.img:/"), (65534, 65533));
    assert_eq!(owner(&workshop, "own.img:/lost+found"), (0, 0));
    assert_eq!(make("given.img", &["--root-owner", "7:8"]), "");
    assert_eq!(owner(&workshop, "given.img:/"), (7, 8));
    // The superuser gets no such note.
    workshop.read(&["mkfs", "ext4", "root.img", "--size", "8M"]);
    assert_eq!(owner(&workshop, "root.img:/"), (0, 0));
}

#[test]
fn root_directory_is_owned_as_what_it_is_filled_with() {
    let workshop = Workshop::new();
    let source = workshop.path("source");
    std::os::unix::fs::chown(&source, Some(5), Some(6)).unwrap();
    run_tool(
        Command::new("tar")
            .args(["-C", "source", "-cf", "source.tar", "dir/file"])
            .current_dir(workshop.path("")),
        "",
    );
    let mut owners = Vec::new();
    for (from, arguments) in [
        ("source", &[][..]),
        ("source", &["--root-owner", "7:8"]),
        ("source.tar", &[]),
        ("source.tar", &["--owner", "9:10"]),
        ("source.tar", &["--uid-map", "0:100", "--gid-map", "0:200"]),
        ("source.tar", &["--owner", "9:10", "--root-owner", "7:8"]),
    ] {
        let asked = [
            &[
                "mkfs", "ext4", "new.img", "--force", "--size", "8M", "--from", from,
            ],
            arguments,
        ];
        workshop.read(&asked.concat());
        owners.push((
            owner(&workshop, "new.img:/"),
            owner(&workshop, "new.img:/dir"),
        ));
    }
    let expected = [
        ((5, 6), (0, 0)),
        ((7, 8), (0, 0)),
        ((0, 0), (0, 0)),
        ((9, 10), (9, 10)),
        ((100, 200), (100, 200)),
        ((7, 8), (9, 10)),
    ];
    assert_eq!(owners, expected);
}

/// Makes an image of the smallest size that the error names where 16 KiB are asked for, and demands that it
/// works, and that no less does.
fn demand_smallest(workshop: &Workshop, arguments: &[&str]) -> u64 {
    let asked = |size: &str| {
        let asked = ["mkfs", arguments[0], "new.img", "--force", "--size", size];
        workshop.run(&[&asked, &arguments[1..]].concat())
    };
    let ran = asked("16K");
    assert_eq!(ran.status, 1, "{arguments:?}");
    let message = ran
        .err
        .strip_prefix("platter: new.img: 16384 bytes are too few");
    let message = message.unwrap_or_else(|| panic!("{arguments:?}: {}", ran.err));
    let needed = message
        .split(' ')
        .find_map(|word| word.parse::<u64>().ok())
        .unwrap();
    assert_eq!(asked(&needed.to_string()).err, "", "{arguments:?}");
    let e2fsck = Command::new("e2fsck")
        .arg("-fn")
        .arg(workshop.path("new.img"))
        .output();
    let e2fsck = e2fsck.unwrap();
    assert!(
        e2fsck.status.success(),
        "{}",
        String::from_utf8_lossy(&e2fsck.stdout)
    );
    let less = asked(&(needed - 1024).to_string()).err;
    assert!(
        less.contains(&format!("at least {needed} are needed")),
        "{less}"
    );
    needed
}

#[test]
fn what_is_too_small_says_the_smallest_size() {
    let workshop = Workshop::new();
    for kind in ["ext2", "ext3", "ext4"] {
        let needed = demand_smallest(&workshop, &[kind]);
        assert!(needed < 100 << 10, "{kind}: {needed}");
    }
    for arguments in [
        &["ext4", "-b", "4096"][..],
        &["ext4", "-b", "65536"],
        &["ext4", "-O", "bigalloc"],
        &["ext4", "-N", "100000"],
        &["ext4", "-J", "4M"],
        &["ext2", "-I", "128"],
        &["ext4", "-N", "5000", "-J", "1M"],
    ] {
        demand_smallest(&workshop, arguments);
    }
    // Of a file that is there, nothing changes.
    let before = vec![0; 20 << 10];
    fs::write(workshop.path("short.img"), &before).unwrap();
    let ran = workshop.run(&["mkfs", "ext4", "short.img"]);
    assert!(ran.err.contains("20480 bytes are too few"), "{}", ran.err);
    assert!(fs::read(workshop.path("short.img")).unwrap() == before);
    fs::write(workshop.path("source/large"), vec![1; 3 << 20]).unwrap();
    let asked = [
        "mkfs", "ext4", "full.img", "--size", "2M", "--from", "source",
    ];
    let ran = workshop.run(&asked);
    let expected = "platter: full.img: the content does not fit into 2097152 bytes; without --size, \
                    a size is chosen that is enough\n";
    assert_eq!((ran.status, &*ran.err), (1, expected));
}

#[test]
fn a_size_has_no_sign() {
    let workshop = Workshop::new();
    let ran = workshop.run(&["mkfs", "ext4", "new.img", "--size", "+8M"]);
    assert_ne!(ran.status, 0);
    assert!(!workshop.path("new.img").exists());
}

#[test]
fn a_new_xfs_is_clean_and_has_its_content() {
    let workshop = Workshop::new();
    fs::create_dir(workshop.path("tree")).unwrap();
    fs::write(workshop.path("tree/file"), "text").unwrap();
    let asked = [
        "mkfs", "xfs", "new.img", "--from", "tree", "-O", "rmapbt", "-L", "a label", "-U", UUID,
    ];
    assert_eq!(workshop.read(&asked), "");
    assert_eq!(workshop.read(&["cat", "new.img:/file"]), "text");
    let checked = workshop.read(&["check", "new.img"]);
    assert!(checked.starts_with("new.img: clean"), "{checked}");
    let info = workshop.read(&["info", "new.img"]);
    assert!(info.contains(UUID) && info.contains("a label"), "{info}");
    let ran = workshop.run(&["mkfs", "xfs", "short.img", "--size", "100M"]);
    assert!(ran.err.contains("at least 314572800"), "{}", ran.err);
    let ran = workshop.run(&["mkfs", "xfs", "short.img", "--size", "1G", "-N", "9"]);
    assert_eq!(ran.err, "platter: --inodes is not known for xfs\n");
}
