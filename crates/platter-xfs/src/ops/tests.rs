//! Inodes as the path walk finds them.

use platter_block::MemoryDevice;
use platter_ondisk::Rule;
use platter_vfs::Inode as _;

use super::*;
use crate::context::tests::broken_rule;
use crate::ondisk::inode::{DiskInodeV3, tests::sample};
use crate::ondisk::superblock::tests as superblock;
use crate::ondisk::symlink::SymlinkRule;
use zerocopy::FromBytes;

/// The sample filesystem with inode 131 changed.
fn filesystem(
    incompat: u32,
    change: impl FnOnce(&mut DiskInodeV3, &mut [u8]),
) -> (Arc<SuperBlock>, InodeNr) {
    let mut bytes = vec![0; 4 * 4096 * 4096];
    let mut inode = sample();
    let (disk, literal) = DiskInodeV3::mut_from_prefix(&mut inode).unwrap();
    change(disk, literal);
    DiskInodeV3::seal(&mut inode);
    let at = 16 * 4096 + 3 * 512;
    bytes[at..at + 512].copy_from_slice(&inode);
    let mut sample = superblock::sample();
    sample.0.incompat.set(incompat);
    let superblock = sample.decode().unwrap();
    let device = Arc::new(MemoryDevice::new("memory", bytes));
    let budget = Arc::new(MemoryBudget::new(1 << 20));
    let context = FsContext::new(device, None, superblock, Arc::clone(&budget));
    let clock = Arc::new(platter_vfs::FixedClock::new(
        platter_vfs::Timestamp::default(),
        1,
    ));
    (
        SuperBlock::new(context, budget, clock, Preallocation::Off),
        InodeNr::new(131).unwrap(),
    )
}

fn link(size: u64, target: &[u8]) -> Result<Vec<u8>> {
    let (filesystem, number) = filesystem(0xb, |disk, literal| {
        disk.core.mode.set(0o12_0777);
        disk.core.size.set(size);
        disk.core.data_format = if target.is_empty() { 2 } else { 1 };
        literal[..target.len()].copy_from_slice(target);
    });
    filesystem.named(number)?.read_link()
}

#[test]
fn target_is_whole_and_has_no_zero() {
    assert_eq!(link(4, b"over").unwrap(), b"over");
    assert_eq!(broken_rule(link(3, b"a\0b")), SymlinkRule::Target.text());
    assert_eq!(broken_rule(link(500, b"")), SymlinkRule::Missing.text());
}

#[test]
fn inodes_that_nothing_may_name_are_refused() {
    let (filesystem, number) = self::filesystem(0x10b, |disk, _| disk.flags2.set(0x20));
    let rule = broken_rule(filesystem.named(number));
    assert_eq!(rule, InodeNumberRule::Metadata.text());
    assert!(filesystem.find(number).unwrap().is_none());
    let (filesystem, number) = self::filesystem(0xb, |disk, _| disk.core.links.set(0));
    let rule = broken_rule(filesystem.named(number));
    assert_eq!(rule, InodeNumberRule::Deleted.text());
}

#[test]
fn directory_in_itself_is_refused() {
    let (filesystem, number) = self::filesystem(0xb, |disk, _| disk.core.mode.set(0o4_0755));
    let directory = filesystem.named(number).unwrap();
    let broken = broken_rule::<()>(Err(platter_vfs::namei::NamedInode::own_ancestor(
        &*directory,
    )));
    assert_eq!(broken, InodeNumberRule::Itself.text());
}
