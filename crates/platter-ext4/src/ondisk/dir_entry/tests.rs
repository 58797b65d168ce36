//! One test per rule of a directory block, on blocks built in memory.

use platter_ondisk::Rule as _;
use zerocopy::IntoBytes;

use super::*;

const FORMAT: EntryFormat = EntryFormat {
    block_bytes: 1024,
    inodes_count: 100,
    has_file_type: true,
    has_hash: false,
};

fn entry(inode: u32, rec_len: u16, name: &[u8]) -> Vec<u8> {
    let head = DiskDirEntry {
        inode: inode.into(),
        rec_len: rec_len.into(),
        name_len: u8::try_from(name.len()).unwrap(),
        file_type: 1,
    };
    let mut bytes = [head.as_bytes(), name].concat();
    bytes.resize(usize::from(rec_len).max(bytes.len()), 0);
    bytes
}

fn first_rule(bytes: &[u8]) -> DirEntryRule {
    FORMAT.entries(bytes).find_map(Result::err).unwrap().1
}

fn verifier(is_indexed: bool) -> DirBlockVerifier {
    DirBlockVerifier {
        inode: InodeNr::ROOT,
        checksum_seed: Some(77),
        is_indexed,
        is_first: false,
    }
}

#[test]
fn entries_are_listed_in_order_with_unused_ones() {
    let block = [
        entry(3, 12, b"abc"),
        entry(0, 12, b"old"),
        entry(4, 20, b"name"),
    ]
    .concat();
    let entries: Vec<_> = FORMAT.entries(&block).map(Result::unwrap).collect();
    let seen: Vec<_> = entries
        .iter()
        .map(|entry| {
            (
                entry.offset,
                entry.end,
                entry.inode.map(InodeNr::get),
                entry.name,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (0, 12, Some(3), &b"abc"[..]),
            (12, 24, None, b"old"),
            (24, 44, Some(4), b"name")
        ]
    );
    assert_eq!(entries[0].kind, Some(FileKind::Regular));
    let untyped = EntryFormat {
        has_file_type: false,
        ..FORMAT
    };
    assert_eq!(untyped.entries(&block).next().unwrap().unwrap().kind, None);
}

#[test]
fn corrupt_entry_ends_the_list() {
    use DirEntryRule as Rule;
    assert_eq!(first_rule(&entry(3, 12, b"a")[..7]), Rule::Truncated);
    assert_eq!(first_rule(&entry(3, 8, b"")), Rule::LengthMin);
    assert_eq!(first_rule(&entry(0, 0, b"")), Rule::LengthMin);
    assert_eq!(first_rule(&entry(3, 14, b"a")), Rule::LengthAlign);
    assert_eq!(first_rule(&entry(3, 12, b"abcde")), Rule::LengthName);
    assert_eq!(first_rule(&entry(3, 16, b"a")[..12]), Rule::Overrun);
    let short = [entry(3, 12, b"a"), vec![0; 8]].concat();
    assert_eq!(first_rule(&short), Rule::Remainder);
    assert_eq!(first_rule(&entry(101, 12, b"a")), Rule::Inode);
    assert_eq!(first_rule(&entry(3, 12, b"")), Rule::NameEmpty);
    let after = [entry(3, 12, b"a"), entry(101, 12, b"b"), entry(4, 12, b"c")].concat();
    assert_eq!(FORMAT.entries(&after).count(), 2);
}

#[test]
fn hash_follows_every_name_but_the_dots() {
    let format = EntryFormat {
        has_hash: true,
        ..FORMAT
    };
    let block = [
        entry(3, 12, b"."),
        entry(4, 20, b"abcd"),
        entry(4, 16, b"abcd"),
    ]
    .concat();
    let rules: Vec<_> = format.entries(&block).map(Result::err).collect();
    assert_eq!(rules, [None, None, Some((32, DirEntryRule::LengthName))]);
}

#[test]
fn rec_len_in_64_kib_blocks_uses_the_two_low_bits() {
    assert_eq!(decode_rec_len(0, 0x1_0000), 0x1_0000);
    assert_eq!(decode_rec_len(0xffff, 0x1_0000), 0x1_0000);
    assert_eq!(decode_rec_len(0xfff4, 0x1_0000), 0xfff4);
    assert_eq!(decode_rec_len(0x0001, 0x1_0000), 0x1_0000);
    assert_eq!(decode_rec_len(0, 4096), 0);
    assert_eq!(decode_rec_len(0xffff, 4096), 0xffff);
}

#[test]
fn sealed_block_verifies_and_changed_one_fails() {
    let mut block = [entry(3, 1012, b"abc"), entry(0, 12, b"")].concat();
    let rule = |block: &[u8]| verifier(false).verify(9, block).unwrap_err().rule;
    assert_eq!(rule(&block), DirBlockRule::Tail.text());
    block[1012 + 7] = TAIL_FILE_TYPE;
    assert_eq!(rule(&block), DirBlockRule::Checksum.text());
    verifier(false).seal(9, &mut block);
    assert_eq!(verifier(false).verify(9, &block), Ok(()));
    assert_eq!(verifier(true).verify(9, &block), Ok(()));
    block[8] = b'x';
    assert_eq!(rule(&block), DirBlockRule::Checksum.text());
}

#[test]
fn other_inodes_have_other_verifiers() {
    let other = DirBlockVerifier {
        checksum_seed: Some(78),
        ..verifier(false)
    };
    assert_ne!(verifier(false).key(), other.key());
    assert_ne!(verifier(false).key(), verifier(true).key());
}
