//! The space that files take and share, compared with `btrfs filesystem du`.

use std::collections::BTreeMap;

use super::mount::Mounted;
use super::*;

/// Files that share extents with each other, with snapshots, with themselves and with nothing, and what the kernel
/// makes of them.
const SHARING: &str = r#"
noise() { head -c $1 /dev/urandom; }
mkdir dir
noise 300000 > dir/alone
noise 500000 > dir/first
sync -f .
cp --reflink=always dir/first dir/second
noise 8192 | dd of=dir/second bs=4096 seek=3 conv=notrunc status=none
ln dir/alone dir/linked
echo short > dir/inline
ln -s alone dir/pointer
mkfifo dir/queue
fallocate -n -l 1000000 dir/alone
btrfs subvolume create sub
cp --reflink=always dir/first sub/clone
touch sub/text sub/more
btrfs property set sub/text compression zstd
btrfs property set sub/more compression lzo
seq 100000 > sub/text
seq 100000 > sub/more
truncate -s 1G sub/sparse
mkdir sub/empty
sync -f .
cp --reflink=always sub/text sub/copy
btrfs subvolume snapshot sub snap
noise 4096 | dd of=snap/text bs=4096 seek=9 conv=notrunc status=none
rm sub/clone
noise 70000 > snap/new
sync -f .
btrfs filesystem du --raw . > "$OUT/all"
btrfs filesystem du --raw -s dir sub snap dir/second sub/text > "$OUT/sums"
"#;

/// The numbers of each path, of lines of `Total Exclusive SetShared Filename`.
fn rows(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["Total", "Exclusive", "Set", "shared", "Filename"]);
    let row = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let numbers: Vec<String> = words.by_ref().take(3).collect();
        let path = words.next().unwrap();
        let path = path
            .trim_start_matches("pool.img:")
            .trim_start_matches("mnt")
            .trim_start_matches("./");
        let path = path.trim_start_matches('/');
        (if path == "." { "" } else { path }.to_owned(), numbers)
    };
    lines.map(row).collect()
}

#[test]
fn space_is_that_of_btrfs_filesystem_du() {
    let workshop = Workshop::new();
    let out = workshop.path("").display().to_string();
    workshop.btrfs(&format!("OUT={out}\n{SHARING}"));
    let kernel = |name| rows(&fs::read_to_string(workshop.path(name)).unwrap());
    let all = rows(&workshop.read(&["du", "--raw", "pool.img"]));
    assert_eq!(all, kernel("all"));
    let shared: u64 = all[""][2].parse().unwrap();
    assert!(shared > 500_000, "{shared} bytes are shared");
    let sums = [
        "du",
        "--raw",
        "-s",
        "pool.img:dir",
        "pool.img:/sub",
        "pool.img:/snap",
        "pool.img:/dir/second",
        "pool.img:/sub/text",
    ];
    assert_eq!(rows(&workshop.read(&sums)), kernel("sums"));

    let document = workshop.document("du", &["du", "--json", "pool.img:/dir"]);
    let last = document.as_array().unwrap().last().unwrap();
    let number = |key: &str| last[key].as_u64().unwrap().to_string();
    let keys = ["total_bytes", "exclusive_bytes", "set_shared_bytes"];
    assert_eq!(keys.map(number).to_vec(), kernel("sums")["dir"]);
}

#[test]
fn space_in_a_mount_is_that_of_its_image() {
    let workshop = Workshop::new();
    let out = workshop.path("").display().to_string();
    workshop.btrfs(&format!("OUT={out}\n{SHARING}"));
    let of_image = rows(&workshop.read(&["du", "--raw", "pool.img"]));
    let mounted = Mounted::of(&workshop, "pool.img");
    let all = workshop.read(&["du", "--raw", "mnt"]);
    assert_eq!(rows(&all), of_image);
    assert!(all.contains("  mnt/dir/first\n"), "{all}");
    let of = |operand: &str| {
        let text = workshop.read(&["du", "--raw", "-s", operand]);
        let mut rows = rows(&text).into_values();
        rows.next().unwrap()
    };
    let sums = rows(&fs::read_to_string(workshop.path("sums")).unwrap());
    for path in ["dir", "snap", "sub/text"] {
        assert_eq!(of(&format!("mnt/{path}")), sums[path], "{path}");
    }
    symlink("mnt/dir/second", workshop.path("link")).unwrap();
    assert_eq!(of("link"), sums["dir/second"]);

    // What is shared now, and what has just been written.
    workshop.read(&["subvolume", "snapshot", "mnt/snap", "mnt/other"]);
    let total = &sums["snap"][0];
    for path in ["mnt/other", "mnt/snap"] {
        assert_eq!(of(path)[..2], [total.clone(), "0".to_owned()], "{path}");
    }
    fs::write(workshop.path("mnt/dir/new"), vec![7; 300_000]).unwrap();
    assert_eq!(of("mnt/dir/new"), ["303104", "303104", "0"]);

    let document = workshop.document("du", &["du", "--json", "mnt/dir"]);
    assert_eq!(document[0]["path"], "mnt/dir/alone");
    let last = document.as_array().unwrap().last().unwrap();
    assert_eq!(last["image"], "mnt/dir");
    assert_eq!(last["path"], "mnt/dir");
    let ran = workshop.run(&["du", "-s", "mnt/none", "mnt/sub"]);
    assert_eq!((ran.status, ran.out.lines().count()), (1, 2), "{}", ran.out);
    let refused = "platter: mnt/none: no such file or directory\n";
    assert_eq!(ran.err, refused);
    // An image in a mount is named with a path.
    fs::copy(workshop.path("disk.img"), workshop.path("mnt/inner.img")).unwrap();
    let inner = rows(&workshop.read(&["du", "--raw", "mnt/inner.img:/dir"]));
    assert_eq!(inner["inner.img:/dir/file"], ["1024", "1024", "-"]);
    workshop.unmount_and_check(mounted);
}

#[test]
fn space_in_a_mount_of_ext4_is_counted() {
    let workshop = Workshop::new();
    let mounted = Mounted::of(&workshop, "disk.img");
    fs::write(workshop.path("mnt/new"), [7; 5000]).unwrap();
    let text = workshop.read(&["du", "--raw", "mnt"]);
    let all = rows(&text);
    assert_eq!(all["new"], ["5120", "5120", "-"]);
    assert_eq!(all["dir/file"], ["1024", "1024", "-"]);
    assert_eq!(all.get("dir/hard"), None, "{text}");
    drop(mounted);
}

/// As many extents as one request lists, of which the last ends where the largest file does.
#[test]
fn list_of_extents_may_end_with_the_largest_file() {
    const EXTENTS: u64 = 256;
    let workshop = Workshop::new();
    workshop.btrfs("");
    let mounted = Mounted::of(&workshop, "pool.img");
    let file = fs::File::create(workshop.path("mnt/file")).unwrap();
    for number in 1..EXTENTS {
        file.write_all_at(&[7; 4096], number * 8192).unwrap();
    }
    file.write_all_at(b"end", i64::MAX.unsigned_abs() - 3)
        .unwrap();
    file.sync_all().unwrap();
    drop(file);
    let text = workshop.read(&["du", "--raw", "mnt/file"]);
    let total = (EXTENTS * 4096).to_string();
    assert_eq!(
        text.lines().last().unwrap().split_whitespace().next(),
        Some(&*total)
    );
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
}

/// Makes an XFS and in it two files that share all but 64 KiB.
const XFS: &str = r#"
set -e
mkfs.xfs -q -f "$1"
mount -t tmpfs none /mnt
mkdir /mnt/fs
mount -t xfs -o loop "$1" /mnt/fs
cd /mnt/fs
mkdir dir
head -c 1048576 /dev/urandom > dir/first
sync -f .
cp --reflink=always dir/first dir/second
head -c 65536 /dev/urandom | dd of=dir/second bs=65536 seek=4 conv=notrunc status=none
head -c 131072 /dev/urandom > alone
cd /
umount /mnt/fs
"#;

#[test]
fn shared_space_of_xfs_is_counted_once() {
    let workshop = Workshop::new();
    let image = workshop.path("pool.img");
    fs::File::create(&image)
        .unwrap()
        .set_len(320 << 20)
        .unwrap();
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", XFS, "sh"]);
    run_tool(unshare.arg(&image), "");
    let text = workshop.read(&["du", "--raw", "pool.img"]);
    let numbers: Vec<Vec<String>> = rows(&text).into_values().collect();
    let (mib, part) = (1 << 20, 64 << 10);
    let row = |total: u64, exclusive: u64, shared: Option<u64>| {
        let shared = shared.map_or("-".to_owned(), |bytes| bytes.to_string());
        vec![total.to_string(), exclusive.to_string(), shared]
    };
    let expected = [
        row(2 * mib + 2 * part, 4 * part, Some(mib - part)),
        row(2 * part, 2 * part, None),
        row(2 * mib, 2 * part, None),
        row(mib, part, None),
        row(mib, part, None),
    ];
    assert_eq!(numbers, expected, "{text}");
}

#[test]
fn nothing_is_shared_where_a_format_cannot() {
    let workshop = Workshop::new();
    let text = workshop.read(&["du", "disk.img:/dir", "disk.img:/sparse"]);
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    // One of the two names of a file counts.
    let find = |path: &str| lines.iter().find(|line| line.last() == Some(&path));
    assert_eq!(
        find("disk.img:/dir/file").unwrap()[..3],
        ["1.0K", "1.0K", "-"]
    );
    assert_eq!(find("disk.img:/dir/hard"), None);
    assert_eq!(
        find("disk.img:/sparse").unwrap()[..3],
        ["1.0K", "1.0K", "0"]
    );
    let ran = workshop.run(&["du", "-s", "disk.img:/none", "disk.img:/dir"]);
    assert_eq!((ran.status, ran.out.lines().count()), (1, 2), "{}", ran.out);
    assert!(ran.err.contains("no such file or directory"), "{}", ran.err);
}
