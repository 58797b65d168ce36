//! What has no LSN (new inodes, values of attributes) gets no blocks of metadata that was freed, before that is durable:
//! recovery would replay what they were over it, or skip the new inodes with what was cancelled. And nothing gets those of
//! parts of directory blocks, which are replayed whatever LSN their blocks have.

use std::ops::ControlFlow;

use platter_block::sim::Recorder;
use platter_ondisk::Uuid;
use platter_vfs::writing::RangeSet;
use platter_vfs::{Context, CreateKind, Inode, XattrMode};

use super::tests::{create, device_of, mount, name};
use super::*;
use crate::btree::Tree;
use crate::mapping::ForkMap;
use crate::mkfs::MkfsOptions;
use crate::ondisk::btree::{BtreeKind, DiskFreeExtent};
use crate::ondisk::features::RoCompat;
use crate::ondisk::{AgBlock, AgNr, FileBlock, ForkKind, FsBlock};
use crate::space::Held;

const AG: AgNr = AgNr(0);
/// Bytes of a value that no leaf of 4 KiB holds.
const VALUE: usize = 3500;

/// A filesystem with a directory of names of one file, whose blocks lie in the first group between blocks in use.
struct Scene {
    recorder: Recorder,
    xfs: Xfs,
    root: Arc<dyn Inode>,
    file: Arc<dyn Inode>,
    directory: Arc<dyn Inode>,
    names: Vec<String>,
    blocks: Vec<FsBlock>,
}

impl Scene {
    /// With so many names in the directory.
    fn new(options: &MkfsOptions, names: usize) -> Self {
        let recorder = Recorder::new(vec![device_of(options)]);
        let device: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[0]) as _;
        let xfs = mount(&device);
        let root = xfs.root().unwrap();
        let file = create(&*root, "file", CreateKind::Regular).unwrap();
        set(&*file, "user.first");
        let names: Vec<_> = (0..names)
            .map(|number| format!("{number}-{}", "n".repeat(60)))
            .collect();
        let geometry = xfs.context().geometry();
        let number = |inode: &Arc<dyn Inode>| InodeNr::new(inode.id().number).unwrap();
        let made = (0..5 * geometry.ag_count())
            .map(|index| create(&*root, &format!("dir-{index}"), CreateKind::Directory).unwrap());
        let made = made.filter(|made| geometry.split_inode(number(made)).0 == AG);
        let directories: Vec<_> = made.collect();
        // Each gets its blocks after the one before.
        for directory in &directories {
            for text in &names {
                let linked = directory.link(&Context::root(), name(text), file.id());
                linked.unwrap();
            }
        }
        let directory = Arc::clone(&directories[2]);
        let blocks = blocks(&xfs, &*directory, ForkKind::Data);
        assert_eq!(blocks.is_empty(), names.is_empty());
        Self {
            recorder,
            xfs,
            root,
            file,
            directory,
            names,
            blocks,
        }
    }

    fn log(&self) -> &Log {
        self.xfs.context().log().unwrap()
    }

    /// Makes the directory free its blocks.
    fn free_blocks(&self) {
        for text in &self.names {
            self.directory.unlink(&Context::root(), name(text)).unwrap();
        }
        assert!(blocks(&self.xfs, &*self.directory, ForkKind::Data).is_empty());
    }

    /// The filesystem as a crash leaves it now.
    fn crashed(&self) -> Xfs {
        let recording = self.recorder.recording();
        let mut devices = recording.replay(self.recorder.position()).unwrap();
        let device: Arc<dyn BlockDevice> = Arc::new(devices.remove(0));
        mount(&device)
    }

    fn end(self) {
        let Self { xfs, .. } = self;
        xfs.unmount().unwrap();
    }
}

fn options() -> MkfsOptions {
    MkfsOptions::new(Uuid::from_bytes([7; 16]))
}

fn set(file: &dyn Inode, text: &str) {
    let value = [7; VALUE];
    let set = file.set_xattr(&Context::root(), text.as_bytes(), &value, XattrMode::Set);
    set.unwrap();
}

/// The blocks of a fork.
pub(super) fn blocks(xfs: &Xfs, file: &dyn Inode, kind: ForkKind) -> Vec<FsBlock> {
    let context = xfs.context();
    let number = InodeNr::new(file.id().number).unwrap();
    let inode = crate::inode::read(context, number).unwrap();
    let fork = match kind {
        ForkKind::Data => ForkMap::of_data(context, &inode),
        ForkKind::Attr => ForkMap::of_attrs(context, &inode),
    };
    let mut blocks = Vec::new();
    let Ok(fork) = fork else {
        return blocks;
    };
    let mut at = FileBlock(0);
    while let Some(run) = fork.next(context, at).unwrap() {
        if let Some(mapping) = run.mapping() {
            blocks.extend((0..mapping.count).map(|step| FsBlock(mapping.start + step)));
        }
        at = run.end();
    }
    blocks
}

/// The free blocks of a group.
fn free_blocks(xfs: &Xfs, ag: AgNr) -> RangeSet<u32> {
    let context = xfs.context();
    let mut free = RangeSet::default();
    let bno = context.agf(ag).unwrap().bno;
    let mut leaves = |leaf: &crate::ondisk::btree::BtreeBlock<'_>| {
        for record in leaf.records::<DiskFreeExtent>() {
            let start = record.start.get();
            free.insert(start..start + record.count.get());
        }
        Ok(ControlFlow::Continue(()))
    };
    Tree::of_group(context, BtreeKind::Bno, ag, bno)
        .leaves(&mut leaves)
        .unwrap();
    free
}

#[test]
fn inodes_in_a_new_chunk_outlive_a_crash() {
    // The blocks of a directory, of a cluster and of a chunk have one length.
    let scene = Scene::new(
        &MkfsOptions {
            block_bytes: Some(32 << 10),
            ..options()
        },
        8,
    );
    let context = scene.xfs.context();
    let agi = || context.agi(AG).unwrap();
    let mut files = 0;
    let mut add = || {
        let made = create(&*scene.root, &format!("file-{files}"), CreateKind::Regular);
        files += 1;
        made.unwrap()
    };
    while agi().free_count > 0 {
        add();
    }
    let newest = || {
        let first = agi().newest.unwrap();
        let geometry = context.geometry();
        geometry.fs_block(AG, geometry.locate_ag_inode(first).0)
    };
    scene.log().quiesce().unwrap();
    scene.free_blocks();
    let made = create(&*scene.root, "made", CreateKind::Regular).unwrap();
    made.sync(false).unwrap();
    let crashed = scene.crashed();
    let found = crashed.root().unwrap().lookup(name("made")).unwrap();
    assert_eq!(found.attr().unwrap().links, 1);
    drop(found);
    crashed.unmount().unwrap();
    assert_ne!(newest(), scene.blocks[0]);
    // Once that is durable, the next chunk goes there.
    let count = agi().count;
    while agi().count == count {
        add();
    }
    assert_eq!(newest(), scene.blocks[0]);
    drop(made);
    scene.end();
}

#[test]
fn value_gets_no_block_that_its_checkpoint_cancels() {
    let scene = Scene::new(&options(), 40);
    let [block] = scene.blocks[..] else {
        panic!("{:?}", scene.blocks);
    };
    scene.log().quiesce().unwrap();
    // A checkpoint that holds a part of the block.
    let more = scene
        .directory
        .link(&Context::root(), name("more"), scene.file.id());
    more.unwrap();
    scene.xfs.sync().unwrap();
    scene
        .directory
        .unlink(&Context::root(), name("more"))
        .unwrap();
    scene.free_blocks();
    set(&*scene.file, "user.second");
    let of_file = || blocks(&scene.xfs, &*scene.file, ForkKind::Attr);
    assert!(!of_file().contains(&block));
    scene.xfs.sync().unwrap();
    set(&*scene.file, "user.third");
    assert!(of_file().contains(&block));
    scene.end();
}

#[test]
fn value_waits_for_blocks_where_there_are_no_others() {
    let scene = Scene::new(&plain(4096), 800);
    let context = scene.xfs.context();
    scene.log().quiesce().unwrap();
    context
        .space()
        .finish(context.geometry().groups(), scene.log());
    scene.free_blocks();
    // All but what was freed is about to be used by others.
    claim_free(&scene.xfs, Held::busy);
    let before = scene.log().running();
    set(&*scene.file, "user.second");
    assert!(scene.log().is_durable(before));
    let of_file = blocks(&scene.xfs, &*scene.file, ForkKind::Attr);
    assert!(of_file.iter().any(|block| scene.blocks.contains(block)));
}

/// Without optional features, which keep blocks in reserve.
pub(super) fn plain(block_bytes: u32) -> MkfsOptions {
    let mut options = MkfsOptions {
        block_bytes: Some(block_bytes),
        ..options()
    };
    options.features.ro_compat = RoCompat::empty();
    options
}

/// All free blocks are about to be used, but for those that are spared.
fn claim_free(xfs: &Xfs, spared: impl Fn(&mut Held) -> RangeSet<u32>) {
    let context = xfs.context();
    for ag in context.geometry().groups() {
        let free = free_blocks(xfs, ag);
        let mut held = context.space().lock(ag);
        let spared = spared(&mut held);
        for extent in free.within(0..u32::MAX) {
            for unused in spared.gaps(extent) {
                held.claim(AgBlock(unused.start), unused.end - unused.start);
            }
        }
    }
}

/// Leaves two blocks in a row here and there of what is free; all others are about to be used.
pub(super) fn fragment(xfs: &Xfs) {
    const STEP: u32 = 8;
    let context = xfs.context();
    for ag in context.geometry().groups() {
        let free = free_blocks(xfs, ag);
        let mut held = context.space().lock(ag);
        for extent in free.within(0..u32::MAX) {
            let mut at = extent.start;
            while at < extent.end {
                let end = at.saturating_add(STEP).min(extent.end);
                if at + 2 < end {
                    held.claim(AgBlock(at + 2), end - at - 2);
                }
                at = end;
            }
        }
    }
}

/// Adds a link whose target is in a block of its own. Returns the link and the block.
fn add_link(xfs: &Xfs, root: &dyn Inode, index: usize) -> (String, FsBlock) {
    let text = format!("link-{index}");
    let target = CreateKind::Symlink(text.repeat(100).into_bytes());
    let link = create(root, &text, target).unwrap();
    let [block] = blocks(xfs, &*link, ForkKind::Data)[..] else {
        panic!("{text}: not one block");
    };
    (text, block)
}

#[test]
fn nothing_gets_blocks_of_parts_that_an_older_checkpoint_holds() {
    let scene = Scene::new(&plain(1024), 0);
    fragment(&scene.xfs);
    let link = |text: &str| {
        let linked = scene
            .directory
            .link(&Context::root(), name(text), scene.file.id());
        linked.unwrap();
    };
    let unlink = |text: &str| {
        scene
            .directory
            .unlink(&Context::root(), name(text))
            .unwrap();
    };
    let names: Vec<_> = (0..18)
        .map(|number| format!("{number}-{}", "n".repeat(60)))
        .collect();
    for text in &names {
        link(text);
    }
    let parts = blocks(&scene.xfs, &*scene.directory, ForkKind::Data);
    let [first, inner, third, _] = parts[..] else {
        panic!("{parts:?}");
    };
    assert_eq!((inner.0, inner.0 + 1 == third.0), (first.0 + 1, false));
    scene.log().quiesce().unwrap();
    // A checkpoint that holds bytes from the middle of the part.
    link("more");
    scene.xfs.sync().unwrap();
    unlink("more");
    for text in &names {
        unlink(text);
    }
    assert!(blocks(&scene.xfs, &*scene.directory, ForkKind::Data).is_empty());
    let add = |index| add_link(&scene.xfs, &*scene.root, index);
    let links: Vec<_> = (0..12).map(add).collect();
    scene.xfs.sync().unwrap();
    // What it wrote back has the LSN of the last checkpoint, and the log has the first one, too.
    scene.log().quiesce().unwrap();
    let crashed = scene.crashed();
    let root = crashed.root().unwrap();
    for (text, _) in &links {
        let found = root.lookup(name(text)).unwrap();
        assert_eq!(found.read_link().unwrap(), text.repeat(100).as_bytes());
    }
    drop(root);
    crashed.unmount().unwrap();
    assert!(links.iter().all(|(_, block)| !parts.contains(block)));
    // Once that is durable, the next ones go there.
    let groups = scene.xfs.context().geometry().groups();
    scene.xfs.context().space().finish(groups, scene.log());
    let later: Vec<_> = (12..20).map(add).collect();
    assert!(later.iter().any(|(_, block)| *block == inner));
    scene.end();
}

#[test]
fn link_target_waits_for_withheld_blocks_without_others() {
    let scene = Scene::new(&plain(1024), 0);
    fragment(&scene.xfs);
    let names: Vec<_> = (0..200).map(|number| format!("{number}-name")).collect();
    for text in &names {
        let linked = scene
            .directory
            .link(&Context::root(), name(text), scene.file.id());
        linked.unwrap();
    }
    let parts = blocks(&scene.xfs, &*scene.directory, ForkKind::Data);
    for text in &names {
        let context = Context::root();
        scene.directory.unlink(&context, name(text)).unwrap();
    }
    claim_free(&scene.xfs, |held| held.holds().claims.clone());
    let before = scene.log().running();
    let (_, block) = add_link(&scene.xfs, &*scene.root, 0);
    assert!(scene.log().is_durable(before));
    assert!(parts.contains(&block));
    scene.end();
}

#[test]
fn inodes_wait_for_withheld_chunks_without_others() {
    let scene = Scene::new(&plain(4096), 0);
    let make = |number: u32| create(&*scene.root, &format!("f{number}"), CreateKind::Regular);
    for number in 0..1500 {
        drop(make(number).unwrap());
        // The directory keeps its blocks.
        if number % 20 == 0 {
            let text = format!("l{number}");
            let linked = scene
                .root
                .link(&Context::root(), name(&text), scene.file.id());
            linked.unwrap();
        }
    }
    for number in 0..1500 {
        let path = format!("f{number}");
        scene.root.unlink(&Context::root(), name(&path)).unwrap();
    }
    // Has them freed.
    scene.xfs.stat_fs().unwrap();
    claim_free(&scene.xfs, |held| held.holds().claims.clone());
    let before = scene.log().running();
    // More than are free in chunks that stay.
    for number in 0..600 {
        drop(make(number).unwrap());
    }
    assert!(scene.log().is_durable(before));
    scene.end();
}

#[test]
fn directory_blocks_wait_for_withheld_blocks_without_others() {
    let scene = Scene::new(&plain(1024), 0);
    fragment(&scene.xfs);
    let other = create(&*scene.root, "other", CreateKind::Directory).unwrap();
    let names: Vec<_> = (0..200).map(|number| format!("{number}-name")).collect();
    let link = |dir: &dyn Inode, text: &str| {
        let linked = dir.link(&Context::root(), name(text), scene.file.id());
        linked.unwrap();
    };
    for text in &names {
        link(&*scene.directory, text);
    }
    for text in &names {
        scene
            .directory
            .unlink(&Context::root(), name(text))
            .unwrap();
    }
    claim_free(&scene.xfs, |held| held.holds().claims.clone());
    let before = scene.log().running();
    for text in &names[..60] {
        link(&*other, text);
    }
    assert!(scene.log().is_durable(before));
    drop(other);
    scene.end();
}

#[test]
fn directory_block_waits_for_blocks_in_a_row_before_it_is_split() {
    let scene = Scene::new(&plain(1024), 40);
    let other = create(&*scene.root, "other", CreateKind::Directory).unwrap();
    fragment(&scene.xfs);
    scene.log().quiesce().unwrap();
    let groups = scene.xfs.context().geometry().groups();
    scene.xfs.context().space().finish(groups, scene.log());
    scene.free_blocks();
    let before = scene.log().running();
    for text in scene.names.iter().take(18) {
        let linked = other.link(&Context::root(), name(text), scene.file.id());
        linked.unwrap();
    }
    assert!(scene.log().is_durable(before));
    assert_eq!(
        blocks(&scene.xfs, &*other, ForkKind::Data),
        scene.blocks[..4]
    );
    // There are no others in a row.
    for text in &scene.names {
        let text = format!("{text}-");
        let linked = other.link(&Context::root(), name(&text), scene.file.id());
        linked.unwrap();
    }
    drop(other);
    scene.end();
}
