//! Equal contents that are stored once, compared with what the kernel reads.

use super::mount::Mounted;
use super::*;

/// Equal contents in many forms.
const EQUAL: &str = r"
noise() { head -c $1 /dev/urandom; }
mkdir dir
noise 1049576 > dir/one
cp --reflink=never dir/one dir/two
{ head -c 262144 dir/one; noise 300000; } > dir/part
cp --reflink=always dir/one dir/clone
ln dir/two dir/other_name
touch nocow
chattr +C nocow
cat dir/one > nocow
echo short > dir/short1
echo short > dir/short2
truncate -s 4M dir/sparse
dd if=dir/one of=dir/sparse bs=128K count=2 seek=8 conv=notrunc status=none
btrfs subvolume create sub
cp --reflink=never dir/one sub/copy
noise 500000 > sub/own
cp --reflink=never sub/own dir/of_snapshot
sync -f .
btrfs subvolume snapshot -r sub snap
sync -f .
touch -d 2001-02-03T04:05:06Z dir/one dir/two sub/copy
";

/// What must stay as it is, of all files.
const SEEN: &str = r#"
find . -type f | sort | while read -r file; do
    sha256sum "$file"
    stat -c '%n %s %x %y %z' "$file"
done > "$OUT/same"
for file in dir/one dir/two dir/clone sub/copy snap/copy dir/of_snapshot snap/own; do
    echo "$file $(filefrag -v "$file" | sed -n 's|^ *0: *[0-9]*\.\. *[0-9]*: *\([0-9]*\)\..*|\1|p')"
done > "$OUT/places"
"#;

/// What the kernel sees in `pool.img`, and where files begin.
fn seen(workshop: &Workshop) -> (String, Vec<(String, u64)>) {
    let out = workshop.path("").display().to_string();
    workshop.in_kernel_mount(&format!("OUT={out}\n{SEEN}"));
    let read = |name| fs::read_to_string(workshop.path(name)).unwrap();
    let places = read("places");
    let places = places.lines().map(|line| {
        let (path, place) = line.split_once(' ').unwrap();
        (path.to_owned(), place.parse().unwrap())
    });
    (read("same"), places.collect())
}

fn place(places: &[(String, u64)], path: &str) -> u64 {
    places.iter().find(|(it, _)| it == path).unwrap().1
}

/// Bytes and ranges that were shared.
fn shared(workshop: &Workshop, arguments: &[&str]) -> (u64, u64) {
    let arguments = [&["--json", "dedupe"], arguments].concat();
    let document = workshop.document("dedupe", &arguments);
    let number = |key: &str| document[key].as_u64().unwrap();
    (number("shared_bytes"), number("ranges"))
}

#[test]
fn equal_contents_take_the_space_of_one() {
    let workshop = Workshop::new();
    workshop.btrfs(EQUAL);
    let (same, before) = seen(&workshop);
    assert_ne!(place(&before, "dir/one"), place(&before, "dir/two"));
    let refused = workshop.refused(&["dedupe", "pool.img:/dir"]);
    assert!(refused.contains("is a directory"), "{refused}");

    let dry = shared(&workshop, &["-r", "--dry-run", "pool.img:/"]);
    assert_eq!(seen(&workshop), (same.clone(), before.clone()));
    let sharing = shared(&workshop, &["-r", "pool.img:/"]);
    workshop.assert_checked();
    let (same_after, after) = seen(&workshop);
    assert_eq!(same_after, same);
    // All share what the read-only snapshot has.
    let kept = place(&before, "snap/copy");
    for path in ["dir/one", "dir/two", "dir/clone", "sub/copy", "snap/copy"] {
        assert_eq!(place(&after, path), kept, "{path}");
    }
    assert_eq!(place(&after, "dir/of_snapshot"), place(&before, "snap/own"));
    // Three that are whole, one from the snapshot, and parts of two.
    let whole = 1_049_576;
    assert_eq!(sharing.0, 3 * whole + 500_000 + 2 * 262_144);
    // A dry run does not know of the attributes that keep one from it.
    assert_eq!(dry.0, sharing.0 + whole);
    let again = shared(&workshop, &["-r", "pool.img:/"]);
    assert_eq!(again, (0, 0));
    let text = workshop.read(&["dedupe", "-rn", "--min-size", "2M", "pool.img:/dir"]);
    assert_eq!(text, "looked at 9 files, could share 0 bytes in 0 ranges\n");
}

#[test]
fn files_of_a_mount_are_deduped_while_it_is_used() {
    let workshop = Workshop::new();
    workshop.btrfs(EQUAL);
    let (same, before) = seen(&workshop);
    let mounted = Mounted::of(&workshop, "pool.img");
    fs::write(workshop.path("mnt/new"), vec![7; 300_000]).unwrap();
    fs::write(workshop.path("mnt/new2"), vec![7; 300_000]).unwrap();
    workshop.read(&["sync", "mnt"]);
    let dry = shared(&workshop, &["--dry-run", "mnt/new", "mnt/new2"]);
    // Blocks of one byte are equal in a file, too.
    assert_eq!(dry, (131_072 + 300_000, 4));
    symlink("mnt/dir", workshop.path("link")).unwrap();
    for given in ["mnt/dir", "link"] {
        let refused = workshop.refused(&["dedupe", given]);
        assert_eq!(refused, format!("platter: {given}: is a directory\n"));
    }
    assert!(shared(&workshop, &["mnt/dir/one", "mnt/dir/two"]).0 == 1_049_576);
    assert!(shared(&workshop, &["-r", "mnt"]).0 > 1_049_576);
    fs::remove_file(workshop.path("mnt/new")).unwrap();
    fs::remove_file(workshop.path("mnt/new2")).unwrap();
    let mixed = workshop.run(&["dedupe", "mnt/dir/one", "disk.img:/dir/file"]);
    assert_eq!(mixed.status, 2, "{}", mixed.err);
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
    workshop.assert_checked();
    let (same_after, after) = seen(&workshop);
    assert_eq!(same_after, same);
    for path in ["dir/two", "dir/clone"] {
        assert_eq!(place(&after, path), place(&after, "dir/one"), "{path}");
    }
    assert_eq!(place(&after, "snap/copy"), place(&before, "snap/copy"));
}

#[test]
fn equal_files_of_an_xfs_are_shared() {
    let workshop = Workshop::new();
    for (name, options) in [("xfs.img", &[][..]), ("plain.img", &["-m", "reflink=0"])] {
        let image = workshop.path(name);
        fs::File::create(&image)
            .unwrap()
            .set_len(320 << 20)
            .unwrap();
        run_tool(
            Command::new("mkfs.xfs").arg("-q").args(options).arg(&image),
            "",
        );
        let contents: Vec<u8> = (0..700_001_u32).map(|it| (it % 251) as u8).collect();
        fs::write(workshop.path("contents"), contents).unwrap();
        for copy in ["a", "b"] {
            workshop.read(&["cp", "contents", &format!("{name}:/{copy}")]);
        }
    }
    assert_eq!(
        shared(&workshop, &["xfs.img:/a", "xfs.img:/b"]),
        (700_001, 1)
    );
    assert_eq!(shared(&workshop, &["-r", "xfs.img:/"]), (0, 0));
    let image = workshop.path("xfs.img");
    run_tool(Command::new("xfs_repair").arg("-n").arg(&image), "");
    for copy in ["a", "b"] {
        workshop.read(&["cp", &format!("xfs.img:/{copy}"), copy]);
        let copied = fs::read(workshop.path(copy)).unwrap();
        assert!(
            copied == fs::read(workshop.path("contents")).unwrap(),
            "{copy}"
        );
    }
    let refused = workshop.refused(&["dedupe", "-r", "plain.img:/"]);
    assert!(refused.contains("without the feature reflink"), "{refused}");
    let refused = workshop.refused(&["dedupe", "-r", "disk.img:/"]);
    assert!(refused.contains("files that share extents"), "{refused}");
}

#[test]
fn blocks_are_no_smaller_than_those_of_the_filesystem() {
    let workshop = Workshop::new();
    let image = workshop.path("xfs.img");
    let file = fs::File::create(&image).unwrap();
    file.set_len(320 << 20).unwrap();
    let mut make = Command::new("mkfs.xfs");
    make.args(["-q", "-b", "size=16k"]).arg(&image);
    run_tool(&mut make, "");
    // Equal in their first 4 KiB alone, which cannot be shared.
    let begin = vec![7; 4096];
    for (name, rest) in [("a", 1_u32), ("b", 2)] {
        let words = (0..15 << 10).map(|number| number * 4 + rest);
        let rest: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        fs::write(workshop.path(name), [&begin[..], &rest].concat()).unwrap();
        workshop.read(&["cp", name, &format!("xfs.img:/{name}")]);
    }
    let dry = ["--dry-run", "--block-size", "4K"];
    let of_image = [&dry[..], &["xfs.img:/a", "xfs.img:/b"]].concat();
    assert_eq!(shared(&workshop, &of_image), (0, 0));
    let mounted = Mounted::of(&workshop, "xfs.img");
    let of_mount = [&dry[..], &["mnt/a", "mnt/b"]].concat();
    assert_eq!(shared(&workshop, &of_mount), (0, 0));
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
    workshop.read(&["cp", "a", "xfs.img:/b"]);
    assert_eq!(shared(&workshop, &of_image), (65_536, 1));
}
