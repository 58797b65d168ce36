//! References that are followed to subvolumes, and usage that cannot be counted.

use std::cell::Cell;

use platter_ondisk::Rule;
use platter_vfs::{Error, Result};
use zerocopy::IntoBytes;

use super::Random;
use super::image::Pool;
use super::xattrs::{Xattrs, change};
use crate::ondisk::features::Incompat;
use crate::ondisk::key::ItemKind;
use crate::ondisk::qgroup::{QgroupFlags, QgroupInfo, QgroupLimit, QgroupStatus};
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::types::QGROUP_LEVEL_ONE;
use crate::ondisk::{Generation, Key, TreeId};
use crate::qgroup::{CountingLimits, QuotaState, Resolver, RootsRule, Sets, Stored, Uncounted};
use crate::txn::{CommitReport, Handle, WriteContext, WriteOptions, quotas, roots};

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

/// Enables simple quotas, with a group of the first level that the subvolume 256 is in.
pub(crate) fn enable_simple(pool: &Pool, subvolumes: &[u64]) {
    let fs = pool.open(WriteOptions::default());
    let handle = fs.begin(64).unwrap();
    handle.add_feature(Incompat::SIMPLE_QUOTA);
    insert_simple(&fs, &handle, subvolumes, Some(handle.generation()));
    drop(handle);
    fs.sync().unwrap();
}

/// Inserts the quota tree of simple quotas that are enabled since a transaction.
fn insert_simple(
    fs: &WriteContext,
    handle: &Handle<'_>,
    subvolumes: &[u64],
    since: Option<Generation>,
) {
    let generation = handle.generation();
    roots::create_tree(fs, generation, TreeId::QUOTA).unwrap();
    let status = QgroupStatus {
        generation,
        flags: QgroupFlags::ON | QgroupFlags::SIMPLE_MODE,
        rescan: 0,
        enable_generation: since,
    };
    let group = QGROUP_LEVEL_ONE;
    let edited = handle.edit(TreeId::QUOTA, |editor| {
        let key = Key::new(0, ItemKind::QGROUP_STATUS, 0);
        editor.insert(key, &status.encode())?;
        for id in subvolumes.iter().chain([&group]) {
            let info = QgroupInfo::default().encode();
            let limit = QgroupLimit::default().encode();
            editor.insert(Key::new(0, ItemKind::QGROUP_INFO, *id), info.as_bytes())?;
            editor.insert(Key::new(0, ItemKind::QGROUP_LIMIT, *id), limit.as_bytes())?;
        }
        for (one, other) in [(256, group), (group, 256)] {
            editor.insert(Key::new(one, ItemKind::QGROUP_RELATION, other), &[])?;
        }
        Ok(())
    });
    edited.unwrap();
}

#[test]
fn simple_quotas_without_their_beginning_are_refused() {
    let refused = |features, since| {
        let pool = Pool::make(1, 128, &["-m", "single"]);
        let fs = pool.open(WriteOptions::default());
        let handle = fs.begin(64).unwrap();
        handle.add_feature(features);
        insert_simple(&fs, &handle, &[5], since);
        drop(handle);
        fs.sync().unwrap();
        drop(fs);
        match pool.try_open(WriteOptions::default()) {
            Ok(_) => None,
            Err(Error::Corrupt(corruption)) => Some(corruption.rule),
            Err(other) => panic!("{other}"),
        }
    };
    let since = Some(Generation(1));
    assert_eq!(refused(Incompat::SIMPLE_QUOTA, since), None);
    for (features, since) in [(Incompat::SIMPLE_QUOTA, None), (Incompat::empty(), since)] {
        let rule = quotas::QuotaRule::Enabled.text();
        assert_eq!(refused(features, since), Some(rule.into()));
    }
}

#[test]
fn simple_quotas_count_from_the_item_on() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    enable_simple(&pool, &[5]);
    let fs = pool.open(WriteOptions::default());
    let referenced = |fs: &WriteContext| stored(fs).infos[&TreeId::FS.0].referenced.0;
    assert_eq!(referenced(&fs), 0);
    let (mut random, mut xattrs) = (Random(9), Xattrs::new());
    let mut before = 0;
    for _ in 0..3 {
        change(&fs, &mut random, &mut xattrs, 400);
        fs.sync().unwrap();
        let root = fs.tree(TreeId::FS).unwrap().view().now;
        // The first change copied all of the tree: it had one block.
        let now = referenced(&fs);
        assert_eq!(now, root.used_bytes);
        assert!(now > before, "{before} {now}");
        before = now;
    }
    drop(fs);
    let fs = pool.open(WriteOptions::default());
    assert!(matches!(quotas::state(&fs), QuotaState::Simple));
    assert_eq!(referenced(&fs), before);
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
