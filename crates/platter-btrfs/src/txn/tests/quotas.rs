//! References that are followed to subvolumes, and usage that cannot be counted.

use std::cell::Cell;

use platter_ondisk::Rule;
use platter_vfs::{Error, Result};

use super::Random;
use super::image::Pool;
use super::xattrs::{Xattrs, change};
use crate::ondisk::TreeId;
use crate::ondisk::features::Incompat;
use crate::ondisk::qgroup::QgroupFlags;
use crate::ondisk::superblock::RootPointer;
use crate::qgroup::{CountingLimits, Resolver, RootsRule, Sets, Stored, Uncounted};
use crate::txn::{CommitReport, WriteContext, WriteOptions, quotas};

#[test]
fn references_that_lead_nowhere_are_not_counted() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    pool.run("mount -t btrfs \"$device\" \"$root\"\nbtrfs -q subvolume create \"$root\"/one\nbtrfs -q subvolume create \"$root\"/two\n");
    let fs = pool.open(WriteOptions::default());
    let root = |id| fs.context().required_tree(TreeId(id)).unwrap().root;
    let extents = fs.context().required_tree(TreeId::EXTENT).unwrap();
    let (root, other) = (root(256), root(257));
    let found = |find: &dyn Fn(TreeId) -> Result<Option<RootPointer>>| {
        let (mut sets, looks) = (Sets::default(), Cell::new(10_000));
        let mut resolver = Resolver::new(fs.blocks(), extents, find, &looks);
        let found = resolver.subvolumes_of(&mut sets, root.logical);
        found.map(|(set, _)| sets.members(set).to_vec())
    };
    assert_eq!(found(&|_| Ok(Some(root))).unwrap(), [TreeId(256)]);
    let rule = |root: Option<RootPointer>| match found(&|_| Ok(root)) {
        Err(Uncounted::Unreadable(Error::Corrupt(corruption))) => corruption.rule,
        other => panic!("{other:?}"),
    };
    assert_eq!(rule(None), RootsRule::Tree.text());
    assert_eq!(rule(Some(other)), RootsRule::Missing.text());
    // Searches for the item and for the root, and the reference in the item.
    for (looks, is_enough) in [(513, true), (512, false), (256, false), (0, false)] {
        let (mut sets, left) = (Sets::default(), Cell::new(looks));
        let find = |_: TreeId| -> Result<Option<RootPointer>> { Ok(Some(root)) };
        let mut resolver = Resolver::new(fs.blocks(), extents, &find, &left);
        match resolver.subvolumes_of(&mut sets, root.logical) {
            Ok(_) => assert!(is_enough && left.get() == 0),
            Err(Uncounted::References) => assert!(!is_enough),
            Err(other) => panic!("{other:?}"),
        }
    }
}

fn stored(fs: &WriteContext) -> Stored {
    let tree = fs.tree(TreeId::QUOTA).unwrap().view().now.tree;
    Stored::read(fs.blocks(), tree, 100).unwrap()
}

#[test]
fn usage_that_cannot_be_counted_is_inconsistent_from_then_on() {
    let pool = Pool::make(1, 128, &["-m", "single", "-R", "quota"]);
    let (mut random, mut xattrs) = (Random(3), Xattrs::new());
    let mut run = |loses: bool| {
        let fs = pool.open(WriteOptions::default());
        change(&fs, &mut random, &mut xattrs, 300);
        if loses {
            fs.quotas.as_ref().unwrap().lose(Uncounted::Extents);
        }
        fs.sync().unwrap();
        let stored = stored(&fs);
        let status = stored.status.unwrap();
        assert_eq!(status.generation, fs.superblock().generation);
        let usage = stored.infos[&TreeId::FS.0].referenced.0;
        assert_eq!(stored.infos[&TreeId::FS.0].exclusive.0, usage);
        let is_lost = status.flags.contains(QgroupFlags::INCONSISTENT);
        (is_lost, usage)
    };
    let (_, before) = run(false);
    let (is_lost, after) = run(false);
    assert!(!is_lost && after > before, "{before} {after}");
    pool.assert_clean();
    assert_eq!(run(true), (true, after));
    assert_eq!(run(false), (true, after));
}

#[test]
fn simple_quotas_are_refused() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let fs = pool.open(WriteOptions::default());
    fs.begin(4).unwrap().add_feature(Incompat::SIMPLE_QUOTA);
    change(&fs, &mut Random(5), &mut Xattrs::new(), 10);
    fs.sync().unwrap();
    drop(fs);
    let refused = pool.try_open(WriteOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("simple quotas"), "{refused}");
}

#[test]
fn references_run_to_count_quota_groups_are_reported() {
    let pool = Pool::make(1, 128, &["-m", "single", "-R", "quota"]);
    let fs = pool.open(WriteOptions::default());
    change(&fs, &mut Random(7), &mut Xattrs::new(), 300);
    let queued = fs.delayed_refs().len() as u64;
    let mut report = CommitReport::default();
    quotas::count(&fs, fs.running(), &mut report).unwrap();
    assert!(queued > 0 && report.heads_run >= queued, "{report:?}");
}

#[test]
fn too_many_quota_groups_are_refused() {
    let pool = Pool::make(1, 128, &["-m", "single", "-R", "quota"]);
    let open = |items_max| {
        let counting = CountingLimits {
            items_max,
            ..CountingLimits::DEFAULT
        };
        pool.try_open(WriteOptions {
            counting,
            ..WriteOptions::default()
        })
    };
    // The state, and usage and limits of the top subvolume.
    assert!(open(3).is_ok());
    let refused = open(2).unwrap_err().to_string();
    assert!(refused.contains("more than 2 quota groups"), "{refused}");
}
