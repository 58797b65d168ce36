//! Rules of attributes, on an image whose attributes `xfs_db` set.

use std::sync::OnceLock;

use super::image::Image;
use super::said;
use crate::check::AttributeUseRule;
use crate::ondisk::da::DiskDaHeaderV5;
use crate::ondisk::inode::{DiskInode, DiskInodeV3};
use crate::ondisk::{FsBlock, InodeNr};
use zerocopy::FromBytes;

/// The file `file` has an attribute in the inode, `block` has thirty in a leaf.
fn sample() -> Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    let make = || {
        let mut commands = vec![
            "path /file".to_owned(),
            "attr_set -u -v 5 name".to_owned(),
            "path /block".to_owned(),
        ];
        commands.extend((10..40).map(|nth| format!("attr_set -u -v 60 number-{nth}")));
        Image::make(&["-m", "rmapbt=0,reflink=0"], false, &commands)
    };
    IMAGE.get_or_init(make).clone()
}

/// Where the attribute fork of an inode begins in the image.
fn fork(image: &Image, inode: InodeNr) -> usize {
    let at = usize::try_from(image.offset_of(inode)).unwrap();
    let (disk, _) = DiskInode::ref_from_prefix(&image.bytes[at..]).unwrap();
    at + size_of::<DiskInodeV3>() + usize::from(disk.fork_offset) * 8
}

/// Changes the attributes in the inode of `file`.
fn short(change: impl FnOnce(&mut [u8])) -> Vec<String> {
    let mut image = sample();
    let inode = image.find(&["file"]);
    let at = fork(&image, inode);
    change(&mut image.bytes[at..at + 20]);
    image.change_inode(inode, |_: &mut DiskInodeV3| ());
    image.rules()
}

/// Changes the leaf of `block`.
fn leaf(change: impl FnOnce(&mut [u8])) -> Vec<String> {
    let mut image = sample();
    let at = fork(&image, image.find(&["block"]));
    let low = u64::from_be_bytes(image.bytes[at + 8..at + 16].try_into().unwrap());
    let sum = DiskDaHeaderV5::CHECKSUM_OFFSET;
    image.change_block(FsBlock(low >> 21), sum, change);
    image.rules()
}

#[test]
fn attributes_in_the_inode_are_checked() {
    assert!(sample().rules().is_empty(), "{:?}", sample().rules());
    // The header, then lengths, flags, name and value.
    assert_eq!(
        short(|bytes| bytes[7 + 1] = 0),
        [said(AttributeUseRule::Name)]
    );
    assert_eq!(
        short(|bytes| bytes[6] = 8),
        [said(AttributeUseRule::Parent)]
    );
    assert_eq!(
        short(|bytes| bytes[6] = 0x80),
        [said(AttributeUseRule::Incomplete)]
    );
}

#[test]
fn attributes_in_a_leaf_are_checked() {
    // The header takes 80 bytes, an entry eight: hash, offset, flags.
    let rules = leaf(|bytes| {
        let name = usize::from(bytes[84]) << 8 | usize::from(bytes[85]);
        bytes[name + 3] ^= 1;
    });
    assert_eq!(rules, [said(AttributeUseRule::Hash)]);
    let rules = leaf(|bytes| bytes[59] ^= 4);
    assert_eq!(rules, [said(AttributeUseRule::Used)]);
    let rules = leaf(|bytes| {
        let (first, second) = bytes[80..96].split_at_mut(8);
        second.copy_from_slice(first);
    });
    for rule in [AttributeUseRule::Overlap, AttributeUseRule::DuplicateName] {
        assert!(rules.contains(&said(rule)), "{rules:?}");
    }
    let mut image = sample();
    let inode = image.find(&["block"]);
    let at = fork(&image, inode);
    // The first file block of the only extent.
    image.bytes[at + 6] ^= 2;
    image.change_inode(inode, |_: &mut DiskInodeV3| ());
    assert_eq!(image.rules(), [said(AttributeUseRule::Missing)]);
}
