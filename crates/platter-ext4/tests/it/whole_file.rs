//! Files that are made as a whole are those that are made step by step.

use std::sync::Arc;

use platter_block::{Access, BlockDevice, CountingDevice};
use platter_ext4::{DataMode, MountOptions};
use platter_vfs::{
    Condition, Context, CreateKind, Error, Filesystem, Inode, Name, SetAttr, Timestamp, WholeFile,
};

use crate::image::{Image, mount, noise, read_all, walk};

const FILES: usize = 300;
/// Of a filesystem that is mounted with contents in the journal.
const JOURNALED: &[&str] = &["-b", "4096", "-O", EXT4];
const EXT4: &str = "has_journal,extent,flex_bg,metadata_csum,64bit";

fn writing() -> MountOptions {
    MountOptions {
        read_only: false,
        ..MountOptions::default()
    }
}

/// Names and contents of files, most of them short.
fn plan() -> Vec<(String, Vec<u8>)> {
    let lengths = [
        0,
        1,
        59,
        160,
        1023,
        1024,
        4096,
        5000,
        12_288,
        40_000,
        13 * 1024,
        200_000,
    ];
    let files = (0..FILES).map(|number| {
        let length = lengths[number % lengths.len()];
        (format!("file {number}"), noise(number as u64, length))
    });
    files.collect()
}

fn whole(plan: &[(String, Vec<u8>)]) -> Vec<WholeFile<'_>> {
    let files = plan
        .iter()
        .zip(0..)
        .map(|((name, contents), number)| WholeFile {
            name: Name::new(name.as_bytes()).unwrap(),
            uid: number,
            gid: 70_000 + number,
            permissions: 0o4000 | (number % 0o1000),
            modified: Timestamp {
                seconds: i64::from(number),
                nanoseconds: number,
            },
            contents,
        });
    files.collect()
}

fn directory(root: &dyn Inode, name: &[u8]) -> Arc<dyn Inode> {
    let name = Name::new(name).unwrap();
    root.create(&Context::root(), name, CreateKind::Directory, 0o755)
        .unwrap()
}

#[test]
fn files_made_as_a_whole_are_those_made_step_by_step() {
    let plan = plan();
    for options in [
        &["-t", "ext2", "-b", "1024"][..],
        &["-j", "-b", "2048"],
        &["-b", "1024", "-O", EXT4],
        &["-b", "4096", "-J", "size=4", "-O", EXT4],
        &["-b", "4096", "-I", "256", "-O", "extent,inline_data"],
        &["-b", "4096", "-C", "16384", "-O", "extent,bigalloc"],
        JOURNALED,
    ] {
        let image = Image::format(options, "64M");
        let mount_options = MountOptions {
            data_mode: (options == JOURNALED).then_some(DataMode::Journal),
            ..writing()
        };
        let filesystem = mount(image.device(Access::Write), &mount_options).unwrap();
        let root = filesystem.root().unwrap();
        let (together, alone) = (directory(&*root, b"together"), directory(&*root, b"alone"));
        let free = filesystem.stat_fs().unwrap();
        together.create_whole(&whole(&plan)).unwrap();
        filesystem.sync().unwrap();
        let taken = free.blocks_free - filesystem.stat_fs().unwrap().blocks_free;
        for file in whole(&plan) {
            file.make_in(&*alone).unwrap();
        }
        filesystem.sync().unwrap();
        let both = free.blocks_free - filesystem.stat_fs().unwrap().blocks_free;
        assert_eq!(both, 2 * taken, "{options:?}");
        filesystem.unmount().unwrap();
        drop((together, alone, root, filesystem));
        assert_eq!(image.faults(), "", "{options:?}");
        let filesystem = image.mount();
        for (name, contents) in &plan {
            let [one, two] = ["together", "alone"]
                .map(|directory| walk(&filesystem, &format!("{directory}/{name}")).unwrap());
            let [first, second] = [&one, &two].map(|file| file.attr().unwrap());
            assert_eq!(first.uid, second.uid);
            assert_eq!(first.gid, second.gid);
            assert_eq!(first.permissions, second.permissions);
            assert_eq!(first.modified, second.modified);
            assert_eq!(first.accessed, second.accessed);
            assert_eq!(first.links, 1);
            assert_eq!(first.flags, second.flags, "{options:?} {name}");
            assert_eq!(first.sectors, second.sectors, "{options:?} {name}");
            assert!(read_all(&*one, 1 << 20) == *contents, "{options:?} {name}");
            assert!(read_all(&*two, 1 << 20) == *contents, "{options:?} {name}");
        }
    }
}

#[test]
fn contents_of_whole_files_are_written_by_few_requests() {
    let image = Image::format(&["-b", "4096", "-O", EXT4], "64M");
    let device = Arc::new(CountingDevice::new(image.device(Access::Write)));
    let above: Arc<dyn BlockDevice> = Arc::<CountingDevice>::clone(&device);
    let filesystem = mount(above, &writing()).unwrap();
    let root = filesystem.root().unwrap();
    let plan = plan();
    let before = device.counts();
    root.create_whole(&whole(&plan[..64])).unwrap();
    assert_eq!((device.counts() - before).writes, 1);
    filesystem.unmount().unwrap();
}

#[test]
fn first_failed_file_is_reported_and_those_before_it_exist() {
    let image = Image::format(&["-b", "1024", "-O", EXT4], "16M");
    let filesystem = mount(image.device(Access::Write), &writing()).unwrap();
    let root = filesystem.root().unwrap();
    let plan = plan();
    let files = whole(&plan[..20]);
    let taken = files[7].name;
    let there = root.create(&Context::root(), taken, CreateKind::Fifo, 0o600);
    there.unwrap();
    let unmade = root.create_whole(&files).unwrap_err();
    assert_eq!(unmade.index, 7);
    assert!(matches!(unmade.error, Error::Condition(Condition::Exists)));
    assert!(root.lookup(files[6].name).is_ok() && root.lookup(files[8].name).is_err());
    // A full filesystem takes what there is space for.
    let large = vec![7; 60_000];
    let many: Vec<_> = (0..400).map(|number| format!("large {number}")).collect();
    let many = many.iter().map(|name| WholeFile {
        name: Name::new(name.as_bytes()).unwrap(),
        contents: &large,
        ..files[0]
    });
    let many: Vec<_> = many.collect();
    let unmade = root.create_whole(&many).unwrap_err();
    assert!(matches!(unmade.error, Error::Condition(Condition::NoSpace)));
    assert!(unmade.index > 100);
    let last = root.lookup(many[unmade.index - 1].name).unwrap();
    assert!(read_all(&*last, 1 << 20) == large);
    filesystem.unmount().unwrap();
    assert_eq!(image.faults(), "");
}

#[test]
fn what_a_directory_hands_down_reaches_files_made_as_a_whole() {
    let image = Image::format(&["-b", "1024", "-O", EXT4], "16M");
    let filesystem = mount(image.device(Access::Write), &writing()).unwrap();
    let root = filesystem.root().unwrap();
    let dir = directory(&*root, b"dir");
    let no_dump = SetAttr {
        flags: Some(dir.attr().unwrap().flags | 0x40),
        ..SetAttr::default()
    };
    dir.set_attr(&Context::root(), &no_dump).unwrap();
    let plan = plan();
    let files = whole(&plan[..3]);
    dir.create_whole(&files).unwrap();
    for file in &files {
        let attr = dir.lookup(file.name).unwrap().attr().unwrap();
        assert_eq!(attr.flags & 0x40, 0x40);
    }
    filesystem.unmount().unwrap();
    assert_eq!(image.faults(), "");
}
