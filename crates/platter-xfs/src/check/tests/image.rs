//! Images made by mkfs.xfs, changed field by field with checksums that are right.

use std::fmt::Write;
use std::fs;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::MemoryBudget;
use platter_vfs::check::{CheckSink, Finding};
use platter_vfs::{Filesystem, Name};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::mapping::{Backing, ForkMap};
use crate::ondisk::{
    AgBlock, AgNr, DiskSuperblock, FileBlock, FsBlock, Geometry, InodeNr, Superblock, checksum,
};
use crate::{MountOptions, Xfs};

/// An image in memory.
#[derive(Clone)]
pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    pub(super) geometry: Geometry,
}

pub(super) struct Findings(pub(super) Vec<Finding>);

impl CheckSink for Findings {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        self.0.push(finding);
        ControlFlow::Continue(())
    }
}

fn run(command: &mut Command) {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {said}");
}

impl Image {
    /// A filesystem with directories in all forms and a file. `realtime` has a realtime section. Then
    /// `xfs_db` runs some commands.
    pub(super) fn make(options: &[&str], realtime: bool, commands: &[String]) -> Self {
        let dir = tempfile_dir();
        let path = |name: &str| dir.join(name);
        fs::write(path("contents"), vec![7; 70_000]).unwrap();
        fs::write(path("block"), [0; 4096]).unwrap();
        fs::write(path("nothing"), b"").unwrap();
        let mut text = String::from("/stub\n0 0\nd--755 0 0\n");
        let contents = path("contents");
        writeln!(text, "file ---640 7 9 {}", contents.display()).unwrap();
        writeln!(text, "block ---640 0 0 {}", path("block").display()).unwrap();
        writeln!(text, "link l--777 0 0 target\nfifo p--644 0 0").unwrap();
        for (name, count) in [("few", 3), ("some", 40), ("more", 300), ("many", 1200)] {
            writeln!(text, "{name} d--750 0 0").unwrap();
            for number in 0..count {
                let nothing = path("nothing");
                writeln!(text, "name-{number} ---600 0 0 {}", nothing.display()).unwrap();
            }
            writeln!(text, "$").unwrap();
        }
        text.push_str("$\n");
        fs::write(path("protofile"), text).unwrap();
        let image = path("image");
        fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        let mut mkfs = Command::new("mkfs.xfs");
        mkfs.args(["-q", "-f", "--unsupported", "-d", "agcount=2", "-p"]);
        mkfs.arg(path("protofile")).args(options);
        let device = path("realtime");
        if realtime {
            fs::File::create(&device)
                .unwrap()
                .set_len(16 << 20)
                .unwrap();
            mkfs.arg("-r").arg(format!("rtdev={}", device.display()));
        }
        run(mkfs.arg(&image));
        if !commands.is_empty() {
            let mut xfs_db = Command::new("xfs_db");
            xfs_db.arg("-x");
            for command in commands {
                xfs_db.args(["-c", command]);
            }
            run(xfs_db.arg(&image));
        }
        let bytes = fs::read(&image).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let superblock = Superblock::decode(&bytes[..512], platter_ondisk::Locus::UNKNOWN).unwrap();
        Self {
            bytes,
            geometry: Geometry::new(&superblock),
        }
    }

    fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::new(MemoryDevice::new("image", self.bytes.clone()))
    }

    pub(super) fn mount(&self) -> Xfs {
        let budget = Arc::new(MemoryBudget::new(16 << 20));
        Xfs::mount(self.device(), &MountOptions::default(), budget).unwrap()
    }

    /// Structures and rules of all findings, each once, in order.
    pub(super) fn rules(&self) -> Vec<String> {
        let budget = Arc::new(MemoryBudget::new(16 << 20));
        let mut findings = Findings(Vec::new());
        let options = MountOptions {
            truncated: true,
            ..MountOptions::default()
        };
        super::super::check(&self.device(), &options, &budget, &mut findings).unwrap();
        let mut rules: Vec<String> = Vec::new();
        for finding in findings.0 {
            let corruption = finding.corruption;
            let rule = format!("{}: {}", corruption.structure, corruption.rule);
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        rules
    }

    /// The number of an inode.
    pub(super) fn find(&self, path: &[&str]) -> InodeNr {
        let xfs = self.mount();
        let mut inode = xfs.root().unwrap();
        for name in path {
            inode = inode.lookup(Name::new(name.as_bytes()).unwrap()).unwrap();
        }
        InodeNr::new(inode.id().number).unwrap()
    }

    /// The block that holds a block of a file's data fork.
    pub(super) fn block_of(&self, inode: InodeNr, block: u64) -> FsBlock {
        let xfs = self.mount();
        let read = crate::inode::read(xfs.context(), inode).unwrap();
        let map = ForkMap::of_data(xfs.context(), &read).unwrap();
        let run = map.lookup(xfs.context(), FileBlock(block)).unwrap();
        let Backing::Written(start) = run.backing else {
            panic!("block {block} is not mapped");
        };
        FsBlock(start)
    }

    /// Changes a structure at the start of `len` bytes, and stores their checksum at `sum`.
    pub(super) fn change<T>(&mut self, at: u64, len: usize, sum: usize, change: impl FnOnce(&mut T))
    where
        T: FromBytes + IntoBytes + KnownLayout + Immutable,
    {
        let at = usize::try_from(at).unwrap();
        let bytes = &mut self.bytes[at..at + len];
        change(T::mut_from_prefix(bytes).unwrap().0);
        checksum::seal(bytes, sum);
    }

    /// Changes a header of a group.
    pub(super) fn change_header<T>(
        &mut self,
        ag: u32,
        sector: u64,
        sum: usize,
        change: impl FnOnce(&mut T),
    ) where
        T: FromBytes + IntoBytes + KnownLayout + Immutable,
    {
        let len = self.geometry.sector_bytes() as usize;
        let at = self.geometry.ag_offset(AgNr(ag)) + sector * len as u64;
        self.change(at, len, sum, change);
    }

    pub(super) fn change_superblock(&mut self, ag: u32, change: impl FnOnce(&mut DiskSuperblock)) {
        self.change_header(ag, 0, DiskSuperblock::CHECKSUM_OFFSET, change);
    }

    /// Changes the bytes of a block.
    pub(super) fn change_block(
        &mut self,
        block: FsBlock,
        sum: usize,
        change: impl FnOnce(&mut [u8]),
    ) {
        let len = self.geometry.block_bytes() as usize;
        let at = usize::try_from(self.geometry.byte_offset(block)).unwrap();
        let bytes = &mut self.bytes[at..at + len];
        change(bytes);
        checksum::seal(bytes, sum);
    }

    /// Where an inode lies.
    pub(super) fn offset_of(&self, inode: InodeNr) -> u64 {
        let location = self.geometry.locate_inode(inode).unwrap();
        let block = self.geometry.fs_block(location.ag, location.block);
        self.geometry.byte_offset(block) + location.offset as u64
    }

    /// Changes an inode of version 3.
    pub(super) fn change_inode<T>(&mut self, inode: InodeNr, change: impl FnOnce(&mut T))
    where
        T: FromBytes + IntoBytes + KnownLayout + Immutable,
    {
        let at = self.offset_of(inode);
        let len = self.geometry.inode_bytes() as usize;
        let sum = crate::ondisk::inode::DiskInodeV3::CHECKSUM_OFFSET;
        self.change(at, len, sum, change);
    }

    /// A block of a group.
    pub(super) fn block(&self, ag: u32, block: u32) -> FsBlock {
        self.geometry.fs_block(AgNr(ag), AgBlock(block))
    }
}

/// A new directory for files of one test.
fn tempfile_dir() -> std::path::PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let nth = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("platter-xfs-check-{}-{nth}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    fs::create_dir_all(&dir).unwrap();
    dir
}
