//! Space and inodes, against what dumpe2fs counts.

use platter_vfs::Filesystem;

use crate::image::{Image, run, tool};

/// A number that dumpe2fs prints behind `label`.
fn number(text: &str, label: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(label));
    let line = line.unwrap_or_else(|| panic!("{label} is missing in {text}"));
    line.trim_start_matches(':').trim().parse().unwrap()
}

fn compare(options: &[&str], size: &str) {
    let image = Image::format(options, size);
    let text = run(tool("dumpe2fs").arg("-h").arg(image.path()), "");
    let space = image.mount().stat_fs().unwrap();
    let clusters = if text.contains("Cluster size") {
        number(&text, "Cluster size") / number(&text, "Block size")
    } else {
        1
    };
    let blocks = number(&text, "Block count");
    assert_eq!(u64::from(space.block_bytes), number(&text, "Block size"));
    assert_eq!(
        space.blocks_free,
        number(&text, "Free blocks"),
        "{options:?}"
    );
    assert_eq!(space.inodes, number(&text, "Inode count"));
    assert_eq!(space.inodes_free, number(&text, "Free inodes"));
    let overhead = number(&text, "Overhead clusters") * clusters;
    assert_eq!(space.blocks, blocks - overhead, "{options:?}");
    assert!(space.blocks_available < space.blocks_free);
    assert_eq!(space.magic, 0xef53);
}

#[test]
fn space_is_what_dumpe2fs_counts() {
    compare(&["-t", "ext2", "-b", "1024"], "40M");
    compare(
        &[
            "-t",
            "ext3",
            "-b",
            "4096",
            "-O",
            "sparse_super,resize_inode",
        ],
        "1G",
    );
    compare(
        &[
            "-t",
            "ext4",
            "-O",
            "extent,64bit,flex_bg,metadata_csum,sparse_super",
        ],
        "300M",
    );
    compare(
        &[
            "-b",
            "1024",
            "-g",
            "512",
            "-O",
            "meta_bg,^resize_inode,extent,has_journal",
        ],
        "64M",
    );
    compare(
        &["-O", "bigalloc,extent,has_journal,64bit", "-C", "65536"],
        "1G",
    );
}
