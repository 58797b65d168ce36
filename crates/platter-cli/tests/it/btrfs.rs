//! Subvolumes, space and data of a btrfs.

use serde_json::Value;

use super::schema::assert_valid;
use super::*;

/// A subvolume with a snapshot, of which the subvolume is the default.
const SUBVOLUMES: &str = "
btrfs subvolume create sub
head -c 100000 /dev/urandom > sub/random
mkdir dir
btrfs subvolume snapshot -r sub dir/snap
echo later > sub/later
btrfs subvolume set-default sub
";

#[test]
fn subvolumes_are_listed_and_shown() {
    let workshop = Workshop::new();
    workshop.btrfs(SUBVOLUMES);
    let text = workshop.read(&["subvolume", "list", "pool.img"]);
    let paths: Vec<_> = text
        .lines()
        .map(|line| line.split_once(" path ").unwrap().1)
        .collect();
    assert_eq!(paths, ["/", "sub (default)", "dir/snap"], "{text}");
    assert!(text.starts_with("ID 5 gen "), "{text}");
    let all = workshop.document(
        "subvolume_list",
        &["subvolume", "list", "--json", "pool.img"],
    );
    assert_eq!(
        (&all[1]["id"], &all[1]["default"]),
        (&256.into(), &true.into())
    );
    assert_eq!(all[2]["parent_uuid"], all[1]["uuid"]);
    assert_eq!(
        (&all[2]["read_only"], &all[2]["parent"]),
        (&true.into(), &5.into())
    );

    let shown = workshop.read(&["subvolume", "show", "pool.img", "/sub/"]);
    assert!(shown.contains("\tName:                   sub\n"), "{shown}");
    assert!(shown.contains("\tFlags:                  -\n"), "{shown}");
    assert!(shown.ends_with("\n\t\t\t\tdir/snap\n"), "{shown}");
    let by_id = ["subvolume", "show", "--json", "--id", "257", "pool.img"];
    let snap = workshop.document("subvolume_show", &by_id);
    assert_eq!(
        (&snap["path"], &snap["snapshots"]),
        (&"dir/snap".into(), &Value::Array(vec![]))
    );

    let ran = workshop.run(&["subvolume", "show", "pool.img", "none"]);
    assert_eq!(ran.status, 1);
    assert!(ran.err.contains("no such file or directory"), "{}", ran.err);
    let ran = workshop.run(&["subvolume", "list", "disk.img"]);
    assert_eq!(ran.status, 2);
    assert!(ran.err.contains("ext4 has no subvolumes"), "{}", ran.err);
}

#[test]
fn another_subvolume_becomes_the_root() {
    let workshop = Workshop::new();
    workshop.btrfs(SUBVOLUMES);
    for (option, names) in [
        (None, "later\nrandom\n"),
        (Some("subvol=/"), "dir\nsub\n"),
        (Some("subvolid=257"), "random\n"),
    ] {
        let mut arguments = vec!["ls", "pool.img:/"];
        arguments.extend(option.iter().flat_map(|option| ["--option", *option]));
        assert_eq!(workshop.read(&arguments), names, "{option:?}");
    }
    let by_path = workshop.read(&["cat", "pool.img:/sub/later", "--option", "subvolid=5"]);
    assert_eq!(by_path, "later\n");
    for refused in ["subvolid=x", "subvol="] {
        let ran = workshop.run(&["ls", "pool.img", "--option", refused]);
        assert_eq!(ran.status, 2, "{refused}");
    }
    let both = |first, second| {
        let options = ["--option", first, "--option", second];
        workshop.run(&[&["ls", "pool.img:/"][..], &options].concat())
    };
    assert_eq!(both("subvol=dir/snap", "subvolid=257").out, "random\n");
    assert_eq!(both("subvolid=0", "subvol=/").out, "dir\nsub\n");
    for (first, second) in [("subvol=sub", "subvolid=5"), ("subvolid=257", "subvol=/")] {
        let ran = both(first, second);
        assert_ne!(ran.status, 0, "{first}");
        assert_eq!(ran.out, "");
        let reason = "subvol= and subvolid= name different subvolumes";
        assert!(ran.err.contains(reason), "{}", ran.err);
    }
    let ran = workshop.run(&["ls", "disk.img", "--option", "subvolid=5"]);
    assert_ne!(ran.status, 0);
}

#[test]
fn data_is_verified_when_asked_for() {
    let workshop = Workshop::new();
    workshop.btrfs(SUBVOLUMES);
    let image = workshop.path("pool.img");
    let text = workshop.read(&["check", "--data", "pool.img"]);
    assert!(text.contains("\npool.img: clean"), "{text}");
    assert!(text.contains(" sectors"), "{text}");
    workshop.document("check", &["check", "--data", "--json", "pool.img"]);

    let random = workshop
        .command(&["cat", "pool.img:/random"])
        .output()
        .unwrap()
        .stdout;
    let bytes = fs::read(&image).unwrap();
    let at = bytes
        .chunks(4096)
        .position(|sector| sector == &random[8192..12288])
        .unwrap() as u64
        * 4096;
    corrupt(&image, at + 9, &[!random[8192 + 9]]);
    assert_eq!(workshop.run(&["check", "pool.img"]).status, 0);
    let ran = workshop.run(&["check", "--data", "pool.img"]);
    assert_eq!(ran.status, 4, "{}", ran.out);
    // mkfs.btrfs leaves items that are reported as notices.
    let mut lines = ran.out.lines().filter(|line| !line.contains(": notice: "));
    let line = lines.next().unwrap();
    // The snapshot has the sector, too.
    let named = ["pool.img:/sub/random", "pool.img:/dir/snap/random"];
    let path = named.iter().find(|path| line.starts_with(*path));
    let rest = &line[path.unwrap().len()..];
    assert!(
        rest.starts_with(": error: data at device 1, copy 0, tree 25"),
        "{line}"
    );
    assert!(
        rest.contains(", key (257 108 0), inode 257, block "),
        "{line}"
    );
    assert!(line.ends_with(&format!("byte {at}: csum failed")), "{line}");
    assert!(
        lines
            .next()
            .unwrap()
            .starts_with("pool.img: not clean, 1 error"),
        "{}",
        ran.out
    );

    let ran = workshop.run(&["check", "--data", "--json", "pool.img"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_valid("check", &report);
    let findings = report["findings"].as_array().unwrap();
    let finding = findings
        .iter()
        .find(|it| it["severity"] == "error")
        .unwrap();
    let place = &finding["place"];
    assert_eq!(
        (&place["device"], &place["copy"], &place["inode"]),
        (&1.into(), &0.into(), &257.into())
    );
    assert!(place["tree"].is_u64() && place["key"].is_array(), "{place}");
    assert!(finding["path"].as_str().unwrap().ends_with("/random"));
    assert_eq!(report["summary"]["exit_status"], 4);
}

#[test]
fn data_without_checksums_is_not_verified() {
    let workshop = Workshop::new();
    let ran = workshop.run(&["check", "--data", "disk.img"]);
    assert_eq!(ran.status, 8, "{}", ran.out);
    assert!(ran.err.contains("not supported"), "{}", ran.err);
    let ran = workshop.run(&["check", "--data", "--json", "disk.img"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_valid("check", &report);
    assert_eq!(report["summary"]["state"], "not_checked");
    assert_eq!(report["summary"]["exit_status"], 8);
}

#[test]
fn space_is_reported_by_profile_and_device() {
    let workshop = Workshop::new();
    workshop.btrfs("head -c 100000 /dev/urandom > file");
    let text = workshop.read(&["info", "pool.img"]);
    assert!(text.contains("data, single: "), "{text}");
    assert!(text.contains("metadata, DUP: "), "{text}");
    let info = workshop.document("info", &["info", "--json", "pool.img"]);
    let details = &info[0]["filesystem"]["details"];
    assert_eq!(details["device"][0]["total_bytes"], 160 << 20);
    let space = details["space"].as_array().unwrap();
    let metadata = space.iter().find(|it| it["kind"] == "metadata").unwrap();
    let total = metadata["total_bytes"].as_u64().unwrap();
    assert_eq!(metadata["profile"], "dup");
    assert_eq!(metadata["device_bytes"], 2 * total);
    assert_eq!(metadata["devices"][0]["bytes"], 2 * total);
}

#[test]
fn partitions_are_members_and_one_may_be_missing() {
    let workshop = Workshop::new();
    let part_bytes = 128 << 20;
    let members = ["first.img", "second.img"].map(|name| workshop.path(name));
    for member in &members {
        fs::File::create(member)
            .unwrap()
            .set_len(part_bytes)
            .unwrap();
    }
    let mut mkfs = Command::new("mkfs.btrfs");
    mkfs.args(["-q", "-L", "pool", "-d", "raid1", "-m", "raid1"]);
    run_tool(mkfs.args(&members), "");
    let disk = workshop.path("two.img");
    fs::File::create(&disk).unwrap().set_len(280 << 20).unwrap();
    let mut sgdisk = Command::new("sgdisk");
    sgdisk.args(["-n", "1:2048:+128M", "-n", "2:0:+128M"]);
    run_tool(sgdisk.arg(&disk), "");
    let file = fs::File::options().write(true).open(&disk).unwrap();
    for (index, member) in (0..).zip(&members) {
        let at = (1 << 20) + index * part_bytes;
        file.write_all_at(&fs::read(member).unwrap(), at).unwrap();
    }
    let whole = ["info", "two.img@1", "--device", "two.img@2"];
    let text = workshop.read(&whole);
    assert!(text.contains("Devices:               2\n"), "{text}");
    assert!(text.contains("data, RAID1: "), "{text}");
    // Of one alone, what is missing is printed.
    let text = workshop.read(&["info", "two.img@2"]);
    assert!(
        text.contains("1 of 2") && text.contains("missing"),
        "{text}"
    );
    assert!(!text.contains("RAID1"), "{text}");
    let ran = workshop.run(&["ls", "two.img@2"]);
    assert_eq!(ran.status, 2);
    assert!(ran.err.contains("the option degraded"), "{}", ran.err);
    let degraded = ["info", "two.img@2", "--option", "degraded"];
    let text = workshop.read(&degraded);
    assert!(text.contains("data, RAID1: "), "{text}");
    assert!(
        text.contains(&format!("Device missing:        {part_bytes}\n")),
        "{text}"
    );
    assert_eq!(
        workshop.read(&["ls", "two.img@1", "--option", "degraded"]),
        ""
    );
}

/// A subvolume that is changed between two snapshots.
const CHANGED: &str = "
btrfs subvolume create sub
head -c 100000 /dev/urandom > sub/random
mkdir sub/dir
echo one > sub/dir/one
btrfs subvolume snapshot -r sub first
mv sub/dir sub/moved
echo two > sub/two
cp --reflink=always sub/random sub/clone
btrfs subvolume snapshot -r sub second
";

#[test]
fn subvolumes_are_sent_and_received() {
    let workshop = Workshop::new();
    workshop.btrfs(CHANGED);
    let image = workshop.path("pool.img");
    fs::copy(&image, workshop.path("source.img")).unwrap();
    fs::remove_file(&image).unwrap();
    workshop.btrfs("mkdir backup");
    workshop.read(&["send", "source.img:/first", "-f", "full"]);
    let changed = ["send", "source.img:/second", "-p", "source.img:/first"];
    workshop.read(&[&changed[..], &["--proto", "2", "-f", "changed"]].concat());
    let text = workshop.read(&["receive", "pool.img:/backup", "-f", "full"]);
    assert_eq!(text, "received first as subvolume 256\n");
    let document = workshop.document(
        "receive",
        &["receive", "--json", "pool.img:/backup", "-f", "changed"],
    );
    assert_eq!(document["received"][0]["name"], "second");
    for file in ["moved/one", "two", "random", "clone"] {
        let read = |image: &str, dir: &str| {
            let path = format!("{image}:/{dir}/{file}");
            let ran = workshop.command(&["cat", &path]).output().unwrap();
            assert!(ran.status.success(), "{path}");
            ran.stdout
        };
        let received = read("pool.img", "backup/second");
        assert_eq!(received, read("source.img", "second"), "{file}");
    }
    let text = workshop.read(&["check", "pool.img"]);
    assert!(text.contains("clean"), "{text}");

    // What cannot be sent or received leaves nothing.
    let ran = workshop.run(&["send", "source.img:/sub", "-f", "none"]);
    assert!(ran.err.contains("/sub: is not read-only; "), "{}", ran.err);
    let ran = workshop.run(&["send", "source.img:/first/dir", "-f", "none"]);
    assert!(ran.err.contains("is not a subvolume"), "{}", ran.err);
    let ran = workshop.run(&["send", "source.img:/second", "-p", "pool.img:/backup/first"]);
    assert_eq!(ran.status, 2);
    let whole = fs::read(workshop.path("full")).unwrap();
    fs::write(workshop.path("cut"), &whole[..whole.len() / 2]).unwrap();
    workshop.btrfs("mkdir backup");
    for stream in ["cut", "changed"] {
        let ran = workshop.run(&["receive", "pool.img:/backup", "-f", stream]);
        assert_eq!(ran.status, 1, "{stream}: {}", ran.err);
        assert_eq!(workshop.read(&["ls", "pool.img:/backup"]), "", "{stream}");
    }
    let text = workshop.read(&["check", "pool.img"]);
    assert!(text.contains("clean"), "{text}");
}

/// Where the superblock lies, and in it the incompatible features.
const SUPERBLOCK: std::ops::Range<usize> = 65536..69632;
const INCOMPAT: usize = 188;

/// The checksum of a superblock.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

#[test]
fn features_that_are_not_read_are_refused_by_name() {
    let workshop = Workshop::new();
    workshop.btrfs("echo text > file");
    let image = workshop.path("pool.img");
    assert_eq!(workshop.read(&["cat", "pool.img:/file"]), "text\n");
    let superblock = fs::read(&image).unwrap()[SUPERBLOCK].to_vec();
    assert_eq!(superblock[..4], crc32c(&superblock[32..]).to_le_bytes());
    for (bit, name) in [
        (12, "zoned"),
        (13, "extent-tree-v2"),
        (14, "raid-stripe-tree"),
        (17, "remap-tree"),
        (18, "incompat feature 0x40000"),
        (63, "incompat feature 0x8000000000000000"),
    ] {
        let mut changed = superblock.clone();
        changed[INCOMPAT + bit / 8] |= 1 << (bit % 8);
        let sum = crc32c(&changed[32..]);
        changed[..4].copy_from_slice(&sum.to_le_bytes());
        corrupt(&image, SUPERBLOCK.start as u64, &changed);
        let expected = format!("btrfs: {name} is not supported");

        let opened = platter::Image::open(&image, platter::block::Access::Read).unwrap();
        let error = platter::MountOptions::new().mount(&opened).unwrap_err();
        assert!(error.to_string().contains(&expected), "{error}");
        drop(opened);
        assert_eq!(workshop.run(&["check", "pool.img"]).status, 8, "{name}");
        for command in [
            &["ls", "pool.img"][..],
            &["cat", "pool.img:/file"],
            &["tar", "pool.img", "-o", "out.tar"],
            &["cp", "pool.img:/file", "out"],
            &["check", "pool.img"],
            &["rm", "pool.img:/file"],
        ] {
            let ran = workshop.run(command);
            assert_ne!(ran.status, 0, "{command:?}");
            assert!(ran.err.contains(&expected), "{command:?}: {}", ran.err);
        }
    }
}

#[test]
fn files_move_to_other_subvolumes() {
    let workshop = Workshop::new();
    workshop.btrfs(
        "btrfs subvolume create sub\nmkdir -p dir/inner sub/full/x sub/empty\n\
         head -c 300000 /dev/urandom > dir/file\nln dir/file dir/inner/link\n\
         setfattr -n user.note -v text dir/inner\nchmod 2750 dir\nchown 7:9 dir/file\n\
         touch -d 2001-02-03T04:05:06Z dir/file dir\nln -s file dir/symlink\n\
         echo old > sub/old\necho new > new",
    );
    workshop.read(&["tar", "-o", "before.tar", "pool.img:/dir"]);
    workshop.read(&["mv", "pool.img:/new", "pool.img:/sub/old"]);
    assert_eq!(workshop.read(&["cat", "pool.img:/sub/old"]), "new\n");
    for (target, message) in [
        ("sub/full", "pool.img:/sub/full: directory not empty"),
        ("sub/old", "pool.img:/sub/old: not a directory"),
        (
            "sub/none/x",
            "pool.img:/sub/none/x: no such file or directory",
        ),
    ] {
        let target = format!("pool.img:/{target}");
        let before = fs::read(workshop.path("pool.img")).unwrap();
        let refused = workshop.refused(&["mv", "-T", "pool.img:/dir", &target]);
        assert_eq!(refused, format!("platter: {message}\n"));
        assert!(fs::read(workshop.path("pool.img")).unwrap() == before);
    }
    workshop.read(&["mv", "-n", "pool.img:/dir/file", "pool.img:/sub/old"]);
    workshop.read(&["mv", "-T", "pool.img:/dir", "pool.img:/sub/empty"]);
    assert_eq!(workshop.read(&["ls", "pool.img:/"]), "sub\n");
    workshop.read(&["tar", "-o", "after.tar", "pool.img:/sub/empty"]);
    let read = |name| fs::read(workshop.path(name)).unwrap();
    assert!(read("before.tar") == read("after.tar"));
    // Into a directory, and several at once.
    workshop.read(&["mkdir", "pool.img:/back"]);
    let sources = [
        "pool.img:/sub/empty/",
        "pool.img:/sub/old",
        "pool.img:/back",
    ];
    workshop.read(&[&["mv"][..], &sources].concat());
    assert_eq!(workshop.read(&["ls", "pool.img:/back"]), "empty\nold\n");
    assert_eq!(workshop.read(&["ls", "pool.img:/sub"]), "full\n");
    workshop.assert_checked();
}

#[test]
fn what_is_not_a_subvolume_is_named() {
    let workshop = Workshop::new();
    workshop.btrfs(
        "btrfs subvolume create sub\nbtrfs subvolume create sub/inner\nmkdir dir\n\
         touch file\nbtrfs subvolume snapshot sub snap",
    );
    let before = fs::read(workshop.path("pool.img")).unwrap();
    for path in ["dir", "file", "snap/inner"] {
        let operand = format!("pool.img:/{path}");
        for command in [
            &["subvolume", "delete", &operand][..],
            &["subvolume", "set-read-only", &operand],
            &["subvolume", "set-default", &operand],
            &["subvolume", "snapshot", &operand, "pool.img:/new"],
        ] {
            let expected = format!("platter: {operand}: is not a subvolume\n");
            assert_eq!(workshop.refused(command), expected, "{command:?}");
        }
    }
    for (choice, message) in [
        ("subvol=nosuch", "has no subvolume 'nosuch'"),
        ("subvol=/sub/none", "has no subvolume '/sub/none'"),
        ("subvol=file/x", "has no subvolume 'file/x'"),
        ("subvol=dir", "'dir' is not a subvolume"),
        ("subvolid=999", "has no subvolume with the number 999"),
    ] {
        let ran = workshop.run(&["ls", "pool.img:/", "--option", choice]);
        let expected = format!("platter: pool.img: {message}\n");
        assert_eq!((ran.status, ran.err), (2, expected));
    }
    assert!(fs::read(workshop.path("pool.img")).unwrap() == before);
}

#[test]
fn subvolumes_that_are_not_received_are_named() {
    let workshop = Workshop::new();
    workshop.btrfs(CHANGED);
    fs::rename(workshop.path("pool.img"), workshop.path("source.img")).unwrap();
    workshop.read(&["send", "source.img:/first", "-f", "full"]);
    let changed = ["send", "source.img:/second", "-p", "source.img:/first"];
    workshop.read(&[&changed[..], &["-f", "changed"]].concat());
    fs::write(workshop.path("none"), "no").unwrap();
    fs::write(workshop.path("begun"), "btrfs-str").unwrap();
    workshop.btrfs("mkdir backup");
    let receive = |stream| workshop.refused(&["receive", "pool.img:/backup", "-f", stream]);
    let orphan = receive("changed");
    assert!(
        orphan.starts_with("platter: pool.img:/backup: second: the subvolume ")
            && orphan.ends_with(" that it refers to is not here; receive that first\n"),
        "{orphan}"
    );
    workshop.read(&["receive", "pool.img:/backup", "-f", "full"]);
    let again = receive("full");
    assert_eq!(again, "platter: pool.img:/backup: first: file exists\n");
    assert!(receive("none").contains("not a btrfs send stream"));
    assert!(receive("begun").contains("stream ends before its end command"));
    let send = [
        "send",
        "source.img:/second",
        "-f",
        "none",
        "-p",
        "source.img:/sub",
    ];
    let refused = workshop.refused(&send);
    let expected = "platter: source.img:/sub: is not read-only; send a read-only snapshot of it, \
                    or make it so by `subvolume set-read-only`\n";
    assert_eq!(refused, expected);
}

#[test]
fn options_that_do_not_go_together_are_explained() {
    let workshop = Workshop::new();
    let make = ["mkfs", "btrfs", "new.img", "--from", "source"];
    let refused = workshop.refused(&[&make[..], &["-O", "^extref"]].concat());
    let expected = "platter: new.img: btrfs: writing without the feature extref is not supported \
                    (it is made without content only)\n";
    assert_eq!(refused, expected);
    let several = workshop.run(&[&make[..], &["--minimize", "--device", "two.img"]].concat());
    let expected = "platter: --minimize is for one file; give --size for several devices\n";
    assert_eq!((several.status, &*several.err), (2, expected));
    for (kind, most) in [("btrfs", 255), ("ext4", 16), ("xfs", 12)] {
        workshop.read(&["mkfs", kind, "label.img", "--size", "300M", "--force"]);
        let label = "x".repeat(256);
        let refused = workshop.refused(&["tune", "-L", &label, "label.img"]);
        let expected = format!("platter: label.img: a label has at most {most} bytes");
        assert!(refused.starts_with(&expected), "{refused}");
    }
}
