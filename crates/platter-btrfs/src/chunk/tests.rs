//! Chunks of all profiles on devices in memory, with devices missing and copies corrupted.

use std::io::IoSliceMut;
use std::sync::Arc;

use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::BufferError;
use platter_ondisk::Uuid;

use super::*;
use crate::ondisk::chunk_item::tests::sample;
use crate::ondisk::chunk_item::{ChunkItem, Profile, STRIPE_BYTES};
use crate::ondisk::{DeviceId, LogicalAddr};

const START: u64 = 1 << 30;

/// A byte of the chunk, by its distance from the start.
fn byte(inside: u64) -> u8 {
    (inside.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The contents of each device that the chunk is on.
fn written(chunk: &ChunkItem) -> Vec<Vec<u8>> {
    let mut devices = vec![vec![0; 16 << 20]; chunk.stripes.len()];
    let mut put = |stripe: usize, offset: u64, bytes: &[u8]| {
        let id = usize::try_from(chunk.stripes[stripe].device.0).unwrap();
        let at = usize::try_from(chunk.device_addr(stripe, offset).0).unwrap();
        devices[id - 1][at..at + bytes.len()].copy_from_slice(bytes);
    };
    let data: Vec<u8> = (0..chunk.len_bytes).map(byte).collect();
    let mut inside = 0;
    while inside < chunk.len_bytes {
        let segment = chunk.segment(LogicalAddr(START + inside), STRIPE_BYTES);
        let at = usize::try_from(inside).unwrap();
        let bytes = &data[at..][..usize::try_from(segment.len_bytes).unwrap()];
        match segment.placement {
            Placement::Copies { first, count } => {
                for stripe in first..first + count {
                    put(stripe, segment.offset, bytes);
                }
            }
            Placement::Parity { row, data: 0 } => {
                let count = chunk.data_stripes();
                let stripe_bytes = usize::try_from(STRIPE_BYTES).unwrap();
                let (mut p, mut q) = (vec![0; stripe_bytes], vec![0; stripe_bytes]);
                for index in 0..count {
                    let bytes = &data[at + index * stripe_bytes..][..stripe_bytes];
                    put(chunk.stripe_of_role(row, index), segment.offset, bytes);
                    parity::add(&mut p, bytes);
                    parity::add_weighted(&mut q, bytes, index);
                }
                put(chunk.stripe_of_role(row, count), segment.offset, &p);
                if chunk.profile == Profile::Raid6 {
                    put(chunk.stripe_of_role(row, count + 1), segment.offset, &q);
                }
            }
            Placement::Parity { .. } => {}
        }
        inside += segment.len_bytes;
    }
    devices
}

fn store(chunk: &ChunkItem, devices: Vec<Option<Vec<u8>>>) -> ChunkStore {
    let member = |(index, bytes): (usize, Option<Vec<u8>>)| Member {
        id: DeviceId(index as u64 + 1),
        uuid: Uuid::from_u128(index as u128 + 1),
        fsid: Uuid::from_u128(0),
        total_bytes: None,
        index: u16::try_from(index).unwrap(),
        device: bytes
            .map(|bytes| -> Arc<dyn BlockDevice> { Arc::new(MemoryDevice::new("member", bytes)) }),
    };
    let members = devices.into_iter().enumerate().map(member).collect();
    let map = ChunkMap::new(vec![chunk.clone()]).unwrap();
    ChunkStore::new("pool".into(), map, Members::new(members))
}

fn read(store: &ChunkStore, inside: u64, copy: u16, len: usize) -> Result<Vec<u8>, BufferError> {
    let mut first = vec![0; len / 3];
    let mut second = vec![0; len - len / 3];
    let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    store.read(LogicalAddr(START + inside), copy, &mut bufs)?;
    Ok([first, second].concat())
}

fn expected(inside: u64, len: usize) -> Vec<u8> {
    (inside..inside + len as u64).map(byte).collect()
}

const PROFILES: [(Profile, u16); 9] = [
    (Profile::Single, 1),
    (Profile::Dup, 2),
    (Profile::Raid0, 3),
    (Profile::Raid1, 2),
    (Profile::Raid1C3, 3),
    (Profile::Raid1C4, 4),
    (Profile::Raid10, 4),
    (Profile::Raid5, 3),
    (Profile::Raid6, 5),
];

/// Ranges that begin and end anywhere.
const RANGES: [(u64, usize); 3] = [(0, 16384), (60_000, 200_000), (777_777, 200_001)];

#[test]
fn every_copy_of_every_profile_is_read() {
    for (profile, stripes) in PROFILES {
        let chunk = sample(START, profile, stripes);
        let store = store(&chunk, written(&chunk).into_iter().map(Some).collect());
        for (inside, len) in RANGES {
            let copies = store.copies(LogicalAddr(START + inside), len as u64);
            // Data, all of the row, and for RAID6 all of the row but one of the other four.
            let rebuilt = [0, 1, 5][usize::from(profile.parity())];
            assert_eq!(copies, profile.copies() + rebuilt, "{profile:?}");
            for copy in 0..copies {
                let bytes = read(&store, inside, copy, len).unwrap();
                assert!(bytes == expected(inside, len), "{profile:?} copy {copy}");
            }
        }
    }
}

#[test]
fn tolerated_losses_lose_nothing() {
    for (profile, stripes) in PROFILES {
        let chunk = sample(START, profile, stripes);
        let devices: Vec<_> = written(&chunk).into_iter().map(Some).collect();
        let tolerated = u32::from(profile.tolerated_failures());
        for lost in 0..1u32 << stripes {
            // Of each pair of RAID10 one may be missing; one in all is what is tolerated for sure.
            if lost.count_ones() > tolerated {
                continue;
            }
            let mut left = devices.clone();
            for (index, device) in left.iter_mut().enumerate() {
                if lost >> index & 1 != 0 {
                    *device = None;
                }
            }
            let store = store(&chunk, left);
            for (inside, len) in RANGES {
                let copies = store.copies(LogicalAddr(START + inside), len as u64);
                for copy in 0..copies {
                    let bytes = read(&store, inside, copy, len).unwrap();
                    assert!(
                        bytes == expected(inside, len),
                        "{profile:?} {lost:b} {copy}"
                    );
                }
            }
        }
    }
}

#[test]
fn greater_losses_are_errors() {
    let chunk = sample(START, Profile::Raid5, 3);
    let mut devices: Vec<_> = written(&chunk).into_iter().map(Some).collect();
    devices[0] = None;
    devices[1] = None;
    let store = store(&chunk, devices);
    let error = read(&store, 0, 0, 4096).unwrap_err();
    assert!(error.to_string().contains("device 1 is missing"), "{error}");
}

#[test]
fn one_corrupt_device_besides_a_missing_one_is_avoided() {
    let chunk = sample(START, Profile::Raid6, 4);
    let mut devices: Vec<_> = written(&chunk).into_iter().map(Some).collect();
    // The device of the data is missing, the other data of the row is wrong.
    devices[0] = None;
    devices[1].as_mut().unwrap().fill(0xee);
    let store = store(&chunk, devices);
    let copies = store.copies(LogicalAddr(START), 4096);
    let good = (0..copies).filter(|&copy| {
        let bytes = read(&store, 0, copy, 4096);
        bytes.unwrap() == expected(0, 4096)
    });
    assert_eq!((copies, good.count()), (4, 1));
}

#[test]
fn copies_have_a_location() {
    let chunk = sample(START, Profile::Raid1, 2);
    let store = store(&chunk, written(&chunk).into_iter().map(Some).collect());
    let location = |copy| {
        let location = store.location(LogicalAddr(START + 5), copy);
        location.map(|(member, at)| (member.id, member.index, at.0))
    };
    assert_eq!(location(0), Some((DeviceId(1), 0, (1 << 20) + 5)));
    assert_eq!(location(1), Some((DeviceId(2), 1, (2 << 20) + 5)));
    assert_eq!(location(2), None);
}

#[test]
fn addresses_outside_chunks_are_errors() {
    let chunk = sample(START, Profile::Single, 1);
    let store = store(&chunk, vec![Some(vec![0; 4 << 20])]);
    let error = read(&store, (1 << 20) - 10, 0, 100).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("unable to find chunk map"), "{text}");
}
