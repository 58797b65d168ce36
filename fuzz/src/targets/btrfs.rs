//! Decoders of btrfs. The first byte chooses the checksum and the sizes.

use std::hint::black_box;

use platter_btrfs::chunk::ChunkMap;
use platter_btrfs::compress::Decompressor;
use platter_btrfs::ondisk::chunk_item::ChunkItem;
use platter_btrfs::ondisk::csum_item::CsumItem;
use platter_btrfs::ondisk::dev_item::DevItem;
use platter_btrfs::ondisk::file_extent::{Compression, FileExtent};
use platter_btrfs::ondisk::free_space::{DiskFreeSpaceEntry, FreeSpaceEntry};
use platter_btrfs::ondisk::item::ItemFormat;
use platter_btrfs::ondisk::key::{DiskKey, ItemKind};
use platter_btrfs::ondisk::send_stream::{Command, Source, StreamReader, StreamWriter};
use platter_btrfs::ondisk::superblock::{DiskSuperblock, RootBackup};
use platter_btrfs::ondisk::tree_block::{Expected, SEEDS_MAX, TreeBlockFormat};
use platter_btrfs::ondisk::{ChecksumKind, Generation, Key, LogicalAddr, Superblock, TreeId};
use platter_ondisk::{Locus, Uuid};
use zerocopy::FromBytes;

const SECTORS: [u32; 3] = [4096, 16_384, 65_536];

/// What the first byte chooses, and the bytes after it.
fn shape(bytes: &[u8]) -> Option<(TreeBlockFormat, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let index = usize::from(first);
    let sector_bytes = SECTORS[index / 4 % SECTORS.len()];
    let format = TreeBlockFormat {
        node_bytes: sector_bytes,
        sector_bytes: if first & 0x80 == 0 {
            4096
        } else {
            sector_bytes
        },
        checksum_kind: ChecksumKind::ALL[index % 4],
        fsid: Uuid::from_bytes([0; 16]),
        seeds: [Uuid::nil(); SEEDS_MAX],
    };
    Some((format, rest))
}

pub(super) fn superblock(bytes: &[u8]) {
    let Ok((disk, _)) = DiskSuperblock::read_from_prefix(bytes) else {
        return;
    };
    for offset in [64 << 10, 64 << 20] {
        if let Ok(superblock) = Superblock::decode(&disk, offset) {
            black_box((
                superblock.features.unreadable(),
                superblock.features.incompat_names(),
            ));
            // What was decoded is decoded again from what it is encoded as.
            let again = Superblock::decode(&superblock.encode(&disk, offset), offset);
            assert_eq!(again.as_ref(), Ok(&superblock));
            black_box(ChunkMap::new(superblock.sys_chunks).is_ok());
        }
    }
    for backup in &disk.backups {
        black_box(RootBackup::decode(backup));
    }
}

/// Where a tree block has its filesystem, and its own address.
const FSID: usize = 32;
const ADDRESS: usize = 48;

pub(super) fn tree_block(bytes: &[u8]) {
    let Some((format, bytes)) = shape(bytes) else {
        return;
    };
    let mut block = bytes.to_vec();
    block.resize(format.node_bytes as usize, 0);
    black_box(format.verify(LogicalAddr(1 << 20), bytes).is_ok());
    // Where it says that it lies, with its checksum in place.
    block[FSID..FSID + 16].fill(0);
    let address = u64::read_from_bytes(&block[ADDRESS..ADDRESS + 8]).unwrap_or(0);
    format.seal(&mut block);
    let Ok(header) = format.verify(LogicalAddr(address), &block) else {
        return;
    };
    let expected = Expected {
        level: Some(header.level),
        tree: Some(TreeId::FS),
        first_key: Some(Key::MIN),
        end_key: Some(Key::MAX),
        ..Expected::default()
    };
    black_box(expected.check(&block).is_ok());
    let items = item_format(&format);
    let leaf = platter_btrfs::ondisk::leaf::Leaf::new(&block);
    for (key, data) in leaf.iter() {
        black_box(items.check(key, data, Locus::UNKNOWN).is_ok());
    }
    black_box((leaf.lower_bound(Key::MAX), leaf.item(leaf.len())));
    let node = platter_btrfs::ondisk::node::Node::new(&block);
    black_box((node.iter().count(), node.index_for(Key::MIN)));
}

fn item_format(format: &TreeBlockFormat) -> ItemFormat {
    ItemFormat {
        sector_bytes: format.sector_bytes,
        checksum_kind: format.checksum_kind,
    }
}

/// An item after its key, as each type of item.
pub(super) fn item(bytes: &[u8]) {
    let Some((format, bytes)) = shape(bytes) else {
        return;
    };
    let Ok((disk, data)) = DiskKey::read_from_prefix(bytes) else {
        return;
    };
    let key = Key::decode(&disk);
    let items = item_format(&format);
    for kind in 0..=u8::MAX {
        let key = Key::new(key.object, ItemKind(kind), key.offset);
        for data in [data, bytes] {
            black_box(items.check(key, data, Locus::UNKNOWN).is_ok());
        }
    }
    let sector = format.sector_bytes;
    for data in [data, bytes] {
        if let Ok(item) = CsumItem::decode(key, data, format.checksum_kind, sector, Locus::UNKNOWN)
        {
            for at in [0, item.start.0, item.end.0, u64::MAX] {
                black_box(item.checksum(LogicalAddr(at)));
            }
        }
        if let Ok(extent) = FileExtent::decode(data, key.offset, sector, Locus::UNKNOWN) {
            black_box(extent.encode());
        }
        black_box(DevItem::decode(key, data, Locus::UNKNOWN).is_ok());
        if let Ok((entry, _)) = DiskFreeSpaceEntry::ref_from_prefix(data) {
            black_box(FreeSpaceEntry::decode(entry, Locus::UNKNOWN).is_ok());
        }
    }
}

pub(super) fn chunk(bytes: &[u8]) {
    let Some((format, bytes)) = shape(bytes) else {
        return;
    };
    for start in [0, 1 << 20, u64::MAX - 0xffff] {
        let start = LogicalAddr(start);
        let decoded = ChunkItem::decode_prefix(bytes, start, format.sector_bytes, Locus::UNKNOWN);
        let Ok((chunk, _)) = decoded else {
            continue;
        };
        black_box((chunk.stripe_len_bytes(), chunk.data_stripes()));
        for inside in [0, 1, 65_535, 65_536, chunk.len_bytes.saturating_sub(1)] {
            let segment = chunk.segment(LogicalAddr(start.0.saturating_add(inside)), u64::MAX);
            for stripe in 0..chunk.stripes.len() {
                black_box(chunk.device_addr(stripe, segment.offset));
            }
        }
        if let Ok(map) = ChunkMap::new(vec![chunk]) {
            black_box((map.end(), map.find(start).is_ok()));
        }
    }
}

pub(super) fn compressed(bytes: &[u8]) {
    let decompressor = Decompressor::default();
    for compression in [Compression::Zlib, Compression::Lzo, Compression::Zstd] {
        for len in [0, 1, 4096, 128 << 10] {
            let mut output = vec![0; len];
            let result = decompressor.decompress(compression, bytes, &mut output, 4096);
            black_box(result.is_ok());
        }
    }
}

/// The first bytes choose a command and a version, whose attributes follow; all of it is a stream, too.
pub(super) fn send_stream(bytes: &[u8]) {
    let mut input = bytes;
    if let Ok(Some(mut stream)) = StreamReader::begin(&mut input) {
        while let Ok(Some(command)) = stream.next_command() {
            black_box(command);
        }
    }
    let [kind, version, attributes @ ..] = bytes else {
        return;
    };
    let version = u32::from(version % 2) + 1;
    let Ok(command) = Command::decode(u16::from(kind % 30), attributes, version) else {
        return;
    };
    // What was decoded is decoded again from what it is encoded as.
    let mut encoded = Vec::new();
    let begin = Command::Subvolume {
        path: b"subvolume",
        source: Source {
            uuid: Uuid::nil(),
            generation: Generation(0),
        },
    };
    let written = StreamWriter::begin(&mut encoded, version);
    let written = written.and_then(|mut writer| {
        writer.put(&begin)?;
        writer.put(&command)
    });
    if written.is_ok() {
        let mut input = &encoded[..];
        let stream = StreamReader::begin(&mut input).ok().flatten();
        let again = stream.is_some_and(|mut stream| {
            let is_begun = stream.next_command().is_ok();
            is_begun && matches!(stream.next_command(), Ok(Some(again)) if again == command)
        });
        assert!(again, "{command:?}");
    }
}
