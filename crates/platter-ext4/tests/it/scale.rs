//! What opening costs, in requests to the device.

use std::sync::Arc;

use platter_block::{Access, BlockDevice, CountingDevice};
use platter_ext4::MountOptions;
use platter_vfs::Filesystem;

use crate::image::{Image, mount, noise, walk, write};

#[test]
fn opening_16_tib_reads_no_more_than_opening_a_small_image() {
    let options = [
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "extent,64bit,flex_bg,metadata_csum",
    ];
    let lazy = [
        "-E",
        "nodiscard,lazy_itable_init=1,lazy_journal_init=1,packed_meta_blocks=1",
    ];
    let image = Image::format(&[&options[..], &lazy].concat(), "4294900000");
    let device = Arc::new(CountingDevice::new(image.device(Access::Read)));
    let filesystem = mount(
        Arc::clone(&device) as Arc<dyn BlockDevice>,
        &MountOptions::default(),
    );
    let filesystem = filesystem.unwrap();
    let opened = device.counts();
    assert_eq!(opened.reads, 1, "{opened:?}");
    filesystem.root().unwrap().attr().unwrap();
    let counts = device.counts();
    // The group's descriptor, and inodes of the group with their neighbours.
    assert!(
        counts.reads <= 3 && counts.read_bytes < 200_000,
        "{counts:?}"
    );
    let space = filesystem.stat_fs().unwrap();
    assert_eq!(space.inodes, space.inodes_free + 11);
}

#[test]
fn stat_of_neighbours_costs_one_read_for_many() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..500 {
        write(&dir.path().join(number.to_string()), b"");
    }
    let source = dir.path().to_str().unwrap();
    let image = Image::format(
        &["-t", "ext4", "-b", "4096", "-I", "256", "-d", source],
        "16M",
    );
    let device = Arc::new(CountingDevice::new(image.device(Access::Read)));
    let filesystem = mount(
        Arc::clone(&device) as Arc<dyn BlockDevice>,
        &MountOptions::default(),
    );
    let filesystem = filesystem.unwrap();
    for number in 0..500 {
        let file = walk(&filesystem, &number.to_string()).unwrap();
        assert_eq!(file.attr().unwrap().links, 1);
    }
    let counts = device.counts();
    println!("500 files looked up with {counts:?}");
    assert!(counts.reads < 20, "{counts:?}");
}

#[test]
fn file_in_one_piece_is_read_in_few_requests() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("file"), &noise(1, 1 << 20));
    let source = dir.path().to_str().unwrap();
    let image = Image::format(&["-t", "ext4", "-b", "4096", "-d", source], "16M");
    let device = Arc::new(CountingDevice::new(image.device(Access::Read)));
    let filesystem = mount(
        Arc::clone(&device) as Arc<dyn BlockDevice>,
        &MountOptions::default(),
    );
    let filesystem = filesystem.unwrap();
    let file = walk(&filesystem, "file").unwrap();
    let before = device.counts().reads;
    let mut bytes = vec![0; 1 << 20];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), 1 << 20);
    let reads = device.counts().reads - before;
    assert!(reads <= 4, "{reads} requests");
}
