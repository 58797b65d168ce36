//! Directories in the inode, and forms that cannot be.

use std::ops::ControlFlow;

use platter_ondisk::Rule;
use platter_vfs::{DirCursor, Error};

use super::*;
use crate::context::tests::{broken_rule, sample_context};
use crate::ondisk::dir::short::{self, ShortEntry};
use crate::ondisk::geometry::tests::sample_geometry;
use crate::ondisk::inode::tests::{inode_with, put_mappings};
use crate::ondisk::{FileBlock, Mapping};

fn short_directory() -> Inode {
    let entry = |offset, name, inode| ShortEntry {
        offset,
        name,
        inode: InodeNr::new(inode).unwrap(),
        kind: Some(FileKind::Regular),
    };
    let entries = [entry(96, &b"first"[..], 132), entry(144, b"last", 133)];
    let parent = InodeNr::new(128).unwrap();
    let bytes = short::encode(parent, &entries, &sample_geometry()).unwrap();
    inode_with(|disk, literal| {
        disk.core.mode.set(0o4_0755);
        disk.core.data_format = 1;
        disk.core.size.set(bytes.len() as u64);
        literal[..bytes.len()].copy_from_slice(&bytes);
    })
}

fn mapped_directory(size: u64, offset: u64) -> Inode {
    inode_with(|disk, literal| {
        disk.core.mode.set(0o4_0755);
        disk.core.size.set(size);
        disk.core.blocks.set(1);
        disk.core.data_extents.set(1);
        let mapping = Mapping {
            offset: FileBlock(offset),
            start: 60,
            count: 1,
            is_unwritten: false,
        };
        put_mappings(literal, &[mapping]);
    })
}

fn with<T>(inode: &Inode, take: impl FnOnce(&Directory<'_>) -> T) -> T {
    let context = sample_context(&[]);
    let map = ForkMap::of_data(&context, inode).unwrap();
    take(&Directory::open(&context, inode, &map).unwrap())
}

fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).unwrap()
}

#[test]
fn directory_in_the_inode_is_searched_and_listed() {
    with(&short_directory(), |directory| {
        let found = |bytes| directory.lookup(name(bytes)).map(|found| found.inode.get());
        assert_eq!(found(b".").unwrap(), 131);
        assert_eq!(found(b"..").unwrap(), 128);
        assert_eq!(found(b"last").unwrap(), 133);
        let missing = found(b"other").unwrap_err();
        assert!(matches!(missing, Error::Condition(Condition::NotFound)));
        let mut all = Vec::new();
        let mut from = DirCursor::START;
        for _ in 0..5 {
            // One entry at a time, as `telldir` and `seekdir` do.
            let listed = list::read(directory, from, &mut |entry| {
                all.push(entry.name.to_vec());
                from = entry.next;
                ControlFlow::Break(())
            });
            listed.unwrap();
        }
        assert_eq!(all, [&b"."[..], b"..", b"first", b"last"]);
    });
}

#[test]
fn form_is_that_of_the_last_block() {
    let form = |size, offset| {
        with(&mapped_directory(size, offset), |directory| {
            directory.form()
        })
    };
    assert_eq!(form(4096, 0).unwrap(), Form::Block);
    assert_eq!(form(8192, 8_388_608).unwrap(), Form::Leaf);
    assert_eq!(form(8192, 8_388_609).unwrap(), Form::Node);
    let rule = broken_rule(form(8192, 5));
    assert_eq!(rule, DirectoryRule::Form.text());
}

#[test]
fn missing_blocks_and_bad_sizes_are_corrupt() {
    let leafless = mapped_directory(1 << 40, 8_388_609);
    let rule = with(&leafless, |directory| {
        broken_rule(list::read(directory, DirCursor::START, &mut |_| {
            ControlFlow::Continue(())
        }))
    });
    assert_eq!(rule, DirectoryRule::Size.text());
    let unwritten = inode_with(|disk, literal| {
        disk.core.mode.set(0o4_0755);
        disk.core.size.set(4096);
        disk.core.blocks.set(1);
        disk.core.data_extents.set(1);
        let mapping = Mapping {
            offset: FileBlock(0),
            start: 60,
            count: 1,
            is_unwritten: true,
        };
        put_mappings(literal, &[mapping]);
    });
    let rule = with(&unwritten, |directory| {
        broken_rule(directory.lookup(name(b"x")))
    });
    assert_eq!(rule, DirectoryRule::Missing.text());
}
