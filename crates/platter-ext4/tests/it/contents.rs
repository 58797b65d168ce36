//! What is in an image is what was put there, for every block size and way to store it.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use platter_vfs::inode::read_dir_all;
use platter_vfs::{FileKind, Inode, SeekTarget};

use crate::image::{Image, noise, read_all, walk, write};

/// How many files `source` makes in addition to its sparse ones.
const DENSE_FILES: usize = 12 + 6 + 600 + 1;

/// A directory with files of many shapes.
fn source() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for length in [
        0, 1, 59, 60, 61, 100, 1023, 1024, 4096, 4097, 70_000, 1_200_000,
    ] {
        write(
            &root.join(format!("file-{length}")),
            &noise(length as u64, length),
        );
    }
    for length in [1, 59, 60, 61, 300, 1000] {
        symlink("t".repeat(length), root.join(format!("link-{length}"))).unwrap();
    }
    fs::create_dir(root.join("many")).unwrap();
    for number in 0..600 {
        let name = format!("many/a name with some length, number {number}");
        write(&root.join(name), number.to_string().as_bytes());
    }
    fs::create_dir_all(root.join("deep/er/and/deeper")).unwrap();
    fs::hard_link(root.join("file-100"), root.join("deep/er/linked")).unwrap();
    dir
}

/// Adds two sparse files.
fn add_sparse(root: &Path) {
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    for (index, at) in [0, 300_000, 5_000_000, 40_000_000].into_iter().enumerate() {
        sparse
            .write_all_at(&noise(index as u64, 10_000), at)
            .unwrap();
    }
    sparse.set_len(41_000_000).unwrap();
    fs::File::create(root.join("hole"))
        .unwrap()
        .set_len(3_000_000)
        .unwrap();
}

/// Compares a directory with a directory of the image, and all below it. Returns the files seen.
fn compare(host: &Path, inode: &dyn Inode, step: usize) -> usize {
    let metadata = fs::symlink_metadata(host).unwrap();
    let attr = inode.attr().unwrap();
    assert_eq!(attr.mode(), metadata.mode(), "{}", host.display());
    assert_eq!((attr.uid, attr.gid), (metadata.uid(), metadata.gid()));
    assert_eq!(
        attr.modified.seconds,
        metadata.mtime(),
        "{}",
        host.display()
    );
    match attr.kind {
        FileKind::Directory => return compare_names(host, inode, step),
        FileKind::Symlink => {
            let target = fs::read_link(host).unwrap();
            let found = inode.read_link().unwrap();
            assert_eq!(found, target.as_os_str().as_encoded_bytes());
        }
        FileKind::Regular => {
            assert_eq!(attr.links, u32::try_from(metadata.nlink()).unwrap());
            assert_eq!(attr.size_bytes, metadata.len());
            let expected = fs::read(host).unwrap();
            let found = read_all(inode, step);
            assert!(found == expected, "contents of {} differ", host.display());
            check_map(inode, &expected);
        }
        FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
            panic!("{} was not put there", host.display());
        }
    }
    1
}

fn compare_names(host: &Path, inode: &dyn Inode, step: usize) -> usize {
    let mut entries = read_dir_all(inode).unwrap();
    entries.retain(|entry| &*entry.name != b"lost+found");
    let mut names: Vec<_> = entries
        .iter()
        .map(|entry| String::from_utf8(entry.name.to_vec()).unwrap())
        .collect();
    names.sort();
    let mut expected: Vec<_> = fs::read_dir(host)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    expected.sort();
    assert_eq!(names, expected, "names in {}", host.display());
    let child = |entry: &platter_vfs::inode::OwnedDirEntry| {
        let child = inode.lookup(entry.name.as_name()).unwrap();
        assert_eq!(child.id(), entry.id);
        let name = String::from_utf8(entry.name.to_vec()).unwrap();
        compare(&host.join(name), &*child, step)
    };
    entries.iter().map(child).sum()
}

/// Holes read as zeros, data and holes take turns, and extents cover all data.
fn check_map(inode: &dyn Inode, bytes: &[u8]) {
    let mut at = 0;
    while at < bytes.len() as u64 {
        let data = inode
            .seek(at, SeekTarget::Data)
            .unwrap_or(bytes.len() as u64);
        let (from, to) = (usize::try_from(at).unwrap(), usize::try_from(data).unwrap());
        assert!(bytes[from..to].iter().all(|&byte| byte == 0));
        if data == bytes.len() as u64 {
            break;
        }
        at = inode.seek(data, SeekTarget::Hole).unwrap();
        assert!(at > data);
    }
}

fn matches_source(options: &[&str], size: &str) {
    let source = source();
    add_sparse(source.path());
    assert_eq!(compare_image(options, size, source.path()), DENSE_FILES + 2);
}

fn compare_image(options: &[&str], size: &str, source: &Path) -> usize {
    let dir = source.to_str().unwrap();
    let image = Image::format(&[options, &["-d", dir]].concat(), size);
    let filesystem = image.mount();
    let root = walk(&filesystem, "").unwrap();
    compare_names(source, &*root, 1 << 16)
}

#[test]
fn ext2_with_1k_blocks_and_indirect_blocks() {
    matches_source(&["-t", "ext2", "-b", "1024", "-I", "128"], "20M");
}

#[test]
fn revision_0() {
    matches_source(&["-t", "ext2", "-r", "0", "-b", "1024"], "20M");
}

#[test]
fn ext3_with_4k_blocks() {
    matches_source(&["-t", "ext3", "-b", "4096", "-O", "has_journal"], "40M");
}

#[test]
fn ext4_with_each_block_size() {
    for (block_size, size) in [
        ("1024", "24M"),
        ("2048", "24M"),
        ("4096", "32M"),
        ("8192", "40M"),
        ("65536", "120M"),
    ] {
        let features = "extent,64bit,flex_bg,metadata_csum,huge_file,dir_nlink,extra_isize";
        matches_source(&["-t", "ext4", "-b", block_size, "-O", features], size);
    }
}

#[test]
fn bigalloc_clusters() {
    let features = "extent,bigalloc,64bit,metadata_csum,sparse_super";
    matches_source(&["-b", "1024", "-C", "16384", "-O", features], "64M");
    matches_source(&["-b", "4096", "-C", "65536", "-O", features], "128M");
}

#[test]
fn inline_files_directories_and_links() {
    let features = "extent,inline_data,metadata_csum,extra_isize,dir_index,filetype";
    // mke2fs gives sparse files another size when it is to store them inline.
    let source = source();
    for (block, inode) in [("4096", "512"), ("1024", "256")] {
        let options = ["-b", block, "-I", inode, "-O", features];
        assert_eq!(compare_image(&options, "32M", source.path()), DENSE_FILES);
    }
}

#[test]
fn descriptors_among_the_groups() {
    let features = "extent,meta_bg,^resize_inode,metadata_csum,sparse_super";
    matches_source(&["-b", "1024", "-g", "512", "-O", features], "48M");
    let features = "extent,meta_bg,^resize_inode,uninit_bg,64bit,^sparse_super,sparse_super2";
    matches_source(&["-b", "1024", "-g", "512", "-O", features], "48M");
}

#[test]
fn old_group_checksums_and_large_inodes() {
    matches_source(
        &[
            "-t",
            "ext4",
            "-O",
            "extent,uninit_bg",
            "-b",
            "2048",
            "-I",
            "1024",
        ],
        "40M",
    );
}
