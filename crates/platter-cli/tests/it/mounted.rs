//! Commands on filesystems that platter has mounted.
//!
//! They need the FUSE device and the superuser.

use std::os::unix::fs::MetadataExt;

use rustix::fs::Advice;

use super::mount::Mounted;
use super::*;

/// The overflow uid, which is an unprivileged user on every distribution.
const USER: &str = "65534";

#[test]
fn subvolumes_of_a_mount_are_made_and_seen_at_once() {
    let workshop = Workshop::new();
    let mounted = workshop.mount_btrfs("mkdir dir", "rw");
    let path = |path: &str| workshop.path("mnt").join(path);
    for name in ["sub", "dir/snap", "dir/frozen"] {
        assert!(!path(name).exists());
    }
    assert_eq!(fs::read_dir(path("dir")).unwrap().count(), 0);
    workshop.read(&["subvolume", "create", "mnt/sub"]);
    fs::write(path("sub/file"), "first\n").unwrap();
    workshop.read(&["subvolume", "snapshot", "mnt/sub", "mnt/dir/snap"]);
    workshop.read(&["subvolume", "snapshot", "-r", "mnt/sub/", "mnt/dir/frozen"]);
    // Into a directory, with the name of the source.
    workshop.read(&["subvolume", "snapshot", "mnt/dir/snap", "mnt/sub"]);
    assert_eq!(fs::read_dir(path("dir")).unwrap().count(), 2);
    fs::write(path("sub/file"), "second\n").unwrap();
    for (name, contents) in [
        ("sub/file", "second\n"),
        ("dir/snap/file", "first\n"),
        ("dir/frozen/file", "first\n"),
        ("sub/snap/file", "first\n"),
    ] {
        assert_eq!(fs::read_to_string(path(name)).unwrap(), contents, "{name}");
    }
    fs::write(path("dir/snap/own"), "own\n").unwrap();
    let refused = fs::write(path("dir/frozen/own"), "no").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let numbers = ["sub/file", "dir/snap/file", "dir/frozen/file"]
        .map(|name| fs::metadata(path(name)).unwrap().ino());
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2]);
    let all = ["/ (default)", "sub", "dir/snap", "dir/frozen", "sub/snap"];
    assert_eq!(workshop.subvolumes_of("mnt/dir"), all);
    let shown = workshop.read(&["subvolume", "show", "mnt/dir/frozen"]);
    assert!(
        shown.contains("Flags:                  readonly\n"),
        "{shown}"
    );
    let document = workshop.document("subvolume_list", &["--json", "subvolume", "list", "mnt"]);
    assert_eq!(document[3]["read_only"], true);
    // One in the other, none of which is there yet.
    let each = ["mnt/new", "mnt/new/below", "mnt/new/below/it"];
    workshop.read(&[&["subvolume", "create"][..], &each].concat());
    let again = ["mnt/new/below/it", "mnt/new/below", "mnt/new"];
    workshop.read(&[&["subvolume", "delete"][..], &again].concat());
    workshop.unmount_and_check(mounted);
    assert_eq!(workshop.subvolumes_of("pool.img"), all);
    assert_eq!(workshop.read(&["cat", "pool.img:/dir/snap/own"]), "own\n");
}

#[test]
fn subvolumes_of_a_mount_are_deleted_and_changed() {
    let workshop = Workshop::new();
    let script = "btrfs subvolume create a\necho x > a/file\nbtrfs subvolume create a/inner\n\
                  btrfs subvolume create b\ntouch b/file\nmkdir b/dir";
    let mounted = workshop.mount_btrfs(script, "rw");
    let path = |path: &str| workshop.path("mnt").join(path);
    fs::write(path("a/new"), vec![7; 300_000]).unwrap();
    let open = ["a/file", "a/new"].map(|name| fs::File::open(path(name)).unwrap());
    let refused = workshop.refused(&["subvolume", "delete", "mnt/a"]);
    assert_eq!(refused, "platter: mnt/a: directory not empty\n");
    workshop.read(&["subvolume", "delete", "mnt/a/inner", "mnt/a"]);
    assert!(!path("a").exists());
    // Past what the kernel has cached.
    let [old, new] = open;
    rustix::fs::fadvise(&new, 0, None, Advice::DontNeed).unwrap();
    assert_eq!(std::io::read_to_string(old).unwrap(), "x\n");
    let mut contents = Vec::new();
    std::io::Read::read_to_end(&mut &new, &mut contents).unwrap();
    assert!(contents == vec![7; 300_000]);
    drop(new);
    for (arguments, message) in [
        (
            &["subvolume", "delete", "mnt/a"][..],
            "mnt/a: no such file or directory",
        ),
        (
            &["subvolume", "delete", "mnt"],
            "mnt: device or resource busy",
        ),
        (&["subvolume", "create", "mnt/b"], "mnt/b: file exists"),
        (
            &["subvolume", "create", "mnt/none/c"],
            "mnt/none/c: no such file or directory",
        ),
        (
            &["subvolume", "delete", "mnt/b/file"],
            "mnt/b/file: is not a subvolume",
        ),
        (
            &["subvolume", "set-read-only", "mnt/b/file"],
            "mnt/b/file: is not a subvolume",
        ),
        (
            &["subvolume", "snapshot", "mnt/b/dir", "mnt/new"],
            "mnt/b/dir: is not a subvolume",
        ),
        (&["send", "mnt/b/dir"], "mnt/b/dir: is not a subvolume"),
        (&["tune", "-O", "free-space-tree", "mnt"], "mnt: is mounted"),
    ] {
        let refused = workshop.run(arguments);
        assert_ne!(refused.status, 0, "{arguments:?}");
        assert!(refused.err.contains(message), "{}", refused.err);
    }
    fs::create_dir(path("plain")).unwrap();
    for action in ["delete", "set-read-only", "set-default"] {
        let refused = workshop.refused(&["subvolume", action, "mnt/plain"]);
        assert_eq!(
            refused, "platter: mnt/plain: is not a subvolume\n",
            "{action}"
        );
    }
    workshop.read(&["subvolume", "set-read-only", "mnt/b"]);
    assert!(fs::create_dir(path("b/x")).is_err());
    workshop.read(&["subvolume", "set-read-only", "--off", "mnt/b"]);
    fs::create_dir(path("b/x")).unwrap();
    workshop.read(&["subvolume", "set-default", "mnt/b"]);
    let refused = workshop.refused(&["subvolume", "delete", "mnt/b"]);
    assert_eq!(refused, "platter: mnt/b: operation not permitted\n");
    assert_eq!(workshop.subvolumes_of("mnt"), ["/", "b (default)"]);
    workshop.read(&["umount", "mnt"]);
    workshop.read(&["mount", "pool.img", "mnt"]);
    assert!(path("x").is_dir());
    workshop.read(&["subvolume", "set-default", "--id", "5", "mnt"]);
    workshop.unmount_and_check(mounted);
    assert_eq!(workshop.subvolumes_of("pool.img"), ["/ (default)", "b"]);
}

/// Two snapshots with files of all kinds.
pub(super) const SENT: &str = "
btrfs subvolume create sub
head -c 100000 /dev/urandom > sub/random
mkdir -p sub/dir/inner
echo one > sub/dir/one
ln sub/dir/one sub/dir/other
ln -s one sub/dir/link
mkfifo sub/queue
mknod sub/null c 1 3
setfattr -n user.note -v text sub/dir/one
chown 12:34 sub/dir sub/dir/one
chmod 4755 sub/random
truncate -s 1M sub/sparse
touch sub/text
btrfs property set sub/text compression zstd
seq 50000 > sub/text
sync -f .
btrfs subvolume snapshot -r sub first
mv sub/dir sub/moved
rm sub/moved/other sub/queue
echo two > sub/two
cp --reflink=always sub/random sub/clone
chattr +A sub/two
setfattr -x user.note sub/moved/one
truncate -s 50000 sub/random
touch -d 2001-02-03T04:05:06Z sub/moved sub/two
btrfs subvolume snapshot -r sub second
";

#[test]
fn streams_are_received_into_a_mount() {
    let workshop = Workshop::new();
    workshop.btrfs(SENT);
    fs::rename(workshop.path("pool.img"), workshop.path("source.img")).unwrap();
    let full = ["send", "source.img:/first", "--compressed-data"];
    workshop.read(&[&full[..], &["-f", "full"]].concat());
    let changed = ["send", "source.img:/second", "-p", "source.img:/first"];
    workshop.read(&[&changed[..], &["--proto", "2", "-f", "changed"]].concat());
    let mounted = workshop.mount_btrfs("mkdir backup other", "rw,allow_other");
    let path = |path: &str| workshop.path("mnt").join(path);
    let text = workshop.read(&["receive", "mnt/backup", "-f", "full"]);
    assert_eq!(text, "received first as subvolume 256\n");
    let listed = workshop.document("subvolume_list", &["--json", "subvolume", "list", "mnt"]);
    // It was marked in a transaction after those of its data.
    let made = listed[1]["created_generation"].as_u64().unwrap();
    let marked = listed[1]["received"]["generation"].as_u64().unwrap();
    assert!(marked > made, "{listed}");
    assert_eq!(fs::read(path("backup/first/dir/other")).unwrap(), b"one\n");
    let refused = fs::write(path("backup/first/new"), "no").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let arguments = ["receive", "--json", "mnt/backup", "-f", "changed"];
    let document = workshop.document("receive", &arguments);
    assert_eq!(document["image"], "mnt/backup");
    assert_eq!(document["received"][0]["name"], "second");
    let used = workshop.document("du", &["du", "--json", "-s", "mnt/backup/second/clone"]);
    assert!(
        used[0]["total_bytes"].as_u64().unwrap() >= 100_000,
        "{used}"
    );
    assert_eq!(used[0]["exclusive_bytes"], 0, "{used}");
    let flags = rustix::fs::ioctl_getflags(fs::File::open(path("backup/second/two")).unwrap());
    assert!(flags.unwrap().contains(rustix::fs::IFlags::NOATIME));

    // What is not complete is deleted, and what is refused leaves nothing.
    let whole = fs::read(workshop.path("full")).unwrap();
    fs::write(workshop.path("cut"), &whole[..whole.len() / 2]).unwrap();
    let refused = workshop.refused(&["receive", "mnt/other", "-f", "cut"]);
    assert!(
        refused.starts_with("platter: mnt/other/first: "),
        "{refused}"
    );
    let again = workshop.refused(&["receive", "mnt/backup", "-f", "full"]);
    assert_eq!(again, "platter: mnt/backup/first: file exists\n");
    let printed = as_user(
        &workshop,
        "if platter receive mnt/other -f full 2>message; then exit 9; fi; cat message\n",
    );
    assert_eq!(printed, "platter: mnt/other/first: permission denied\n");
    workshop.read(&["receive", "mnt/other", "-f", "changed"]);
    workshop.read(&[
        "subvolume",
        "delete",
        "mnt/other/second",
        "mnt/backup/first",
    ]);
    let orphan = workshop.refused(&["receive", "mnt/other", "-f", "changed"]);
    let of_parent = orphan.strip_prefix("platter: mnt/other/second: the subvolume ");
    let of_parent = of_parent.unwrap_or_else(|| panic!("{orphan}"));
    assert!(of_parent.ends_with(" that it refers to is not here; receive that first\n"));
    assert_eq!(fs::read_dir(path("other")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(path("backup")).unwrap().count(), 1);
    workshop.unmount_and_check(mounted);
    for (archive, operand) in [
        ("sent.tar", "source.img:/second"),
        ("received.tar", "pool.img:/backup/second"),
    ] {
        workshop.read(&["tar", "-o", archive, operand]);
    }
    let read = |name| fs::read(workshop.path(name)).unwrap();
    assert!(read("sent.tar") == read("received.tar"));
    let shown = workshop.read(&["subvolume", "show", "pool.img", "/backup/second"]);
    assert!(shown.contains("readonly\n"), "{shown}");
}

#[test]
fn incomplete_subvolume_that_cannot_be_deleted_is_named() {
    let workshop = Workshop::new();
    workshop.btrfs(SENT);
    fs::rename(workshop.path("pool.img"), workshop.path("source.img")).unwrap();
    workshop.read(&["send", "source.img:/first", "-f", "full"]);
    let whole = fs::read(workshop.path("full")).unwrap();
    let mounted = workshop.mount_btrfs("mkdir backup", "rw");
    let mut receive = workshop.command(&["receive", "mnt/backup"]);
    receive.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut receive = receive.stderr(Stdio::piped()).spawn().unwrap();
    let mut input = receive.stdin.take().unwrap();
    input.write_all(&whole[..whole.len() / 2]).unwrap();
    let root = workshop.path("mnt/backup/first");
    for _ in 0..6000 {
        if root.is_dir() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(root.is_dir(), "no subvolume was made");
    // It has another one in it, which is not of the stream.
    workshop.read(&["subvolume", "create", "mnt/backup/first/nested"]);
    drop(input);
    let ran = Ran::of(&receive.wait_with_output().unwrap());
    assert_eq!(ran.status, 1, "{}", ran.err);
    let left = "platter: mnt/backup/first: directory not empty; the subvolume is left\n";
    assert!(ran.err.contains(left), "{}", ran.err);
    let listed = workshop.document("subvolume_list", &["--json", "subvolume", "list", "mnt"]);
    assert_eq!(listed[1]["path"], "backup/first");
    assert_eq!(listed[1]["received"], Value::Null);
    for path in ["mnt/backup/first/nested", "mnt/backup/first"] {
        workshop.read(&["subvolume", "delete", path]);
    }
    workshop.unmount_and_check(mounted);
}

#[test]
fn stream_is_not_received_by_another_format() {
    let workshop = Workshop::new();
    workshop.btrfs(SENT);
    workshop.read(&["send", "pool.img:/first", "-f", "full"]);
    let mounted = Mounted::of(&workshop, "disk.img");
    let refused = workshop.refused(&["receive", "mnt", "-f", "full"]);
    assert_eq!(refused, "platter: mnt/first: operation not supported\n");
    drop(mounted);
}

#[test]
fn label_and_free_space_of_a_mount_are_changed() {
    let workshop = Workshop::new();
    let mounted = Mounted::of(&workshop, "disk.img");
    workshop.read(&["tune", "-L", "renamed", "mnt"]);
    let refused = workshop.refused(&["tune", "-L", "longer than sixteen", "mnt"]);
    let expected = "platter: mnt: a label of 19 bytes is too long\n";
    assert_eq!(refused, expected);
    let refused = workshop.refused(&["subvolume", "create", "mnt/sub"]);
    assert_eq!(refused, "platter: mnt/sub: operation not supported\n");
    fs::write(workshop.path("mnt/large"), vec![1; 3 << 20]).unwrap();
    workshop.read(&["sync", "mnt"]);
    let before = fs::metadata(workshop.path("disk.img")).unwrap().blocks();
    fs::remove_file(workshop.path("mnt/large")).unwrap();
    workshop.read(&["sync", "mnt/dir"]);
    let trimmed = workshop.read(&["trim", "mnt"]);
    let bytes = trimmed.strip_prefix("mnt: ").unwrap();
    let bytes: u64 = bytes.split(' ').next().unwrap().parse().unwrap();
    assert!(bytes >= 3 << 20, "{trimmed}");
    let after = fs::metadata(workshop.path("disk.img")).unwrap().blocks();
    assert!(after + (2 << 20 >> 9) < before, "{after} and {before}");
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
    let info = workshop.read(&["info", "disk.img"]);
    assert!(info.contains("renamed"), "{info}");
    let trimmed = workshop.document("trim", &["--json", "trim", "disk.img"]);
    assert!(
        trimmed["trimmed_bytes"].as_u64().unwrap() >= 3 << 20,
        "{trimmed}"
    );
    assert_eq!(workshop.run(&["check", "disk.img"]).status, 0);
    let mut e2fsck = Command::new("e2fsck");
    run_tool(e2fsck.arg("-fn").arg(workshop.path("disk.img")), "");
}

#[test]
fn info_of_a_mount_shows_what_it_counted() {
    let workshop = Workshop::new();
    let mounted = workshop.mount_btrfs("mkdir dir", "rw");
    let info = |path: &str| {
        let document = workshop.document("info", &["--json", "info", path]);
        document[0].clone()
    };
    let before = info("mnt");
    for round in 0..5 {
        fs::write(workshop.path("mnt/file"), vec![round; 300_000]).unwrap();
        workshop.read(&["sync", "mnt"]);
    }
    let after = info("mnt/dir");
    assert_eq!(after["image"], "mnt/dir");
    assert!(after["source"].as_str().unwrap().ends_with("/pool.img"));
    assert_eq!(after["filesystem"]["type"], "btrfs");
    assert_eq!(after["filesystem"]["label"], before["filesystem"]["label"]);
    assert!(after["filesystem"]["space"]["blocks"].as_u64().unwrap() > 1000);
    let count = |of: &serde_json::Value, name: &str| of["counters"][name].as_u64().unwrap();
    let grew = |name: &str| count(&after, name) - count(&before, name);
    assert!(grew("commits") >= 5, "{after}");
    assert!(
        grew("blocks_copied") >= 5 && grew("refs_created") >= 5,
        "{after}"
    );
    let handled = ["groups_skipped", "groups_written", "groups_inserted"].map(grew);
    assert_eq!(grew("groups_dirty"), handled.iter().sum::<u64>(), "{after}");
    assert!(grew("groups_nanoseconds") > 0 && grew("critical_nanoseconds") > 0);
    let text = workshop.read(&["info", "mnt"]);
    assert!(text.starts_with("Mount:                 mnt of "), "{text}");
    for shown in [
        "Filesystem:            btrfs\n",
        "Since it was mounted:\n",
        "\n  refs_cancelled  ",
    ] {
        assert!(text.contains(shown), "{text}");
    }
    // An image in a mount is one.
    fs::copy(workshop.path("disk.img"), workshop.path("mnt/inner.img")).unwrap();
    assert_eq!(info("mnt/inner.img")["filesystem"]["type"], "ext4");
    workshop.unmount_and_check(mounted);
    let offline = info("pool.img");
    assert_eq!(offline.get("counters"), None);
}

#[test]
fn info_of_a_mounted_ext4_has_its_counters() {
    let workshop = Workshop::new();
    let mounted = Mounted::of(&workshop, "disk.img");
    fs::write(workshop.path("mnt/new"), b"contents").unwrap();
    workshop.read(&["sync", "mnt"]);
    let document = workshop.document("info", &["--json", "info", "mnt"]);
    let counters = &document[0]["counters"];
    assert!(counters["commits"].as_u64().unwrap() > 0, "{document}");
    assert!(counters["log_writes"].as_u64().unwrap() > 0, "{document}");
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
}

#[test]
fn image_in_a_mount_is_an_image() {
    let workshop = Workshop::new();
    let mounted = workshop.mount_btrfs("true", "rw");
    fs::copy(workshop.path("disk.img"), workshop.path("mnt/inner.img")).unwrap();
    workshop.read(&["resize", "mnt/inner.img", "12M"]);
    workshop.read(&["tune", "-L", "inner", "mnt/inner.img"]);
    let refused = workshop.refused(&["subvolume", "create", "mnt/inner.img:/sub"]);
    assert!(refused.contains("operation not supported"), "{refused}");
    for command in [&["subvolume", "create"][..], &["dedupe"]] {
        let refused = workshop.run(&[command, &["mnt/sub", "pool.img:/sub"]].concat());
        assert_eq!(refused.status, 2, "{}", refused.err);
        assert!(refused.err.contains("some in mounts"), "{}", refused.err);
    }
    workshop.unmount_and_check(mounted);
}

/// Runs a script as an ordinary user, where `platter` is in the path and what is mounted is gone afterwards.
pub(super) fn as_user(workshop: &Workshop, script: &str) -> String {
    fs::create_dir_all(workshop.path("bin")).unwrap();
    copy_program(&workshop.path("bin/platter"));
    fs::set_permissions(workshop.path(""), PermissionsExt::from_mode(0o777)).unwrap();
    let namespace = "set -eu\n\
        mount -t tmpfs none /mnt\n\
        mknod -m 666 /mnt/fuse c 10 229\n\
        mount --bind /mnt/fuse /dev/fuse\n\
        PATH=\"$PWD/bin:$PATH\" exec setpriv --reuid=\"$1\" --regid=\"$1\" --clear-groups \
            timeout 120 sh -euc \"$2\"";
    let output = Command::new("unshare")
        .args(["--mount", "--propagation=private", "sh", "-c", namespace])
        .args(["sh", USER, script])
        .current_dir(workshop.path(""))
        .stdin(Stdio::null())
        .output()
        .expect("unshare (package util-linux) is needed");
    let ran = Ran::of(&output);
    assert_eq!(ran.status, 0, "{}{}", ran.out, ran.err);
    ran.out
}

#[test]
fn ordinary_user_administers_their_own_mount() {
    let workshop = Workshop::new();
    workshop.btrfs(&format!("chown {USER}:{USER} ."));
    let image = workshop.path("pool.img");
    let owner = Some(USER.parse().unwrap());
    std::os::unix::fs::chown(image, owner, owner).unwrap();
    let printed = as_user(
        &workshop,
        r"
        umask 022
        mkdir own
        trap 'platter umount -l own 2>/dev/null || :' EXIT
        platter mount pool.img own
        platter subvolume create own/a
        stat -c '%u %g %a' own/a
        echo contents > own/a/file
        platter subvolume snapshot -r own/a own/b
        cat own/b/file
        platter subvolume list own | sed 's/.* path //'
        platter subvolume set-default own/a
        platter subvolume set-default --id 5 own
        platter subvolume delete own/b
        platter tune -L mine own
        platter sync own
        platter umount own
        platter subvolume list pool.img | sed 's/.* path //'
        ",
    );
    let expected = format!("{USER} {USER} 755\ncontents\n/ (default)\na\nb\n/ (default)\na\n");
    assert_eq!(printed, expected);
}

#[test]
fn other_users_change_their_own_subvolumes_only() {
    let workshop = Workshop::new();
    let script = format!(
        "mkdir open\nchown {USER}:{USER} open\nbtrfs subvolume create mine\nchown {USER}:{USER} mine\n\
         btrfs subvolume create other\nmkdir closed"
    );
    let refused = "\
        refused() { if \"$@\" 2>message; then exit 9; fi; sed 's/^platter: //' message; }\n";
    let mounted = workshop.mount_btrfs(&script, "rw,allow_other");
    let printed = as_user(
        &workshop,
        &format!(
            "{refused}\
            refused platter subvolume create mnt/closed/new\n\
            refused platter subvolume snapshot mnt/other mnt/open/other\n\
            refused platter subvolume set-read-only mnt/other\n\
            refused platter subvolume set-default mnt/mine\n\
            refused platter subvolume list mnt\n\
            platter subvolume create mnt/open/made\n\
            platter subvolume snapshot mnt/mine mnt/open/copy\n\
            platter subvolume set-read-only mnt/mine\n\
            refused platter subvolume delete mnt/open/made\n\
            refused platter subvolume delete mnt/other\n"
        ),
    );
    let expected = "mnt/closed/new: permission denied\n\
        mnt/open/other: operation not permitted\n\
        mnt/other: operation not permitted\n\
        mnt/mine: operation not permitted\n\
        mnt: operation not permitted\n\
        mnt/open/made: operation not permitted\n\
        mnt/other: operation not permitted\n";
    assert_eq!(printed, expected);
    workshop.unmount_and_check(mounted);

    workshop.read(&[
        "mount",
        "-o",
        "allow_other,user_subvol_rm_allowed",
        "pool.img",
        "mnt",
    ]);
    let mounted = Mounted(&workshop);
    let printed = as_user(
        &workshop,
        &format!(
            "{refused}\
            platter subvolume delete mnt/open/made\n\
            refused platter subvolume delete mnt/other\n"
        ),
    );
    assert_eq!(printed, "mnt/other: permission denied\n");
    workshop.unmount_and_check(mounted);
    let left = ["/ (default)", "mine", "other", "open/copy"];
    assert_eq!(workshop.subvolumes_of("pool.img"), left);
}

#[test]
fn other_users_defragment_what_they_may_write_to() {
    let workshop = Workshop::new();
    let script = format!(
        "for file in mine open closed secret; do seq 10000 > $file; done\nchown {USER}:{USER} mine\n\
         chmod 666 open\nchmod 600 secret"
    );
    let mounted = workshop.mount_btrfs(&script, "rw,allow_other");
    let printed = as_user(
        &workshop,
        "refused() { if \"$@\" 2>message >/dev/null; then exit 9; fi; sed 's/^platter: //' message; }\n\
         refused platter defrag mnt/closed\n\
         refused platter defrag -r mnt\n\
         refused platter du -s mnt/secret\n\
         platter defrag -c mnt/mine mnt/open >output\n\
         sed -E 's/ [1-9][0-9]* bytes/ some bytes/' output\n\
         platter du --raw -s mnt/closed | tail -n 1\n",
    );
    let expected = "\
        mnt/closed: operation not permitted\n\
        mnt/closed: operation not permitted\n\
        mnt/secret: permission denied\n\
        mnt/secret: permission denied\n\
        looked at 2 files, wrote some bytes anew\n     \
        49152       49152           0  mnt/closed\n";
    assert_eq!(printed, expected);
    workshop.unmount_and_check(mounted);
}

/// Reads a file past the cache of the kernel.
fn read_past_cache(path: &std::path::Path) -> Vec<u8> {
    let file = fs::File::open(path).unwrap();
    rustix::fs::fsync(&file).unwrap();
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let mut contents = Vec::new();
    std::io::Read::read_to_end(&mut &file, &mut contents).unwrap();
    contents
}

#[test]
fn devices_of_a_mount_are_changed_while_it_is_used() {
    let workshop = Workshop::new();
    let mounted = workshop.mount_btrfs("", "rw");
    let contents: Vec<u8> = (0..3_000_000_u32).map(|it| (it % 251) as u8).collect();
    let file = workshop.path("mnt/file");
    fs::write(&file, &contents).unwrap();
    let assert_same = || assert!(read_past_cache(&file) == contents);
    for name in ["second.img", "third.img"] {
        let image = fs::File::create(workshop.path(name)).unwrap();
        image.set_len(400 << 20).unwrap();
    }
    let scrubbed = workshop.document("scrub", &["--json", "scrub", "mnt"]);
    assert_eq!(scrubbed["csum_errors"], 0);
    assert!(scrubbed["data_bytes_scrubbed"].as_u64().unwrap() >= 3_000_000);
    let resized = workshop.document("resize", &["--json", "resize", "mnt", "400M"]);
    assert_eq!(resized["before_bytes"], 160_u64 << 20);
    assert_eq!(resized["after_bytes"], 400_u64 << 20);
    workshop.read(&["resize", "mnt", "300M"]);
    assert_same();
    let occupied = workshop.refused(&["device", "add", "mnt", "disk.img"]);
    assert!(occupied.contains("mnt: "), "{occupied}");
    workshop.read(&["device", "add", "mnt", "second.img"]);
    let several = workshop.refused(&["resize", "mnt", "320M"]);
    assert!(several.contains("several devices"), "{several}");
    let balance = ["balance", "mnt", "-d=convert=raid1", "-m=convert=raid1"];
    let moved = workshop.read(&balance);
    assert!(moved.starts_with("moved "), "{moved}");
    assert_same();
    fs::write(workshop.path("mnt/other"), &contents).unwrap();
    workshop.read(&["device", "replace", "mnt", "2", "third.img"]);
    assert_same();
    let refused = workshop.refused(&["device", "remove", "mnt", "1"]);
    assert!(refused.contains("RAID1 needs 2 devices"), "{refused}");
    let unknown = workshop.refused(&["balance", "mnt", "-d=shape=round"]);
    assert!(
        unknown.contains("the balance filter shape=round"),
        "{unknown}"
    );
    workshop.read(&[
        "balance",
        "mnt",
        "--force",
        "-d=convert=single",
        "-m=convert=single",
    ]);
    workshop.read(&["device", "remove", "mnt", "2"]);
    assert_same();
    assert!(read_past_cache(&workshop.path("mnt/other")) == contents);
    workshop.unmount_and_check(mounted);
    let read = workshop.run(&["cat", "pool.img:/file"]);
    assert_eq!(read.status, 0);
}

#[test]
fn xfs_grows_while_it_is_mounted() {
    let workshop = Workshop::new();
    workshop.read(&["mkfs", "xfs", "--unsupported", "new.img", "--size", "40M"]);
    let mounted = Mounted::of(&workshop, "new.img");
    let contents: Vec<u8> = (0..3_000_000_u32).map(|it| (it % 251) as u8).collect();
    fs::write(workshop.path("mnt/file"), &contents).unwrap();
    let resized = workshop.document("resize", &["--json", "resize", "mnt", "100M"]);
    assert_eq!(resized["before_bytes"], 40_u64 << 20);
    assert_eq!(resized["after_bytes"], 100_u64 << 20);
    let len = fs::metadata(workshop.path("new.img")).unwrap().len();
    assert_eq!(len, 100 << 20);
    workshop.read(&["resize", "mnt", "+20M"]);
    let shorter = workshop.refused(&["resize", "mnt", "80M"]);
    assert!(shorter.contains("shorter"), "{shorter}");
    for refused in [
        &["scrub", "mnt"][..],
        &["balance", "mnt"],
        &["device", "remove", "mnt", "1"],
    ] {
        let text = workshop.refused(refused);
        assert!(text.contains("not supported"), "{refused:?}: {text}");
    }
    fs::write(workshop.path("mnt/large"), vec![7; 60 << 20]).unwrap();
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
    let mut repair = Command::new("xfs_repair");
    run_tool(repair.arg("-n").arg(workshop.path("new.img")), "");
    assert_eq!(workshop.run(&["check", "new.img"]).status, 0);
    workshop.read(&["cp", "new.img:/file", "copy"]);
    assert!(fs::read(workshop.path("copy")).unwrap() == contents);
}

#[test]
fn devices_are_changed_by_the_administrator_of_a_mount_alone() {
    let workshop = Workshop::new();
    let mounted = workshop.mount_btrfs("", "rw,allow_other");
    let image = fs::File::create(workshop.path("new.img")).unwrap();
    image.set_len(200 << 20).unwrap();
    let printed = as_user(
        &workshop,
        "refused() { if \"$@\" 2>message; then exit 9; fi; sed 's/^platter: //' message; }\n\
         refused platter scrub mnt\n\
         refused platter balance mnt\n\
         refused platter resize mnt 300M\n\
         refused platter device add mnt new.img\n\
         refused platter device remove mnt 1\n",
    );
    assert_eq!(printed, "mnt: operation not permitted\n".repeat(5));
    workshop.unmount_and_check(mounted);
}
