//! Real threads on one mapping with little space.

use std::thread;

use super::*;

const PAGES: u64 = 512;
const STEPS: u32 = if cfg!(miri) { 40 } else { 4000 };

/// A page's bytes are its number, or that with the high bit set once it was written.
fn is_right(page: u64, byte: u8) -> bool {
    u64::from(byte & 0x7f) == page % 128
}

#[test]
fn readers_writers_and_evictors_share_a_file() {
    share_a_file(0);
}

#[test]
fn readers_writers_and_evictors_share_a_file_of_blocks() {
    share_a_file(2);
    share_a_file(4);
}

fn share_a_file(order: u8) {
    let bytes = (0..PAGES).flat_map(|page| [(page % 128).to_le_bytes()[0]; PAGE_BYTES]);
    let file = File {
        block_pages: 1 << order,
        ..File::new(bytes.collect())
    };
    let (mapping, budget) = mapping_of_blocks(order, 96 * PAGE);
    thread::scope(|scope| {
        for seed in 1..=3_u64 {
            let (mapping, file) = (&mapping, &file);
            scope.spawn(move || work(mapping, file, seed));
        }
    });
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    let bytes = file.bytes.lock().unwrap();
    assert!(
        (0..)
            .zip(bytes.chunks(PAGE_BYTES))
            .all(|(page, chunk)| { chunk.iter().all(|&byte| is_right(page, byte)) })
    );
    mapping.core().pages.lock().assert_invariants();
    assert_whole_blocks(&mapping, order);
    let stats = budget.stats();
    assert_eq!(
        stats.inactive_bytes + stats.active_bytes,
        mapping.page_count() * PAGE
    );
    assert_eq!(stats.dirty_bytes, 0);
    drop(mapping);
    assert_eq!(budget.used_bytes(), 0);
}

fn work(mapping: &Mapping<Bad>, file: &File, seed: u64) {
    let mut random = seed;
    for _ in 0..STEPS {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let page = (random >> 40) % PAGES;
        let written = u8::try_from(page % 128).unwrap() | 0x80;
        match (random >> 33) % 8 {
            0 => mapping
                .write_at(file, page * PAGE + 100, &[written; 50])
                .unwrap(),
            1 => mapping
                .write_at(file, page * PAGE, &[written; PAGE_BYTES])
                .unwrap(),
            2 => mapping
                .write_back(file, page * PAGE..(page + 40) * PAGE)
                .unwrap(),
            3 => mapping.will_need(file, page * PAGE..(page + 64) * PAGE),
            4 => mapping
                .read_with(file, page * PAGE, 5 * PAGE_BYTES, |slices| {
                    let bytes = slices.iter().copied().flatten();
                    for (at, &byte) in bytes.enumerate() {
                        assert!(is_right(page + (at / PAGE_BYTES) as u64, byte));
                    }
                })
                .unwrap(),
            _ => {
                let bytes = read(mapping, file, page * PAGE, 2 * PAGE_BYTES).unwrap();
                for (at, &byte) in bytes.iter().enumerate() {
                    assert!(is_right(page + (at / PAGE_BYTES) as u64, byte));
                }
            }
        }
    }
}
