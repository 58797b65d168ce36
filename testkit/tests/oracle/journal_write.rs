//! Logs that we wrote: e2fsck and the kernel replay them as we do, block for block.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Result, ensure};
use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::MemoryBudget;
use platter_ext4::mapping::{Backing, BlockMap, Piece};
use platter_ext4::ondisk::features::Incompat;
use platter_ext4::ondisk::jbd2::LogBlock;
use platter_ext4::ondisk::jbd2::superblock::{
    DiskJournalSuperblock, JournalCompat, JournalIncompat,
};
use platter_ext4::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_OFFSET_BYTES};
use platter_ext4::ondisk::{BlockNr, InodeNr};
use platter_ext4::recovery::open_journal;
use platter_ext4::txn::{Journal, Log};
use platter_ext4::{FsContext, inode};
use platter_vfs::SystemClock;
use testkit::oracle::{Verdict, e2fsck};
use testkit::prng::Prng;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::recovery::{Cut, Scene, compare_with_others, open_volume};

/// The first inode that mke2fs gives to a file, after that of `lost+found`.
const FILE: u32 = 12;
const FILE_BLOCKS: usize = 96;

/// What a journal without checksums is to have instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forced {
    Nothing,
    Version1,
    Version2,
}

/// A filesystem whose file is written through the journal.
struct Writer {
    image: Arc<MemoryDevice>,
    journal: Option<Arc<MemoryDevice>>,
    volume: FsContext,
    /// Where the file's blocks lie.
    blocks: Vec<u64>,
    /// What they hold as of the last commit, and now.
    committed: BTreeMap<u64, Vec<u8>>,
    running: BTreeMap<u64, Vec<u8>>,
    prng: Prng,
}

fn open(device: &Arc<dyn BlockDevice>) -> Result<FsContext> {
    open_volume(device, &Arc::new(MemoryBudget::new(32 << 20)))
}

/// Changes the superblock of the filesystem.
fn change_superblock(
    device: &dyn BlockDevice,
    change: impl FnOnce(&mut DiskSuperblock),
) -> Result<()> {
    let mut disk = DiskSuperblock::new_zeroed();
    device.read_at(SUPERBLOCK_OFFSET_BYTES, disk.as_mut_bytes())?;
    change(&mut disk);
    disk.seal();
    Ok(device.write_at(SUPERBLOCK_OFFSET_BYTES, disk.as_bytes())?)
}

/// Turns on checksums that mke2fs does not.
fn force(journal: &Journal, forced: Forced) -> Result<()> {
    let mut block = vec![0; journal.map().block_bytes() as usize];
    journal.map().read(LogBlock(0), &mut block)?;
    let (disk, _) = DiskJournalSuperblock::mut_from_prefix(&mut block).unwrap();
    match forced {
        Forced::Nothing => return Ok(()),
        Forced::Version1 => disk.feature_compat = JournalCompat::CHECKSUM.bits().into(),
        Forced::Version2 => {
            let incompat = disk.feature_incompat.get() | JournalIncompat::CSUM_V2.bits();
            disk.feature_incompat = incompat.into();
            disk.checksum_type = 4;
        }
    }
    disk.seal();
    journal.map().write(LogBlock(0), &block)?;
    Ok(())
}

impl Writer {
    fn open(scene: &Scene, forced: Forced) -> Result<Self> {
        let memory =
            |path| -> Result<_> { Ok(Arc::new(MemoryDevice::new("memory", std::fs::read(path)?))) };
        let image: Arc<MemoryDevice> = memory(scene.image())?;
        let journal = scene.journal();
        let journal = journal.exists().then(|| memory(journal)).transpose()?;
        change_superblock(&*image, |disk| {
            let incompat = disk.feature_incompat.get() | Incompat::RECOVER.bits();
            disk.feature_incompat = incompat.into();
        })?;
        let device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&image);
        let external = journal.clone().map(|device| device as Arc<dyn BlockDevice>);
        let volume = open(&device)?;
        force(&open_journal(&volume, external.as_ref())?, forced)?;
        let written = open_journal(&volume, external.as_ref())?;
        let features = volume.superblock.features;
        let clock = Arc::new(SystemClock::new());
        let volume =
            volume.try_writable(|buffers| Log::with_journal(buffers, written, &features, clock))?;
        let blocks = blocks_of_file(&volume)?;
        ensure!(blocks.len() == FILE_BLOCKS, "the file has other blocks");
        Ok(Self {
            image,
            journal,
            volume,
            blocks,
            committed: BTreeMap::new(),
            running: BTreeMap::new(),
            prng: Prng::new(7),
        })
    }

    fn log(&self) -> &Log {
        self.volume.log().unwrap()
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.prng.below(bound as u64)).unwrap()
    }

    fn pick(&mut self) -> u64 {
        let index = self.below(self.blocks.len());
        self.blocks[index]
    }

    /// What a block is to hold next. Some begin like a block of the log.
    fn content(&mut self) -> Vec<u8> {
        let tag = self.prng.next_u64();
        let len = self.volume.geometry.block_bytes as usize;
        let mut bytes = tag.to_le_bytes().repeat(len / 8);
        if tag.is_multiple_of(4) {
            bytes[..4].copy_from_slice(&[0xc0, 0x3b, 0x39, 0x98]);
        }
        bytes
    }

    /// Writes some blocks of the file through the journal.
    fn write(&mut self, count: usize) -> Result<()> {
        let contents: Vec<_> = (0..count).map(|_| (self.pick(), self.content())).collect();
        let mut handle = self.volume.begin(u32::try_from(count)?)?;
        for (block, content) in &contents {
            handle.journal_data(BlockNr(*block), content.clone())?;
        }
        drop(handle);
        self.running.extend(contents);
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.log().commit_all()?;
        self.committed.extend(std::mem::take(&mut self.running));
        Ok(())
    }

    /// Writes some blocks past the journal, which must not replay them.
    fn write_past(&mut self) -> Result<()> {
        let count = 1 + self.below(3);
        let contents: Vec<_> = (0..count).map(|_| (self.pick(), self.content())).collect();
        let mut handle = self.volume.begin(0)?;
        for (block, _) in &contents {
            let range = BlockNr(*block)..BlockNr(block + 1);
            handle.forget(range.clone());
            handle.free_when_durable(range);
            self.running.remove(block);
        }
        drop(handle);
        self.commit()?;
        for (block, content) in contents {
            let offset = self.volume.geometry.offset_bytes(BlockNr(block));
            self.image.write_at(offset, &content)?;
            self.committed.insert(block, content);
        }
        Ok(())
    }

    fn cut(&self) -> Cut {
        Cut {
            image: self.image.snapshot(),
            journal: self.journal.as_ref().map(|journal| journal.snapshot()),
        }
    }

    fn assert_holds(&self, image: &[u8], reader: &str) -> Result<()> {
        for (block, content) in &self.committed {
            let offset = self.volume.geometry.offset_bytes(BlockNr(*block));
            let found = &image[usize::try_from(offset)?..][..content.len()];
            assert!(found == content, "block {block} after {reader}");
        }
        Ok(())
    }

    /// Writes so much that the log goes round twice, with a cut now and then, in which the journal
    /// has these features.
    fn churn(&mut self, features: &[&str]) -> Result<()> {
        let (mut revoked, mut replayed) = (0, 0);
        let mut round = 0;
        while round < 200 || self.log().statistics().log_blocks < 2 * 1024 {
            let count = 1 + self.below(25);
            self.write(count)?;
            match self.below(8) {
                0 => self.write_past()?,
                1 => {}
                2 if self.below(8) == 0 => self.log().checkpoint_all()?,
                3 => self.log().maintain()?,
                _ => self.commit()?,
            }
            if round % 70 == 69 {
                let recovered = compare_with_others(&self.cut())?;
                self.assert_holds(&recovered.image, "recovery")?;
                assert_eq!(recovered.features, features);
                revoked += recovered.report.log.blocks_revoked;
                replayed += recovered.report.log.blocks_replayed;
            }
            round += 1;
        }
        ensure!(replayed > 0, "no cut held a transaction");
        ensure!(revoked > 0, "nothing was revoked");
        Ok(())
    }

    /// Closes the log, after which nothing is left to recover.
    fn close(&mut self) -> Result<()> {
        self.log().close()?;
        self.committed.extend(std::mem::take(&mut self.running));
        change_superblock(&*self.image, |disk| {
            let incompat = disk.feature_incompat.get() & !Incompat::RECOVER.bits();
            disk.feature_incompat = incompat.into();
        })?;
        let cut = self.cut();
        self.assert_holds(&cut.image, "closing")?;
        let scene = cut.save()?;
        if self.journal.is_none() {
            let verdict = e2fsck::check(&scene.image())?;
            ensure!(verdict == Verdict::Clean, "after closing: {verdict:?}");
        }
        scene.cuts("", |_, _| Ok(()))?;
        self.assert_holds(&std::fs::read(scene.image())?, "the kernel's mount")
    }
}

fn blocks_of_file(volume: &FsContext) -> Result<Vec<u64>> {
    let inode = inode::read(volume, InodeNr::new(FILE).unwrap())?;
    let mut blocks = Vec::new();
    BlockMap::decode(volume, &inode)?.visit(volume, &mut |piece| {
        if let Piece::Run(run) = piece
            && let Backing::Written(start) = run.backing
        {
            blocks.extend(start.0..start.0 + u64::from(run.count));
        }
        ControlFlow::Continue(())
    })?;
    Ok(blocks)
}

fn examine(scene: &Scene, forced: Forced, features: &[&str]) -> Result<()> {
    let mut writer = Writer::open(scene, forced)?;
    writer.churn(features)?;
    writer.close()
}

/// A directory with one file of as many blocks as are written.
fn files(block_bytes: &str) -> Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    let content = vec![0x55; FILE_BLOCKS * block_bytes.parse::<usize>()?];
    std::fs::write(dir.path().join("file"), content)?;
    Ok(dir)
}

fn examine_made(block_bytes: &str, off: &str, forced: Forced, features: &[&str]) -> Result<()> {
    let files = files(block_bytes)?;
    let size = if block_bytes == "1024" {
        "size=1"
    } else {
        "size=4"
    };
    let options = ["-t", "ext4", "-b", block_bytes, "-O", off, "-J", size];
    let scene = Scene::make_filled(12 << 10, &options, Some(files.path()))?;
    examine(&scene, forced, features)
}

const REVOKE: &str = "journal_incompat_revoke";
const WIDE: &str = "journal_64bit";

#[test]
fn version_3_logs_are_replayed_by_all() -> Result<()> {
    for block_bytes in ["1024", "4096"] {
        let v3 = "journal_checksum_v3";
        examine_made(block_bytes, "64bit", Forced::Nothing, &[REVOKE, WIDE, v3])?;
        examine_made(block_bytes, "^64bit", Forced::Nothing, &[REVOKE, v3])?;
    }
    Ok(())
}

#[test]
fn version_2_logs_are_replayed_by_all() -> Result<()> {
    let v2 = "journal_checksum_v2";
    let off = "^metadata_csum";
    examine_made("1024", off, Forced::Version2, &[REVOKE, WIDE, v2])?;
    let off = "^metadata_csum,^64bit";
    examine_made("4096", off, Forced::Version2, &[REVOKE, v2])
}

#[test]
fn version_1_logs_are_replayed_by_all() -> Result<()> {
    let v1 = "journal_checksum";
    let off = "^metadata_csum";
    examine_made("4096", off, Forced::Version1, &[v1, REVOKE, WIDE])?;
    let off = "^metadata_csum,^64bit";
    examine_made("1024", off, Forced::Version1, &[v1, REVOKE])
}

#[test]
fn logs_without_checksums_are_replayed_by_all() -> Result<()> {
    let off = "^metadata_csum";
    examine_made("1024", off, Forced::Nothing, &[REVOKE, WIDE])?;
    let off = "^metadata_csum,^64bit";
    examine_made("4096", off, Forced::Nothing, &[REVOKE])
}

#[test]
fn logs_on_a_device_of_their_own_are_replayed_by_all() -> Result<()> {
    for block_bytes in ["1024", "4096"] {
        let files = files(block_bytes)?;
        let scene = Scene::make_external(12 << 10, block_bytes, Some(files.path()))?;
        let features = [REVOKE, WIDE, "journal_checksum_v3"];
        examine(&scene, Forced::Nothing, &features)?;
    }
    Ok(())
}
