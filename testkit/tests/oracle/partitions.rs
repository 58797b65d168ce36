//! Partition tables that `sfdisk` and `sgdisk` made, read as `partx` reads them.

use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use platter_block::partition::{Fault, GptCopy, Scheme, TableError, read_backup_table, read_table};
use platter_block::{BlockDevice, FileDevice, OpenOptions, PartitionTable};
use tempfile::TempDir;
use testkit::loopdev::{Access, LoopDevice};
use testkit::prng::Prng;
use testkit::tool;

const MIB: usize = 1 << 20;

/// A disk of 64 MiB in a sparse file.
struct Disk {
    _dir: TempDir,
    path: PathBuf,
    sector_bytes: u32,
}

impl Disk {
    /// A disk that `sfdisk` partitions by a script.
    fn new(script: &str, sector_bytes: u32) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("disk");
        std::fs::File::create(&path)?.set_len(64 * MIB as u64)?;
        let disk = Self {
            _dir: dir,
            path,
            sector_bytes,
        };
        if sector_bytes == 512 {
            sfdisk(&disk.path, script)?;
        } else {
            // Of a plain file sfdisk does not believe any other sector size.
            let device = LoopDevice::with_sectors(&disk.path, sector_bytes, Access::ReadWrite)?;
            sfdisk(device.path(), script)?;
        }
        Ok(disk)
    }

    fn device(&self) -> Result<Arc<FileDevice>> {
        let device = FileDevice::open(&self.path, OpenOptions::default())?;
        Ok(Arc::new(device))
    }

    fn table(&self) -> Result<PartitionTable> {
        let table = read_table(&*self.device()?)?;
        table.context("no partition table was found")
    }

    /// Overwrites a range with zeros.
    fn wipe(&self, range: Range<usize>) -> Result<()> {
        let file = std::fs::File::options().write(true).open(&self.path)?;
        Ok(file.write_all_at(&vec![0; range.len()], range.start as u64)?)
    }

    /// Flips a bit of the byte at an offset.
    fn flip(&self, offset: usize) -> Result<()> {
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&self.path)?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset as u64)?;
        Ok(file.write_all_at(&[byte[0] ^ 1], offset as u64)?)
    }

    fn sgdisk(&self, arguments: &[&str]) -> Result<()> {
        let mut sgdisk = tool::command("sgdisk");
        tool::succeed(sgdisk.args(arguments).arg(&self.path))?;
        Ok(())
    }

    /// Compares what platter reads with what partx does. Returns the table for more.
    fn agree(&self) -> Result<PartitionTable> {
        let table = self.table()?;
        ensure!(table.sector_bytes == self.sector_bytes, "{table:?}");
        let (ours, theirs) = (described(&table), self.partx()?);
        ensure!(ours == theirs, "platter {ours:#?}\npartx {theirs:#?}");
        Ok(table)
    }

    /// The lines of partx: number, start and length in units of 512 bytes, type, and in a GPT
    /// also GUID and name.
    fn partx(&self) -> Result<Vec<String>> {
        let mut partx = tool::command("partx");
        partx
            .args(["--raw", "--noheadings", "--sector-size"])
            .arg(self.sector_bytes.to_string())
            .args(["--output", "NR,START,SECTORS,TYPE,UUID,NAME,SCHEME"])
            .arg(&self.path);
        let lines = tool::succeed(&mut partx)?.text();
        let normal = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                [number, start, count, kind, _, _, "dos"] => {
                    format!("{number} {start} {count} {kind}")
                }
                [number, start, count, kind, guid, name, "gpt"] => {
                    format!("{number} {start} {count} {kind} {guid} {name}")
                }
                _ => format!("not understood: {line}"),
            }
        };
        Ok(lines.lines().map(normal).collect())
    }
}

/// Our reading in the words of partx.
fn described(table: &PartitionTable) -> Vec<String> {
    use platter_block::partition::PartitionType;
    let lines = table.partitions.iter().map(|partition| {
        let start = partition.range.start / 512;
        let count = (partition.range.end - partition.range.start) / 512;
        let number = partition.number;
        match (partition.kind, partition.guid) {
            (PartitionType::Guid(kind), Some(guid)) => {
                let name = escaped(&partition.name);
                format!("{number} {start} {count} {kind} {guid} {name}")
            }
            (PartitionType::Byte(kind), _) => format!("{number} {start} {count} {kind:#x}"),
            (PartitionType::Guid(_), None) => format!("{number} has no GUID"),
        }
    });
    lines.collect()
}

/// A name as partx escapes it.
fn escaped(name: &[u8]) -> String {
    let escape = |&byte: &u8| match byte {
        b'!'..=b'~' if byte != b'\\' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    name.iter().map(escape).collect()
}

fn sfdisk(target: &Path, script: &str) -> Result<()> {
    let mut sfdisk = tool::command("sfdisk");
    sfdisk
        .args(["--quiet", "--no-reread", "--no-tell-kernel"])
        .arg(target)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = sfdisk.spawn().context("sfdisk cannot be run")?;
    let mut input = child.stdin.take().context("sfdisk's input")?;
    input.write_all(script.as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "sfdisk: {complaint}\n{script}");
    Ok(())
}

const GPT: &str = "label: gpt\n\
    2 : start=1MiB, size=4MiB, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, name=\"EFI system\"\n\
    7 : start=6MiB, size=8MiB, name=\"größer 根\"\n\
    128 : start=20MiB, size=1MiB\n";

const LOGICAL: &str = "label: dos\n\
    1 : start=1MiB, size=2MiB, type=83, bootable\n\
    3 : start=4MiB, size=56MiB, type=f\n\
    5 : start=5MiB, size=4MiB, type=83\n\
    6 : start=10MiB, size=1MiB, type=82\n\
    7 : start=12MiB, size=40MiB, type=8e\n";

fn copy(table: &PartitionTable) -> Option<GptCopy> {
    match table.scheme {
        Scheme::Gpt { copy, .. } => Some(copy),
        Scheme::Mbr { .. } => None,
    }
}

#[test]
fn gpt_reads_as_partx_reads_it() -> Result<()> {
    for sector_bytes in [512, 4096] {
        let table = Disk::new(GPT, sector_bytes)?.agree()?;
        assert_eq!(table.partitions.len(), 3);
        assert_eq!(copy(&table), Some(GptCopy::Primary));
        assert_eq!(table.partitions[1].name, "größer 根".as_bytes());
        assert_eq!(table.partitions[0].kind.to_string(), "EFI system");
        assert_eq!(table.corruption, []);
    }
    Ok(())
}

#[test]
fn mbr_with_logical_partitions_reads_as_partx_reads_it() -> Result<()> {
    for sector_bytes in [512, 4096] {
        let table = Disk::new(LOGICAL, sector_bytes)?.agree()?;
        let numbers: Vec<u32> = table.partitions.iter().map(|p| p.number).collect();
        assert_eq!(numbers, [1, 3, 5, 6, 7]);
        assert_eq!(table.corruption, []);
    }
    Ok(())
}

#[test]
fn deleting_a_logical_partition_moves_the_others_up() -> Result<()> {
    let disk = Disk::new(LOGICAL, 512)?;
    let mut sfdisk = tool::command("sfdisk");
    tool::succeed(
        sfdisk
            .args(["--quiet", "--delete"])
            .arg(&disk.path)
            .arg("6"),
    )?;
    let table = disk.agree()?;
    assert_eq!(table.get(6).context("sixth")?.range.start, 12 * MIB as u64);
    assert_eq!(table.get(7), None);
    Ok(())
}

#[test]
fn larger_and_hybrid_tables_read_as_partx_reads_them() -> Result<()> {
    let disk = Disk::new(GPT, 512)?;
    disk.sgdisk(&["--hybrid=2:7"])?;
    assert_eq!(copy(&disk.agree()?), Some(GptCopy::Primary));
    disk.sgdisk(&[
        "--resize-table=256",
        "--new=200:60MiB:61MiB",
        "--change-name=200:far",
    ])?;
    assert_eq!(disk.agree()?.get(200).context("far")?.name, b"far");
    Ok(())
}

#[test]
fn zeroed_primary_gpt_is_read_from_its_backup() -> Result<()> {
    for sector_bytes in [512, 4096] {
        let disk = Disk::new(GPT, sector_bytes)?;
        let whole = disk.table()?;
        let sector = usize::try_from(sector_bytes)?;
        // First the header alone, then all but the protective record.
        for wiped in [sector..2 * sector, sector..MIB] {
            disk.wipe(wiped)?;
            let table = disk.agree()?;
            assert_eq!(copy(&table), Some(GptCopy::Backup));
            assert_eq!(table.partitions, whole.partitions);
            assert_eq!(table.corruption.len(), 1, "{table:?}");
        }
        // Without the protective MBR, the beginning does not indicate a table.
        disk.wipe(0..sector)?;
        let device = disk.device()?;
        assert_eq!(read_table(&*device)?, None);
        let backup = read_backup_table(&*device)?.context("backup")?;
        assert_eq!(backup.partitions, whole.partitions);
    }
    Ok(())
}

#[test]
fn corrupt_in_both_copies_is_an_error_that_names_them() -> Result<()> {
    let disk = Disk::new(GPT, 512)?;
    disk.flip(512 + 60)?;
    disk.flip(64 * MIB - 512 + 60)?;
    let Err(error @ TableError::Corrupt { .. }) = read_table(&*disk.device()?) else {
        panic!("{:?}", disk.table());
    };
    let message = error.to_string();
    let expected = "disk: primary GPT header at byte 512: checksum does not match; \
                    backup GPT header at byte 67108352: checksum does not match";
    assert!(message.ends_with(expected), "{message}");
    Ok(())
}

#[test]
fn a_truncated_disk_keeps_its_first_partitions() -> Result<()> {
    for (script, lost) in [(GPT, 128), (LOGICAL, 7)] {
        let disk = Disk::new(script, 512)?;
        std::fs::File::options()
            .write(true)
            .open(&disk.path)?
            .set_len(16 * MIB as u64 + 100)?;
        let table = disk.table()?;
        let device = disk.device()?;
        for partition in &table.partitions {
            let reaches = partition.range.end > device.geometry().len_bytes;
            assert_eq!(partition.fault == Some(Fault::BeyondEnd), reaches);
            assert_eq!(
                table.open(device.clone(), partition.number).is_err(),
                reaches
            );
        }
        assert_eq!(
            table.get(lost).context("lost")?.fault,
            Some(Fault::BeyondEnd)
        );
    }
    Ok(())
}

#[test]
fn bare_filesystems_have_no_table() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("bare");
    let boot_code: Vec<u8> = (0..1024).map(|i: u32| i.to_le_bytes()[0] | 1).collect();
    for label in ["", "hybrid boot sector"] {
        testkit::oracle::mke2fs::make(&path, 4096, &["-t", "ext4", "-L", label], None)?;
        let mut bytes = std::fs::read(&path)?;
        bytes[..1024].copy_from_slice(&boot_code);
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        std::fs::write(&path, bytes)?;
        let device = FileDevice::open(&path, OpenOptions::default())?;
        assert_eq!(read_table(&device)?, None);
        drop(device);
        std::fs::remove_file(&path)?;
    }
    Ok(())
}

#[test]
fn random_tables_read_as_partx_reads_them() -> Result<()> {
    for seed in 0..24 {
        let mut chance = Prng::new(seed);
        let script = if seed % 2 == 0 {
            random_gpt(&mut chance)
        } else {
            random_mbr(&mut chance)
        };
        let disk = Disk::new(&script, 512)?;
        disk.agree()
            .with_context(|| format!("seed {seed}:\n{script}"))?;
    }
    Ok(())
}

fn random_gpt(chance: &mut Prng) -> String {
    let mut lines = vec!["label: gpt".to_owned()];
    let (mut number, mut start) = (0, 2048);
    for _ in 0..=chance.below(20) {
        number += 1 + chance.below(6);
        start += chance.below(3) * 1000;
        let size = 1 + chance.below(5000);
        lines.push(format!(
            "{number} : start={start}, size={size}, name=part{number}"
        ));
        start += size;
    }
    lines.join("\n")
}

fn random_mbr(chance: &mut Prng) -> String {
    let mut lines = vec!["label: dos".to_owned()];
    let extended = 1 + chance.below(4);
    for number in (1..=4).filter(|number| *number != extended) {
        if chance.below(2) == 0 {
            let (start, size) = (number * 3000, 1 + chance.below(3000));
            lines.push(format!("{number} : start={start}, size={size}, type=83"));
        }
    }
    lines.push(format!("{extended} : start=16384, size=100000, type=5"));
    let mut start = 16384 + 64;
    for number in 5..5 + chance.below(12) {
        let size = 1 + chance.below(4000);
        lines.push(format!("{number} : start={start}, size={size}, type=83"));
        start += size + 64 + chance.below(500);
    }
    lines.join("\n")
}
