//! What verifiers refuse, and checksums that blocks get in their places.

use platter_ondisk::{Corruption, Locus, VerifierKey, Verify};
use platter_vfs::FileKind;
use zerocopy::FromBytes;

use super::*;
use crate::ondisk::btree::{BtreeKind, BuiltBlock};
use crate::ondisk::chunks::Chunks;
use crate::ondisk::da::{DaKind, DaLinks, DiskDaHeaderV5};
use crate::ondisk::dir::data::{DataKind, DirData, Region};
use crate::ondisk::{BlockKind, FsBlock, Site, attr, dir};

/// Refuses blocks that begin with 0xee.
struct Refusing;

impl Verify for Refusing {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: 0xee,
            seed: 0,
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> std::result::Result<(), Corruption> {
        match bytes.first() {
            Some(0xee) => Err(Corruption::new("block", Locus::block(block), "is refused")),
            _ => Ok(()),
        }
    }
}

#[test]
fn commit_of_built_blocks_that_break_a_rule_fails_alone() {
    let scene = Scene::in_memory(1024, 512);
    scene.set(0, 0, 1);
    let before = scene.state();
    let what = |kind| BlockType::with_verifier(kind, Arc::new(Refusing));
    let headers = [
        BufferType::Superblock,
        BufferType::Agf,
        BufferType::Agfl,
        BufferType::Agi,
    ];
    for kind in [BufferType::DaNode, BufferType::AttrLeaf]
        .into_iter()
        .chain(headers)
    {
        let mut transaction = scene.begin(8192);
        edit(&mut transaction, 1, 0, 7);
        let edited = transaction.edit(at(2), size(), &what(kind), |bytes| {
            bytes[0] = 0xee;
            Ok(())
        });
        edited.unwrap();
        let error = transaction.commit().unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
    }
    for kind in [BufferType::DirData, BufferType::Btree, BufferType::Symlink] {
        let mut transaction = scene.begin(8192);
        edit(&mut transaction, 1, 0, 7);
        let bytes = vec![0xee; BLOCK_BYTES as usize];
        transaction.create(at(2), size(), &what(kind), bytes);
        let error = transaction.commit().unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
    }
    assert!(scene.state() == before);
    let sequence = scene.set(3, 0, 1);
    scene.log.force(sequence).unwrap();
    scene.log.quiesce().unwrap();
}

#[test]
fn block_that_cannot_be_sealed_is_not_written_back() {
    let data = Arc::new(MemoryDevice::new("data", vec![0; DATA_BYTES]));
    let scene = Scene::open(Arc::clone(&data) as _, log_device(1024), 512);
    let what = BlockType::with_verifier(BufferType::DirData, Arc::new(Unverified));
    let mut transaction = scene.begin(8192);
    transaction.create(at(2), size(), &what, vec![7; BLOCK_BYTES as usize]);
    transaction.commit().unwrap();
    scene.log.force_all().unwrap();
    let error = scene.log.quiesce().unwrap_err().to_string();
    assert!(error.contains("magic number"), "{error}");
    assert!(scene.log.is_shut_down());
    assert!(data.snapshot().iter().all(|&byte| byte == 0));
}

#[test]
fn block_that_breaks_a_rule_reaches_neither_log_nor_place() {
    let recorder = Recorder::new(vec![data(), log_device(1024)]);
    let [data, log] = devices_of(&recorder);
    let scene = Scene::open(data, log, 512);
    let what = BlockType::with_verifier(BufferType::DirData, Arc::new(Refusing));
    let fill = |fill: u8| {
        let mut transaction = scene.begin(8192);
        let edited = transaction.edit(at(2), size(), &what, |bytes| {
            bytes[0] = fill;
            Ok(())
        });
        edited.unwrap();
        transaction.commit().unwrap()
    };
    let sequence = fill(1);
    scene.log.force(sequence).unwrap();
    let position = recorder.position();
    let sequence = fill(0xee);
    let error = scene.log.force(sequence).unwrap_err();
    assert!(error.to_string().contains("is refused"), "{error}");
    assert!(scene.log.is_shut_down());
    scene.log.quiesce().unwrap_err();
    assert_eq!(recorder.position(), position);
}

/// What blocks that get their checksums in their places may be, one of each type that they are logged as, with its
/// owner and its bytes.
fn sealed_in_place(geometry: &Geometry) -> Vec<(BlockKind, u64, Vec<u8>)> {
    const INODE: u64 = 131;
    let links = DaLinks {
        next: Some(7),
        previous: None,
    };
    let tree = |block: u64, kind: BtreeKind, owner: u64| {
        let built = BuiltBlock {
            kind,
            owner,
            level: 0,
            left: None,
            right: None,
            entries: &[],
            count: 0,
            pointers: &[],
        };
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        let place = FsBlock(at(block).byte_offset() / u64::from(BLOCK_BYTES));
        built.encode_unsealed(place, geometry, &mut bytes).unwrap();
        (BlockKind::Btree(kind), owner, bytes)
    };
    let site = |block: u64| Site::new(geometry, at(block), INODE);
    let mut attributes = attr::build::leaf(&[], links, &site(8)).unwrap();
    // It was built with a checksum.
    let (header, _) = DiskDaHeaderV5::mut_from_prefix(&mut attributes).unwrap();
    header.lsn.set(1);
    let leaf = &[(1, 2), (3, 4)];
    vec![
        tree(0, BtreeKind::Bno, 0),
        tree(1, BtreeKind::Bmap, INODE),
        (
            BlockKind::DirData(DataKind::Single),
            INODE,
            dir::build::empty_data(DataKind::Single, &site(2)).unwrap(),
        ),
        (
            BlockKind::DirData(DataKind::Data),
            INODE,
            dir::build::empty_data(DataKind::Data, &site(3)).unwrap(),
        ),
        (
            BlockKind::DirFree,
            INODE,
            dir::build::free_index(0, &[8, 16], &site(4)).unwrap(),
        ),
        (
            BlockKind::DirLeaf(DaKind::DirLeaf1),
            INODE,
            dir::build::single_leaf(leaf, &[8, 16], &site(5)).unwrap(),
        ),
        (
            BlockKind::DirLeaf(DaKind::DirLeafN),
            INODE,
            dir::build::leaf(leaf, links, &site(6)).unwrap(),
        ),
        (
            BlockKind::DaNode,
            INODE,
            dir::build::node(leaf, 1, links, &site(7)).unwrap(),
        ),
        (BlockKind::AttrLeaf, INODE, attributes),
    ]
}

#[test]
fn blocks_get_their_checksums_in_their_places() {
    let (data, log) = (data(), log_device(1024));
    let scene = Scene::open(Arc::clone(&data), Arc::clone(&log), 512);
    let geometry = scene.mount.geometry();
    let built = sealed_in_place(geometry);
    for ((kind, owner, bytes), block) in built.iter().zip(0..) {
        let what = BlockType::new(*kind, *owner);
        assert!(what.is_sealed_in_place(), "{kind:?}");
        let mut transaction = scene.begin(8192);
        transaction.create(at(block), size(), &what, bytes.clone());
        transaction.commit().unwrap();
        what.verifier(geometry, |verifier| {
            let newest = scene.log.buffers().read((at(block).0, size()), verifier);
            let verified = verifier.verify(at(block).0, &newest.unwrap());
            assert!(verified.is_err(), "sealed before");
        });
    }
    scene.log.force_all().unwrap();
    // By recovery, and by this log.
    let recovered = MemoryDevice::new("data", vec![0; DATA_BYTES]);
    let recovered: Arc<dyn BlockDevice> = Arc::new(recovered);
    let state = scene.recovered(&recovered, log, 512);
    scene.log.quiesce().unwrap();
    for ((kind, owner, _), block) in built.iter().zip(0..) {
        let what = BlockType::new(*kind, *owner);
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        data.read_at(at(block).byte_offset(), &mut bytes).unwrap();
        what.verifier(geometry, |verifier| verifier.verify(at(block).0, &bytes))
            .unwrap();
        assert!(bytes == state[usize::try_from(block).unwrap()], "{kind:?}");
    }
}

#[test]
fn block_read_again_and_changed_is_recovered() {
    let data = Arc::new(MemoryDevice::new("data", vec![0; DATA_BYTES]));
    let log = Arc::new(MemoryDevice::new("log", vec![0; 1024 * 512]));
    let scene = Scene::open(Arc::clone(&data) as _, Arc::clone(&log) as _, 512);
    let geometry = scene.mount.geometry();
    let kind = BlockKind::DirData(DataKind::Data);
    let what = BlockType::new(kind, 131);
    let site = Site::new(geometry, at(4), 131);
    let bytes = dir::build::empty_data(DataKind::Data, &site).unwrap();
    let mut transaction = scene.begin(8192);
    transaction.create(at(4), size(), &what, bytes);
    transaction.commit().unwrap();
    let add = |name: &[u8]| {
        let entry = (name, InodeNr::new(131).unwrap(), Some(FileKind::Regular));
        let mut transaction = scene.begin(8192);
        let added = transaction.edit(at(4), size(), &what, |bytes| {
            Ok(dir::build::add_entry(
                bytes,
                &mut Chunks::default(),
                DataKind::Data,
                entry,
                geometry,
            ))
        });
        assert!(added.unwrap().is_some());
        transaction.commit().unwrap()
    };
    add(b"before");
    scene.log.quiesce().unwrap();
    scene.log.buffers().forget((at(4).0, size()));
    assert!(!scene.log.buffers().contains((at(4).0, size())));
    // Its checksum is compared here.
    let sequence = add(b"after");
    scene.log.force(sequence).unwrap();
    let recovered = MemoryDevice::new("data", data.snapshot());
    let recovered: Arc<dyn BlockDevice> = Arc::new(recovered);
    let cut: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("log", log.snapshot()));
    let state = scene.recovered(&recovered, cut, 512);
    what.verifier(geometry, |verifier| verifier.verify(at(4).0, &state[4]))
        .unwrap();
    let found = DirData::decode(&state[4], DataKind::Data, &site).unwrap();
    let names = found
        .regions(geometry)
        .filter_map(|region| match region.unwrap() {
            Region::Entry(entry) => Some(entry.name.to_vec()),
            Region::Free { .. } => None,
        });
    assert_eq!(names.collect::<Vec<_>>(), [&b"before"[..], b"after"]);
    scene.log.quiesce().unwrap();
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    data.read_at(at(4).byte_offset(), &mut bytes).unwrap();
    assert_eq!(bytes, state[4]);
}
