//! One test for each rule, on corrupted images made by mke2fs.

mod own_files;
mod paths;

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use platter_block::MemoryDevice;
use platter_cache::MemoryBudget;
use platter_ondisk::Rule;
use platter_ondisk::endian::Le16;
use platter_vfs::Name;
use platter_vfs::check::{Finding, Severity};
use zerocopy::FromBytes;

use super::*;
use crate::directory::Directory;
use crate::mapping::{Backing, BlockMap};
use crate::ondisk::dir_entry::DirEntryRule;
use crate::ondisk::features::RoCompat;
use crate::ondisk::group_desc::{DiskGroupDesc, GroupDescRule};
use crate::ondisk::htree::HtreeRule;
use crate::ondisk::inode::{DiskInode, InodeRule};
use crate::ondisk::superblock::DiskSuperblock;
use crate::ondisk::xattr::{DiskXattrEntry, DiskXattrHeader, ValuePlace, XattrRule, XattrSpace};
use crate::ondisk::{FileBlock, Geometry, GroupNr, InodeFlags, Superblock};
use crate::xattr::EaInodeRule;
use crate::{groups, inode};

const BLOCK: usize = 1024;

#[derive(Clone)]
/// An image without checksums and journal, so that only the intended rule is broken.
struct Image {
    bytes: Vec<u8>,
}

struct Findings(Vec<Finding>);

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

fn make(features: &str, options: &[&str]) -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    let tree = place.path().join("tree");
    fs::create_dir_all(tree.join("sub/below")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    fs::write(tree.join("file"), vec![7; 20 * BLOCK]).unwrap();
    fs::write(tree.join("other"), vec![8; 3 * BLOCK]).unwrap();
    fs::hard_link(tree.join("other"), tree.join("sub/other")).unwrap();
    std::os::unix::fs::symlink("t".repeat(90), tree.join("link")).unwrap();
    let image = place.path().join("image");
    fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args([
        "-q", "-F", "-t", "ext4", "-b", "1024", "-N", "512", "-O", features, "-d",
    ]);
    run(mke2fs.arg(&tree).args(options).arg(&image));
    let many = (0..200).map(|n| format!("mkdir many/{n:0>40}"));
    let many = many.collect::<Vec<_>>().join("\n");
    let script = place.path().join("script");
    let large = if features.starts_with("ea_inode") {
        4000
    } else {
        300
    };
    let set = format!(
        "ea_set sub user.one {}\nea_set sub user.two {}\n",
        "1".repeat(large),
        "2".repeat(300)
    );
    let share = "set_inode_field empty file_acl 0\nmkdir many\nmknod fifo p\n";
    fs::write(&script, format!("{set}{share}{many}\n")).unwrap();
    run(Command::new("debugfs")
        .arg("-w")
        .arg("-f")
        .arg(&script)
        .arg(&image));
    // The checker makes the index of the directory with many entries.
    let status = Command::new("e2fsck")
        .arg("-fyD")
        .arg(&image)
        .output()
        .unwrap();
    assert!(
        status.status.code().is_some_and(|code| code < 4),
        "{status:?}"
    );
    fs::read(&image).unwrap()
}

impl Image {
    fn plain() -> Self {
        static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
        let features = "^metadata_csum,^has_journal,^resize_inode,^64bit,^huge_file";
        let bytes = BYTES.get_or_init(|| make(features, &[])).clone();
        Self { bytes }
    }

    fn with(features: &str) -> Self {
        Self::with_options(features, &[])
    }

    fn with_options(features: &str, options: &[&str]) -> Self {
        let bytes = make(features, options);
        Self { bytes }
    }

    fn fs(&self) -> FsContext {
        let (disk, _) = DiskSuperblock::read_from_prefix(&self.bytes[1024..]).unwrap();
        let superblock = Superblock::decode(&disk).unwrap();
        let geometry = Geometry::decode(&disk, &superblock).unwrap();
        let device = Arc::new(MemoryDevice::new("memory", self.bytes.clone()));
        FsContext::new(
            device,
            superblock,
            geometry,
            Arc::new(MemoryBudget::new(8 << 20)),
        )
    }

    fn findings(&self, orphans: &[InodeNr]) -> Vec<Finding> {
        let fs = self.fs();
        let orphans = orphans.iter().copied().collect::<BTreeSet<_>>();
        let mut findings = Findings(Vec::new());
        let report = check(&fs, &orphans, false, &mut findings);
        assert_eq!(report.errors + report.notices, findings.0.len() as u64);
        findings.0
    }

    /// Asserts that the check reports `rule`.
    fn breaks<R: Rule>(&self, rule: R) {
        let findings = self.findings(&[]);
        let is_it = |finding: &Finding| {
            let corruption = &finding.corruption;
            corruption.structure == R::STRUCTURE && corruption.rule == rule.text()
        };
        assert!(
            findings.iter().any(is_it),
            "{rule:?} is not among {findings:#?}"
        );
    }

    fn superblock(&mut self) -> &mut DiskSuperblock {
        DiskSuperblock::mut_from_prefix(&mut self.bytes[1024..])
            .unwrap()
            .0
    }

    fn desc(&mut self) -> &mut DiskGroupDesc {
        DiskGroupDesc::mut_from_prefix(&mut self.bytes[2 * BLOCK..])
            .unwrap()
            .0
    }

    /// Returns the inode of a path.
    fn find(&self, path: &str) -> InodeNr {
        let fs = self.fs();
        let mut at = InodeNr::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let inode = inode::read(&fs, at).unwrap();
            let map = BlockMap::decode(&fs, &inode).unwrap();
            let directory = Directory::open(&fs, &inode, &map).unwrap();
            at = directory
                .lookup(Name::new(part.as_bytes()).unwrap())
                .unwrap()
                .inode;
        }
        at
    }

    fn slot(&mut self, number: InodeNr) -> &mut [u8] {
        let slot = groups::find_inode(&self.fs(), number).unwrap().unwrap();
        let start = usize::try_from(slot.block.0).unwrap() * BLOCK + slot.offset;
        &mut self.bytes[start..start + 256]
    }

    fn inode(&mut self, path: &str) -> &mut DiskInode {
        let number = self.find(path);
        DiskInode::mut_from_prefix(self.slot(number)).unwrap().0
    }

    fn number(&mut self, number: u32) -> &mut DiskInode {
        let number = InodeNr::new(number).unwrap();
        DiskInode::mut_from_prefix(self.slot(number)).unwrap().0
    }

    /// Returns the physical block of a file's block.
    fn place(&self, path: &str, block: u32) -> u64 {
        self.place_of(self.find(path), block)
    }

    fn place_of(&self, inode: InodeNr, block: u32) -> u64 {
        let fs = self.fs();
        let inode = inode::read(&fs, inode).unwrap();
        let map = BlockMap::decode(&fs, &inode).unwrap();
        match map.lookup(&fs, FileBlock(block)).unwrap().backing {
            Backing::Written(place) => place.0,
            Backing::Hole | Backing::Unwritten(_) => panic!("there is no block {block}"),
        }
    }

    fn block(&mut self, block: u64) -> &mut [u8] {
        let start = usize::try_from(block).unwrap() * BLOCK;
        &mut self.bytes[start..start + BLOCK]
    }

    fn dir_block(&mut self, path: &str, block: u32) -> &mut [u8] {
        let place = self.place(path, block);
        self.block(place)
    }

    /// Returns the header of the entry `name` in the first block of a directory.
    fn entry(&mut self, path: &str, name: &str) -> &mut [u8] {
        let block = self.dir_block(path, 0);
        let mut at = 0;
        while &block[at + 8..at + 8 + usize::from(block[at + 6])] != name.as_bytes() {
            at += usize::from(u16::from_le_bytes([block[at + 4], block[at + 5]]));
        }
        &mut block[at..]
    }

    /// Flips the bitmap bit of a block.
    fn flip_block_bit(&mut self, block: u64) {
        let bitmap = u64::from(self.desc().block_bitmap_lo.get());
        let index = usize::try_from(block - 1).unwrap();
        self.block(bitmap)[index / 8] ^= 1 << (index % 8);
    }

    fn flip_inode_bit(&mut self, inode: u32) {
        let bitmap = u64::from(self.desc().inode_bitmap_lo.get());
        let index = inode as usize - 1;
        self.block(bitmap)[index / 8] ^= 1 << (index % 8);
    }
}

/// Corrupts the plain image, and expects the rule.
macro_rules! corrupt {
    ($($(#[$doc:meta])* $name:ident: $rule:expr => |$image:ident| $body:expr;)+) => {
        $(#[test]
        fn $name() {
            let mut $image = Image::plain();
            let _ = $body;
            $image.breaks($rule);
        })+
    };
}

#[test]
fn images_of_mke2fs_are_clean() {
    assert_eq!(Image::plain().findings(&[]), []);
    for features in [
        "metadata_csum",
        "inline_data,metadata_csum",
        "^extent,^64bit",
        "bigalloc",
        "meta_bg,^resize_inode",
    ] {
        assert_eq!(Image::with(features).findings(&[]), [], "{features}");
    }
}

corrupt! {
    unknown_revision: SuperblockUseRule::Revision => |image| image.superblock().revision.set(2);
    journal_without_the_feature: SuperblockUseRule::Journal =>
        |image| image.superblock().journal_uuid = [9; 16];
    cluster_size_without_clusters: SuperblockUseRule::ClusterSize =>
        |image| image.superblock().log_cluster_size.set(3);
    clusters_per_group_without_clusters: SuperblockUseRule::ClusterSize =>
        |image| image.superblock().clusters_per_group.set(4096);
    most_blocks_reserved: SuperblockUseRule::ReservedBlocks =>
        |image| image.superblock().reserved_blocks_count_lo.set(2049);
    upper_half_without_64bit: SuperblockUseRule::HighHalves =>
        |image| image.superblock().free_blocks_count_hi.set(1);
    unknown_feature: SuperblockUseRule::UnknownFeature =>
        |image| image.superblock().feature_ro_compat.set(0x8000_0000);
    marked_errors: SuperblockUseRule::Errors => |image| image.superblock().state.set(3);
    not_unmounted: SuperblockUseRule::Unclean => |image| image.superblock().state.set(0);
    wrong_total_of_free_blocks: TotalsRule::FreeBlocks =>
        |image| image.superblock().free_blocks_count_lo.set(1);
    wrong_total_of_free_inodes: TotalsRule::FreeInodes =>
        |image| image.superblock().free_inodes_count.set(1);

    descriptor_outside: GroupDescRule::InodeTable => |image| image.desc().inode_table_lo.set(9999);
    overlapping_metadata: GroupUseRule::Overlap => |image| {
        let bitmap = image.desc().block_bitmap_lo;
        image.desc().inode_bitmap_lo = bitmap;
    };
    wrong_free_blocks: GroupUseRule::FreeBlocks => |image| image.desc().free_clusters_lo.set(1);
    wrong_free_inodes: GroupUseRule::FreeInodes => |image| image.desc().free_inodes_lo.set(1);
    wrong_used_dirs: GroupUseRule::UsedDirs => |image| image.desc().used_dirs_lo.set(1);

    used_block_marked_free: BitmapUseRule::BlockMarkedFree => |image| {
        let block = image.place("file", 0);
        image.flip_block_bit(block);
    };
    free_block_marked_used: BitmapUseRule::BlockMarkedUsed => |image| image.flip_block_bit(4000);
    used_inode_marked_free: BitmapUseRule::InodeMarkedFree => |image| {
        let inode = image.find("file").get();
        image.flip_inode_bit(inode);
    };
    free_inode_marked_used: BitmapUseRule::InodeMarkedUsed => |image| image.flip_inode_bit(500);
    padding_not_set: BitmapUseRule::Padding => |image| image.flip_inode_bit(513);

    deleted_without_time: InodeUseRule::DeletedWithoutTime => |image| {
        image.number(400).mode.set(0o100_644);
    };
    used_with_time: InodeUseRule::UsedWithTime => |image| image.inode("file").deleted.set(77);
    wrong_block_count: InodeUseRule::BlockCount => |image| image.inode("file").blocks_lo.set(2);
    block_of_two_files: InodeUseRule::SharedBlock => |image| {
        let map = image.inode("file").block;
        image.inode("other").block = map;
    };
    size_below_the_blocks: InodeUseRule::SizeTooSmall => |image| image.inode("file").size_lo.set(9);
    size_beyond_the_map: InodeUseRule::SizeTooLarge =>
        |image| image.inode("file").size_hi.set(0x4000_0000);
    directory_with_an_odd_size: InodeUseRule::DirectorySize =>
        |image| image.inode("sub").size_lo.set(2048);
    unwritten_directory: InodeUseRule::DirectoryUnwritten => |image| {
        let (extent, _) = Le16::mut_from_prefix(&mut image.inode("sub").block[16..]).unwrap();
        extent.set(0x8001);
    };
    link_target_with_a_nul: InodeUseRule::LinkTarget => |image| image.dir_block("link", 0)[9] = 0;
    link_in_the_inode_with_extents: InodeUseRule::LinkExtents => |image| {
        let inode = image.inode("fifo");
        inode.mode.set(0o120_777);
        inode.size_lo.set(3);
        inode.block[..3].copy_from_slice(b"bar");
        inode.flags.set(InodeFlags::EXTENTS.bits());
    };
    journal_inode_without_the_feature: SuperblockUseRule::Journal =>
        |image| image.superblock().journal_inode.set(8);
    tail_of_an_inode_too_short: SuperblockUseRule::ExtraSize =>
        |image| image.superblock().min_extra_isize.set(1);
    tail_of_an_inode_too_long: SuperblockUseRule::ExtraSize =>
        |image| image.superblock().want_extra_isize.set(1024);
    link_target_too_long: InodeUseRule::LinkTarget => |image| image.inode("link").size_lo.set(1025);
    fifo_with_a_size: InodeUseRule::SpecialSize => |image| image.inode("fifo").size_lo.set(1);
    flag_without_its_feature: InodeUseRule::FlagWithoutFeature => |image| {
        let inode = image.inode("file");
        inode.flags.set(inode.flags.get() | InodeFlags::VERITY.bits());
    };
    fragment_of_an_inode: InodeUseRule::UnusedField =>
        |image| image.inode("file").fragment.set(1);
    upper_half_of_a_directory: InodeUseRule::UnusedField =>
        |image| image.inode("sub").size_hi.set(1);
    attribute_block_without_the_feature: AttributeUseRule::Feature => |image| {
        let superblock = image.superblock();
        superblock.feature_compat.set(superblock.feature_compat.get() & !0x8);
    };
    uninitialized_group_without_checksums: GroupUseRule::UninitFlag => |image| {
        image.superblock().feature_ro_compat.set(0x1 | 0x2 | 0x20 | 0x40);
        image.desc().flags.set(1);
    };
    unused_inodes_without_checksums: GroupUseRule::UninitFlag => |image| {
        image.superblock().feature_ro_compat.set(0x1 | 0x2 | 0x20 | 0x40);
        image.desc().flags.set(0);
        image.desc().unused_inodes_lo.set(1);
    };
    upper_half_of_an_inode: InodeUseRule::UnusedField =>
        |image| image.inode("file").xattr_block_hi.set(1);
    wrong_links: InodeUseRule::Links => |image| image.inode("other").links.set(3);
    file_without_a_name: InodeUseRule::Unattached => |image| image.entry("", "file")[..4].fill(0);
    reserved_inode_with_contents: InodeUseRule::ReservedContents =>
        |image| image.number(6).blocks_lo.set(2);

    directory_with_a_hole: DirectoryUseRule::Hole => |image| {
        let inode = image.inode("sub");
        inode.size_lo.set(2048);
    };
    first_entry_is_not_dot: DirectoryUseRule::Dot => |image| image.dir_block("sub", 0)[8] = b'x';
    second_entry_is_not_dotdot: DirectoryUseRule::DotDot =>
        |image| image.dir_block("sub", 0)[20] = b'x';
    dotdot_names_another: DirectoryUseRule::Parent => |image| {
        let empty = image.find("empty").get();
        image.dir_block("sub/below", 0)[12..16].copy_from_slice(&empty.to_le_bytes());
    };
    further_dot: DirectoryUseRule::StrayDot => |image| {
        let entry = image.entry("", "file");
        entry[6] = 1;
        entry[8] = b'.';
    };
    same_name_twice: DirectoryUseRule::DuplicateName =>
        |image| image.entry("sub", "other")[8..13].copy_from_slice(b"below");
    name_with_a_slash: DirEntryRule::NameBytes => |image| image.entry("", "file")[8] = b'/';
    name_of_an_unused_inode: DirectoryUseRule::UnusedInode =>
        |image| image.entry("", "file")[..4].copy_from_slice(&500u32.to_le_bytes());
    name_of_a_reserved_inode: DirectoryUseRule::ReservedInode =>
        |image| image.entry("", "file")[0] = 8;
    wrong_file_type: DirectoryUseRule::FileType => |image| image.entry("", "file")[7] = 2;
    second_name_of_a_directory: DirectoryUseRule::SecondName => |image| {
        let below = image.find("sub/below").get();
        image.entry("", "file")[..4].copy_from_slice(&below.to_le_bytes());
    };
    unconnected_directory: DirectoryUseRule::Unreachable =>
        |image| image.entry("", "sub")[..4].fill(0);
    root_is_a_file: DirectoryUseRule::Root => |image| image.number(2).mode.set(0o100_755);

    root_without_lost_found: DirectoryUseRule::LostFound =>
        |image| image.entry("", "lost+found")[8] = b'L';
    unknown_hash: HtreeRule::HashVersion => |image| image.dir_block("many", 0)[0x1c] = 9;
    index_with_a_block_twice: DirectoryUseRule::IndexedTwice => |image| {
        let block: [u8; 4] = image.dir_block("many", 0)[44..48].try_into().unwrap();
        image.dir_block("many", 0)[52..56].copy_from_slice(&block);
    };
    block_outside_the_index: DirectoryUseRule::NotIndexed => |image| {
        let block: [u8; 4] = image.dir_block("many", 0)[44..48].try_into().unwrap();
        image.dir_block("many", 0)[52..56].copy_from_slice(&block);
    };
    name_of_another_hash: DirectoryUseRule::Placement => |image| {
        let block = image.dir_block("many", 0);
        let (first, second) = (block[36], block[44]);
        (block[36], block[44]) = (second, first);
    };

    wrong_references: AttributeUseRule::References => |image| {
        let block = u64::from(image.inode("sub").xattr_block_lo.get());
        let (header, _) = DiskXattrHeader::mut_from_prefix(image.block(block)).unwrap();
        header.references.set(2);
    };
    name_without_a_prefix: AttributeUseRule::NoPrefix => |image| {
        let block = u64::from(image.inode("sub").xattr_block_lo.get());
        image.block(block)[33] = 0;
    };
    overlapping_values: AttributeUseRule::Overlap => |image| {
        let block = u64::from(image.inode("sub").xattr_block_lo.get());
        let entries = &mut image.block(block)[32..];
        let offset = DiskXattrEntry::ref_from_prefix(entries).unwrap().0.value_offset;
        let second = &mut entries[20..];
        DiskXattrEntry::mut_from_prefix(second).unwrap().0.value_offset = offset;
    };
    wrong_attribute_hash: XattrRule::Hash => |image| {
        let block = u64::from(image.inode("sub").xattr_block_lo.get());
        image.block(block)[1000] ^= 1;
    };
}

#[test]
fn uninitialized_group_with_used_blocks_is_reported() {
    let mut image = Image::plain();
    image
        .superblock()
        .feature_ro_compat
        .set(0x10 | 0x1 | 0x2 | 0x20 | 0x40);
    image.desc().flags.set(2);
    seal_descriptor(&mut image);
    image.breaks(GroupUseRule::BlocksUninit);
    // The inode table is not read then, so the root is missing.
    image.desc().flags.set(1);
    seal_descriptor(&mut image);
    image.breaks(DirectoryUseRule::Root);
    image.desc().flags.set(0);
    image.desc().unused_inodes_lo.set(513);
    seal_descriptor(&mut image);
    image.breaks(GroupUseRule::UnusedInodes);
}

fn seal_descriptor(image: &mut Image) {
    let geometry = image.fs().geometry;
    let bytes = &image.bytes[2 * BLOCK..][..32];
    let checksum = crate::ondisk::group_desc::expected_checksum(bytes, GroupNr(0), &geometry);
    image.desc().checksum.set(checksum);
}

#[test]
fn orphan_is_a_notice() {
    let mut image = Image::plain();
    let file = image.find("file");
    image.entry("", "file")[..4].fill(0);
    image.number(file.get()).links.set(0);
    let findings = image.findings(&[file]);
    let waits: Vec<_> = findings
        .iter()
        .map(|finding| finding.corruption.rule.as_ref())
        .collect();
    assert_eq!(waits, [InodeUseRule::OrphanWaits.text()]);
}

#[test]
fn orphaned_directory_is_not_part_of_the_tree() {
    let mut image = Image::plain();
    let removed = image.find("empty");
    image.entry("", "empty")[..4].fill(0);
    image.number(removed.get()).links.set(0);
    let links = &mut image.number(2).links;
    links.set(links.get() - 1);
    let findings = image.findings(&[removed]);
    let rules = |finding: &Finding| finding.corruption.rule.to_string();
    let found: Vec<_> = findings.iter().map(rules).collect();
    assert_eq!(found, [InodeUseRule::OrphanWaits.text()]);
}

/// Makes an image whose `sub` has an attribute in an EA inode; returns that inode, too.
fn image_with_ea_inode() -> (Image, u32) {
    let image = Image::with("ea_inode,^metadata_csum,^has_journal");
    let clean = image.findings(&[]);
    assert_eq!(clean, []);
    let sub = inode::read(&image.fs(), image.find("sub")).unwrap();
    let space = XattrSpace::decode_inode(&sub.tail, true).unwrap().unwrap();
    let number = space.entries().iter().find_map(|entry| match entry.value {
        ValuePlace::Inode { number, .. } => Some(number.get()),
        ValuePlace::Here(_) => None,
    });
    (image, number.expect("no value lies in an inode"))
}

#[test]
fn ea_inode_references_and_sizes_are_checked() {
    let (mut image, number) = image_with_ea_inode();
    image.number(number).version_lo.set(2);
    image.breaks(InodeUseRule::ValueReferences);
    let (mut image, number) = image_with_ea_inode();
    image.number(number).size_lo.set(7);
    image.breaks(EaInodeRule::Size);
    let (mut image, number) = image_with_ea_inode();
    let flags = image.number(number).flags.get() & !InodeFlags::EA_INODE.bits();
    image.number(number).flags.set(flags);
    image.breaks(EaInodeRule::Flag);
}

#[test]
fn overlapping_extents_of_adjacent_leaves_are_reported() {
    let mut image = Image::plain();
    let root = node(1, &[[0, 3900, 0], [5, 3901, 0]]);
    image.inode("file").block[..root.len()].copy_from_slice(&root);
    for (place, leaf) in [(3900, [0, 10, 3910]), (3901, [5, 10, 3930])] {
        let leaf = node(0, &[leaf]);
        image.block(place)[..leaf.len()].copy_from_slice(&leaf);
    }
    image.breaks(InodeUseRule::ExtentOrder);
}

/// Builds an extent node; an entry is its first block, its length or child, and its block.
fn node(depth: u16, entries: &[[u32; 3]]) -> Vec<u8> {
    let mut bytes = vec![0x0a, 0xf3, entries.len().to_le_bytes()[0], 0, 4, 0];
    bytes.extend(depth.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(entries.iter().flatten().flat_map(|word| word.to_le_bytes()));
    bytes
}

#[test]
fn corrupt_subtree_does_not_hide_others() {
    let mut image = Image::plain();
    let root = node(1, &[[0, 3900, 0], [5, 3901, 0], [9, 3902, 0]]);
    image.inode("file").block[..root.len()].copy_from_slice(&root);
    let other = u32::try_from(image.place("other", 0)).unwrap();
    let leaf = node(0, &[[5, 2, other]]);
    image.block(3901)[..leaf.len()].copy_from_slice(&leaf);
    let findings = image.findings(&[]);
    let nodes = findings
        .iter()
        .filter(|finding| finding.corruption.structure == "extent node");
    let places: Vec<_> = nodes
        .map(|finding| finding.corruption.locus.parts().block)
        .collect();
    assert_eq!(places, [Some(3900), Some(3902)]);
    // Blocks in the valid subtree are multiply claimed.
    image.breaks(InodeUseRule::SharedBlock);
}

#[test]
fn directories_sharing_blocks_are_bounded() {
    let mut image = Image::plain();
    let extents: Vec<_> = (0..4).map(|index| [index * 3000, 3000, 900]).collect();
    let root = node(0, &extents);
    let many = image.inode("sub/below");
    many.block[..root.len()].copy_from_slice(&root);
    many.size_lo.set(12_000 * 1024);
    image.breaks(DirectoryUseRule::TooLarge);
    image.breaks(InodeUseRule::SharedBlock);
}

#[test]
fn cluster_allocation_violation_is_reported() {
    let mut image = Image::with("bigalloc,^metadata_csum,^has_journal,^resize_inode");
    assert_eq!(image.findings(&[]), []);
    image.inode("file").block[20] += 1;
    image.breaks(InodeUseRule::ClusterAlign);
}

#[test]
fn inline_directory_of_wrong_size_is_reported() {
    let mut image = Image::with("inline_data,^metadata_csum,^has_journal,^resize_inode");
    image.inode("sub/below").size_lo.set(61);
    image.breaks(InodeUseRule::InlineSize);
}

#[test]
fn unencrypted_entry_in_encrypted_directory_is_reported() {
    let mut image = Image::with("encrypt,^metadata_csum,^has_journal,^resize_inode");
    let directory = image.inode("sub");
    directory
        .flags
        .set(directory.flags.get() | InodeFlags::ENCRYPT.bits());
    image.breaks(DirectoryUseRule::EncryptedName);
    image.breaks(DirectoryUseRule::NotEncrypted);
}

#[test]
fn corrupt_backups_are_notices() {
    let features = "^metadata_csum,^uninit_bg,^has_journal,^resize_inode";
    let mut image = Image::with_options(features, &["-g", "1024"]);
    image.block(1025)[0] ^= 1;
    image.block(1026)[0] ^= 1;
    image.breaks(BackupRule::Superblock);
    image.breaks(BackupRule::Descriptors);
    let findings = image.findings(&[]);
    assert!(
        findings
            .iter()
            .all(|finding| finding.severity == Severity::Notice)
    );
}

#[test]
fn cancelled_check_is_reported_as_cancelled() {
    struct Impatient;
    impl CheckSink for Impatient {
        fn finding(&mut self, _: Finding) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }
    let mut image = Image::plain();
    image.desc().free_inodes_lo.set(1);
    let report = check(&image.fs(), &BTreeSet::new(), false, &mut Impatient);
    assert!(report.cancelled);
    assert_eq!(report.errors, 1);
}

#[test]
fn stale_totals_after_replay_are_a_notice() {
    let mut image = Image::plain();
    image.superblock().free_blocks_count_lo.set(1);
    let mut findings = Findings(Vec::new());
    let report = check(&image.fs(), &BTreeSet::new(), true, &mut findings);
    assert!(report.is_clean());
    assert_eq!(report.notices, 1);
}

#[test]
fn checksums_of_deleted_inodes_are_verified() {
    let mut image = Image::with("^has_journal");
    let inode = image.inode("file");
    inode.links.set(0);
    inode.deleted.set(77);
    image.breaks(InodeRule::Checksum);
}

#[test]
fn inline_symlink_with_nul_is_reported() {
    let mut image = Image::with("inline_data,^has_journal,^metadata_csum");
    assert_eq!(image.findings(&[]), []);
    image.inode("link").block[9] = 0;
    image.breaks(InodeUseRule::LinkTarget);
}

#[test]
fn shared_blocks_feature_allows_multiple_claims() {
    let mut image = Image::plain();
    let map = image.inode("file").block;
    image.inode("other").block = map;
    let superblock = image.superblock();
    let shared = superblock.feature_ro_compat.get() | RoCompat::SHARED_BLOCKS.bits();
    superblock.feature_ro_compat.set(shared);
    let shared = InodeUseRule::SharedBlock.text();
    let findings = image.findings(&[]);
    assert!(
        findings
            .iter()
            .all(|finding| finding.corruption.rule != shared)
    );
}

#[test]
fn hurd_translators_claim_a_block() {
    let mut image = Image::plain();
    image.superblock().creator_os.set(1);
    for number in [2, 11] {
        image.number(number).version_lo.set(0);
    }
    let place = image.place("file", 0);
    image
        .inode("file")
        .version_lo
        .set(u32::try_from(place).unwrap());
    image.breaks(InodeUseRule::SharedBlock);
    image.inode("file").version_lo.set(40_000);
    image.breaks(InodeUseRule::Translator);
    image.inode("file").version_lo.set(4_000);
    image.breaks(InodeUseRule::BlockCount);
    image.breaks(BitmapUseRule::BlockMarkedFree);
}
