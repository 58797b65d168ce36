//! Names at the limits: large directories shared with the kernel, filesystems that fill up, files
//! that a crash left without a name, and threads that move names past each other.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use platter::block::{Access, BlockDevice, FileDevice, OpenOptions};
use platter_cache::MemoryBudget;
use platter_ext4::{Ext4, MountOptions, Recovery};
use platter_vfs::inode::read_dir_all;
use platter_vfs::{
    Condition, Context, CreateKind, Error, FileKind, Filesystem, Inode, Name, RenameMode, SetAttr,
    SystemClock,
};
use testkit::compare::{Rules, compare};
use testkit::loopdev::{self, Mount};
use testkit::oracle::{debugfs, e2fsck, mke2fs};
use testkit::prng::Prng;

/// A filesystem of its own in a directory of its own.
struct Image {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Image {
    fn make(size_kib: u64, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        mke2fs::make(&path, size_kib, options, None).unwrap();
        Self {
            _dir: directory,
            path,
        }
    }

    fn mount(&self) -> Ext4 {
        self.mount_with(false)
    }

    fn mount_with(&self, read_only: bool) -> Ext4 {
        let (access, recovery) = if read_only {
            (Access::Read, Recovery::InMemory)
        } else {
            (Access::Write, Recovery::OnDevice)
        };
        let options = OpenOptions {
            access,
            ..OpenOptions::default()
        };
        let device = FileDevice::open(&self.path, options).unwrap();
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let options = MountOptions {
            read_only,
            recovery,
            ..MountOptions::default()
        };
        let budget = Arc::new(MemoryBudget::new(32 << 20));
        Ext4::mount(device, &options, budget, Arc::new(SystemClock::new())).unwrap()
    }

    fn assert_clean(&self, when: &str) {
        let (verdict, report) = e2fsck::report(&self.path).unwrap();
        assert!(verdict.is_clean(), "{when}: {report}");
    }

    /// The kernel shows what we do.
    fn assert_same_for_the_kernel(&self) {
        let ours = self.mount_with(true);
        let kernel = Mount::image(&self.path, "noload", loopdev::Access::ReadOnly).unwrap();
        let compared = compare(&ours, kernel.root(), Rules::KERNEL_MOUNT);
        compared.unwrap().assert_equal();
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn create(dir: &Arc<dyn Inode>, text: &str, kind: CreateKind) -> Result<Arc<dyn Inode>, Error> {
    dir.create(&Context::root(), name(text), kind, 0o755)
}

fn make_dir(dir: &Arc<dyn Inode>, text: &str) -> Arc<dyn Inode> {
    create(dir, text, CreateKind::Directory).unwrap()
}

fn names(dir: &Arc<dyn Inode>) -> BTreeSet<Vec<u8>> {
    let entries = read_dir_all(&**dir).unwrap();
    let names = entries.iter().map(|entry| entry.name.as_name().to_vec());
    let all: BTreeSet<_> = names.collect();
    assert_eq!(all.len(), entries.len(), "a name is listed twice");
    all
}

/// A name that is as long as its number says.
fn long_name(number: usize) -> String {
    format!("{number}-{:x<length$}", "", length = number * 31 % 230)
}

#[test]
fn large_directories_go_back_and_forth_with_the_kernel() {
    let kinds: [&[&str]; 3] = [
        &["-t", "ext4", "-b", "1024", "-N", "2000"],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^metadata_csum",
            "-N",
            "2000",
        ],
        &["-t", "ext3", "-b", "1024", "-J", "size=4", "-N", "2000"],
    ];
    for options in kinds {
        let image = Image::make(40_000, options);
        let access = loopdev::Access::ReadWrite;
        let kernel = Mount::image(&image.path, "", access).unwrap();
        let directory = kernel.root().join("large");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(long_name(0)), b"").unwrap();
        for number in 1..6000 {
            fs::hard_link(
                directory.join(long_name(0)),
                directory.join(long_name(number)),
            )
            .unwrap();
        }
        kernel.unmount(&image.path).unwrap();

        let ours = image.mount();
        let large = ours.root().unwrap().lookup(name("large")).unwrap();
        let file = large.lookup(name(&long_name(0))).unwrap();
        for number in 6000..12_000 {
            let link = long_name(number);
            large
                .link(&Context::root(), name(&link), file.id())
                .unwrap();
            if number % 2 == 0 {
                let gone = long_name(number - 5999);
                large.unlink(&Context::root(), name(&gone)).unwrap();
            }
        }
        assert_eq!(names(&large).len(), 9000);
        drop((file, large));
        ours.unmount().unwrap();
        drop(ours);
        image.assert_clean("changed by us");

        let kernel = Mount::image(&image.path, "", access).unwrap();
        let directory = kernel.root().join("large");
        for number in (6001..12_000).step_by(3) {
            let (old, new) = (long_name(number), long_name(number + 20_000));
            fs::rename(directory.join(old), directory.join(new)).unwrap();
        }
        kernel.unmount(&image.path).unwrap();
        image.assert_clean("changed by the kernel again");
        image.assert_same_for_the_kernel();
    }
}

#[test]
fn index_of_three_levels_is_sound_for_e2fsck_and_the_kernel() {
    let options = ["-t", "ext4", "-b", "1024", "-O", "large_dir", "-N", "1000"];
    let image = Image::make(60_000, &options);
    let ours = image.mount();
    let root = ours.root().unwrap();
    let large = make_dir(&root, "large");
    let file = create(&root, "file", CreateKind::Regular).unwrap();
    // By two or three in a leaf, below two levels of 126 entries, more than half of them in use.
    for number in 0..45_000 {
        let link = format!("{number:-<255}");
        let file = if number < 40_000 {
            file.id()
        } else {
            large_file(&root).id()
        };
        large.link(&Context::root(), name(&link), file).unwrap();
    }
    assert!(large.attr().unwrap().size_bytes > 15_748 << 10);
    drop((large, file, root));
    ours.unmount().unwrap();
    drop(ours);
    image.assert_clean("three levels");
    image.assert_same_for_the_kernel();
}

/// A second file, for the names that the first may not have any more.
fn large_file(root: &Arc<dyn Inode>) -> Arc<dyn Inode> {
    root.lookup(name("more"))
        .or_else(|_| create(root, "more", CreateKind::Regular))
        .unwrap()
}

#[test]
fn full_filesystem_refuses_names_and_stays_clean() {
    for options in [
        &["-t", "ext4", "-b", "1024", "-N", "400", "-J", "size=1"][..],
        &["-t", "ext2", "-b", "1024", "-N", "4000"],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-I",
            "256",
            "-O",
            "inline_data",
            "-N",
            "4000",
        ],
    ] {
        let image = Image::make(3000, options);
        let ours = image.mount();
        let root = ours.root().unwrap();
        let before = ours.stat_fs().unwrap();
        let top = make_dir(&root, "top");
        let mut made = 0;
        let error = loop {
            let text = format!("{made:-<200}");
            let kind = match made % 3 {
                0 => CreateKind::Symlink(vec![b'l'; 400]),
                1 => CreateKind::Directory,
                _ => CreateKind::Fifo,
            };
            match create(&top, &text, kind) {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error, Error::Condition(Condition::NoSpace)),
            "{error}"
        );
        assert!(made > 300, "{made}");
        for number in 0..made {
            let text = format!("{number:-<200}");
            // A name that is as long moves in without a new block.
            let moved = format!("{number:+<200}");
            let mode = RenameMode::NoReplace;
            let context = Context::root();
            let result = top.rename(&context, name(&text), top.id(), name(&moved), mode);
            match result {
                Ok(()) => {}
                Err(Error::Condition(Condition::NoSpace)) => continue,
                Err(error) => panic!("{error}"),
            }
            let back = top.rename(&context, name(&moved), top.id(), name(&text), mode);
            back.unwrap();
        }
        ours.sync().unwrap();
        assert_eq!(names(&top).len(), made);
        for number in 0..made {
            let text = format!("{number:-<200}");
            match number % 3 {
                1 => top.remove_dir(&Context::root(), name(&text)).unwrap(),
                _ => top.unlink(&Context::root(), name(&text)).unwrap(),
            }
        }
        drop(top);
        root.remove_dir(&Context::root(), name("top")).unwrap();
        ours.sync().unwrap();
        let after = ours.stat_fs().unwrap();
        assert_eq!(after.inodes_free, before.inodes_free, "{options:?}");
        assert_eq!(after.blocks_free, before.blocks_free, "{options:?}");
        drop(root);
        ours.unmount().unwrap();
        drop(ours);
        image.assert_clean(&options.join(" "));
    }
}

#[test]
fn files_without_names_are_gone_after_a_crash() {
    for feature in ["^orphan_file", "orphan_file"] {
        let options = ["-t", "ext4", "-b", "1024", "-O", feature];
        let image = Image::make(20_000, &options);
        let ours = image.mount();
        let root = ours.root().unwrap();
        let before = ours.stat_fs().unwrap();
        let mut held = Vec::new();
        for number in 0..300 {
            let text = long_name(number);
            let kind = match number % 3 {
                0 => CreateKind::Directory,
                1 => CreateKind::Symlink(vec![b'l'; 300]),
                _ => CreateKind::Regular,
            };
            let file = create(&root, &text, kind.clone()).unwrap();
            if kind == CreateKind::Regular {
                file.write_at(0, &vec![7; 5000]).unwrap();
                file.sync(false).unwrap();
            }
            held.push(file);
            if kind == CreateKind::Directory {
                root.remove_dir(&Context::root(), name(&text)).unwrap();
            } else {
                root.unlink(&Context::root(), name(&text)).unwrap();
            }
            if number % 10 == 0 {
                held.push(root.create_unnamed(&Context::root(), 0o600).unwrap());
            }
        }
        // Some go in any order, and so do their places among the orphans.
        let mut random = Prng::named(feature.as_bytes());
        for _ in 0..100 {
            let at = usize::try_from(random.below(held.len() as u64)).unwrap();
            drop(held.swap_remove(at));
        }
        ours.sync().unwrap();
        // What follows is not durable: the crash comes with files still held.
        let copy = image.path.with_extension("crashed");
        fs::copy(&image.path, &copy).unwrap();
        drop((held, root));
        ours.unmount().unwrap();
        drop(ours);
        image.assert_clean("all files released");

        fs::rename(&copy, &image.path).unwrap();
        let crashed = image.path.with_extension("for-e2fsck");
        fs::copy(&image.path, &crashed).unwrap();
        let ours = image.mount();
        let after = ours.stat_fs().unwrap();
        assert_eq!(after.inodes_free, before.inodes_free, "{feature}");
        ours.sync().unwrap();
        let after = ours.stat_fs().unwrap();
        assert_eq!(after.blocks_free, before.blocks_free, "{feature}");
        assert_eq!(names(&ours.root().unwrap()).len(), 1);
        ours.unmount().unwrap();
        drop(ours);
        image.assert_clean("mounted after a crash");
        // e2fsck and the kernel find the same orphans.
        e2fsck::repair(&crashed, &["-p"]).unwrap();
        let (verdict, report) = e2fsck::report(&crashed).unwrap();
        assert!(verdict.is_clean(), "{report}");
    }
}

#[test]
fn directory_with_more_links_than_can_be_counted_has_one() {
    let image = Image::make(20_000, &["-t", "ext4", "-b", "1024"]);
    let ours = image.mount();
    let root = ours.root().unwrap();
    let (many, few) = (make_dir(&root, "many"), make_dir(&root, "few"));
    for number in 0..200 {
        create(&many, &long_name(number), CreateKind::Fifo).unwrap();
    }
    drop((many, few, root));
    ours.unmount().unwrap();
    drop(ours);
    let set = |dir: &str| format!("set_inode_field {dir} links_count 64999");
    debugfs::change(&image.path, &[&set("many"), &set("few")]).unwrap();

    let ours = image.mount();
    let root = ours.root().unwrap();
    let links = |dir: &Arc<dyn Inode>| dir.attr().unwrap().links;
    let many = root.lookup(name("many")).unwrap();
    make_dir(&many, "a");
    assert_eq!(links(&many), 65_000);
    make_dir(&many, "b");
    assert_eq!(links(&many), 1);
    make_dir(&many, "c");
    assert_eq!(links(&many), 1);
    many.remove_dir(&Context::root(), name("a")).unwrap();
    assert_eq!(links(&many), 1);
    // One that has no index cannot have so many.
    let few = root.lookup(name("few")).unwrap();
    make_dir(&few, "a");
    let too_many = create(&few, "b", CreateKind::Directory).unwrap_err();
    assert!(matches!(
        too_many,
        Error::Condition(Condition::TooManyLinks)
    ));
    let moved = make_dir(&root, "moved");
    let context = Context::root();
    let refused = root.rename(
        &context,
        name("moved"),
        few.id(),
        name("moved"),
        RenameMode::Replace,
    );
    assert!(matches!(
        refused,
        Err(Error::Condition(Condition::TooManyLinks))
    ));
    drop(moved);
}

fn set_flags(file: &Arc<dyn Inode>, flags: u32, project: Option<u32>) {
    let changes = SetAttr {
        flags: Some(file.attr().unwrap().flags | flags),
        project,
        ..SetAttr::default()
    };
    file.set_attr(&Context::root(), &changes).unwrap();
}

#[test]
fn casefolded_directory_is_valid_for_e2fsck() {
    let image = Image::make(20_000, &["-t", "ext4", "-b", "1024", "-O", "casefold"]);
    let ours = image.mount();
    let root = ours.root().unwrap();
    let folded = make_dir(&root, "folded");
    set_flags(&folded, 0x4000_0000, None);
    for number in 0..400 {
        create(&folded, &format!("Größe-{number}-ÉÉÉ"), CreateKind::Fifo).unwrap();
    }
    let exists = create(&folded, "GRÖSSE-17-ééé", CreateKind::Fifo).unwrap_err();
    assert!(matches!(exists, Error::Condition(Condition::Exists)));
    for number in (0..400).step_by(2) {
        let text = format!("GRÖSSE-{number}-ééé");
        folded.unlink(&Context::root(), name(&text)).unwrap();
    }
    assert_eq!(names(&folded).len(), 200);
    // What is made in it folds, too.
    let below = make_dir(&folded, "below");
    create(&below, "Straße", CreateKind::Fifo).unwrap();
    below.lookup(name("STRASSE")).unwrap();
    drop((below, folded, root));
    ours.unmount().unwrap();
    drop(ours);
    image.assert_clean("casefold");
}

#[test]
fn flags_and_projects_of_a_directory_keep_names_out() {
    let image = Image::make(20_000, &["-t", "ext4", "-b", "1024", "-O", "project"]);
    let ours = image.mount();
    let root = ours.root().unwrap();
    let context = Context::root();
    let (five, other) = (make_dir(&root, "five"), make_dir(&root, "other"));
    set_flags(&five, 0x2000_0000, Some(5));
    let mine = create(&five, "mine", CreateKind::Regular).unwrap();
    assert_eq!(mine.attr().unwrap().project, 5);
    let stranger = create(&other, "stranger", CreateKind::Regular).unwrap();
    let refused = |result: Result<(), Error>, expected: Condition| {
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::Condition(found) if found == expected),
            "{error}"
        );
    };
    let linked = five.link(&context, name("linked"), stranger.id());
    refused(linked, Condition::CrossDevice);
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        let moved = other.rename(&context, name("stranger"), five.id(), name("mine"), mode);
        refused(moved, Condition::CrossDevice);
    }
    let out = five.rename(
        &context,
        name("mine"),
        other.id(),
        name("mine"),
        RenameMode::Replace,
    );
    out.unwrap();

    set_flags(&other, 0x10, None);
    let made = create(&other, "new", CreateKind::Fifo).map(|_| ());
    refused(made, Condition::NotPermitted);
    refused(
        other.unlink(&context, name("mine")),
        Condition::NotPermitted,
    );
    set_flags(&five, 0x20, None);
    create(&five, "only", CreateKind::Fifo).unwrap();
    refused(five.unlink(&context, name("only")), Condition::NotPermitted);
    drop((mine, stranger, five, other, root));
    ours.unmount().unwrap();
    drop(ours);
    image.assert_clean("flags and projects");
}

/// Moves, makes and removes names of directories that others work in, too.
fn work(root: &Arc<dyn Inode>, seed: u64, steps: usize) {
    let mut random = Prng::new(seed);
    let context = Context::root();
    let mut below = |bound: u64| random.below(bound);
    for _ in 0..steps {
        let texts = ["a", "b", "c", "d"].map(str::to_owned);
        let mut pick = |texts: &[String; 4]| texts[usize::try_from(below(4)).unwrap()].clone();
        let (dir, other) = (pick(&texts), pick(&texts));
        let (text, new) = (pick(&texts), pick(&texts));
        let find = |path: &[&String]| {
            let mut at = Arc::clone(root);
            for text in path {
                at = at.lookup(name(text))?;
            }
            Ok::<_, Error>(at)
        };
        let (Ok(dir), Ok(other)) = (find(&[&dir]), find(&[&other, &new])) else {
            let _ = create(root, &dir, CreateKind::Directory);
            continue;
        };
        let kinds = [CreateKind::Directory, CreateKind::Regular];
        let result = match below(8) {
            0..=2 => create(
                &dir,
                &text,
                kinds[usize::try_from(below(2)).unwrap()].clone(),
            )
            .map(|_| ()),
            3 => dir.unlink(&context, name(&text)),
            4 => dir.remove_dir(&context, name(&text)),
            5 => dir.rename(
                &context,
                name(&text),
                other.id(),
                name(&new),
                RenameMode::Exchange,
            ),
            6 => other.rename(
                &context,
                name(&new),
                dir.id(),
                name(&text),
                RenameMode::Replace,
            ),
            _ => dir.rename(
                &context,
                name(&text),
                other.id(),
                name(&new),
                RenameMode::Replace,
            ),
        };
        match result {
            Ok(()) | Err(Error::Condition(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn threads_move_names_past_each_other() {
    let kinds: [&[&str]; 4] = [
        &["-t", "ext4", "-b", "1024", "-J", "size=1"],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "orphan_file,bigalloc",
            "-C",
            "4096",
        ],
        &[
            "-t",
            "ext4",
            "-b",
            "4096",
            "-O",
            "inline_data,^metadata_csum",
        ],
        &["-t", "ext2", "-b", "1024"],
    ];
    for options in kinds {
        let image = Image::make(20_000, options);
        let ours = image.mount();
        let root = ours.root().unwrap();
        for text in ["a", "b", "c", "d"] {
            let dir = make_dir(&root, text);
            for text in ["a", "b", "c", "d"] {
                make_dir(&dir, text);
            }
        }
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let root = Arc::clone(&root);
                std::thread::Builder::new()
                    .spawn_scoped(scope, move || work(&root, seed, 2000))
                    .unwrap();
            }
        });
        assert_tree(&root, &root);
        drop(root);
        ours.unmount().unwrap();
        drop(ours);
        image.assert_clean(&options.join(" "));
        image.assert_same_for_the_kernel();
    }
}

/// Every directory names its parent, and counts the directories in it.
fn assert_tree(dir: &Arc<dyn Inode>, parent: &Arc<dyn Inode>) {
    assert_eq!(dir.lookup(name("..")).unwrap().id(), parent.id());
    let mut directories = 0;
    for entry in read_dir_all(&**dir).unwrap() {
        if entry.kind == Some(FileKind::Directory) {
            directories += 1;
            let below = dir.lookup(entry.name.as_name()).unwrap();
            assert_tree(&below, dir);
        }
    }
    assert_eq!(dir.attr().unwrap().links, 2 + directories);
}
