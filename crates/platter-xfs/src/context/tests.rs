//! A filesystem in memory that holds some blocks.

use platter_block::MemoryDevice;
use platter_vfs::Error;

use super::*;
use crate::ondisk::superblock::tests::sample;

/// The sample filesystem with these blocks, and zeros elsewhere.
pub(crate) fn sample_context(blocks: &[(u64, &[u8])]) -> FsContext {
    sample_context_of(sample().decode().unwrap(), blocks)
}

/// The same with a superblock that was changed.
pub(crate) fn sample_context_of<B: AsRef<[u8]>>(
    superblock: Superblock,
    blocks: &[(u64, B)],
) -> FsContext {
    let mut bytes = vec![0; 4 * 4096 * 4096];
    for (block, content) in blocks {
        let (at, content) = (usize::try_from(block * 4096).unwrap(), content.as_ref());
        bytes[at..at + content.len()].copy_from_slice(content);
    }
    let device = Arc::new(MemoryDevice::new("memory", bytes));
    FsContext::new(
        device,
        None,
        superblock,
        Arc::new(MemoryBudget::new(1 << 20)),
    )
}

/// The rule that an operation says is broken.
pub(crate) fn broken_rule<T: std::fmt::Debug>(result: Result<T>) -> String {
    let error = result.unwrap_err();
    let Error::Corrupt(corruption) = error else {
        panic!("{error}");
    };
    corruption.rule.into_owned()
}

#[test]
fn block_outside_the_filesystem_is_corrupt() {
    let context = sample_context(&[]);
    assert!(context.read_block(FsBlock(4095), &Unverified).is_ok());
    for block in [4 * 4096, u64::MAX] {
        let rule = broken_rule(context.read_block(FsBlock(block), &Unverified));
        assert_eq!(
            rule,
            "points outside the filesystem",
            "{:?}",
            BlockPointerRule::Outside
        );
    }
    assert!(context.read_blocks(FsBlock(4095), 2, &Unverified).is_err());
}

#[test]
fn header_that_breaks_a_rule_names_its_group() {
    let context = sample_context(&[]);
    let error = context.agf(AgNr(2)).unwrap_err();
    assert_eq!(error.to_string(), "AGF at group 2: bad magic number");
    assert!(context.agi(AgNr(3)).is_err());
}

#[test]
fn realtime_file_without_its_device_is_refused() {
    let context = sample_context(&[]);
    let error = context.device_of(ExtentDevice::Realtime).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)));
    assert!(context.device_of(ExtentDevice::Data).is_ok());
}
