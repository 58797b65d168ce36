//! Random reads, writes, truncations, holes and writebacks against a vector of bytes.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Read(u64, usize),
    Show(u64, usize),
    Write(u64, usize, u8),
    Truncate(u64),
    Punch(u64, u64),
    WriteBack(u64, u64),
    WillNeed(u64, u64),
    /// Another file takes the budget.
    Pressure,
    Fail(u64),
}

const SIZE_MAX: u64 = 600 * PAGE;

fn step() -> impl Strategy<Value = Step> {
    let offset = || prop_oneof![3 => 0..SIZE_MAX, 2 => (0..600u64).prop_map(|page| page * PAGE)];
    let len = || prop_oneof![3 => 0usize..10_000, 1 => 0usize..400_000, 1 => Just(8 * PAGE_BYTES)];
    prop_oneof![
        5 => (offset(), len()).prop_map(|(offset, len)| Step::Read(offset, len)),
        2 => (offset(), len()).prop_map(|(offset, len)| Step::Show(offset, len)),
        5 => (offset(), len(), any::<u8>()).prop_map(|(at, len, byte)| Step::Write(at, len, byte)),
        1 => offset().prop_map(Step::Truncate),
        1 => (offset(), 0u64..300_000).prop_map(|(offset, len)| Step::Punch(offset, len)),
        2 => (offset(), 0u64..1_000_000).prop_map(|(offset, len)| Step::WriteBack(offset, len)),
        1 => (offset(), 0u64..1_000_000).prop_map(|(offset, len)| Step::WillNeed(offset, len)),
        1 => Just(Step::Pressure),
        1 => (0u64..600).prop_map(Step::Fail),
    ]
}

fn range(offset: u64, len: usize, size: usize) -> Range<usize> {
    let start = usize::try_from(offset).unwrap().min(size);
    start..(start + len).min(size)
}

fn run(steps: Vec<Step>, limit_bytes: u64, order: u8) {
    let mut model: Vec<u8> = (0..300 * PAGE_BYTES)
        .map(|at| (at / 977).to_le_bytes()[0])
        .collect();
    let file = File {
        block_pages: 1 << order,
        ..File::new(model.clone())
    };
    let (mapping, budget) = mapping_of_blocks(order, limit_bytes);
    for step in steps {
        match step {
            Step::Read(offset, len) => {
                let expected = &model[range(offset, len, model.len())];
                assert_eq!(read(&mapping, &file, offset, len).unwrap(), expected);
            }
            Step::Show(offset, len) => {
                let expected = &model[range(offset, len, model.len())];
                let shown = mapping
                    .read_with(&file, offset, len, |slices| slices.concat())
                    .unwrap();
                assert_eq!(shown.is_empty(), expected.is_empty());
                assert_eq!(shown, expected[..shown.len()]);
            }
            Step::Write(offset, len, byte) => {
                let end = usize::try_from(offset).unwrap() + len;
                if len > 0 && end > model.len() {
                    model.resize(end, 0);
                }
                let written = range(offset, len, model.len());
                model[written].fill(byte);
                mapping.write_at(&file, offset, &vec![byte; len]).unwrap();
            }
            Step::Truncate(size) => {
                let size_now = usize::try_from(size).unwrap();
                model.resize(size_now, 0);
                file.size.store(size, Ordering::Relaxed);
                // The driver clears what the disk holds beyond the new end.
                file.bytes.lock().unwrap().truncate(size_now);
                mapping.truncate(size);
            }
            Step::Punch(offset, len) => {
                let hole = range(offset, usize::try_from(len).unwrap(), model.len());
                model[hole.clone()].fill(0);
                mapping.remove_range(hole.start as u64..hole.end as u64);
                let mut bytes = file.bytes.lock().unwrap();
                let there = hole.start.min(bytes.len())..hole.end.min(bytes.len());
                bytes[there].fill(0);
            }
            Step::WriteBack(offset, len) => {
                mapping.write_back(&file, offset..offset + len).unwrap();
            }
            Step::WillNeed(offset, len) => mapping.will_need(&file, offset..offset + len),
            Step::Pressure => {
                let other = Mapping::new(Arc::clone(&budget));
                let pages = File::sparse(limit_bytes);
                other.will_need(&pages, 0..limit_bytes);
                for page in 0..limit_bytes / PAGE {
                    byte(&other, &pages, page).unwrap();
                }
            }
            Step::Fail(page) => {
                file.unreadable.lock().unwrap().insert(page);
                if let Err(bad) = read(&mapping, &file, page * PAGE, 1) {
                    assert_eq!(bad, Bad(page));
                }
                file.unreadable.lock().unwrap().clear();
            }
        }
        mapping.core().pages.lock().assert_invariants();
        assert_whole_blocks(&mapping, order);
    }
    assert_eq!(read(&mapping, &file, 0, model.len() + 10).unwrap(), model);
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    let bytes = file.bytes.lock().unwrap().clone();
    assert!(model.starts_with(&bytes) && model[bytes.len()..].iter().all(|&byte| byte == 0));
    assert_eq!(budget.dirty_bytes(), 0);
    drop(mapping);
    assert_eq!((budget.used_bytes(), budget.stats().node_bytes), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_a_file_with_space(steps in prop::collection::vec(step(), 1..40)) {
        run(steps, 16 << 20, 0);
    }

    #[test]
    fn blocks_behave_like_a_file_with_space(
        steps in prop::collection::vec(step(), 1..40),
        order in 1u8..=4,
    ) {
        run(steps, 16 << 20, order);
    }

    #[test]
    fn blocks_behave_like_a_file_under_pressure(
        steps in prop::collection::vec(step(), 1..40),
        order in 1u8..=4,
    ) {
        run(steps, 512 << 10, order);
    }

    #[test]
    fn blocks_behave_like_a_file_without_space(
        steps in prop::collection::vec(step(), 1..20),
        order in 1u8..=4,
    ) {
        run(steps, 3000, order);
    }

    #[test]
    fn behaves_like_a_file_under_pressure(steps in prop::collection::vec(step(), 1..40)) {
        run(steps, 512 << 10, 0);
    }

    #[test]
    fn behaves_like_a_file_without_space(steps in prop::collection::vec(step(), 1..20)) {
        run(steps, 3000, 0);
    }
}
