//! New btrfs whose directories are subvolumes, and whose files share contents.

use super::*;

/// A tree with directories that become subvolumes, links between them, and equal files.
const TREE: &str = r#"
set -e
cd "$1"
mkdir -p tree/a/inner/deep tree/ro/dir tree/plain
cd tree
head -c 300000 /dev/urandom > a/long
cp a/long a/inner/equal
cp a/long plain/equal
head -c 299999 a/long > plain/shorter
head -c 300000 /dev/urandom > plain/other
truncate -s 1M plain/sparse
printf data | dd of=plain/sparse bs=1 seek=700000 conv=notrunc status=none
cp --sparse=always plain/sparse ro/dir/sparse
truncate -s 300000 plain/zeros ro/zeros
seq 500 > ro/text
ln ro/text ro/dir/text
ln ro/text a/inner/text
ln ro/text a/inner/deep/text
ln -s target ro/symlink
ln ro/symlink a/symlink
touch ro/empty
ln ro/empty a/empty
setfattr -n user.note -v value ro/text
setfattr -n user.note -v value a/inner
chmod 2750 ro
chown -h 7:9 ro a/long ro/text
find . -exec touch -h -d 2001-02-03T04:05:06Z {} +
"#;

/// What the kernel sees at the top of the filesystem.
const SEEN: &str = r#"
cd /
mkdir /mnt/top
mount -t btrfs -o subvolid=5 "$(findmnt -vno SOURCE /mnt/fs)" /mnt/top
cd /mnt/top
btrfs subvolume list . > "$OUT/list"
btrfs subvolume list -r . > "$OUT/read-only"
btrfs subvolume get-default . > "$OUT/default"
diff -r --no-dereference "$OUT/tree" . > "$OUT/differences" || :
(cd "$OUT/tree" && find . | sort | xargs stat -c '%n %A %u %g %s %y') > "$OUT/attributes.source"
find . | sort | xargs stat -c '%n %A %u %g %s %y' > "$OUT/attributes.image"
getfattr -d ro/text a/inner a/inner/text > "$OUT/xattrs"
stat -c '%h' ro/text ro/dir/text a/inner/text a/inner/deep/text > "$OUT/links"
for file in a/long a/inner/equal plain/equal plain/shorter plain/other plain/sparse ro/dir/sparse; do
    filefrag -v $file | grep -c shared >> "$OUT/shared" || :
done
cd /
umount /mnt/top
cd /mnt/fs
"#;

/// Directories as sizes of entries differ.
fn without_sizes_of_directories(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        if words[1].starts_with('d') {
            words.remove(4);
        }
        words.join(" ")
    };
    text.lines().map(line).collect()
}

fn make_tree(workshop: &Workshop) {
    let mut shell = Command::new("sh");
    run_tool(shell.args(["-c", TREE, "sh"]).arg(workshop.path("")), "");
}

const SUBVOLUMES: [&str; 8] = [
    "-u",
    "ro:ro",
    "--subvol",
    "/a/",
    "-u",
    "default:a/inner",
    "--seed",
    "5",
];

#[test]
fn directories_become_subvolumes_and_equal_files_share() {
    let workshop = Workshop::new();
    make_tree(&workshop);
    let make = |image: &str, more: &[&str]| {
        let from = ["mkfs", "btrfs", image, "--from", "tree", "--dedupe"];
        workshop.read(&[&from[..], &SUBVOLUMES, more].concat());
    };
    make("pool.img", &["--size", "160M"]);
    make("again.img", &["--size", "160M"]);
    let [first, second] =
        ["pool.img", "again.img"].map(|name| fs::read(workshop.path(name)).unwrap());
    assert!(first == second, "the same command makes the same bytes");

    let mut check = Command::new("btrfs");
    check.args(["check", "--check-data-csum"]);
    run_tool(check.arg(workshop.path("pool.img")), "");
    let out = workshop.path("").display().to_string();
    workshop.in_kernel_mount(&format!("OUT={out}\n{SEEN}"));

    let list = workshop.text("list");
    let paths: Vec<_> = list
        .lines()
        .map(|line| line.split(' ').next_back())
        .collect();
    assert_eq!(paths, [Some("a"), Some("a/inner"), Some("ro")], "{list}");
    let read_only = workshop.text("read-only");
    assert!(
        read_only.lines().count() == 1 && read_only.contains(" path ro"),
        "{read_only}"
    );
    assert!(workshop.text("default").contains(" path a/inner"));
    assert_eq!(workshop.text("differences"), "");
    let [source, image] = ["attributes.source", "attributes.image"]
        .map(|name| without_sizes_of_directories(&workshop.text(name)));
    assert_eq!(image, source);
    assert_eq!(
        workshop
            .text("xattrs")
            .matches("user.note=\"value\"")
            .count(),
        3
    );
    // A file of each subvolume, with its own links.
    assert_eq!(workshop.text("links"), "2\n2\n2\n2\n");
    let shared: Vec<bool> = workshop
        .text("shared")
        .lines()
        .map(|count| count != "0")
        .collect();
    assert_eq!(shared, [true, true, true, false, false, true, true]);
}

#[test]
fn equal_files_take_the_space_of_one() {
    let workshop = Workshop::new();
    let mut shell = Command::new("sh");
    let script = "cd \"$1\"\nmkdir one two\nhead -c 8000000 /dev/urandom > one/file\n\
                  cp one/file two/file\ncp one/file two/again";
    run_tool(shell.args(["-c", script, "sh"]).arg(workshop.path("")), "");
    let len = |from: &str, more: &[&str]| {
        let image = workshop.path("new.img");
        let arguments = ["mkfs", "btrfs", "new.img", "--force", "--from", from];
        workshop.read(&[&arguments[..], more].concat());
        let mut check = Command::new("btrfs");
        run_tool(check.arg("check").arg(&image), "");
        fs::metadata(&image).unwrap().len()
    };
    let one = len("one", &["--minimize"]);
    assert_eq!(len("two", &["--dedupe", "--shrink"]), one);
    let two = len("two", &["--minimize"]);
    assert!(one + 7_000_000 < two, "{one} and {two}");
}

#[test]
fn equal_files_share_in_xfs_and_are_refused_in_ext4() {
    let workshop = Workshop::new();
    make_tree(&workshop);
    let from = ["--from", "tree", "--dedupe", "--size", "320M"];
    workshop.read(&[&["mkfs", "xfs", "disk2.img"], &from[..]].concat());
    let mut repair = Command::new("xfs_repair");
    run_tool(repair.arg("-n").arg(workshop.path("disk2.img")), "");
    let text = workshop.read(&[
        "du",
        "--raw",
        "disk2.img:/plain/equal",
        "disk2.img:/plain/other",
    ]);
    let shared: Vec<&str> = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    assert_eq!(shared, ["303104", "0"], "{text}");
    let read = |path: &str| workshop.command(&["cat", path]).output().unwrap().stdout;
    assert!(read("disk2.img:/plain/equal") == fs::read(workshop.path("tree/a/long")).unwrap());

    // Before anything is read.
    let from = ["--from", "nowhere"];
    for (arguments, error) in [
        (
            &["ext4", "--dedupe"][..],
            "files of this ext4 cannot share extents",
        ),
        (
            &["xfs", "--dedupe", "-O", "^reflink"],
            "files of this xfs cannot share extents",
        ),
        (&["xfs", "-u", "a"], "xfs has no subvolumes"),
    ] {
        let ran = workshop.run(
            &[
                &["mkfs"],
                &arguments[..1],
                &["new.img"],
                &arguments[1..],
                &from,
            ]
            .concat(),
        );
        assert_eq!(ran.status, 2, "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(error), "{arguments:?}: {}", ran.err);
    }
    for (arguments, error) in [
        (
            &["mkfs", "btrfs", "new.img", "--from", "tree", "-u", "none"][..],
            "none: no such file or directory",
        ),
        (
            &[
                "mkfs",
                "btrfs",
                "new.img",
                "--from",
                "tree",
                "-u",
                "ro:a/long",
            ],
            "a/long: not a directory",
        ),
        (
            &[
                "mkfs", "btrfs", "new.img", "--from", "tree", "-u", "a", "-u", "ro:./a",
            ],
            "./a: is made a subvolume twice",
        ),
        (
            &[
                "mkfs",
                "btrfs",
                "new.img",
                "--from",
                "tree",
                "-u",
                "default:a",
                "-u",
                "default-ro:ro",
            ],
            "ro: another subvolume is the default one already",
        ),
        (
            &["mkfs", "btrfs", "new.img", "--from", "tree", "-u", "/"],
            "invalid argument",
        ),
    ] {
        let ran = workshop.run(arguments);
        assert_eq!(ran.status, 1, "{arguments:?}");
        assert!(ran.err.contains(error), "{arguments:?}: {}", ran.err);
        assert!(!workshop.path("new.img").exists(), "{arguments:?}");
    }
}

#[test]
fn directories_that_an_archive_leaves_out_become_subvolumes() {
    let workshop = Workshop::new();
    let dir = workshop.path("content");
    fs::create_dir_all(dir.join("a/b")).unwrap();
    fs::write(dir.join("a/b/file"), "text").unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&dir).arg("-cf");
    run_tool(tar.arg(workshop.path("content.tar")).arg("a/b/file"), "");
    let from = ["mkfs", "btrfs", "pool.img", "--from", "content.tar"];
    let more = ["-u", "a", "-u", "ro:a/b", "--size", "128M"];
    workshop.read(&[&from[..], &more].concat());
    let mut check = Command::new("btrfs");
    run_tool(check.arg("check").arg(workshop.path("pool.img")), "");
    let out = workshop.path("").display().to_string();
    workshop.in_kernel_mount(&format!(
        "OUT={out}\nbtrfs subvolume list . > $OUT/list\nbtrfs subvolume list -r . > $OUT/read-only\n\
         stat -c '%n %a' a a/b > $OUT/modes\ncat a/b/file > $OUT/text"
    ));
    let list = workshop.text("list");
    assert!(
        list.contains(" path a\n") && list.contains(" path a/b\n"),
        "{list}"
    );
    assert!(workshop.text("read-only").ends_with(" path a/b\n"));
    assert_eq!(workshop.text("modes"), "a 755\na/b 755\n");
    assert_eq!(workshop.text("text"), "text");
}
