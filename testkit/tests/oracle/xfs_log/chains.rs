//! Operations of many transactions each, while syncs write the log: what is cut from these logs has
//! intents that are open.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use testkit::tool;

/// Pieces of a fragmented file.
const PIECES: u64 = 300;
const BLOCK: u64 = 4096;

/// Exchanges the contents of two files, over and over.
const EXCHANGE: &str = r#"
use strict;
use Fcntl;
my ($one, $two, $rounds, $flags) = @ARGV;
sysopen(my $first, $one, O_RDWR) or die "$one: $!";
sysopen(my $second, $two, O_RDWR) or die "$two: $!";
my $length = (-s $one) < (-s $two) ? (-s $one) : (-s $two);
for my $round (1 .. $rounds) {
    my $range = pack("l L Q Q Q Q", fileno($first), 0, 0, 0, $length & ~4095, $flags);
    ioctl($second, 0x40285881, $range) or die "exchange: $!";
}
"#;

/// Works while another thread forces the log to be written, as often as it can.
fn with_concurrent_syncs(
    root: &Path,
    work: impl FnOnce() -> Result<Vec<File>>,
) -> Result<Vec<File>> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let syncs = scope.spawn(|| -> Result<()> {
            let path = root.join("synced");
            let mut number = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                let mut file = File::options().append(true).create(true).open(&path)?;
                writeln!(file, "{number}")?;
                file.sync_all()?;
                number += 1;
            }
            Ok(())
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        match syncs.join() {
            Ok(synced) => synced?,
            Err(_) => anyhow::bail!("the syncs panicked"),
        }
        done
    })
}

/// A file of pieces with holes in between.
fn fragmented(path: &Path, first: u64, byte: u8) -> Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    for piece in 0..PIECES {
        file.write_all_at(&[byte; 4096], (first + piece * 2) * BLOCK)?;
    }
    file.sync_all()?;
    Ok(file)
}

fn clone(from: &Path, to: &Path) -> Result<()> {
    let mut io = tool::command("xfs_io");
    io.arg("-f")
        .args(["-c", &format!("reflink {}", from.display())]);
    tool::succeed(io.arg(to))?;
    Ok(())
}

/// Clones over files that have blocks of their own, overwritten and cut in pieces afterwards.
pub(crate) fn clones(root: &Path) -> Result<Vec<File>> {
    fragmented(&root.join("source"), 0, 1)?;
    with_concurrent_syncs(root, || {
        let mut open = Vec::new();
        for number in 0..6_u8 {
            let path = root.join(format!("clone{number}"));
            fragmented(&path, u64::from(number % 2), 2 + number)?;
            clone(&root.join("source"), &path)?;
            let file = File::options().write(true).open(&path)?;
            for piece in (u64::from(number)..PIECES).step_by(5) {
                file.write_all_at(&[9; 2048], piece * 2 * BLOCK)?;
                if piece % 20 == 0 {
                    file.sync_data()?;
                }
            }
            match number % 3 {
                0 => file.set_len(PIECES * BLOCK)?,
                1 => fs::remove_file(&path)?,
                _ => {}
            }
            open.push(file);
        }
        Ok(open)
    })
}

/// Files of many pieces that are truncated and removed.
pub(crate) fn truncations(root: &Path) -> Result<Vec<File>> {
    with_concurrent_syncs(root, || {
        for number in 0..10_u8 {
            let path = root.join(format!("file{number}"));
            let file = fragmented(&path, 0, number)?;
            file.set_len(PIECES * BLOCK)?;
            file.set_len(17)?;
            let file = fragmented(&path, 1, number)?;
            if number % 2 == 0 {
                drop(file);
                fs::remove_file(&path)?;
            }
        }
        Ok(Vec::new())
    })
}

/// Files that exchange their contents.
pub(crate) fn exchanges(root: &Path) -> Result<Vec<File>> {
    for number in 0..4_u8 {
        fragmented(
            &root.join(format!("file{number}")),
            u64::from(number % 2),
            number + 1,
        )?;
    }
    clone(&root.join("file0"), &root.join("file4"))?;
    with_concurrent_syncs(root, || {
        for (one, two, flags) in [(0, 1, 0), (2, 3, 8), (0, 3, 1), (1, 4, 0), (4, 2, 8)] {
            let mut exchange = tool::command("perl");
            exchange.args(["-e", EXCHANGE]);
            for number in [one, two] {
                exchange.arg(root.join(format!("file{number}")));
            }
            exchange.args(["3", &format!("{flags}")]);
            tool::succeed(&mut exchange)?;
        }
        Ok(Vec::new())
    })
}

/// Names of one file: so many that the pointers to its parents have a tree of blocks.
const LINKS: usize = 250;

/// Files that get names, other names, and lose them, one of them many.
pub(crate) fn links(root: &Path) -> Result<Vec<File>> {
    let (one, two) = (root.join("one"), root.join("two"));
    fs::create_dir(&one)?;
    fs::create_dir(&two)?;
    let name = |number: usize| format!("{number:03}-{}", "n".repeat(number % 200));
    with_concurrent_syncs(root, || {
        let many = one.join("many");
        fs::write(&many, b"many")?;
        for number in 0..LINKS {
            fs::hard_link(&many, two.join(name(number)))?;
            fs::write(one.join(name(number)), b"few")?;
            match number % 5 {
                0 => fs::rename(one.join(name(number)), one.join(format!("same {number}")))?,
                1 => fs::rename(one.join(name(number)), two.join(name(number - 1)))?,
                2 => fs::rename(two.join(name(number)), one.join(name(number)))?,
                3 => fs::remove_file(one.join(name(number)))?,
                _ => fs::rename(two.join(name(number)), two.join(format!("other {number}")))?,
            }
        }
        for number in (4..LINKS).step_by(10) {
            fs::remove_file(two.join(format!("other {number}")))?;
        }
        Ok(Vec::new())
    })
}

/// Names and attributes, with the same concurrent syncs.
pub(crate) fn names(root: &Path) -> Result<Vec<File>> {
    with_concurrent_syncs(root, || super::work::names(root))
}

/// Open files that lose their names, with the same concurrent syncs.
pub(crate) fn unlinked(root: &Path) -> Result<Vec<File>> {
    with_concurrent_syncs(root, || super::work::unlinked(root))
}
