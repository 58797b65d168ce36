//! One test per rule of attributes, on spaces built in memory.

use platter_ondisk::Rule as _;
use zerocopy::IntoBytes;

use super::*;

const SPACE: usize = 256;

/// Builds a space with its entries at the front and values at their offsets.
fn space(entries: &[(DiskXattrEntry, &[u8], &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (disk, name, _) in entries {
        bytes.extend_from_slice(disk.as_bytes());
        bytes.extend_from_slice(name);
        bytes.resize(bytes.len().next_multiple_of(XATTR_ALIGN), 0);
    }
    bytes.resize(SPACE, 0);
    for (disk, _, value) in entries.iter().filter(|(.., value)| !value.is_empty()) {
        let at = usize::from(disk.value_offset.get());
        bytes[at..at + value.len()].copy_from_slice(value);
    }
    bytes
}

fn entry(name: &[u8], offset: u16, size: u32) -> DiskXattrEntry {
    DiskXattrEntry {
        name_len: u8::try_from(name.len()).unwrap(),
        name_index: 1,
        value_offset: offset.into(),
        value_inode: 0.into(),
        value_size: size.into(),
        hash: 0.into(),
    }
}

fn decode(bytes: &[u8]) -> Result<XattrSpace<'_>, (usize, XattrRule)> {
    XattrSpace::decode(bytes, 0, false)
}

fn rule(disk: DiskXattrEntry) -> XattrRule {
    let bytes = space(&[(disk, b"name", b"")]);
    decode(&bytes).unwrap_err().1
}

#[test]
fn entries_have_names_and_values() {
    let (one, two) = (entry(b"a", 248, 5), entry(b"long name", 0, 0));
    let bytes = space(&[(one, b"a", b"value"), (two, b"long name", b"")]);
    let space = decode(&bytes).unwrap();
    assert_eq!(space.entries().len(), 2);
    assert_eq!(
        space.find(1, b"a").unwrap().value,
        ValuePlace::Here(b"value")
    );
    assert_eq!(
        space.find(1, b"long name").unwrap().value,
        ValuePlace::Here(b"")
    );
    assert_eq!(space.find(2, b"a"), None);
}

#[test]
fn space_without_magic_has_no_attributes() {
    assert!(XattrSpace::decode_inode(&[0; 8], false).is_none());
    assert!(XattrSpace::decode_inode(&[], false).is_none());
    let empty = [&XATTR_MAGIC.to_le_bytes()[..], &[0; 4]].concat();
    assert!(
        XattrSpace::decode_inode(&empty, false)
            .unwrap()
            .unwrap()
            .entries()
            .is_empty()
    );
}

#[test]
fn invalid_entries_are_corrupt() {
    use XattrRule as Rule;
    assert_eq!(rule(entry(b"name", 253, 4)), Rule::ValuePlace);
    assert_eq!(rule(entry(b"name", 254, 1)), Rule::ValuePlace);
    assert_eq!(rule(entry(b"name", 20, 4)), Rule::ValuePlace);
    assert_eq!(rule(entry(b"name", u16::MAX, 4)), Rule::ValuePlace);
    assert_eq!(
        rule(entry(b"name", 24, VALUE_BYTES_MAX + 1)),
        Rule::ValueSize
    );
    let mut elsewhere = entry(b"name", 0, 4);
    elsewhere.value_inode.set(12);
    assert_eq!(rule(elsewhere), Rule::ValueInode);
    let bytes = space(&[(entry(b"a\0b", 248, 0), b"a\0b", b"")]);
    assert_eq!(decode(&bytes).unwrap_err(), (0, Rule::NameBytes));
    let bytes = space(&[(entry(b"name", 248, 4), b"name", b"")]);
    assert_eq!(decode(&bytes[..18]).unwrap_err(), (0, Rule::Truncated));
    assert_eq!(decode(&bytes[..22]).unwrap_err(), (20, Rule::Truncated));
}

#[test]
fn ea_inode_needs_the_feature() {
    let mut disk = entry(b"name", 0, 70_000);
    disk.value_inode.set(12);
    let bytes = space(&[(disk, b"name", b"")]);
    let space = XattrSpace::decode(&bytes, 0, true).unwrap();
    let place = ValuePlace::Inode {
        number: InodeNr::new(12).unwrap(),
        size_bytes: 70_000,
    };
    assert_eq!(space.entries()[0].value, place);
}

#[test]
fn hash_matches_signed_and_unsigned_names() {
    let hash_of = |name: &[u8], signed: bool| {
        let widen = |&byte: &u8| {
            if signed {
                i32::from(byte.cast_signed()).cast_unsigned()
            } else {
                u32::from(byte)
            }
        };
        entry_hash(
            name.iter().map(widen),
            [u32::from_le_bytes(*b"abcd"), 0x65].into_iter(),
        )
    };
    let entry = |hash| XattrEntry {
        offset: 0,
        name_index: 1,
        name: b"n\xc3\xa4",
        value: ValuePlace::Here(b"abcde"),
        hash,
    };
    let (signed, unsigned) = (hash_of(b"n\xc3\xa4", true), hash_of(b"n\xc3\xa4", false));
    assert_ne!(signed, unsigned);
    assert_eq!(entry(signed).verify_hash(b"abcde"), Ok(()));
    assert_eq!(entry(unsigned).verify_hash(b"abcde"), Ok(()));
    assert_eq!(
        entry(signed ^ 1).verify_hash(b"abcde"),
        Err(XattrRule::Hash)
    );
    assert_eq!(entry(signed).verify_hash_of_inode(3), Err(XattrRule::Hash));
}

fn block() -> Vec<u8> {
    let header = DiskXattrHeader {
        magic: XATTR_MAGIC.into(),
        references: 1.into(),
        blocks: 1.into(),
        hash: 0.into(),
        checksum: 0.into(),
        reserved: [0.into(); 3],
    };
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(1024, 0);
    bytes
}

#[test]
fn invalid_block_header_is_corrupt() {
    let verifier = XattrBlockVerifier {
        checksum_seed: None,
        has_ea_inode: false,
    };
    let rule = |at: usize, value: u8| {
        let mut bytes = block();
        bytes[at] = value;
        verifier.verify(9, &bytes).unwrap_err().rule
    };
    assert_eq!(verifier.verify(9, &block()), Ok(()));
    assert_eq!(rule(0, 1), XattrRule::Magic.text());
    assert_eq!(rule(4, 0), XattrRule::References.text());
    assert_eq!(rule(5, 5), XattrRule::References.text());
    assert_eq!(rule(8, 2), XattrRule::Blocks.text());
}

#[test]
fn checksum_covers_the_block_number() {
    let verifier = XattrBlockVerifier {
        checksum_seed: Some(3),
        has_ea_inode: false,
    };
    let mut bytes = block();
    verifier.seal(9, &mut bytes);
    assert_eq!(verifier.verify(9, &bytes), Ok(()));
    let elsewhere = verifier.verify(10, &bytes).unwrap_err();
    assert_eq!(elsewhere.rule, XattrRule::Checksum.text());
}
