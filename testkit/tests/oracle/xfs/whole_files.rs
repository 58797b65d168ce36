//! Files that are made as a whole, several in one transaction, and the same made one step after the other.

use std::path::Path;
use std::sync::Arc;

use platter_vfs::{Condition, Context, CreateKind, Error, Filesystem, Inode, Timestamp, WholeFile};
use testkit::oracle::xfs;

use super::writing::{SHAPES, assert_clean, assert_equal, name, open};

/// So many blocks one may take more than the other: a chunk of inodes of 32 KiB, and blocks of trees.
const BLOCKS_MORE: u64 = 48;

/// Makes a directory with `fill`, and returns how many blocks it takes once all is unmounted.
fn fill_directory(image: &Path, text: &str, fill: impl FnOnce(&dyn Inode)) -> u64 {
    let free = |fs: &Arc<dyn Filesystem>| fs.stat_fs().unwrap().blocks_free;
    let volume = open(image);
    let before = free(volume.filesystem());
    let root = volume.filesystem().root().unwrap();
    let made = root.create(&Context::root(), name(text), CreateKind::Directory, 0o755);
    fill(&*made.unwrap());
    drop(root);
    volume.close().unwrap();
    let volume = open(image);
    let after = free(volume.filesystem());
    volume.close().unwrap();
    before - after
}

fn assert_same(one: &dyn Inode, other: &dyn Inode, contents: &[u8]) {
    let [found, expected] = [one, other].map(|inode| inode.attr().unwrap());
    assert_eq!(found.uid, expected.uid);
    assert_eq!(found.gid, expected.gid);
    assert_eq!(found.permissions, expected.permissions);
    assert_eq!(found.modified, expected.modified);
    assert_eq!(found.accessed, expected.accessed);
    assert_eq!((found.links, found.flags), (1, expected.flags));
    assert_eq!(found.sectors, expected.sectors);
    for inode in [one, other] {
        let mut read = vec![0; contents.len() + 1];
        assert_eq!(inode.read_at(0, &mut read).unwrap(), contents.len());
        assert!(read[..contents.len()] == *contents);
    }
}

#[test]
fn xfs_files_made_as_a_whole_are_those_made_step_by_step() {
    let lens = [0, 1, 1024, 4096, 5000, 12_288, 40_000, 200_000];
    let contents: Vec<Vec<u8>> = lens.map(|len| vec![b'c'; len]).into();
    let names: Vec<String> = (0..500).map(|number| format!("file {number}")).collect();
    let files: Vec<WholeFile<'_>> = names
        .iter()
        .zip(0..)
        .map(|(text, number): (_, u32)| WholeFile {
            name: name(text),
            uid: number,
            gid: 70_000 + number,
            permissions: 0o4000 | (number % 0o1000),
            modified: Timestamp {
                seconds: number.into(),
                nanoseconds: number,
            },
            contents: &contents[number as usize % lens.len()],
        })
        .collect();
    for (shape, options, _) in SHAPES {
        let image = tempfile::NamedTempFile::new().unwrap();
        let image = image.path();
        xfs::make(image, 600 << 10, options).unwrap();
        let together = fill_directory(image, "together", |dir| dir.create_whole(&files).unwrap());
        let alone = fill_directory(image, "alone", |dir| {
            for file in &files {
                file.make_in(dir).unwrap();
            }
        });
        assert!(
            together.abs_diff(alone) < BLOCKS_MORE,
            "{shape}: {together}, {alone}"
        );
        fill_directory(image, "part", |dir| {
            assert_ends_at_a_name(dir, &files[..20]);
        });
        let volume = open(image);
        let root = volume.filesystem().root().unwrap();
        let dirs = ["together", "alone"].map(|dir| root.lookup(name(dir)).unwrap());
        for file in &files {
            let [one, other] = [0, 1].map(|dir: usize| dirs[dir].lookup(file.name).unwrap());
            assert_same(&*one, &*other, file.contents);
        }
        drop((dirs, root));
        volume.close().unwrap();
        assert_clean(image, (shape, "whole files"));
        assert_equal(image, (shape, "whole files"));
    }
}

/// A name that is there ends them, and those before it are made.
fn assert_ends_at_a_name(dir: &dyn Inode, files: &[WholeFile<'_>]) {
    let there = dir.create(&Context::root(), files[7].name, CreateKind::Fifo, 0o600);
    there.unwrap();
    let unmade = dir.create_whole(files).unwrap_err();
    assert_eq!(unmade.index, 7);
    assert!(matches!(unmade.error, Error::Condition(Condition::Exists)));
    assert!(dir.lookup(files[6].name).is_ok() && dir.lookup(files[8].name).is_err());
}
