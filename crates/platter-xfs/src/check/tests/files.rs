//! Rules of inodes, directories, quota files and the realtime section.

use platter_ondisk::Rule as _;
use std::sync::OnceLock;

use platter_block::MemoryDevice;
use zerocopy::{FromBytes, IntoBytes};

use super::image::Image;
use super::{broken, said, sample};
use crate::check::*;
use crate::inode::InodeNumberRule;
use crate::metadir::{self, MetadirRule};
use crate::ondisk::btree::{BtreeKind, checksum_offset};
use crate::ondisk::da::DiskDaHeaderV5;
use crate::ondisk::dir::data::DiskDirHeaderV5;
use crate::ondisk::dir::short::ShortDirRule;
use crate::ondisk::dquot::{DQUOT_MAGIC, DiskDquot, DquotRule};
use crate::ondisk::features::Incompat;
use crate::ondisk::inode::{DiskInode, DiskInodeV3, InodeRule, MetafileKind};
use crate::ondisk::superblock::QuotaFlags;
use crate::ondisk::{InodeFlags2, checksum, dir};
use crate::recovery::IntentRule;
use crate::recovery::realtime::RtFreed;

fn inode(path: &[&str], change: impl FnOnce(&mut DiskInodeV3)) -> Vec<String> {
    broken(|image| {
        let number = image.find(path);
        image.change_inode(number, change);
    })
}

#[test]
fn fields_of_inodes_are_checked() {
    let file = |change: fn(&mut DiskInodeV3)| inode(&["file"], change);
    assert_eq!(
        file(|disk| disk.core.blocks.set(1)),
        [said(InodeUseRule::Blocks)]
    );
    let links = [said(InodeUseRule::Links)];
    assert_eq!(file(|disk| disk.core.links.set(2)), links);
    assert_eq!(inode(&["few"], |disk| disk.core.links.set(3)), links);
    assert_eq!(
        file(|disk| disk.core.flags.set(0x100)),
        [said(InodeUseRule::Flags)]
    );
    assert_eq!(
        file(|disk| disk.core.flags.set(0x8000)),
        [said(InodeUseRule::Flags)]
    );
    assert_eq!(
        file(|disk| disk.flags2.set(disk.flags2.get() | 1 << 40)),
        [said(InodeUseRule::Flags2)]
    );
    assert_eq!(
        file(|disk| disk.core.extent_size.set(1)),
        [said(InodeUseRule::ExtentSize)]
    );
    assert_eq!(
        file(|disk| disk.cow_extent_size.set(1)),
        [said(InodeUseRule::CowExtentSize)]
    );
    assert_eq!(
        file(|disk| disk.padding[3] = 1),
        [said(InodeUseRule::Padding)]
    );
    assert_eq!(
        file(|disk| disk.core.big_data_extents.set(1)),
        [said(InodeUseRule::Padding)]
    );
    let old = [said(InodeUseRule::OldLinks)];
    assert_eq!(file(|disk| disk.core.old_links.set(1)), old);
    assert_eq!(
        file(|disk| disk.core.attr_extents.set(1)),
        [said(InodeRule::AttrFormat)]
    );
    assert_eq!(
        file(|disk| disk.core.next_unlinked.set(7 << 24)),
        [said(InodeUseRule::NextUnlinked)]
    );
    assert_eq!(
        inode(&["fifo"], |disk| disk.core.size.set(1)),
        [said(InodeRule::Size)]
    );
}

/// Makes the only extent of a file one block at `block`.
fn point(image: &mut Image, file: InodeNr, block: u64) {
    let literal = usize::try_from(image.offset_of(file)).unwrap() + size_of::<DiskInodeV3>();
    let (high, low) = (block >> 43, block << 21 | 1);
    image.bytes[literal..literal + 8].copy_from_slice(&high.to_be_bytes());
    image.bytes[literal + 8..literal + 16].copy_from_slice(&low.to_be_bytes());
    image.change_inode(file, |_: &mut DiskInodeV3| ());
}

#[test]
fn blocks_have_one_owner() {
    let rules = broken(|image| {
        let (one, other) = (image.find(&["file"]), image.find(&["block"]));
        let block = image.block_of(one, 0);
        point(image, other, block.0);
    });
    // With reference counts, the files share it.
    for rule in [
        said(ReferenceRule::Flag),
        said(ReferenceRule::Missing),
        said(OwnerRule::Missing),
        said(OwnerRule::Extra),
        said(BlockUseRule::Lost),
    ] {
        assert!(rules.contains(&rule), "{rule}: {rules:?}");
    }
    let rules = broken(|image| {
        let other = image.find(&["block"]);
        let directory = image.block_of(image.find(&["some"]), 0);
        point(image, other, directory.0);
    });
    assert!(rules.contains(&said(BlockUseRule::Multiple)), "{rules:?}");
    // A record of blocks that are not shared.
    let rules = broken(|image| {
        let sector = &image.bytes[512..1024];
        let agf = crate::ondisk::Agf::decode(sector, &image.geometry, crate::ondisk::AgNr(0));
        let root = image.block(0, agf.unwrap().refcount.unwrap().block.0);
        image.change_block(root, checksum_offset(BtreeKind::Refcount), |bytes| {
            bytes[7] = 1;
            bytes[56..68].copy_from_slice(&[0, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0, 2]);
        });
    });
    assert_eq!(rules, [said(ReferenceRule::Extra)]);
    // A record of more blocks than the file has: none is missing.
    let rules = broken(|image| {
        let file = image.find(&["file"]).get().to_be_bytes();
        let sector = &image.bytes[512..1024];
        let agf = crate::ondisk::Agf::decode(sector, &image.geometry, crate::ondisk::AgNr(0));
        let root = image.block(0, agf.unwrap().rmap.unwrap().block.0);
        image.change_block(root, checksum_offset(BtreeKind::Rmap), |bytes| {
            let mut records = bytes[56..].chunks_exact_mut(24);
            let record = records.find(|record| record[8..16] == file).unwrap();
            record[7] += 1;
        });
    });
    assert_eq!(rules, [said(OwnerRule::Extra)]);
}

#[test]
fn inodes_that_the_superblock_names_are_checked() {
    let root = sample().find(&[]).get();
    let kind = |distance: u64, mode: u16| {
        broken(|image| {
            let number = InodeNr::new(root + distance).unwrap();
            image.change_inode(number, |disk: &mut DiskInodeV3| disk.core.mode.set(mode));
        })
    };
    let fifo = 0o1_0600;
    let rules = broken(|image| {
        let number = InodeNr::new(root + 1).unwrap();
        image.change_inode(number, |disk: &mut DiskInodeV3| {
            disk.core.mode.set(fifo);
            disk.core.data_format = 0;
        });
    });
    assert!(rules.contains(&said(InodeUseRule::Internal)), "{rules:?}");
    let rules = broken(|image| {
        let number = InodeNr::new(root).unwrap();
        image.change_inode(number, |disk: &mut DiskInodeV3| {
            disk.core.mode.set(fifo);
            disk.core.data_format = 0;
        });
    });
    assert!(rules.contains(&said(DirectoryUseRule::Root)), "{rules:?}");
    let rules = kind(0, 0o4_0755);
    assert!(rules.is_empty(), "{rules:?}");
    let rules = inode(&["file"], |disk| disk.core.links.set(1 << 31));
    assert!(
        rules.contains(&said(InodeUseRule::TooManyLinks)),
        "{rules:?}"
    );
}

/// An image with a metadata directory, whose only file has the type of the quota of users.
fn metadir(change: impl FnOnce(&mut DiskInodeV3)) -> Image {
    let mut image = sample();
    let (root, file) = (image.find(&[]), image.find(&["file"]));
    image.change_superblock(0, |disk| {
        disk.incompat
            .set(disk.incompat.get() | Incompat::METADIR.bits());
        disk.metadir_inode.set(root.get());
    });
    image.change_inode(file, |disk: &mut DiskInodeV3| {
        let flags = disk.flags2.get() | InodeFlags2::METADATA.bits();
        disk.flags2.set(flags);
        disk.core.old_links.set(MetafileKind::UserQuota as u16);
        disk.core.mode.set(0o10_0000);
        disk.core.uid.set(0);
        disk.core.gid.set(0);
        change(disk);
    });
    image
}

#[test]
fn types_of_metadata_files_are_checked() {
    let image = metadir(|_| ());
    let find = |kind| metadir::find(image.mount().context(), &["file"], kind);
    assert!(find(MetafileKind::UserQuota).unwrap().is_some());
    let error = find(MetafileKind::GroupQuota).unwrap_err().to_string();
    assert!(error.contains(MetadirRule::Kind.text()), "{error}");
    let plain = metadir(|disk| {
        let flags = disk.flags2.get() ^ InodeFlags2::METADATA.bits();
        disk.flags2.set(flags);
    });
    let found = metadir::find(plain.mount().context(), &["file"], MetafileKind::UserQuota);
    let error = found.unwrap_err().to_string();
    assert!(error.contains(MetadirRule::Kind.text()), "{error}");
    let metadata = said(InodeUseRule::Metadata);
    let rules = image.rules();
    assert!(!rules.contains(&metadata), "{rules:?}");
    let changes: [fn(&mut DiskInodeV3); 4] = [
        |disk| disk.core.mode.set(0o10_0600),
        |disk| disk.core.uid.set(1),
        |disk| disk.core.old_links.set(MetafileKind::Directory as u16),
        |disk| disk.core.old_links.set(9),
    ];
    for change in changes {
        let rules = metadir(change).rules();
        assert!(rules.contains(&metadata), "{rules:?}");
    }
}

#[test]
fn extents_that_fit_the_inode_have_no_tree() {
    // A root of level 1 with one pointer.
    let rules = broken(|image| {
        let file = image.find(&["block"]);
        let literal = usize::try_from(image.offset_of(file)).unwrap() + size_of::<DiskInodeV3>();
        image.bytes[literal..literal + 16].fill(0);
        image.bytes[literal + 1] = 1;
        image.bytes[literal + 3] = 1;
        image.change_inode(file, |disk: &mut DiskInodeV3| disk.core.data_format = 3);
    });
    assert!(
        rules.contains(&said(ForkUseRule::TooFewExtents)),
        "{rules:?}"
    );
}

#[test]
fn pointers_to_parents_are_those_of_entries() {
    let rules = broken(|image| {
        for ag in 0..image.geometry.ag_count() {
            image.change_superblock(ag, |disk| disk.incompat.set(disk.incompat.get() | 0x80));
        }
    });
    assert_eq!(rules, [said(InodeUseRule::ParentPointers)]);
}

/// Changes bytes of the short form of the directory `few`.
fn short(change: impl FnOnce(&mut [u8])) -> Vec<String> {
    broken(|image| {
        let number = image.find(&["few"]);
        let at = usize::try_from(image.offset_of(number)).unwrap();
        let literal = at + size_of::<DiskInodeV3>();
        change(&mut image.bytes[literal..literal + 100]);
        image.change_inode(number, |_: &mut DiskInodeV3| ());
    })
}

#[test]
fn short_directories_are_compared_with_inodes() {
    // Header and parent, then length, offset, `name-N`, type and number of each entry.
    let second = 6 + 1 + 2 + 6 + 1 + 4;
    let rules = short(|bytes| bytes[5] ^= 1);
    assert!(rules.contains(&said(DirectoryUseRule::Parent)), "{rules:?}");
    let rules = short(|bytes| bytes[second + 3 + 5] = b'0');
    assert_eq!(rules, [said(DirectoryUseRule::DuplicateName)]);
    let rules = short(|bytes| bytes[second + 3 + 6] = 2);
    assert_eq!(rules, [said(DirectoryUseRule::FileType)]);
    let rules = short(|bytes| bytes[second + 3 + 5] = b'/');
    assert_eq!(rules, [said(ShortDirRule::Name)]);
    let rules = short(|bytes| bytes[second + 3 + 7..][..4].copy_from_slice(&[0, 0, 0, 1]));
    assert_eq!(rules[0], said(ShortDirRule::Inode));
    let subdirectory = u32::try_from(sample().find(&["some"]).get())
        .unwrap()
        .to_be_bytes();
    let rules = short(|bytes| bytes[second + 3 + 7..][..4].copy_from_slice(&subdirectory));
    assert!(
        rules.contains(&said(DirectoryUseRule::SecondName)),
        "{rules:?}"
    );
    let rules = short(|bytes| bytes[second + 3 + 7..][..4].copy_from_slice(&[0, 0, 0x20, 0]));
    for rule in [
        said(InodeNumberRule::NoChunk),
        said(InodeUseRule::Disconnected),
    ] {
        assert!(rules.contains(&rule), "{rule}: {rules:?}");
    }
}

/// Changes a block of a directory; of the leaf area or of the free indexes, if `area` says so.
fn in_directory(name: &str, area: u64, sum: usize, change: impl FnOnce(&mut [u8])) -> Vec<String> {
    broken(|image| {
        let block = image.block_of(image.find(&[name]), area);
        image.change_block(block, sum, change);
    })
}

#[test]
fn indexes_of_directories_are_compared_with_entries() {
    let data = DiskDirHeaderV5::CHECKSUM_OFFSET;
    let tree = DiskDaHeaderV5::CHECKSUM_OFFSET;
    let geometry = sample().geometry;
    let (leaves, frees) = (dir::leaf_start(&geometry).0, dir::free_start(&geometry).0);
    let rules = in_directory("some", 0, data, |bytes| bytes[51] ^= 8);
    assert_eq!(rules, [said(DirectoryUseRule::BestFree)]);
    // The tail: leaf entries, then their number and the number of stale ones.
    let rules = in_directory("some", 0, data, |bytes| bytes[4095] = 1);
    assert_eq!(rules, [said(DirectoryUseRule::Stale)]);
    // `.`, `..` and the names that follow them, 16 or 24 bytes each.
    let rules = in_directory("some", 0, data, |bytes| bytes[80 + 10] = b'x');
    assert!(rules.contains(&said(DirectoryUseRule::DotDot)), "{rules:?}");
    let rules = in_directory("some", 0, data, |bytes| {
        bytes[80 + 8..80 + 11].copy_from_slice(b"\x01.\x02");
    });
    assert!(
        rules.contains(&said(DirectoryUseRule::StrayDot)),
        "{rules:?}"
    );
    let rules = in_directory("some", 0, data, |bytes| {
        let last = 4096 - 8 - 8;
        bytes[last..last + 4].fill(0);
    });
    assert!(rules.contains(&said(DirectoryUseRule::Order)), "{rules:?}");
    let rules = in_directory("some", 0, data, |bytes| bytes[4096 - 8 - 8] ^= 1);
    assert!(rules.contains(&said(DirectoryUseRule::Index)), "{rules:?}");
    let rules = in_directory("some", 0, data, |bytes| bytes[64 + 8 + 1] = b'x');
    assert!(rules.contains(&said(DirectoryUseRule::Dot)), "{rules:?}");
    let rules = in_directory("more", leaves, tree, |bytes| bytes[64 + 7] ^= 4);
    assert_eq!(rules, [said(DirectoryUseRule::Index)]);
    let rules = in_directory("more", leaves, tree, |bytes| bytes[4096 - 5] ^= 8);
    assert_eq!(rules, [said(DirectoryUseRule::Bests)]);
    let rules = in_directory("many", frees, data, |bytes| bytes[64 + 1] ^= 8);
    assert_eq!(rules, [said(DirectoryUseRule::Bests)]);
    let rules = in_directory("many", leaves, tree, |bytes| bytes[64 + 3] ^= 1);
    assert_eq!(rules[0], said(HashTreeRule::Hash));
    let rules = in_directory("many", leaves + 1, tree, |bytes| bytes[3] ^= 1);
    assert_eq!(rules, [said(HashTreeRule::Sibling)]);
    let rules = in_directory("many", 1, data, |bytes| bytes[64 + 8 + 1] ^= 1);
    assert_eq!(rules, [said(DirectoryUseRule::Index)]);
}

#[test]
fn numbers_of_64_bits_in_a_directory_are_counted() {
    let rules = broken(|image| {
        let number = image.find(&["few"]);
        let literal = usize::try_from(image.offset_of(number)).unwrap() + size_of::<DiskInodeV3>();
        let narrow = image.bytes[literal..literal + 20].to_vec();
        let mut wide = vec![1, 1, 0, 0, 0, 0];
        wide.extend(&narrow[2..16]);
        wide.extend([0; 4]);
        wide.extend(&narrow[16..20]);
        image.bytes[literal..literal + wide.len()].copy_from_slice(&wide);
        let size = wide.len() as u64;
        image.change_inode(number, |disk: &mut DiskInodeV3| disk.core.size.set(size));
    });
    assert!(
        rules.contains(&said(DirectoryUseRule::WideCount)),
        "{rules:?}"
    );
}

#[test]
fn all_blocks_of_an_index_are_in_the_tree() {
    let start = dir::leaf_start(&sample().geometry).0;
    let tree = DiskDaHeaderV5::CHECKSUM_OFFSET;
    let rules = in_directory("many", start, tree, |bytes| bytes[57] -= 1);
    assert!(rules.contains(&said(HashTreeRule::Unreached)), "{rules:?}");
}

#[test]
fn directories_end_with_their_last_block() {
    let rules = inode(&["many"], |disk| {
        disk.core.size.set(disk.core.size.get() + 4096);
    });
    assert!(rules.contains(&said(DirectoryUseRule::Size)), "{rules:?}");
}

#[test]
fn free_regions_of_a_directory_are_merged() {
    let data = DiskDirHeaderV5::CHECKSUM_OFFSET;
    let rules = in_directory("some", 0, data, |bytes| {
        let number = |at: usize| usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1]);
        let (at, len) = (number(48), number(50));
        let middle = at + 64;
        let put = |bytes: &mut [u8], at: usize, value: usize| {
            bytes[at..at + 2].copy_from_slice(&u16::try_from(value).unwrap().to_be_bytes());
        };
        put(bytes, at + 2, 64);
        put(bytes, middle - 2, at);
        put(bytes, middle, 0xffff);
        put(bytes, middle + 2, len - 64);
        put(bytes, at + len - 2, middle);
    });
    assert!(
        rules.contains(&said(DirectoryUseRule::AdjacentFree)),
        "{rules:?}"
    );
}

/// Makes `block` the quota file of users, with these inodes and blocks for users 0 and 7.
fn quota(root: (u64, u64), other: (u64, u64), change: impl FnOnce(&mut DiskDquot)) -> Vec<String> {
    quota_of(sample(), COUNTED, root, other, change)
}

/// Of users, accounted and checked, with limits that are not enforced.
const COUNTED: QuotaFlags = QuotaFlags::USERS_ACCOUNTED.union(QuotaFlags::USERS_CHECKED);

fn quota_of(
    mut image: Image,
    flags: QuotaFlags,
    root: (u64, u64),
    other: (u64, u64),
    change: impl FnOnce(&mut DiskDquot),
) -> Vec<String> {
    let number = image.find(&["block"]);
    let FsBlock(block) = image.block_of(number, 0);
    image.change_superblock(0, |disk| {
        disk.version.set(disk.version.get() | 0x40);
        disk.user_quota_inode.set(number.get());
        disk.group_quota_inode.set(u64::MAX);
        disk.project_quota_inode.set(u64::MAX);
        disk.quota_flags.set(flags.bits());
    });
    let uuid = *image.geometry.meta_uuid.as_bytes();
    let at = usize::try_from(image.geometry.byte_offset(FsBlock(block))).unwrap();
    let mut change = Some(change);
    for (id, record) in (0_u32..).zip(image.bytes[at..at + 4096].chunks_exact_mut(136)) {
        let disk = DiskDquot::mut_from_bytes(record).unwrap();
        disk.magic.set(DQUOT_MAGIC);
        (disk.version, disk.kind) = (1, 1);
        disk.id.set(id);
        disk.uuid = uuid;
        let (inodes, blocks) = match id {
            0 => root,
            7 => other,
            _ => (0, 0),
        };
        disk.inodes.set(inodes);
        disk.blocks.set(blocks);
        if let (9, Some(change)) = (id, change.take_if(|_| id == 9)) {
            change(disk);
        }
        checksum::seal(disk.as_mut_bytes(), DiskDquot::CHECKSUM_OFFSET);
    }
    let rules = image.rules();
    rules
        .into_iter()
        .filter(|rule| rule.contains("quot"))
        .collect()
}

#[test]
fn quota_is_compared_with_use() {
    // The root, the files of the realtime section, directories, links and files, but for the quota file.
    let inodes = 1 + 2 + 4 + 2 + 3 + 40 + 300 + 1200;
    let used = |image: &Image| {
        let blocks = |path: &[&str]| {
            let at = usize::try_from(image.offset_of(image.find(path))).unwrap();
            DiskInode::ref_from_prefix(&image.bytes[at..])
                .unwrap()
                .0
                .blocks
                .get()
        };
        blocks(&["some"]) + blocks(&["more"]) + blocks(&["many"])
    };
    let blocks = used(&sample());
    assert!(quota((inodes, blocks), (1, 18), |_| ()).is_empty());
    let wrong = [said(QuotaUseRule::Usage)];
    assert_eq!(quota((inodes, blocks), (2, 18), |_| ()), wrong);
    assert_eq!(quota((inodes, blocks + 1), (1, 18), |_| ()), wrong);
    // What is enforced and was not counted yet may be anything.
    let enforced = QuotaFlags::USERS_ACCOUNTED | QuotaFlags::USERS_ENFORCED;
    assert!(quota_of(sample(), enforced, (inodes, 0), (2, 18), |_| ()).is_empty());
    let rules = quota((inodes, blocks), (1, 18), |disk| {
        disk.as_mut_bytes().fill(0);
    });
    assert!(
        rules.iter().any(|rule| rule.starts_with("dquot")),
        "{rules:?}"
    );
    let mut image = sample();
    let file = image.find(&["file"]);
    image.change_inode(file, |disk: &mut DiskInodeV3| disk.core.uid.set(1000));
    let rules = quota_of(image, COUNTED, (inodes, blocks), (0, 0), |_| ());
    assert_eq!(rules, [said(QuotaUseRule::Missing)]);
    let rules = quota((inodes, blocks), (1, 18), |disk| disk.kind = 2);
    assert_eq!(rules, [said(DquotRule::Kind)]);
}

fn realtime() -> Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    let options = ["-m", "rmapbt=0,reflink=0"];
    IMAGE
        .get_or_init(|| Image::make(&options, true, &[]))
        .clone()
}

#[test]
fn realtime_bitmap_and_summary_are_compared() {
    let image = realtime();
    assert!(image.rules().is_empty(), "{:?}", image.rules());
    let root = image.find(&[]).get();
    let block = |distance: u64| {
        let number = InodeNr::new(root + distance).unwrap();
        usize::try_from(image.geometry.byte_offset(image.block_of(number, 0))).unwrap()
    };
    let changed = |at: usize| {
        let mut image = image.clone();
        image.bytes[at] ^= 1;
        image.rules()
    };
    assert_eq!(changed(block(1)), [said(RealtimeRule::Bitmap)]);
    assert_eq!(changed(block(2)), [said(RealtimeRule::Summary)]);
    let mut counted = image.clone();
    counted.change_superblock(0, |disk| disk.free_rt_extents.set(7));
    let rules = counted.rules();
    assert_eq!(rules, [said(TotalsRule::FreeRtExtents)]);
}

#[test]
fn realtime_extents_have_one_owner() {
    let mut image = realtime();
    for name in ["file", "block"] {
        let number = image.find(&[name]);
        image.change_inode(number, |disk: &mut DiskInodeV3| disk.core.flags.set(1));
    }
    let (file, block) = (image.find(&["file"]), image.find(&["block"]));
    let start = {
        let literal = usize::try_from(image.offset_of(file)).unwrap() + size_of::<DiskInodeV3>();
        let low = u64::from_be_bytes(image.bytes[literal + 8..literal + 16].try_into().unwrap());
        low >> 21
    };
    point(&mut image, block, start);
    let rules = image.rules();
    for rule in [said(RealtimeRule::Multiple), said(RealtimeRule::Bitmap)] {
        assert!(rules.contains(&rule), "{rule}: {rules:?}");
    }
    let mut image = realtime();
    let bitmap = InodeNr::new(image.find(&[]).get() + 1).unwrap();
    image.change_inode(bitmap, |disk: &mut DiskInodeV3| {
        disk.core.data_extents.set(0);
    });
    assert!(image.rules().contains(&said(RealtimeRule::Hole)));
}

#[test]
fn freed_realtime_extents_are_in_bitmap_summary_and_count() {
    let mut image = realtime();
    let bitmap = InodeNr::new(image.find(&[]).get() + 1).unwrap();
    let at = image.geometry.byte_offset(image.block_of(bitmap, 0));
    let at = usize::try_from(at).unwrap();
    for extent in 5..45 {
        image.bytes[at + extent / 8] &= !(1 << (extent % 8));
    }
    let unit = u64::from(image.geometry.rt_extent_blocks);
    let freed = |extents: std::ops::Range<u64>| RtFreed {
        start: extents.start * unit,
        count: (extents.end - extents.start) * unit,
    };
    let free = |image: &mut Image, freed: &[RtFreed]| -> platter_vfs::Result<()> {
        let device: Arc<dyn BlockDevice> =
            Arc::new(MemoryDevice::new("image", image.bytes.clone()));
        let primary = crate::superblock::read(&*device)?;
        crate::recovery::realtime::free_extents(&device, primary, freed)?;
        device.read_at(0, &mut image.bytes)?;
        Ok(())
    };
    free(&mut image, &[freed(30..45), freed(10..20)]).unwrap();
    // No file has what is left.
    let wrong = [
        said(RealtimeRule::Bitmap),
        said(RealtimeRule::Summary),
        said(TotalsRule::FreeRtExtents),
    ];
    assert_eq!(image.rules(), wrong);
    for wrong in [freed(19..21), freed(1 << 40..1 << 41), freed(25..25)] {
        assert!(free(&mut image, &[wrong]).is_err(), "{wrong:?}");
    }
    free(&mut image, &[freed(5..10), freed(20..30)]).unwrap();
    assert!(image.rules().is_empty(), "{:?}", image.rules());
    image.change_inode(bitmap, |disk: &mut DiskInodeV3| {
        disk.core.data_extents.set(0);
    });
    let refused = free(&mut image, &[freed(5..10)]).unwrap_err();
    assert!(refused.to_string().contains(IntentRule::Bitmap.text()));
}
