//! Devices of btrfs pools: what commands on them do, and what they say of what is wrong.

use rustix::process::{Pid, Signal, kill_process};

use super::mount::Mounted;
use super::*;

const TWO: [&str; 2] = ["--device", "2.img"];

#[test]
fn image_of_a_device_grows_with_it() {
    let workshop = Workshop::new();
    workshop.pool(1, "single");
    workshop.read(&["device", "resize", "1.img", "1", "500M"]);
    let len_bytes = fs::metadata(workshop.path("1.img")).unwrap().len();
    assert_eq!(len_bytes, 500 << 20);
    let info = workshop.document("info", &["--json", "info", "1.img"]);
    assert_eq!(
        info[0]["filesystem"]["details"]["total_bytes"],
        500 << 20,
        "{info}"
    );
    let checked = workshop.run(&["check", "1.img"]);
    assert_eq!(checked.status, 0, "{}", checked.out);
}

#[test]
fn missing_devices_and_too_few_are_named() {
    let workshop = Workshop::new();
    workshop.pool(2, "raid1");
    workshop.sparse("new.img", 256);
    let none = "1.img: has no device 7; there are: 1, 2";
    for command in [
        &["device", "resize", "1.img", "7", "300M"][..],
        &["device", "remove", "1.img", "7"],
        &["device", "replace", "1.img", "7", "new.img"],
    ] {
        assert_eq!(workshop.complaint(&[command, &TWO].concat()), none);
    }
    let remove = ["device", "remove", "1.img", "2"];
    let few = workshop.complaint(&[&remove[..], &TWO].concat());
    let expected = "1.img: RAID1 needs 2 devices, and without device 2 there would be 1; convert \
                    it by balance first, or add a device";
    assert_eq!(few, expected);
    fs::create_dir(workshop.path("mnt")).unwrap();
    workshop.read(&[&["mount", "1.img", "mnt"][..], &TWO].concat());
    let mounted = Mounted(&workshop);
    for action in [&["resize", "mnt", "7", "300M"][..], &["remove", "mnt", "7"]] {
        let refused = workshop.complaint(&[&["device"][..], action].concat());
        assert_eq!(refused, "mnt: has no device 7; there are: 1, 2");
    }
    let several = workshop.complaint(&["resize", "mnt", "500M"]);
    let expected = "mnt: btrfs: changing the size of several devices is not supported (name one \
                    with `device resize`)";
    assert_eq!(several, expected);
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
}

#[test]
fn lengths_beyond_a_device_are_refused_with_its_length() {
    let workshop = Workshop::new();
    workshop.sparse("disk.img", 300);
    let script = "label: gpt\nstart=2048, size=557056, type=linux\n";
    let disk = workshop.path("disk.img");
    run_tool(Command::new("sfdisk").arg("-q").arg(&disk), script);
    for kind in ["btrfs", "ext4"] {
        workshop.read(&["mkfs", kind, "disk.img@1", "--force"]);
        let refused = workshop.complaint(&["resize", "disk.img@1", "400M"]);
        let expected = "disk.img@1: is 285212672 bytes long, and is to have a filesystem of \
                        419430400 bytes";
        assert_eq!(refused, expected);
    }
    workshop.read(&["mkfs", "btrfs", "disk.img@1", "--force"]);
    let refused = workshop.complaint(&["device", "resize", "disk.img@1", "1", "400M"]);
    let expected = "disk.img@1: 419430400 bytes are more than device 1 has, which is 285212672 \
                    bytes long";
    assert_eq!(refused, expected);
    workshop.sparse("short.img", 256);
    let make = [
        "mkfs", "btrfs", "new.img", "--size", "300M", "--force", "--device",
    ];
    let refused = workshop.complaint(&[&make[..], &["short.img"]].concat());
    let expected = "short.img: is 268435456 bytes long, and is to have a filesystem of 314572800 \
                    bytes";
    assert_eq!(refused, expected);
    assert!(!workshop.path("new.img").exists());
}

#[test]
fn bad_further_devices_are_named() {
    let workshop = Workshop::new();
    workshop.pool(2, "raid1");
    workshop.sparse("zeros.img", 256);
    workshop.sparse("short.img", 8);
    for (device, message) in [
        (
            "zeros.img",
            "zeros.img: no filesystem and no partition table was recognised",
        ),
        (
            "disk.img",
            "disk.img: holds ext, and is no device of a btrfs",
        ),
    ] {
        for command in ["check", "scrub", "ls"] {
            let refused = workshop.complaint(&[command, "1.img", "--device", device]);
            assert_eq!(refused, message, "{command}");
        }
    }
    // One that has lost its superblocks but for the magic.
    for at in [64 << 10, 64 << 20] {
        corrupt(&workshop.path("2.img"), at, &[7; 32]);
    }
    let refused = workshop.complaint(&["check", "1.img", "--device", "2.img"]);
    assert_eq!(
        refused,
        "2.img: superblock at byte 65536: checksum mismatch"
    );
    workshop.pool(2, "raid1");
    for action in [&["add", "1.img"][..], &["replace", "1.img", "2"]] {
        let arguments = [&["device"][..], action, &["short.img"], &TWO].concat();
        let refused = workshop.complaint(&arguments);
        assert!(refused.contains(": short.img, a device "), "{refused}");
    }
}

#[test]
fn images_that_are_given_twice_are_named() {
    let workshop = Workshop::new();
    workshop.pool(2, "raid1");
    let make = [
        "mkfs", "btrfs", "new.img", "--size", "300M", "--device", "new.img",
    ];
    assert_eq!(workshop.complaint(&make), "new.img: is given twice");
    assert!(!workshop.path("new.img").exists());
    let twice = "2.img: is given twice";
    for command in [
        &["device", "add", "1.img", "2.img"][..],
        &["device", "replace", "1.img", "1", "2.img"],
        &["scrub", "1.img", "--device", "2.img"],
    ] {
        assert_eq!(workshop.complaint(&[command, &TWO].concat()), twice);
    }
    let itself = ["device", "add", "1.img", "1.img", "--device", "2.img"];
    assert_eq!(workshop.complaint(&itself), "1.img: is given twice");
}

/// What a command does that gets an interrupt as soon as it catches it. It is run again where it was faster.
fn interrupted(workshop: &Workshop, arguments: &[&str]) -> Ran {
    for _ in 0..50 {
        let mut command = workshop.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let status = format!("/proc/{}/status", child.id());
        let catches = || {
            let status = fs::read_to_string(&status).unwrap_or_default();
            let mut lines = status.lines();
            let mask = lines.find_map(|line| line.strip_prefix("SigCgt:"));
            let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            mask.is_none_or(|mask| mask & (1 << (Signal::INT.as_raw() - 1)) != 0)
        };
        while !catches() {
            std::thread::yield_now();
        }
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let ran = Ran::of(&child.wait_with_output().unwrap());
        if ran.status == 1 {
            return ran;
        }
    }
    panic!("{arguments:?} is faster than its interrupt");
}

#[test]
fn interrupted_commands_say_so() {
    let workshop = Workshop::new();
    fs::write(workshop.path("source/large"), vec![7; 32 << 20]).unwrap();
    workshop.pool(1, "single");
    for (command, meaning) in [
        (&["balance", "1.img"][..], "what was moved stays so"),
        (&["scrub", "1.img"], "not everything was read"),
    ] {
        let ran = interrupted(&workshop, command);
        let expected = format!("platter: 1.img: interrupted; {meaning}\n");
        assert_eq!(ran.err, expected, "{}", ran.out);
        if command[0] == "balance" {
            let (_, all) = ran.out.split_once(" out of ").unwrap();
            let (all, _) = all.split_once(' ').unwrap();
            // Chunks of data, of metadata, and of the chunk tree.
            assert!(all.parse::<u32>().unwrap() >= 3, "{}", ran.out);
        }
        let ran = interrupted(&workshop, &[command, &["--json"]].concat());
        assert_eq!(ran.err, "");
        let document: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(document["cancelled"], true);
    }
}

#[test]
fn replaced_devices_have_counts_and_no_errors() {
    let workshop = Workshop::new();
    workshop.pool(2, "raid1");
    workshop.sparse("new.img", 256);
    fs::rename(workshop.path("2.img"), workshop.path("lost.img")).unwrap();
    let replace = [
        "device", "replace", "1.img", "2", "new.img", "--option", "degraded",
    ];
    let counts = workshop.document("scrub", &[&replace[..], &["--json"]].concat());
    assert!(counts["tree_extents_scrubbed"].as_u64().unwrap() > 0);
    for (name, count) in counts.as_object().unwrap() {
        assert!(!name.ends_with("_errors") || count == 0, "{counts}");
    }
    fs::create_dir(workshop.path("mnt")).unwrap();
    workshop.read(&["mount", "1.img", "mnt", "--device", "new.img"]);
    let mounted = Mounted(&workshop);
    workshop.sparse("other.img", 256);
    let replace = ["device", "replace", "mnt", "1", "other.img"];
    let again = workshop.document("scrub", &[&replace[..], &["--json"]].concat());
    for (name, count) in again.as_object().unwrap() {
        let is_error = name.ends_with("_errors");
        assert!(!is_error || count == 0, "{again}");
        if name.starts_with("tree_") {
            assert!(count.as_u64().unwrap() > 0, "{again}");
        }
    }
    assert_eq!(
        again.as_object().unwrap().len(),
        counts.as_object().unwrap().len()
    );
    workshop.sparse("third.img", 256);
    let printed = workshop.read(&["device", "replace", "mnt", "2", "third.img"]);
    assert_eq!(printed.lines().count(), 12, "{printed}");
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
    let clean = workshop.run(&["scrub", "other.img", "--device", "third.img"]);
    assert_eq!(clean.status, 0, "{}", clean.out);
}

#[test]
fn bad_ranges_are_one_line_each() {
    let workshop = Workshop::new();
    fs::write(workshop.path("source/large"), vec![7; 8 << 20]).unwrap();
    workshop.pool(2, "raid1");
    let image = fs::read(workshop.path("2.img")).unwrap();
    let mut sectors = image.windows(4096).step_by(4096);
    let at = sectors.position(|it| it == [7; 4096]).unwrap() as u64 * 4096;
    corrupt(&workshop.path("2.img"), at, &vec![0; 1 << 20]);
    corrupt(&workshop.path("2.img"), at + (2 << 20), &[0; 8192]);
    let scrub = ["scrub", "-r", "1.img", "--device", "2.img"];
    let ran = workshop.run(&scrub);
    assert_eq!(ran.status, 3, "{}", ran.err);
    assert!(ran.out.contains("csum_errors: 258\n"), "{}", ran.out);
    let lines: Vec<_> = ran.err.lines().collect();
    assert_eq!(lines.len(), 2, "{}", ran.err);
    assert!(lines[0].ends_with(": checksum verify failed (256 times in 1048576 bytes)"));
    assert!(lines[1].ends_with(": checksum verify failed (2 times in 8192 bytes)"));
    fs::create_dir(workshop.path("mnt")).unwrap();
    workshop.read(&["mount", "-o", "ro", "1.img", "mnt", "--device", "2.img"]);
    let mounted = Mounted(&workshop);
    let ran = workshop.run(&["scrub", "-r", "mnt"]);
    assert_eq!(ran.err.lines().count(), 2, "{}", ran.err);
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
}

#[test]
fn bad_sector_is_counted_once() {
    let workshop = Workshop::new();
    fs::write(workshop.path("source/large"), vec![7; 1 << 20]).unwrap();
    workshop.pool(1, "single");
    let image = fs::read(workshop.path("1.img")).unwrap();
    let at = image
        .windows(4096)
        .step_by(4096)
        .position(|it| it == [7; 4096]);
    let at = at.unwrap() as u64 * 4096;
    corrupt(&workshop.path("1.img"), at + 8192, b"bad");
    fs::create_dir(workshop.path("mnt")).unwrap();
    workshop.read(&["mount", "-o", "ro", "1.img", "mnt"]);
    let mounted = Mounted(&workshop);
    for _ in 0..3 {
        fs::read(workshop.path("mnt/large")).unwrap_err();
    }
    let info = workshop.document("info", &["--json", "info", "mnt"]);
    assert_eq!(info[0]["filesystem"]["details"]["bad_sectors"], 1, "{info}");
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
}
