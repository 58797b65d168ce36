//! Tuned filesystems: what the superblock and its copies say then, and after a crash.

use std::ops::ControlFlow;

use platter_block::MemoryDevice;
use platter_ondisk::{Locus, Uuid};
use platter_vfs::{CheckSink, CreateKind, Finding};

use super::tests::{budget, clock, create, mount};
use super::*;
use crate::mkfs::{MkfsOptions, Target, mkfs};

const LEN: u64 = 48 << 20;
const OLD: Uuid = Uuid::from_bytes([7; 16]);

/// A filesystem of three groups, with a file.
fn device() -> Arc<dyn BlockDevice> {
    let mut options = MkfsOptions {
        unsupported: true,
        ag_bytes: Some(16 << 20),
        label: b"before".to_vec(),
        ..MkfsOptions::new(OLD)
    };
    options.set_feature("inobtcount", false).unwrap();
    let len = usize::try_from(LEN).unwrap();
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("memory", vec![0; len]));
    let target = Target {
        device: &*device,
        log: None,
        is_zero: true,
    };
    mkfs(&target, &options, &*clock()).unwrap();
    write(&device, "file");
    device
}

/// Makes a file in a mount of its own.
fn write(device: &Arc<dyn BlockDevice>, text: &str) {
    let xfs = mount(device);
    drop(create(&*xfs.root().unwrap(), text, CreateKind::Regular).unwrap());
    xfs.unmount().unwrap();
}

fn feature(name: &str) -> Tune {
    let name = name.to_owned();
    Tune::Feature { name, on: true }
}

/// What a check finds, notices included.
struct Found(Vec<String>);

impl CheckSink for Found {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        self.0.push(finding.corruption.to_string());
        ControlFlow::Continue(())
    }
}

/// A check finds nothing, and all superblocks say the same.
fn assert_sound(device: &Arc<dyn BlockDevice>, context: &str) {
    let mut found = Found(Vec::new());
    let options = MountOptions::default();
    crate::check::check(device, &options, &budget(), &mut found).unwrap();
    assert!(found.0.is_empty(), "{context}: {:?}", found.0);
    let primary = superblock::read(&**device).unwrap();
    let geometry = Geometry::new(&primary);
    let says = |it: &Superblock| (it.uuid, it.label.clone(), it.features);
    for ag in geometry.groups().skip(1) {
        let mut sector = vec![0; 512];
        device.read_at(geometry.ag_offset(ag), &mut sector).unwrap();
        let copy = Superblock::decode_backup(&sector, Locus::group(ag.0.into())).unwrap();
        assert_eq!(says(&copy), says(&primary), "{context}: {ag:?}");
    }
}

#[test]
fn mount_counts_blocks_of_inode_trees_once_it_is_to() {
    let device = device();
    let xfs = mount(&device);
    xfs.tune(&[feature("inobtcount")]).unwrap();
    let root = xfs.root().unwrap();
    for number in 0..300 {
        drop(create(&*root, &format!("file{number}"), CreateKind::Regular).unwrap());
    }
    xfs.sync().unwrap();
    drop(root);
    xfs.shutdown().unwrap();
    drop(xfs);
    write(&device, "other");
    let primary = superblock::read(&*device).unwrap();
    assert!(primary.features.has_inobtcount());
    assert_sound(&device, "after a recovery");
}
