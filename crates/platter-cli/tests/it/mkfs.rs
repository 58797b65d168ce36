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
fn the_same_command_makes_the_same_bytes() {
    let workshop = Workshop::new();
    for image in ["a.img", "b.img"] {
        let asked = ["mkfs", "ext4", image, "--size", "8M", "-U", UUID];
        let made = workshop
            .command(&asked)
            .env("SOURCE_DATE_EPOCH", "1000000000")
            .status();
        assert!(made.unwrap().success());
    }
    let read = |name| fs::read(workshop.path(name)).unwrap();
    assert!(read("a.img") == read("b.img"));
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
        (&["-N", "4000000"], "invalid argument"),
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
        assert_eq!(ran.status, 1, "{arguments:?}");
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
    let of_folder = make("folder.img", "source");
    assert!(make("archive.img", "source.tar") == of_folder);
    assert!(make("input.img", "-") == of_folder);
    assert!(
        workshop
            .read(&["check", "folder.img"])
            .starts_with("folder.img: clean")
    );
    assert_eq!(
        workshop.read(&["cat", "folder.img:/dir/file"]),
        "contents\n"
    );
    let stat = workshop.read(&["stat", "folder.img:/sparse"]);
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
    assert_eq!(ran.status, 1);
    let expected = "platter: disk.img@1: --minimize makes a new file, no partition or device\n";
    assert_eq!(ran.err, expected);
    assert!(fs::read(workshop.path("disk.img")).unwrap() == before);
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
