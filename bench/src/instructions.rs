//! Instructions that single operations of the library take.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use testkit::fs_type::FsType;
use testkit::oracle::{btrfs, mke2fs, xfs};

use crate::measure;
use crate::place::{Directory, Mode};
use crate::record::{self, Keep};
use crate::side;

/// The part of this program that carries the operations out.
pub(crate) const PART: &str = "operate";

const IMAGE_KIB: u64 = 512 << 10;
/// What images hold.
const FORMATS: [(FsType, &str); 3] = [
    (FsType::Ext4, "ext4 with 4 KiB blocks"),
    (FsType::Xfs, "XFS with 4 KiB blocks"),
    (FsType::Btrfs, "btrfs with 16 KiB tree blocks"),
];
const CACHE_BYTES: u64 = 64 << 20;
/// Files that are there before anything is counted.
const FILES: u64 = 4096;
/// The size of the file that is read and written.
const CONTENTS_BYTES: u64 = 8 << 20;
const BLOCK_BYTES: usize = 4096;
/// Two numbers of operations to compare.
const COUNTS: [u64; 2] = [512, 3584];

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Operation {
    Create,
    Stat,
    ColdStat,
    Unlink,
    SetXattr,
    /// 4 KiB of a file in memory.
    Read,
    /// 4 KiB of a file that is not in memory.
    ColdRead,
    /// 4 KiB written over old ones.
    Write,
}

const OPERATIONS: [Operation; 8] = [
    Operation::Create,
    Operation::Stat,
    Operation::ColdStat,
    Operation::Unlink,
    Operation::SetXattr,
    Operation::Read,
    Operation::ColdRead,
    Operation::Write,
];

/// What the measured process is to do.
#[derive(Debug, Serialize, Deserialize)]
struct Orders {
    format: FsType,
    operation: Operation,
    count: u64,
    dir: PathBuf,
}

#[derive(Debug, Serialize)]
struct Counted {
    format: &'static str,
    operation: Operation,
    instructions: f64,
}

/// Counts all operations.
pub(crate) fn run(keep: Keep) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut counted = Vec::new();
    for (format, name) in FORMATS {
        println!("instructions of one operation of the library, on {name}:");
        for operation in OPERATIONS {
            let orders = |count| Orders {
                format,
                operation,
                count,
                dir: dir.path().to_owned(),
            };
            let instructions = measure::instructions_each(PART, COUNTS, orders)?;
            println!("{instructions:>10.0}  {operation:?}");
            counted.push(Counted {
                format: name,
                operation,
                instructions,
            });
        }
    }
    record::keep(keep, "instructions", &counted)
}

/// The process' part.
pub(crate) fn operate(orders: &str) -> Result<()> {
    let orders: Orders = serde_json::from_str(orders)?;
    ensure!(orders.count <= FILES, "there are fewer files");
    let ground = side::Ground {
        image: orders.dir.join("image"),
        format: orders.format,
        mount: None,
        dir: orders.dir.clone(),
        cache_bytes: CACHE_BYTES,
    };
    match orders.format {
        FsType::Ext4 => {
            let options = ["-t", "ext4", "-b", "4096", "-N", "16384"];
            mke2fs::make(&ground.image, IMAGE_KIB, &options, None)?;
        }
        FsType::Xfs => xfs::make(&ground.image, IMAGE_KIB, &[])?,
        FsType::Btrfs => btrfs::make(&[&ground.image], IMAGE_KIB, &[])?,
    }
    let mut live = side::Side::Library.start(&ground)?;
    prepare(&*live.root()?)?;
    if matches!(orders.operation, Operation::ColdStat | Operation::ColdRead) {
        live.end()?;
        live = side::Side::Library.start(&ground)?;
    }
    act(&*live.root()?, &orders)?;
    live.end()
}

fn name(number: u64) -> String {
    format!("file-{number:08}")
}

fn prepare(root: &dyn Directory) -> Result<()> {
    let dir = root.make_dir("subdir")?;
    for number in 0..FILES {
        dir.create(&name(number))?;
    }
    let contents = dir.create("contents")?;
    let data = vec![7; usize::try_from(CONTENTS_BYTES)?];
    contents.write_at(0, &data)?;
    root.sync()
}

fn act(root: &dyn Directory, orders: &Orders) -> Result<()> {
    let dir = root.dir("subdir")?;
    let contents = dir.open("contents", Mode::Write)?;
    let mut block = vec![7; BLOCK_BYTES];
    if orders.operation == Operation::Read {
        contents.read_at(0, &mut vec![0; usize::try_from(CONTENTS_BYTES)?])?;
        for offset in (0..CONTENTS_BYTES).step_by(BLOCK_BYTES) {
            contents.read_at(offset, &mut block)?;
        }
    }
    for number in 0..orders.count {
        // Every block once, never two neighbours one after the other.
        let blocks = CONTENTS_BYTES / BLOCK_BYTES as u64;
        let offset = number * 797 % blocks * BLOCK_BYTES as u64;
        match orders.operation {
            Operation::Create => drop(dir.create(&name(FILES + number))?),
            Operation::Stat | Operation::ColdStat => {
                ensure!(dir.size_bytes(&name(number))? == 0, "not empty");
            }
            Operation::Unlink => dir.unlink(&name(number))?,
            Operation::SetXattr => dir
                .open(&name(number), Mode::Write)?
                .set_xattr("user.bench", b"value")?,
            Operation::Read | Operation::ColdRead => {
                let length = contents.read_at(offset, &mut block)?;
                ensure!(length == BLOCK_BYTES && block[0] == 7, "other contents");
            }
            Operation::Write => contents.write_at(offset, &block)?,
        }
    }
    Ok(())
}
