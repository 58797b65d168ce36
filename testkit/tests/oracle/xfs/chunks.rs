//! Chunks of inodes that are freed with their last inode, and such with holes where space is in small pieces,
//! compared with `xfs_repair` and the kernel.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use platter::Volume;
use platter_ondisk::Locus;
use platter_vfs::{Context, CreateKind};
use platter_xfs::ondisk::geometry::CHUNK_INODES;
use platter_xfs::ondisk::inode::{DiskInodeV3, edit};
use platter_xfs::ondisk::{AgInode, Geometry, Superblock};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::xfs;

use super::writing::{assert_clean, assert_equal, name, open};

const SHAPES: &[&[&str]] = &[
    &["-m", "rmapbt=1"],
    &["-m", "finobt=0,reflink=0", "-i", "sparse=0"],
    &["-b", "size=1024", "-m", "inobtcount=1"],
    &["-i", "size=2048"],
];
/// Files of a directory.
const FILES: usize = 300;
const DIRECTORIES: usize = 6;

fn inode_count(image: &Path) -> u64 {
    let mut sector = vec![0; 512];
    let file = File::open(image).unwrap();
    file.read_exact_at(&mut sector, 0).unwrap();
    Superblock::decode(&sector, Locus::UNKNOWN)
        .unwrap()
        .inode_count
}

fn make_files(volume: &Volume, round: usize) {
    let context = Context::root();
    let root = volume.filesystem().root().unwrap();
    for directory in 0..DIRECTORIES {
        let text = format!("directory-{directory}");
        let made = root.create(&context, name(&text), CreateKind::Directory, 0o755);
        let made = made.unwrap();
        for file in 0..FILES {
            let text = format!("file-{file}");
            let made = made.create(&context, name(&text), CreateKind::Regular, 0o644);
            if file % 40 == round % 40 {
                made.unwrap().write_at(0, &[1; 9000]).unwrap();
            }
        }
    }
}

fn remove_files(volume: &Volume, kept: usize) {
    let context = Context::root();
    let root = volume.filesystem().root().unwrap();
    for directory in 0..DIRECTORIES {
        let text = format!("directory-{directory}");
        let made = root.lookup(name(&text)).unwrap();
        for file in (0..FILES).filter(|file| *file >= kept) {
            made.unlink(&context, name(&format!("file-{file}")))
                .unwrap();
        }
        if kept == 0 {
            drop(made);
            root.remove_dir(&context, name(&text)).unwrap();
        }
    }
}

/// Fills free space with contents that would show if inodes of before were written to it.
fn fill(volume: &Volume) -> Vec<u8> {
    let contents = vec![0xab; 40 << 20];
    let root = volume.filesystem().root().unwrap();
    let context = Context::root();
    let file = root.create(&context, name("contents"), CreateKind::Regular, 0o644);
    let file = file.unwrap();
    file.write_at(0, &contents).unwrap();
    file.sync(false).unwrap();
    contents
}

#[test]
fn chunks_are_freed_with_their_last_inode() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for options in SHAPES {
        let what = |state| (options[1], state);
        xfs::make(&image, 96 << 10, options).unwrap();
        let before = inode_count(&image);
        let volume = open(&image);
        for round in 0..3 {
            make_files(&volume, round);
            if round == 1 {
                // Inodes reach their places before they are freed.
                volume.filesystem().sync().unwrap();
            }
            remove_files(&volume, if round == 2 { 3 } else { 0 });
        }
        let contents = fill(&volume);
        volume.filesystem().sync().unwrap();
        let copy = dir.path().join("copy");
        fs::copy(&image, &copy).unwrap();
        volume.filesystem().unmount().unwrap();
        drop(volume);
        let count = inode_count(&image);
        assert!(count < before + 64 * 3 * DIRECTORIES as u64, "{count}");
        assert_clean(&image, what("unmounted"));
        assert_equal(&image, what("unmounted"));
        let found = fs::read(&image).unwrap().len();
        assert!(found > contents.len());

        let mount = Mount::images(FsType::Xfs, &[&copy], "", Access::ReadWrite).unwrap();
        assert!(fs::read(mount.root().join("contents")).unwrap() == contents);
        for file in 0..500 {
            fs::write(mount.root().join(format!("new-{file}")), b"new").unwrap();
        }
        fs::remove_dir_all(mount.root().join("directory-0")).unwrap();
        mount.unmount_all(&[&copy]).unwrap();
        assert_clean(&copy, what("replayed by the kernel"));
        let volume = open(&copy);
        remove_kernels(&volume);
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&copy, what("the kernel's chunks are freed"));
    }
}

#[test]
fn blocks_of_several_chunks_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for block in ["size=65536", "size=32768"] {
        let what = |state| (block, state);
        xfs::make(&image, 400 << 10, &["-b", block]).unwrap();
        let before = inode_count(&image);
        let volume = open(&image);
        for round in 0..2 {
            make_files(&volume, round);
            if round == 0 {
                remove_files(&volume, 0);
            }
        }
        volume.filesystem().sync().unwrap();
        let copy = dir.path().join("copy");
        fs::copy(&image, &copy).unwrap();
        remove_files(&volume, 3);
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert!(inode_count(&image) > before);
        assert_clean(&image, what("unmounted"));
        assert_equal(&image, what("unmounted"));

        let mount = Mount::images(FsType::Xfs, &[&copy], "", Access::ReadWrite).unwrap();
        for file in 0..500 {
            fs::write(mount.root().join(format!("new-{file}")), b"new").unwrap();
        }
        fs::remove_dir_all(mount.root().join("directory-0")).unwrap();
        mount.unmount_all(&[&copy]).unwrap();
        assert_clean(&copy, what("replayed by the kernel"));
        let volume = open(&copy);
        remove_kernels(&volume);
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&copy, what("the kernel's files are removed"));
        assert_equal(&copy, what("the kernel's files are removed"));
    }
}

fn remove_kernels(volume: &Volume) {
    let root = volume.filesystem().root().unwrap();
    for file in 0..500 {
        let text = format!("new-{file}");
        root.unlink(&Context::root(), name(&text)).unwrap();
    }
}

#[test]
fn chunks_have_holes_where_free_space_is_in_small_pieces() {
    const BLOCK: usize = 4096;
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for options in [
        &["-m", "rmapbt=1"][..],
        &["-m", "finobt=0,rmapbt=0,reflink=0"],
    ] {
        xfs::make(&image, 64 << 10, options).unwrap();
        let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite).unwrap();
        let filling = mount.root().join("filling");
        fs::create_dir(&filling).unwrap();
        let mut count = 0;
        // Pieces in which a part of a chunk fits, and no whole one.
        for blocks in [7, 1] {
            while fs::write(filling.join(count.to_string()), vec![1; blocks * BLOCK]).is_ok() {
                count += 1;
            }
            rustix::fs::sync();
        }
        for index in (0..count).step_by(3) {
            let path = filling.join(index.to_string());
            if path
                .metadata()
                .is_ok_and(|found| found.len() == 7 * BLOCK as u64)
            {
                fs::remove_file(path).unwrap();
            }
        }
        mount.unmount_all(&[&image]).unwrap();
        let before = inode_count(&image);
        let volume = open(&image);
        let root = volume.filesystem().root().unwrap();
        let context = Context::root();
        let made = root.create(&context, name("made"), CreateKind::Directory, 0o755);
        let made = made.unwrap();
        for file in 0..2000 {
            let text = format!("file-{file}");
            made.create(&context, name(&text), CreateKind::Regular, 0o644)
                .unwrap();
        }
        for file in (0..2000).filter(|file| file % 500 < 450) {
            made.unlink(&context, name(&format!("file-{file}")))
                .unwrap();
        }
        drop((made, root));
        volume.filesystem().sync().unwrap();
        let copy = dir.path().join("copy");
        fs::copy(&image, &copy).unwrap();
        volume.filesystem().unmount().unwrap();
        drop(volume);
        let what = |state| (options[1], state);
        assert!(inode_count(&image) != before);
        assert_clean(&image, what("holes"));
        assert_equal(&image, what("holes"));
        let mount = Mount::images(FsType::Xfs, &[&copy], "", Access::ReadWrite).unwrap();
        fs::remove_dir_all(mount.root().join("made")).unwrap();
        mount.unmount_all(&[&copy]).unwrap();
        assert_clean(&copy, what("holes, removed by the kernel"));
    }
}

/// Fills the forks of all free inodes of the root's chunk, without putting their checksums right. Returns how many
/// they are.
fn corrupt_free_inodes(image: &Path) -> usize {
    let mut bytes = fs::read(image).unwrap();
    let superblock = Superblock::decode(&bytes[..512], Locus::UNKNOWN).unwrap();
    let geometry = Geometry::new(&superblock);
    let (ag, root) = geometry.split_inode(superblock.root_inode);
    let mut count = 0;
    for index in 0..CHUNK_INODES {
        let number = geometry.inode_nr(ag, AgInode(root.0 + index)).unwrap();
        let place = geometry.locate_inode(number).unwrap();
        let block = geometry.fs_block(place.ag, place.block);
        let at = usize::try_from(geometry.byte_offset(block)).unwrap() + place.offset;
        let inode = &mut bytes[at..at + geometry.inode_bytes() as usize];
        if !edit::is_in_use(inode) {
            inode[size_of::<DiskInodeV3>()..].fill(0xab);
            count += 1;
        }
    }
    fs::write(image, bytes).unwrap();
    count
}

#[test]
fn free_inodes_are_used_whatever_is_left_in_them() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    xfs::make(&image, 96 << 10, &[]).unwrap();
    let count = corrupt_free_inodes(&image);
    assert!(count > 50, "{count}");
    let before = inode_count(&image);
    let volume = open(&image);
    let root = volume.filesystem().root().unwrap();
    for file in 0..count {
        let text = format!("file-{file}");
        let kind = CreateKind::Symlink(vec![b't'; 1 + file]);
        root.create(&Context::root(), name(&text), kind, 0o644)
            .unwrap();
    }
    drop(root);
    volume.filesystem().sync().unwrap();
    let copy = dir.path().join("copy");
    fs::copy(&image, &copy).unwrap();
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_eq!(inode_count(&image), before);
    assert_clean(&image, ("corrupt free inodes", "unmounted"));
    assert_equal(&image, ("corrupt free inodes", "unmounted"));
    let mount = Mount::images(FsType::Xfs, &[&copy], "", Access::ReadWrite).unwrap();
    assert_eq!(fs::read_dir(mount.root()).unwrap().count(), count);
    mount.unmount_all(&[&copy]).unwrap();
    assert_clean(&copy, ("corrupt free inodes", "recovered by the kernel"));
}
