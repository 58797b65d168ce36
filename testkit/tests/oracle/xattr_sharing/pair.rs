//! Two images that were made alike, one for each side, and what they hold of attributes in the end.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use platter_ext4::SharingStatistics;
use platter_ext4::ondisk::InodeNr;
use platter_vfs::Filesystem;
use rustix::io::Errno;
use testkit::attributes;
use testkit::findings::Findings;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{e2fsck, mke2fs};

use super::sides::{Kernel, Ours, Side, mount};
use super::steps::{Scale, Step, file_of};

/// What an image holds of attributes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Of each file, by name.
    pub(super) attributes: BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>,
    /// How many blocks there are.
    pub(super) blocks: usize,
    /// How many inodes are in use, those that hold values among them.
    inodes: u64,
}

/// Checks that an image is clean, and reads all of it.
pub(super) fn find_clean(image: &Path, scale: &Scale, what: &str) -> Found {
    let (verdict, report) = e2fsck::report(image).unwrap();
    assert!(verdict.is_clean(), "{what}: {report}");
    let ours = mount(image, true, true);
    let mut findings = Findings::default();
    let report = ours.check(&mut findings);
    assert!(report.is_clean(), "{what}: {:?}", findings.0);
    let found = find(image, scale);
    let counted = ("attribute blocks", found.blocks as u64);
    assert!(report.counters.contains(&counted), "{what}: {counted:?}");
    found
}

/// Reads all of an image.
fn find(image: &Path, scale: &Scale) -> Found {
    let ours = Ours(mount(image, true, true));
    let mut found = Found {
        attributes: BTreeMap::new(),
        blocks: 0,
        inodes: 0,
    };
    let mut blocks = BTreeSet::new();
    for number in 0..scale.files {
        let Ok(file) = ours.file(number) else {
            continue;
        };
        let names = file.list_xattrs().unwrap().into_iter();
        let attributes = names.map(|name| {
            let value = file.get_xattr(&name).unwrap();
            (name, value)
        });
        found
            .attributes
            .insert(file_of(number), attributes.collect());
        let inode = InodeNr::new(u32::try_from(file.id().number).unwrap()).unwrap();
        let inode = platter_ext4::inode::read(ours.0.fs(), inode).unwrap();
        blocks.extend(inode.xattr_block.map(|block| block.0));
    }
    found.blocks = blocks.len();
    let space = ours.0.stat_fs().unwrap();
    found.inodes = space.inodes - space.inodes_free;
    found
}

/// An image for each side, made alike.
pub(super) struct Pair {
    _dir: tempfile::TempDir,
    kernels: PathBuf,
    pub(super) ours: PathBuf,
    pub(super) what: String,
    has_ea_inode: bool,
    /// A value found no space.
    was_full: Cell<bool>,
}

impl Pair {
    pub(super) fn make(layout: &[&str], what: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [kernels, ours] = ["kernel", "platter"].map(|name| dir.path().join(name));
        for image in [&kernels, &ours] {
            let inodes = ["-N", "8192"];
            mke2fs::make(image, 64 << 10, &[layout, &inodes].concat(), None).unwrap();
        }
        Self {
            _dir: dir,
            kernels,
            ours,
            what: format!("{what}, {layout:?}"),
            has_ea_inode: layout.iter().any(|word| word.contains("ea_inode")),
            was_full: Cell::new(false),
        }
    }

    fn kernel(&self) -> Kernel {
        Kernel(Mount::image(&self.kernels, "", Access::ReadWrite).unwrap())
    }

    /// Takes the steps on both sides, each of which answers the same, and compares what they come to.
    pub(super) fn take(&self, scale: &Scale, steps: &[Step]) -> (Found, SharingStatistics) {
        let (kernel, ours) = (self.kernel(), Ours::mount(&self.ours, true));
        for (at, &step) in steps.iter().enumerate() {
            let (expected, taken) = (kernel.take(scale, step), ours.take(scale, step));
            assert_eq!(taken, expected, "{}: step {at}, {step:?}", self.what);
            let is_full = taken == Err(Errno::NOSPC);
            self.was_full.set(is_full || self.was_full.get());
        }
        let was_full = self.was_full.get();
        kernel.0.unmount(&self.kernels).unwrap();
        let statistics = ours.unmount();
        let found = find_clean(&self.ours, scale, &self.what);
        // When a value in an inode is set again, the kernel may count a user of it too many, as e2fsck
        // says, and keep it for ever.
        let expected = if self.has_ea_inode {
            find(&self.kernels, scale)
        } else {
            find_clean(&self.kernels, scale, &format!("{}, kernel", self.what))
        };
        assert!(found.attributes == expected.attributes, "{}", self.what);
        assert!(found.inodes <= expected.inodes, "{}", self.what);
        assert!(
            self.has_ea_inode || found.inodes == expected.inodes,
            "{}",
            self.what
        );
        // The kernel forgets a block in which a value had no space.
        let may_be_fewer = was_full && found.blocks < expected.blocks;
        assert!(
            may_be_fewer || found.blocks == expected.blocks,
            "{}: {} blocks, {} by the kernel",
            self.what,
            found.blocks,
            expected.blocks
        );
        (found, statistics)
    }

    /// What the kernel shows of the image that platter wrote.
    pub(super) fn seen_by_the_kernel(&self) -> BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>> {
        let mount = Mount::image(&self.ours, "", Access::ReadOnly).unwrap();
        let entries = fs::read_dir(mount.root()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let files = names.filter(|name| name.starts_with("file"));
        let attributes = files.map(|file| {
            let attributes = attributes::of(&mount.root().join(&file)).unwrap();
            (file, attributes.into_iter().collect())
        });
        let attributes = attributes.collect();
        mount.unmount(&self.ours).unwrap();
        attributes
    }
}
