//! Extents that are written anew, compared with what the kernel reads.

use serde_json::json;

use super::mount::Mounted;
use super::*;

/// Files in many pieces, whose pieces alternate on the device.
const PIECES: &str = r"
noise() { head -c $1 /dev/urandom; }
btrfs subvolume create sub
mkdir dir
touch dir/nocow
chattr +C dir/nocow
i=0
while [ $i -lt 40 ]; do
    for file in one dir/two dir/nocow sub/inner; do
        noise 16384 | dd of=$file bs=16384 seek=$i conv=notrunc status=none
    done
    sync -f .
    i=$((i + 1))
done
noise 100 >> one
seq 300000 > text
noise 400000 > random
echo short and short and short and short and short and short > inline
truncate -s 10M sparse
noise 5000 | dd of=sparse bs=1M seek=3 conv=notrunc status=none
sync -f .
cp --reflink=always dir/two clone
btrfs subvolume snapshot -r sub snap
touch -d 2001-02-03T04:05:06Z one dir/two text inline
";

/// What must stay as it is, and the number of extents of each file.
const SEEN: &str = r#"
find . -type f | sort | while read -r file; do
    sha256sum "$file"
    stat -c '%n %s %y %z' "$file"
done > "$OUT/same.$RUN"
find . -type f | sort | xargs filefrag > "$OUT/extents.$RUN"
find . -type f | sort | while read -r file; do
    filefrag -v "$file" | sed -n "s|^ *[0-9]*: *|$file |p"
done > "$OUT/places.$RUN"
"#;

struct Seen {
    same: String,
    extents: Vec<(String, u64)>,
    /// The lines of `filefrag -v`, each after its path.
    places: Vec<String>,
}

impl Seen {
    /// What the kernel sees in `pool.img`; `run` names the files that it is written to.
    fn of_pool(workshop: &Workshop, run: &str) -> Self {
        let out = workshop.path("").display().to_string();
        workshop.in_kernel_mount(&format!("OUT={out}\nRUN={run}\n{SEEN}"));
        let read = |what| fs::read_to_string(workshop.path(&format!("{what}.{run}"))).unwrap();
        // ./one: 41 extents
        let extents = read("extents");
        let extents = extents.lines().map(|line| {
            let mut words = line.split_whitespace();
            let path = words.next().unwrap().trim_end_matches(':').to_owned();
            (path, words.next().unwrap().parse().unwrap())
        });
        Self {
            same: read("same"),
            extents: extents.collect(),
            places: read("places").lines().map(str::to_owned).collect(),
        }
    }

    fn of(&self, path: &str) -> u64 {
        let found = self.extents.iter().find(|(file, _)| file == path);
        found.unwrap().1
    }

    /// The extents of a file, and how many of them are compressed.
    fn places_of(&self, path: &str) -> (Vec<&str>, usize) {
        let is_own = |line: &&str| line.split(' ').next() == Some(path);
        let lines: Vec<&str> = self
            .places
            .iter()
            .map(|line| &**line)
            .filter(is_own)
            .collect();
        let encoded = lines.iter().filter(|line| line.contains("encoded")).count();
        (lines, encoded)
    }
}

#[test]
fn defragmented_files_have_fewer_extents() {
    let workshop = Workshop::new();
    let out = workshop.path("").display().to_string();
    workshop.btrfs(&format!("OUT={out}\n{PIECES}"));
    let before = Seen::of_pool(&workshop, "before");
    let pieces = ["./one", "./dir/two", "./dir/nocow", "./sub/inner"];
    for path in pieces {
        assert!(before.of(path) >= 40, "{path}: {:?}", before.extents);
    }
    workshop.read(&["defrag", "-r", "pool.img:/"]);
    workshop.assert_checked();
    let after = Seen::of_pool(&workshop, "after");
    assert_eq!(after.same, before.same);
    for path in ["./one", "./dir/two", "./dir/nocow", "./clone"] {
        assert_eq!(after.of(path), 1, "{path}: {:?}", after.extents);
    }
    for path in ["./sub/inner", "./snap/inner"] {
        assert_eq!(after.of(path), before.of(path), "{path}");
    }

    // Again, there is nothing to do.
    let again = workshop.document("defrag", &["defrag", "--json", "-r", "pool.img:/"]);
    assert_eq!(
        (&again["files"], &again["written_bytes"]),
        (&json!(8), &json!(0))
    );
    let again = Seen::of_pool(&workshop, "again");
    assert_eq!(again.extents, after.extents);
    assert_eq!(again.places, after.places);

    let ran = workshop.run(&["defrag", "pool.img:/snap/inner", "pool.img:/sub/inner"]);
    assert_eq!(ran.status, 1);
    assert!(ran.err.contains("/snap/inner: read-only"), "{}", ran.err);
    workshop.assert_checked();
    let last = Seen::of_pool(&workshop, "last");
    assert_eq!(
        (last.of("./sub/inner"), last.of("./snap/inner")),
        (1, before.of("./snap/inner"))
    );
    assert_eq!(last.same, before.same);
}

#[test]
fn files_of_a_mount_are_defragmented_while_it_is_used() {
    let workshop = Workshop::new();
    let out = workshop.path("").display().to_string();
    workshop.btrfs(&format!("OUT={out}\n{PIECES}"));
    let before = Seen::of_pool(&workshop, "before");
    let mounted = Mounted::of(&workshop, "pool.img");
    let open = fs::File::open(workshop.path("mnt/one")).unwrap();
    let contents = fs::read(workshop.path("mnt/one")).unwrap();
    let done = workshop.document("defrag", &["defrag", "--json", "-r", "mnt"]);
    assert_eq!((&done["image"], &done["files"]), (&json!("mnt"), &json!(8)));
    assert!(done["written_bytes"].as_u64().unwrap() >= 4 * (640 << 10));
    let again = workshop.read(&["defrag", "-r", "mnt/dir", "mnt/one"]);
    assert_eq!(again, "looked at 3 files, wrote 0 bytes anew\n");
    // Past what the kernel has cached.
    rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut read = vec![0; contents.len()];
    open.read_exact_at(&mut read, 0).unwrap();
    assert!(read == contents);
    drop(open);
    for (operand, error) in [
        ("mnt/dir", "is a directory"),
        ("mnt/none", "no such file or directory"),
        ("mnt/snap/inner", "read-only file system"),
    ] {
        let refused = workshop.refused(&["defrag", operand]);
        assert_eq!(refused, format!("platter: {operand}: {error}\n"));
    }
    let mixed = workshop.run(&["defrag", "mnt/one", "disk.img:/dir/file"]);
    assert_eq!(mixed.status, 2, "{}", mixed.err);
    workshop.read(&["defrag", "-czstd:5", "mnt/text"]);
    // As other programs ask for it.
    let mut btrfs = Command::new("btrfs");
    btrfs.args(["filesystem", "defragment", "-f"]);
    run_tool(btrfs.arg(workshop.path("mnt/sub/inner")), "");
    workshop.unmount_and_check(mounted);
    workshop.assert_checked();
    let after = Seen::of_pool(&workshop, "after");
    assert_eq!(after.same, before.same);
    for path in [
        "./one",
        "./dir/two",
        "./dir/nocow",
        "./clone",
        "./sub/inner",
    ] {
        assert_eq!(after.of(path), 1, "{path}: {:?}", after.extents);
    }
    assert_eq!(after.of("./snap/inner"), before.of("./snap/inner"));
    let (text, encoded) = after.places_of("./text");
    assert!(text.len() > 10 && encoded == text.len(), "{text:?}");
}

#[test]
fn mount_of_another_format_is_not_defragmented() {
    let workshop = Workshop::new();
    let mounted = Mounted::of(&workshop, "disk.img");
    for operand in ["mnt/dir/file", "mnt"] {
        let refused = workshop.refused(&["defrag", "-r", operand]);
        let expected = format!("platter: {operand}: operation not supported\n");
        assert_eq!(refused, expected);
    }
    drop(mounted);
}

#[test]
fn defragmented_files_are_compressed_when_asked() {
    let workshop = Workshop::new();
    let out = workshop.path("").display().to_string();
    workshop.btrfs(&format!("OUT={out}\n{PIECES}"));
    let before = Seen::of_pool(&workshop, "before");
    let files = [
        "pool.img:/text",
        "pool.img:/inline",
        "pool.img:/random",
        "pool.img:/dir/nocow",
    ];
    let mut written = Vec::new();
    for method in ["-czstd:5", "-clzo", "-c"] {
        // What follows the option is an operand.
        workshop.read(&[&["defrag", method], &files[..]].concat());
        workshop.assert_checked();
        let run = method.trim_start_matches('-');
        let after = Seen::of_pool(&workshop, run);
        assert_eq!(after.same, before.same, "{method}");
        let (text, encoded) = after.places_of("./text");
        assert!(
            text.len() > 10 && encoded == text.len(),
            "{method}: {text:?}"
        );
        assert!(!written.contains(&after.places), "{method}");
        // Noise does not get shorter, and stays where it is.
        let random = after.places_of("./random");
        assert_eq!(random, before.places_of("./random"), "{method}");
        assert_eq!(random.1, 0, "{method}");
        assert_eq!(after.of("./dir/nocow"), 1, "{:?}", after.extents);
        assert_eq!(after.places_of("./dir/nocow").1, 0, "{method}");
        let again = [&["defrag", "--json", method], &files[..]].concat();
        let again = workshop.document("defrag", &again);
        assert_eq!(again["written_bytes"], 0, "{method}");
        written.push(after.places);
    }
}

#[test]
fn a_range_of_a_file_is_defragmented() {
    let workshop = Workshop::new();
    let out = workshop.path("").display().to_string();
    workshop.btrfs(&format!("OUT={out}\n{PIECES}"));
    let before = Seen::of_pool(&workshop, "before");
    // Ten of its extents become one; what is as long as the target stays.
    let range = ["-s", "32K", "-l", "160K"];
    workshop.read(&[&["defrag", "pool.img:/dir/two"], &range[..]].concat());
    workshop.read(&["defrag", "pool.img:/one", "-t", "16K"]);
    workshop.assert_checked();
    let after = Seen::of_pool(&workshop, "after");
    assert_eq!(after.same, before.same);
    assert_eq!(after.of("./dir/two"), before.of("./dir/two") - 9);
    assert_eq!(after.places_of("./one"), before.places_of("./one"));
}

#[test]
fn what_cannot_be_defragmented_is_refused_by_name() {
    let workshop = Workshop::new();
    let ran = workshop.run(&["defrag", "disk.img:/dir/file"]);
    assert_eq!(ran.status, 1);
    let refused = "ext: defragmentation is not supported";
    assert!(ran.err.contains(refused), "{}", ran.err);
    workshop.btrfs("mkdir dir\necho text > file");
    for (operand, error) in [
        ("pool.img:/dir", "/dir: is a directory"),
        ("pool.img:/none", "/none: no such file or directory"),
    ] {
        let ran = workshop.run(&["defrag", operand]);
        assert_eq!(ran.status, 1, "{operand}");
        assert!(ran.err.contains(error), "{}", ran.err);
    }
    for arguments in [["-czip", "pool.img:/file"], ["-l0", "pool.img:/file"]] {
        let ran = workshop.run(&[&["defrag"], &arguments[..]].concat());
        assert_eq!(ran.status, 2, "{arguments:?}: {}", ran.err);
    }
}
