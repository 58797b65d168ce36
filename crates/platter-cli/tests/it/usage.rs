//! Help, wrong words, and what packages are made of.

use super::mount::Mounted;
use super::*;

#[test]
fn help_and_version_are_there() {
    let workshop = Workshop::new();
    assert!(workshop.read(&["--help"]).contains("Usage: platter"));
    assert!(workshop.read(&["--version"]).starts_with("platter "));
    for command in [
        "info",
        "ls",
        "tree",
        "stat",
        "du",
        "cat",
        "cp",
        "mv",
        "rm",
        "mkdir",
        "ln",
        "chmod",
        "chown",
        "xattr",
        "subvolume",
        "send",
        "receive",
        "truncate",
        "touch",
        "tar",
        "mount",
        "umount",
        "check",
        "mkfs",
        "resize",
        "scrub",
        "balance",
        "defrag",
        "dedupe",
        "device",
        "tune",
    ] {
        assert!(
            workshop
                .read(&[command, "--help"])
                .contains("Usage: platter"),
            "{command}"
        );
    }
}

#[test]
fn help_is_about_what_a_command_takes() {
    let workshop = Workshop::new();
    assert!(workshop.read(&["ls", "--help"]).contains("--norecovery"));
    let help = workshop.read(&["umount", "--help"]);
    assert!(
        help.contains("--lazy") && !help.contains("Image options"),
        "{help}"
    );
    for command in [&[][..], &["mkfs"], &["subvolume", "list"]] {
        let [named, asked] = [
            &[&["help"], command].concat(),
            &[command, &["--help"]].concat(),
        ]
        .map(|words| workshop.read(words));
        assert_eq!(named, asked, "{command:?}");
    }
}

#[test]
fn wrong_words_have_one_status() {
    let workshop = Workshop::new();
    for (arguments, status) in [
        (&["nonsense"][..], 2),
        (&["ls", "--nonsense"], 2),
        (&["tar"], 2),
        (&["cat"], 2),
        (&["cp"], 2),
        (&["mount"], 2),
        (&["mv", "--nonsense"], 2),
        (&["chmod", "755"], 2),
        // As fsck(8) counts, where 2 asks for a reboot.
        (&["check"], 16),
        (&["--json", "check"], 16),
    ] {
        let ran = workshop.run(arguments);
        assert_eq!(ran.status, status, "{arguments:?}");
        assert!(
            ran.err.contains("Usage") || arguments[0] == "--json",
            "{arguments:?}"
        );
    }
}

#[test]
fn operands_follow_options_without_their_values() {
    let workshop = Workshop::new();
    for arguments in [
        &["balance", "-d", "none.img"][..],
        &["balance", "-dusage=50", "-m", "none.img"],
        &["defrag", "-c", "none.img:/file"],
        &["defrag", "-rczstd:9", "none.img:/file"],
        &["defrag", "--compress=lzo", "none.img:/file"],
        &["--cache", "1M", "defrag", "-c=lzo", "none.img:/file"],
    ] {
        let ran = workshop.run(arguments);
        assert_eq!(ran.status, 1, "{arguments:?}: {}", ran.err);
        let error = "none.img: no such file or directory";
        let text = ran.err.to_lowercase();
        assert!(text.contains(error), "{arguments:?}: {text}");
    }
}

#[test]
fn pages_and_completions_are_generated() {
    let workshop = Workshop::new();
    workshop.read(&["man", "man"]);
    let page = fs::read_to_string(workshop.path("man/platter-ls.1")).unwrap();
    assert!(page.contains("IMAGE"), "{page}");
    for command in ["mv", "rm", "chown", "xattr-set", "subvolume-show"] {
        let name = format!("man/platter-{command}.1");
        assert!(workshop.path(&name).exists(), "{name}");
    }
    let page = workshop.read(&["man"]);
    assert!(page.contains(".TH platter 1"), "{page}");
    for shell in ["bash", "zsh", "fish"] {
        assert!(workshop.read(&["completions", shell]).contains("truncate"));
    }
}

#[test]
fn requests_are_reported_on_demand() {
    let workshop = Workshop::new();
    let ran = workshop.run(&["--count-requests", "cat", "disk.img:/dir/file"]);
    assert_eq!(ran.out, "contents\n");
    assert!(ran.err.starts_with("platter: disk.img: "), "{}", ran.err);
    assert!(ran.err.contains(" read requests of "), "{}", ran.err);
}

#[test]
fn a_file_in_an_image_is_not_taken_for_the_image() {
    let workshop = Workshop::new();
    fs::create_dir(workshop.path("mnt")).unwrap();
    for (arguments, status) in [
        (&["check", "disk.img:/dir"][..], 16),
        (&["info", "disk.img:/dir"], 1),
        (&["mount", "-f", "disk.img:/dir", "mnt"], 2),
    ] {
        let ran = workshop.run(arguments);
        assert_eq!(ran.status, status, "{arguments:?}");
        let expected = "platter: disk.img:/dir: names a file in an image, \
                        where the image itself is asked for\n";
        assert_eq!(ran.err, expected);
    }
    workshop.read(&["check", "disk.img:/"]);
}

#[test]
fn disks_of_virtual_machines_are_named_with_what_to_do() {
    let workshop = Workshop::new();
    let magics: [(&str, usize, &[u8]); 5] = [
        ("qcow2", 0, b"QFI\xfb\0\0\0\x03"),
        ("vmdk", 0, b"KDMV\x01\0\0\0"),
        ("vhd", 0, b"conectix"),
        ("vdi", 64, b"\x7f\x10\xda\xbe"),
        ("vhdx", 0, b"vhdxfile"),
    ];
    for (format, offset, magic) in magics {
        let mut bytes = vec![0; 1 << 20];
        bytes[offset..offset + magic.len()].copy_from_slice(magic);
        fs::write(workshop.path("vm.img"), bytes).unwrap();
        for operand in ["vm.img@2:/", "vm.img:/"] {
            let message = workshop.run(&["ls", operand]).err;
            let expected = format!(
                "platter: vm.img: holds {format}, which is not supported: make a raw image of it \
                 with: qemu-img convert -O raw IMAGE disk.raw\n"
            );
            assert_eq!(message, expected, "{operand}");
        }
    }
    let message = workshop.run(&["ls", "disk.img@2:/"]).err;
    assert_eq!(message, "platter: disk.img: has no partition table\n");
}

#[test]
fn image_without_a_path_is_what_a_copy_to_it_blames() {
    let workshop = Workshop::new();
    for file in ["source/dir/file", "none"] {
        let ran = workshop.run(&["cp", file, "disk.img"]);
        let expected = "platter: disk.img: names no file in an image; \
                        write disk.img:PATH to copy into it\n";
        assert_eq!((ran.status != 0, &*ran.err), (true, expected));
    }
    // A file of the host may be written over with one of an image.
    fs::write(workshop.path("there"), "").unwrap();
    workshop.read(&["cp", "disk.img:/dir/file", "there"]);
    assert_eq!(
        fs::read_to_string(workshop.path("there")).unwrap(),
        "contents\n"
    );
}

#[test]
fn what_cannot_be_printed_is_an_error() {
    let workshop = Workshop::new();
    let run = |redirection: &str, arguments: &str| {
        let program = env!("CARGO_BIN_EXE_platter");
        let script = format!("exec {program} {arguments} {redirection}");
        let mut shell = Command::new("sh");
        let output = shell
            .args(["-c", &script])
            .current_dir(workshop.path(""))
            .output();
        Ran::of(&output.unwrap())
    };
    for arguments in [
        "ls disk.img:/",
        "cat disk.img:/dir/file",
        "info disk.img",
        "stat disk.img:/dir",
        "tar disk.img",
        "tree disk.img",
        "check disk.img",
        "--help",
        "ls --help",
        "--version",
        "completions bash",
    ] {
        for (redirection, error) in [
            (">&-", "Bad file descriptor"),
            ("1< /dev/null", "Bad file descriptor"),
            ("> /dev/full", "No space left on device"),
        ] {
            if redirection == "1< /dev/null" && arguments.contains("--") {
                // The library that prints help takes it for written.
                continue;
            }
            let ran = run(redirection, arguments);
            let expected = format!("platter: standard output: {error}\n");
            assert_eq!(ran.err, expected, "{arguments} {redirection}");
            assert_ne!(ran.status, 0, "{arguments} {redirection}");
        }
    }
    // What prints nothing needs nothing to print to.
    for arguments in ["mkdir disk.img:/new", "cp disk.img:/dir/file out"] {
        let ran = run(">&-", arguments);
        assert_eq!((ran.status, &*ran.err), (0, ""), "{arguments}");
    }
}

#[test]
fn options_that_a_command_does_not_use_are_refused() {
    let workshop = Workshop::new();
    let mounted = Mounted::of(&workshop, "disk.img");
    for (arguments, expected) in [
        (
            &["--norecovery", "mkfs", "ext4", "new.img", "--size", "8M"][..],
            "--norecovery is not for making a filesystem",
        ),
        (
            &["--option", "degraded", "resize", "disk.img", "16M"],
            "--option is not for resizing a filesystem",
        ),
        (
            &["--no-lock", "balance", "disk.img"],
            "--no-lock is for reading only",
        ),
        (
            &["--norecovery", "receive", "disk.img"],
            "--norecovery is for reading only",
        ),
        (
            &["--superblock", "32768", "trim", "mnt"],
            "--superblock is not for a mounted filesystem",
        ),
        (
            &["--device", "disk.img", "subvolume", "list", "mnt"],
            "--device is not for a mounted filesystem",
        ),
        (
            &["--offset", "1M", "umount", "mnt"],
            "--offset is not for umount",
        ),
        (&["--no-lock", "sync", "mnt"], "--no-lock is not for sync"),
    ] {
        let ran = workshop.run(arguments);
        let expected = format!("platter: {expected}\n");
        assert_eq!((ran.status, ran.err), (2, expected), "{arguments:?}");
    }
    for (arguments, status) in [
        (&["balance", "disk.img"][..], 2),
        (&["scrub", "-r", "disk.img"], 2),
        (&["device", "remove", "disk.img", "1"], 2),
        (&["dedupe", "disk.img:/dir/file"], 2),
        (&["defrag", "disk.img:/dir/file"], 2),
        (&["receive", "disk.img"], 2),
        (&["check", "disk.img"], 16),
    ] {
        let ran = workshop.run(&[&["--count-requests"][..], arguments].concat());
        let command = arguments[0];
        let expected = format!("platter: --count-requests is not for {command}\n");
        assert_eq!((ran.status, ran.err), (status, expected), "{arguments:?}");
    }
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
    for (arguments, status) in [
        (["tree", "--level", "0", "disk.img"], 2),
        (["check", "--max-findings", "0", "disk.img"], 16),
    ] {
        let ran = workshop.run(&arguments);
        assert_eq!(ran.status, status, "{arguments:?}");
        assert!(ran.err.contains("invalid value '0'"), "{}", ran.err);
    }
}
