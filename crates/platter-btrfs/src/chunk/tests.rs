//! Chunks of all profiles on devices in memory, with devices missing and copies corrupted.

use std::io::{IoSlice, IoSliceMut};
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
        generation: None,
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
fn copies_are_reconstructed_from_what_they_are_said_to_be() {
    for (profile, stripes) in [(Profile::Raid5, 3), (Profile::Raid6, 5)] {
        let chunk = sample(START, profile, stripes);
        let devices = written(&chunk);
        let whole = store(&chunk, devices.iter().cloned().map(Some).collect());
        let right = expected(STRIPE_BYTES, 4096);
        let at = LogicalAddr(START + STRIPE_BYTES);
        assert_eq!(whole.rebuilt_from(at, 0), []);
        for copy in 1..whole.copies(at, 4096) {
            let places = whole.rebuilt_from(at, copy);
            // Each of them counts, and no other one.
            for stripe in 0..chunk.stripes.len() {
                let mut changed = devices.clone();
                let id = chunk.stripes[stripe].device;
                let place = usize::try_from(chunk.device_addr(stripe, 0).0).unwrap();
                changed[stripe][place..place + 4096].fill(0xee);
                let changed = store(&chunk, changed.into_iter().map(Some).collect());
                let bytes = read(&changed, STRIPE_BYTES, copy, 4096).unwrap();
                let is_used = places.iter().any(|it| it.device == id);
                assert_eq!(bytes != right, is_used, "{profile:?} {copy} {stripe}");
            }
        }
    }
}

#[test]
fn addresses_outside_chunks_are_errors() {
    let chunk = sample(START, Profile::Single, 1);
    let store = store(&chunk, vec![Some(vec![0; 4 << 20])]);
    let error = read(&store, (1 << 20) - 10, 0, 100).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("unable to find chunk map"), "{text}");
}

/// A chunk with parity whose rows were written, and what it holds.
fn parity_chunks() -> [ChunkItem; 4] {
    let of = |profile, stripes| {
        let mut chunk = sample(START, profile, stripes);
        // Whole rows.
        let data = u64::from(stripes - profile.parity());
        chunk.len_bytes = 4 * data * STRIPE_BYTES;
        chunk
    };
    [
        of(Profile::Raid5, 2),
        of(Profile::Raid5, 3),
        of(Profile::Raid6, 3),
        of(Profile::Raid6, 5),
    ]
}

/// Verifies sectors against what they should be.
#[derive(Debug, Clone)]
struct Model(Vec<u8>);

impl RowVerifier for Model {
    fn unit_bytes(&self) -> u64 {
        4096
    }

    fn verify(&self, logical: LogicalAddr, bytes: &[u8]) -> Option<bool> {
        let at = usize::try_from(logical.0 - START).unwrap();
        Some(self.0[at..at + bytes.len()] == *bytes)
    }
}

/// Writes at random, in pieces of sectors.
fn write_at_random(store: &ChunkStore, model: &mut Model, seed: u64, count: u32) {
    let mut random = crate::txn::tests::Random(seed);
    let sectors = model.0.len() as u64 / 4096;
    for _ in 0..count {
        let at = random.below(sectors);
        let most = if random.below(3) == 0 { 64 } else { 5 };
        let len = (random.below(most) + 1).min(sectors - at) * 4096;
        let bytes = random.bytes(len);
        let (first, second) = bytes.split_at(bytes.len() / 3);
        let bufs = [IoSlice::new(first), IoSlice::new(second)];
        let before = model.clone();
        let address = LogicalAddr(START + at * 4096);
        store
            .write_with(address, &bufs, &|_| Box::new(before.clone()))
            .unwrap();
        let at = usize::try_from(at * 4096).unwrap();
        model.0[at..at + bytes.len()].copy_from_slice(&bytes);
    }
}

fn contents(store: &ChunkStore, devices: usize) -> Vec<Option<Vec<u8>>> {
    let member = |index| store.members().iter().nth(index).unwrap().device.clone();
    let read = |device: Arc<dyn BlockDevice>| {
        let mut bytes = vec![0; usize::try_from(device.geometry().len_bytes).unwrap()];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    };
    (0..devices).map(|index| member(index).map(read)).collect()
}

/// Each set of so many devices at most.
fn losses(devices: usize, most: u16) -> impl Iterator<Item = Vec<usize>> {
    let sets = (0..1u32 << devices).filter(move |set| set.count_ones() <= u32::from(most));
    sets.map(move |set| (0..devices).filter(|it| set >> it & 1 != 0).collect())
}

fn without(mut devices: Vec<Option<Vec<u8>>>, lost: &[usize]) -> Vec<Option<Vec<u8>>> {
    for index in lost {
        devices[*index] = None;
    }
    devices
}

#[test]
fn rows_that_are_written_in_part_can_do_without_devices() {
    for chunk in parity_chunks() {
        let count = chunk.stripes.len();
        let len = usize::try_from(chunk.len_bytes).unwrap();
        let mut model = Model(expected(0, len));
        let store_of = |devices| store(&chunk, devices);
        let writing = store_of(written(&chunk).into_iter().map(Some).collect());
        write_at_random(&writing, &mut model, 5, 60);
        let tolerated = chunk.profile.tolerated_failures();
        for lost in losses(count, tolerated) {
            let devices = without(contents(&writing, count), &lost);
            let bytes = read(&store_of(devices), 0, 0, len).unwrap();
            assert!(bytes == model.0, "{:?} without {lost:?}", chunk.profile);
        }
    }
}

#[test]
fn rows_are_written_without_devices() {
    for chunk in parity_chunks() {
        let count = chunk.stripes.len();
        let len = usize::try_from(chunk.len_bytes).unwrap();
        let tolerated = chunk.profile.tolerated_failures();
        let whole: Vec<_> = written(&chunk).into_iter().map(Some).collect();
        for lost in losses(count, tolerated) {
            let mut model = Model(expected(0, len));
            let writing = store(&chunk, without(whole.clone(), &lost));
            write_at_random(&writing, &mut model, 6, 25);
            for more in losses(count, tolerated) {
                let all: Vec<usize> = lost.iter().chain(&more).copied().collect();
                let mut distinct = all.clone();
                distinct.sort_unstable();
                distinct.dedup();
                if distinct.len() > usize::from(tolerated) {
                    continue;
                }
                let left = without(contents(&writing, count), &more);
                let bytes = read(&store(&chunk, left), 0, 0, len).unwrap();
                assert!(bytes == model.0, "{:?} without {all:?}", chunk.profile);
            }
        }
        let devices = without(whole, &(0..=usize::from(tolerated)).collect::<Vec<_>>());
        let refused = store(&chunk, devices).write(LogicalAddr(START), &[IoSlice::new(&[7; 4096])]);
        assert!(refused.unwrap_err().to_string().contains("is missing"));
    }
}

#[test]
fn corrupt_neighbours_do_not_spoil_parity() {
    for chunk in parity_chunks() {
        if chunk.data_stripes() < 2 {
            continue;
        }
        let len = usize::try_from(chunk.len_bytes).unwrap();
        let mut model = Model(expected(0, len));
        let mut devices: Vec<_> = written(&chunk).into_iter().map(Some).collect();
        // The second data of the first row.
        let stripe = chunk.stripe_of_role(0, 1);
        let at = usize::try_from(chunk.device_addr(stripe, 8192).0).unwrap();
        devices[stripe].as_mut().unwrap()[at..at + 4096].fill(0xee);
        let writing = store(&chunk, devices);
        let before = model.clone();
        let bytes = [7; 16384];
        writing
            .write_with(LogicalAddr(START + 4096), &[IoSlice::new(&bytes)], &|_| {
                Box::new(before.clone())
            })
            .unwrap();
        model.0[4096..4096 + bytes.len()].copy_from_slice(&bytes);
        for lost in losses(chunk.stripes.len(), 1) {
            let left = without(contents(&writing, chunk.stripes.len()), &lost);
            let found = read(&store(&chunk, left), 0, 0, len).unwrap();
            assert!(found == model.0, "{:?} without {lost:?}", chunk.profile);
        }
    }
}

#[test]
fn whole_rows_are_written_without_reading() {
    for chunk in parity_chunks() {
        let row = usize::try_from(chunk.data_stripes() as u64 * STRIPE_BYTES).unwrap();
        let store = store(&chunk, written(&chunk).into_iter().map(Some).collect());
        let bytes = vec![9; 2 * row];
        store
            .write_with(LogicalAddr(START), &[IoSlice::new(&bytes)], &|_| {
                panic!("nothing is to be verified")
            })
            .unwrap();
        for copy in 0..store.copies(LogicalAddr(START), 1) {
            assert!(read(&store, 0, copy, bytes.len()).unwrap() == bytes);
        }
    }
}

#[test]
fn stripes_are_restored_from_the_rest_of_their_row() {
    let columns = 8192..16384;
    for chunk in parity_chunks() {
        let devices = written(&chunk);
        let len = usize::try_from(chunk.len_bytes).unwrap();
        let wrong = Model(vec![0; len]);
        for stripe in 0..chunk.stripes.len() {
            let whole = devices.iter().cloned().map(Some).collect();
            let store = store(&chunk, without(whole, &[stripe]));
            for row in 0..4 {
                let place = (row, stripe);
                let restored = store.restore(&chunk, place, &columns, &Unverified);
                let offset = row * STRIPE_BYTES + columns.start;
                let at = usize::try_from(chunk.device_addr(stripe, offset).0).unwrap();
                let restored = restored.unwrap();
                assert_eq!(restored.wrong, []);
                assert!(restored.bytes == devices[stripe][at..at + 8192]);
                // The bytes are the same where they fail their verification.
                let role = chunk.role_of_stripe(row, stripe) as u64;
                let count = chunk.data_stripes() as u64;
                let data =
                    |role| LogicalAddr(START + (row * count + role) * STRIPE_BYTES + columns.start);
                // Parity is made of all data.
                let roles = if role < count {
                    role..role + 1
                } else {
                    0..count
                };
                let failed = store.restore(&chunk, place, &columns, &wrong).unwrap();
                assert_eq!(failed.wrong, roles.map(data).collect::<Vec<_>>());
                assert!(failed.bytes == restored.bytes);
            }
        }
    }
}

/// As [`Model`], but nothing is known of one sector.
struct WithoutChecksum(Model, LogicalAddr);

impl RowVerifier for WithoutChecksum {
    fn unit_bytes(&self) -> u64 {
        self.0.unit_bytes()
    }

    fn verify(&self, logical: LogicalAddr, bytes: &[u8]) -> Option<bool> {
        self.0.verify(logical, bytes).filter(|_| logical != self.1)
    }
}

#[test]
fn data_without_a_checksum_is_not_made_of_corrupt_data() {
    for chunk in parity_chunks() {
        if chunk.data_stripes() < 2 {
            continue;
        }
        let len = usize::try_from(chunk.len_bytes).unwrap();
        let lost = LogicalAddr(START + STRIPE_BYTES + 8192);
        let verifier = WithoutChecksum(Model(expected(0, len)), lost);
        let mut devices = written(&chunk);
        let (corrupt, stripe) = (chunk.stripe_of_role(0, 0), chunk.stripe_of_role(0, 1));
        let at = usize::try_from(chunk.device_addr(corrupt, 8192).0).unwrap();
        devices[corrupt][at..at + 4096].fill(0xee);
        let left = without(devices.into_iter().map(Some).collect(), &[stripe]);
        let store = store(&chunk, left);
        let restored = store.restore(&chunk, (0, stripe), &(8192..12288), &verifier);
        let restored = restored.unwrap();
        if chunk.profile == Profile::Raid6 {
            // Q does without the corrupt one.
            assert_eq!(restored.wrong, []);
            assert!(restored.bytes == expected(STRIPE_BYTES + 8192, 4096));
        } else {
            assert_eq!(restored.wrong, [lost]);
        }
    }
}

/// What follows the last row of a chunk on its devices may be of another one.
#[test]
fn parity_of_incomplete_rows_is_left_alone() {
    let mut chunk = sample(START, Profile::Raid5, 3);
    chunk.len_bytes = 3 * STRIPE_BYTES;
    let devices: Vec<_> = (1..=3).map(|byte| Some(vec![byte; 4 << 20])).collect();
    let store = store(&chunk, devices.clone());
    let last = LogicalAddr(START + 2 * STRIPE_BYTES);
    let compared = store.check_parity(last, &(0..STRIPE_BYTES), true, None);
    assert_eq!(compared.unwrap(), ParityCheck::Compared(Vec::new()));
    store.write(last, &[IoSlice::new(&[7; 4096])]).unwrap_err();
    assert!(contents(&store, 3) == devices);
}

/// Of a row with [`Model`]: devices in doubt, sectors without a checksum, and sectors that are not in use.
struct Doubted {
    model: Model,
    devices: Vec<DeviceId>,
    unverified: Vec<LogicalAddr>,
    unused: Vec<LogicalAddr>,
}

impl RowDoubts for Doubted {
    fn is_doubted(&self, part: &Source) -> bool {
        self.devices.contains(&part.device)
    }

    fn is_in_use(&self, at: LogicalAddr) -> bool {
        !self.unused.contains(&at)
    }

    fn verify(&self, at: LogicalAddr, bytes: &[u8]) -> Option<bool> {
        let is_known = !self.unverified.contains(&at) && self.is_in_use(at);
        is_known.then(|| self.model.verify(at, bytes) == Some(true))
    }
}

/// The first sectors of the first row, of which parts are in doubt and others are lost, or have other bytes.
struct DoubtedRow {
    chunk: ChunkItem,
    doubts: Doubted,
    devices: Vec<Option<Vec<u8>>>,
}

impl DoubtedRow {
    fn new(chunk: &ChunkItem, doubted: usize) -> Self {
        let len = usize::try_from(chunk.len_bytes).unwrap();
        Self {
            doubts: Doubted {
                model: Model(expected(0, len)),
                devices: vec![chunk.stripes[chunk.stripe_of_role(0, doubted)].device],
                unverified: Vec::new(),
                unused: Vec::new(),
            },
            devices: written(chunk).into_iter().map(Some).collect(),
            chunk: chunk.clone(),
        }
    }

    fn lose(&mut self, role: usize) {
        self.devices[self.chunk.stripe_of_role(0, role)] = None;
    }

    fn spoil(&mut self, role: usize) {
        let stripe = self.chunk.stripe_of_role(0, role);
        let at = usize::try_from(self.chunk.device_addr(stripe, 0).0).unwrap();
        self.devices[stripe].as_mut().unwrap()[at..at + 4096].fill(0xee);
    }

    /// Compares the parity. Returns what came of it, and what the devices hold then.
    fn check(&self) -> (ParityCheck, Vec<Option<Vec<u8>>>) {
        let store = store(&self.chunk, self.devices.clone());
        let at = LogicalAddr(START);
        let checked = store.check_parity(at, &(0..4096), true, Some(&self.doubts));
        (checked.unwrap(), contents(&store, self.chunk.stripes.len()))
    }

    /// What the devices that are left should hold.
    fn right(&self) -> Vec<Option<Vec<u8>>> {
        let written = written(&self.chunk).into_iter();
        let devices = written.zip(&self.devices);
        let right = devices.map(|(right, device)| device.as_ref().map(|_| right));
        right.collect()
    }
}

fn is_unreadable(checked: &ParityCheck, lost: LogicalAddr) -> bool {
    match checked {
        ParityCheck::Compared(_) => false,
        ParityCheck::Unreadable { data, .. } => data.iter().all(|it| it.data == Some(lost)),
    }
}

#[test]
fn doubted_parity_is_believed_where_other_parity_is_corrupt() {
    let [.., chunk] = parity_chunks();
    let (p, q) = (chunk.data_stripes(), chunk.data_stripes() + 1);
    for (doubted, corrupt) in [(p, q), (q, p)] {
        let mut row = DoubtedRow::new(&chunk, doubted);
        row.lose(0);
        row.spoil(corrupt);
        let (checked, devices) = row.check();
        let device = chunk.stripes[chunk.stripe_of_role(0, corrupt)].device;
        let is_rewritten = true;
        let wrong = WrongParity {
            device,
            is_rewritten,
        };
        assert_eq!(checked, ParityCheck::Compared(vec![wrong]));
        assert!(devices == row.right());
    }
}

#[test]
fn parity_is_not_made_of_data_that_fails_verification() {
    let [_, raid5, _, raid6] = parity_chunks();
    let (p, q) = (raid6.data_stripes(), raid6.data_stripes() + 1);
    let mut row = DoubtedRow::new(&raid6, p);
    row.lose(0);
    row.spoil(p);
    row.spoil(q);
    let (checked, devices) = row.check();
    assert!(is_unreadable(&checked, LogicalAddr(START)), "{checked:?}");
    assert!(devices == row.devices);
    let mut row = DoubtedRow::new(&raid5, raid5.data_stripes());
    row.lose(0);
    row.doubts.unverified.push(LogicalAddr(START));
    let (checked, devices) = row.check();
    assert!(is_unreadable(&checked, LogicalAddr(START)), "{checked:?}");
    assert!(devices == row.devices);
}

#[test]
fn doubted_parts_of_rows_that_are_right_stay() {
    let nothing = ParityCheck::Compared(Vec::new());
    for chunk in parity_chunks() {
        let (count, len) = (chunk.data_stripes(), chunk.stripes.len());
        for doubted in 1..len {
            let mut row = DoubtedRow::new(&chunk, doubted);
            row.lose(0);
            assert_eq!(row.check(), (nothing.clone(), row.right()), "{doubted}");
            // Whatever the rest of the row comes to is right where nothing is in use.
            row.doubts.unused.push(LogicalAddr(START));
            assert_eq!(row.check(), (nothing.clone(), row.right()), "{doubted}");
        }
        // Data that its checksum verifies is not in doubt, and no parity is made.
        let mut row = DoubtedRow::new(&chunk, 1);
        if count > 1 && len > count + 1 {
            row.lose(0);
            row.spoil(count);
            assert_eq!(row.check(), (nothing.clone(), row.devices.clone()));
        }
    }
}

#[test]
fn doubted_parity_is_made_of_data_on_missing_devices() {
    let [.., chunk] = parity_chunks();
    for doubted in chunk.data_stripes()..chunk.stripes.len() {
        for is_verified in [false, true] {
            let mut row = DoubtedRow::new(&chunk, doubted);
            row.lose(0);
            row.spoil(doubted);
            if !is_verified {
                row.doubts.unverified.push(LogicalAddr(START));
            }
            let (checked, devices) = row.check();
            assert!(matches!(&checked, ParityCheck::Compared(wrong) if wrong.len() == 1));
            assert!(devices == row.right());
        }
    }
}
