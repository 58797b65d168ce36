//! `check`.

use serde_json::Value;

use super::*;

#[test]
fn exit_statuses_are_those_of_fsck() {
    let workshop = Workshop::new();
    let text = workshop.read(&["check", "disk.img"]);
    assert!(text.starts_with("disk.img: clean; checked "), "{text}");
    assert_eq!(workshop.read(&["check", "-q", "disk.img"]), "");

    // The free block count of the superblock is not covered without its checksum.
    corrupt(&workshop.path("disk.img"), 1024 + 0x100, b"x");
    let ran = workshop.run(&["check", "disk.img"]);
    assert_eq!(ran.status, 4);
    let finding = "disk.img: error: superblock at byte 1024: checksum does not match\n";
    assert!(ran.out.starts_with(finding), "{}", ran.out);
    assert!(
        ran.out.ends_with("disk.img: not clean, 1 error\n"),
        "{}",
        ran.out
    );

    assert_eq!(workshop.run(&["check", "none.img"]).status, 8);
    assert_eq!(workshop.run(&["check"]).status, 16);
    assert_eq!(
        workshop.run(&["check", "--nonsense", "disk.img"]).status,
        16
    );
}

#[test]
fn findings_are_for_programs_too() {
    let workshop = Workshop::new();
    let report: Value =
        serde_json::from_str(&workshop.read(&["check", "--json", "disk.img"])).unwrap();
    assert_eq!(report["summary"]["clean"], true);
    assert_eq!(report["findings"], Value::Array(Vec::new()));

    let image = fs::read(workshop.path("disk.img")).unwrap();
    let at = image
        .windows(6)
        .position(|bytes| bytes == b"passwd")
        .unwrap() as u64;
    corrupt(&workshop.path("disk.img"), at, b"pass/d");
    let ran = workshop.run(&["check", "--json", "disk.img"]);
    assert_eq!(ran.status, 4);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let finding = &report["findings"][0];
    assert_eq!(finding["severity"], "error");
    assert!(finding["structure"].is_string() && finding["rule"].is_string());
    assert_eq!(report["summary"]["exit_status"], 4);

    let ran = workshop.run(&["check", "--max-findings", "1", "disk.img"]);
    assert_eq!(ran.status, 4 | 32);
}

#[test]
fn repairs_are_refused() {
    let workshop = Workshop::new();
    let before = fs::read(workshop.path("disk.img")).unwrap();
    let ran = workshop.run(&["check", "--repair", "disk.img"]);
    assert_eq!(ran.status, 16);
    let expected = "platter: --repair is not supported: use e2fsck(8)\n";
    assert_eq!(ran.err, expected);
    assert!(fs::read(workshop.path("disk.img")).unwrap() == before);
}

#[test]
fn what_is_no_filesystem_has_a_summary_too() {
    let workshop = Workshop::new();
    fs::write(workshop.path("none"), b"text").unwrap();
    let ran = workshop.run(&["check", "--json", "none"]);
    assert_eq!(ran.status, 8);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["summary"]["exit_status"], 8);
    assert_eq!(json["summary"]["clean"], false);
    assert!(json["summary"]["error"]["code"] == "unrecognised");
}

#[test]
fn a_backup_superblock_is_reported_by_its_offset() {
    let workshop = Workshop::new();
    let ran = workshop.run(&["--superblock", "3", "ls", "disk.img:/"]);
    assert!(ran.err.contains("superblock at byte 3072"), "{}", ran.err);
}

#[test]
fn a_superblock_that_is_gone_or_corrupt_has_a_copy_to_try() {
    let workshop = Workshop::new();
    let image = workshop.path("lost.img");
    fs::File::create(&image).unwrap().set_len(20 << 20).unwrap();
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "1024"]);
    assert!(mke2fs.arg(&image).status().unwrap().success());
    let mut shifted = vec![0; 1 << 20];
    shifted.extend(fs::read(&image).unwrap());
    corrupt(&image, 1024 + 0x100, b"x");
    for (command, status) in [("ls", 2), ("check", 4)] {
        let ran = workshop.run(&[command, "lost.img"]);
        assert_eq!(ran.status, status);
        let said = [ran.out, ran.err].concat();
        assert!(
            said.contains("superblock at byte 1024: checksum does not match"),
            "{said}"
        );
        assert!(
            said.contains("valid copy: try --superblock 8193\n"),
            "{said}"
        );
    }
    corrupt(&image, 1024, &[0; 1024]);
    let gone = "lost.img: no filesystem was recognised, but a valid copy of its superblock: \
                try --superblock 8193\n";
    for command in ["ls", "check", "tar"] {
        let ran = workshop.run(&[command, "lost.img"]);
        assert!(ran.err.ends_with(gone), "{}", ran.err);
    }
    let listed = workshop.read(&["ls", "--superblock", "8193", "lost.img"]);
    assert!(listed.contains("lost+found"), "{listed}");
    let ran = workshop.run(&["check", "--superblock", "8193", "lost.img"]);
    assert_eq!(ran.status, 0, "{}", ran.out);

    shifted[(1 << 20) + 1024..(1 << 20) + 2048].fill(0);
    fs::write(&image, shifted).unwrap();
    let ran = workshop.run(&["ls", "--offset", "1048576", "lost.img"]);
    assert!(ran.err.ends_with(gone), "{}", ran.err);
}
