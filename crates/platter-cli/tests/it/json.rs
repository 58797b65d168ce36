//! `--json`: what programs read.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};

use super::schema::assert_valid;
use super::*;

fn document(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
}

/// The errors on standard error, each of which keeps the schema.
fn errors(ran: &Ran) -> Vec<Value> {
    let parse = |line| {
        let object: Value = serde_json::from_str(line).unwrap();
        assert_valid("error", &object);
        object["error"].clone()
    };
    ran.err.lines().map(parse).collect()
}

/// `disk.img` with a file and a label that are not UTF-8, attributes, a device, and a flag.
fn odd() -> Workshop {
    let workshop = Workshop::new();
    let odd_name = OsStr::from_bytes(b"source/dir/odd\xff");
    fs::write(workshop.0.path().join(odd_name), "odd").unwrap();
    let made = Command::new("mknod")
        .args(["source/dir/null", "c", "1", "3"])
        .current_dir(workshop.path(""))
        .status();
    assert!(made.unwrap().success());
    workshop.mke2fs("disk.img", &workshop.path("source"), "8M");
    workshop.read(&["xattr", "set", "user.text", "a b", "disk.img:/dir/file"]);
    let script =
        "set_super_value volume_name \"odd\u{e9}\"\nset_inode_field /dir/file flags 0x80010\n";
    let mut debugfs = Command::new("debugfs");
    debugfs
        .args(["-w", "-f", "-"])
        .arg(workshop.path("disk.img"));
    run_tool(&mut debugfs, script);
    workshop
}

#[test]
fn what_every_command_writes_keeps_the_schema() {
    let workshop = odd();
    workshop.partition();
    fs::write(workshop.path("none"), b"text").unwrap();
    for (definition, arguments) in [
        (
            "info",
            &["info", "disk.img", "gpt.img", "gpt.img@2", "none"][..],
        ),
        ("ls", &["ls", "-laR", "disk.img", "disk.img:/etc/passwd"]),
        ("ls", &["ls", "disk.img:/lost+found"]),
        ("tree", &["tree", "-a", "disk.img"]),
        ("tree", &["tree", "-d", "-L", "1", "disk.img:/lost+found"]),
        (
            "stat",
            &[
                "stat",
                "disk.img:/dir/file",
                "disk.img:/dir/null",
                "disk.img:/dir/link",
            ],
        ),
        ("du", &["du", "disk.img", "disk.img:/dir/file"]),
        ("check", &["check", "disk.img"]),
        (
            "mkfs",
            &["mkfs", "ext4", "a.img", "--size", "32M", "-O", "bigalloc"],
        ),
        (
            "mkfs",
            &[
                "mkfs",
                "ext2",
                "b.img",
                "--size",
                "16M",
                "-O",
                "^resize_inode",
            ],
        ),
        (
            "mkfs",
            &["mkfs", "ext4", "c.img", "--from", "source", "--minimize"],
        ),
        ("info", &["info", "a.img", "b.img"]),
        ("resize", &["resize", "b.img", "24M"]),
        ("resize", &["resize", "b.img", "24M"]),
        ("xattr_list", &["xattr", "list", "disk.img:/dir/file"]),
        (
            "xattr_get",
            &["xattr", "get", "user.text", "disk.img:/dir/file"],
        ),
    ] {
        for place in [0, arguments.len()] {
            let mut arguments = arguments.to_vec();
            arguments.insert(place, "--json");
            if definition == "mkfs" {
                arguments.push("--force");
            }
            let ran = workshop.run(&arguments);
            assert_eq!((ran.status, &*ran.err), (0, ""), "{arguments:?}");
            assert_valid(definition, &document(&ran));
        }
    }
}

#[test]
fn journal_and_corruption_are_reported_in_words_and_numbers() {
    let workshop = Workshop::new();
    let info = document(&workshop.run(&["info", "--json", "disk.img"]));
    let details = &info[0]["filesystem"]["details"];
    assert_eq!(details["block_bytes"], 1024);
    assert_eq!(details["journal"]["state"], "clean");
    assert_eq!(details["journal"]["size_bytes"], 1 << 20);
    assert_eq!(details["state"]["word"], "clean");
    assert_eq!(details["last_mounted"], Value::Null);
    assert!(details["created"]["seconds"].is_i64());
    corrupt(&workshop.path("disk.img"), 1024 + 0x100, b"x");
    let ran = workshop.run(&["check", "--json", "disk.img"]);
    let report = document(&ran);
    assert_valid("check", &report);
    assert_eq!((ran.status, &*ran.err), (4, ""));
    let finding = json!({
        "severity": "error",
        "structure": "superblock",
        "rule": "checksum does not match",
        "place": {"byte": 1024},
    });
    assert_eq!(report["findings"], json!([finding]));
    assert_eq!(report["summary"]["state"], "not_clean");
    let ran = workshop.run(&["ls", "--json", "disk.img"]);
    assert_eq!((ran.status, &*ran.out), (2, "[]\n"));
    let [error] = &errors(&ran)[..] else {
        panic!("{}", ran.err)
    };
    assert_eq!(
        (&error["code"], &error["errno"]),
        (&json!("corrupt"), &json!(117))
    );
    assert_eq!(error["structure"], "superblock");
    assert_eq!(error["place"], json!({"byte": 1024}));
    assert_eq!(error["image"], "disk.img");
}

#[test]
fn bytes_that_are_no_text_survive() {
    let workshop = odd();
    // "/dir/odd\xff"
    let base64 = "L2Rpci9vZGT/";
    for arguments in [&["ls", "disk.img:/dir"][..], &["tree", "disk.img:/dir"]] {
        let listed = document(&workshop.run(&[&["--json"], arguments].concat()));
        let entries = listed.get("entries").unwrap_or(&listed);
        let entries = entries.as_array().unwrap();
        let odd = entries.iter().find(|entry| entry["path_base64"] == base64);
        assert_eq!(odd.unwrap()["path"], "/dir/odd\u{fffd}");
        let file = entries.iter().find(|entry| entry["path"] == "/dir/file");
        assert!(file.unwrap().get("path_base64").is_none());
    }
    let image = OsStr::from_bytes(b"i\xfe\n.img");
    fs::copy(workshop.path("disk.img"), workshop.0.path().join(image)).unwrap();
    let output = workshop.command(&["info", "--json"]).arg(image).output();
    let info = document(&Ran::of(&output.unwrap()));
    assert_eq!(info[0]["image_base64"], "af4KLmltZw==");
    let operand = OsStr::from_bytes(b"i\xfe\n.img:/none\xff");
    let output = workshop.command(&["stat", "--json"]).arg(operand).output();
    let ran = Ran::of(&output.unwrap());
    let error = &errors(&ran)[0];
    assert_eq!(error["image_base64"], "af4KLmltZw==");
    assert_eq!(error["path_base64"], "L25vbmX/");
    assert_eq!(
        (&error["code"], &error["errno"]),
        (&json!("not_found"), &json!(2))
    );
}

#[test]
fn errors_of_all_commands_are_objects() {
    let workshop = Workshop::new();
    workshop.partition();
    fs::create_dir(workshop.path("mnt")).unwrap();
    fs::write(workshop.path("x.qcow2"), b"QFI\xfb\0\0\0\x03").unwrap();
    fs::write(workshop.path("broken.tar"), [b'x'; 1024]).unwrap();
    for (arguments, status, code) in [
        (&["info", "none.img"][..], 1, "not_found"),
        (&["ls", "x.qcow2"], 2, "unsupported_format"),
        (&["ls", "disk.img", "disk.img:/none"], 2, "not_found"),
        (&["tree", "gpt.img"], 2, "partitioned"),
        (&["stat", "gpt.img@7:/"], 1, "no_such_partition"),
        (&["du", "disk.img:/none"], 1, "not_found"),
        (&["cat", "disk.img:/none"], 1, "not_found"),
        (&["cat", "disk.img:/dir"], 1, "is_directory"),
        (&["check", "none.img"], 8, "not_found"),
        (&["rm", "disk.img:/dir"], 1, "is_directory"),
        (&["mkdir", "disk.img:/dir"], 1, "exists"),
        (&["cp", "disk.img:/none", "copy"], 1, "not_found"),
        (&["cp", "none", "disk.img:/"], 1, "not_found"),
        (&["tar", "disk.img", "none"], 2, "not_found"),
        (&["mkfs", "ext4", "disk.img"], 1, "occupied"),
        (
            &["mkfs", "ext4", "new.img", "--from", "broken.tar"],
            1,
            "bad_archive",
        ),
        (
            &[
                "mkfs",
                "ext4",
                "new.img",
                "--size",
                "8M",
                "-J",
                "2M",
                "-O",
                "^has_journal",
            ],
            2,
            "usage",
        ),
        (
            &["mkfs", "ext4", "new.img", "--size", "8M", "-O", "mmp"],
            1,
            "unsupported",
        ),
        (&["defrag", "disk.img:/dir/file"], 1, "unsupported"),
        (&["defrag", "none.img:/file"], 1, "not_found"),
        (&["defrag", "-czip", "disk.img:/dir/file"], 2, "usage"),
        (&["resize", "none.img", "8M"], 1, "not_found"),
        (
            &["xattr", "get", "user.none", "disk.img:/dir"],
            1,
            "no_attribute",
        ),
        (&["mount", "none.img", "mnt"], 32, "not_found"),
        (&["mount", "disk.img", "mnt", "-o", "nonsense"], 2, "usage"),
        (&["umount", "none"], 32, "not_found"),
        (&["ls", "--nonsense"], 2, "usage"),
        (&["nonsense"], 2, "usage"),
        (&["check"], 16, "usage"),
    ] {
        let ran = workshop.run(&[&["--json"], arguments].concat());
        let errors = errors(&ran);
        assert_eq!(
            (ran.status, errors.len()),
            (status, 1),
            "{arguments:?}: {}",
            ran.err
        );
        assert_eq!(errors[0]["code"], code, "{arguments:?}: {}", ran.err);
        if arguments[0] == "check" && status == 8 {
            assert_valid("check", &document(&ran));
        } else if arguments[0] != "tar" && !ran.out.is_empty() {
            document(&ran);
        }
    }
}

#[test]
fn what_is_reported_of_a_copy_is_objects() {
    let workshop = Workshop::new();
    for (arguments, first) in [
        (
            ["cp", "-rv", "disk.img:/dir", "out"],
            "disk.img:/dir -> out",
        ),
        (["cp", "-rv", "out", "disk.img:/in"], "out -> disk.img:/in"),
    ] {
        let ran = workshop.run(&[&["--json"][..], &arguments].concat());
        assert_eq!(ran.status, 0, "{}", ran.err);
        let parse = |line| serde_json::from_str(line).unwrap();
        let lines: Vec<Value> = ran.err.lines().map(parse).collect();
        for line in &lines {
            assert_valid("notice", line);
        }
        assert_eq!(lines[0]["notice"]["message"], first);
        assert!(lines.len() > 5, "{lines:?}");
    }
}
