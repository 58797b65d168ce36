//! Random trees that are changed between snapshots: a script of operations over few names, many of which fail or
//! replace each other.

use std::fmt::Write as _;

use testkit::prng::Prng;

/// Names in each directory.
const NAMES: u64 = 4;
/// Operations between two snapshots.
const OPERATIONS: usize = 120;

/// What operations have in common: `q` does without what does not work, `noise` makes data.
const PRELUDE: &str = r#"
q() { "$@" 2>/dev/null >/dev/null || :; }
noise() { head -c "$1" /dev/urandom; }
write() { [ -d "$1" ] || [ -p "$1" ] || [ -L "$1" ] || noise $3 | q dd "of=$1" bs=64K seek=$2 oflag=seek_bytes iflag=fullblock conv=notrunc; }
text() { [ -d "$1" ] || [ -p "$1" ] || [ -L "$1" ] || q sh -c 'seq $0 > "$1"' "$2" "$1"; }
swap() { q mv -T "$1" .swapped; q mv -T "$2" "$1"; q mv -T .swapped "$2"; }
mkdir -p a/b/c b/a/c c/d/a c/a d/b/d
"#;

/// A path of one to four names.
fn path(prng: &mut Prng) -> String {
    let depth = [1, 1, 2, 2, 2, 3, 3, 4][usize::try_from(prng.below(8)).unwrap_or(0)];
    let names: Vec<_> = (0..depth)
        .map(|_| char::from(b'a' + u8::try_from(prng.below(NAMES)).unwrap_or(0)).to_string())
        .collect();
    names.join("/")
}

fn operation(prng: &mut Prng) -> String {
    let (one, two) = (path(prng), path(prng));
    let offset = prng.below(60) * 4096;
    let odd = prng.below(200_000);
    let size = 1 + prng.below(70_000);
    match prng.below(30) {
        0 | 1 => format!("q mkdir {one}"),
        2..=4 => format!("write {one} {odd} {size}"),
        5 => format!("write {one} 0 {}", 1 + prng.below(3000)),
        6 => format!("text {one} {}", prng.below(40_000)),
        7 => format!("q truncate -s {odd} {one}"),
        8 => format!("q rm {one}"),
        9 => format!("q rm -r {one}"),
        10..=13 => format!("q mv -T {one} {two}"),
        14 => format!("swap {one} {two}"),
        15 | 16 => format!("q ln {one} {two}"),
        17 => format!("q ln -s {two} {one}"),
        18 => format!("q setfattr -n user.{} -v value{odd} {one}", prng.below(3)),
        19 => format!("q setfattr -x user.{} {one}", prng.below(3)),
        20 => format!("q chmod {:o} {one}", 0o500 + prng.below(0o300)),
        21 => format!(
            "q chown {}:{} {one}; [ ! -f {one} ] || q setcap cap_net_raw+ep {one}",
            prng.below(3),
            odd % 7
        ),
        22 => format!("q touch -h -d @{odd}.{size} {one}"),
        23 => format!("q cp -a --reflink=always {one} {two}"),
        24 => format!(
            "[ ! -f {one} ] || [ ! -f {two} ] || q xfs_io -c 'reflink {one} {offset} {} {}' {two}",
            prng.below(20) * 4096,
            (1 + prng.below(20)) * 4096
        ),
        25 => format!("q fallocate -p -o {offset} -l {size} {one}"),
        26 => format!("q fallocate -n -o {offset} -l {size} {one}"),
        27 => format!("q mknod {one} p; q mknod {two} c {} {odd}", size % 4096),
        28 => format!("q setfacl -m d:u:{}:rwx,u:2:r {one}", size % 5),
        _ => format!("q chattr +c {one}; q setfattr -n btrfs.compression -v zstd {one}"),
    }
}

/// A script that makes a tree and changes it, with a read-only snapshot after each part: `snap0` and so on.
pub(super) fn script(seed: u64, snapshots: usize) -> String {
    let mut prng = Prng::new(seed);
    let mut script = String::from("btrfs subvolume create tree\ncd tree\n");
    script += PRELUDE;
    for snapshot in 0..snapshots {
        for _ in 0..OPERATIONS {
            script += &operation(&mut prng);
            script.push('\n');
        }
        // Infallible.
        let _ = writeln!(script, "btrfs subvolume snapshot -r . ../snap{snapshot}");
    }
    script
}
