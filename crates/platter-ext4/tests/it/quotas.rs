//! Quotas: usage as e2fsck and debugfs count it, and limits.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use platter_block::Access;
use platter_cache::MemoryBudget;
use platter_ext4::ondisk::quota::QuotaRule;
use platter_ext4::{Ext4, MountOptions};
use platter_ondisk::Rule;
use platter_vfs::clock::FixedClock;
use platter_vfs::credentials::Credentials;
use platter_vfs::quotas::{Quota, QuotaOwner};
use platter_vfs::{
    Condition, Context, CreateKind, Error, Filesystem, Inode, Name, RenameMode, Result, SetAttr,
    Timestamp, XattrMode,
};

use crate::image::{Image, noise, run, tool, walk};

const ALL_KINDS: &[&str] = &[
    "-t",
    "ext4",
    "-b",
    "1024",
    "-O",
    "has_journal,extent,metadata_csum,quota,project,ea_inode",
    "-E",
    "quotatype=usrquota:grpquota:prjquota",
];
/// `FS_PROJINHERIT_FL`.
const PROJECT_INHERIT: u32 = 0x2000_0000;
const WEEK: Duration = Duration::from_hours(7 * 24);

struct Mount {
    filesystem: Ext4,
    clock: Arc<FixedClock>,
}

impl Mount {
    fn new(image: &Image, quota_limits: [bool; 3]) -> Self {
        let options = MountOptions {
            read_only: false,
            quota_limits,
            ..MountOptions::default()
        };
        let now = Timestamp {
            seconds: 1_700_000_100,
            nanoseconds: 7,
        };
        let clock = Arc::new(FixedClock::new(now, 1));
        let budget = Arc::new(MemoryBudget::new(32 << 20));
        let device = image.device(Access::Write);
        let filesystem = Ext4::mount(device, &options, budget, Arc::clone(&clock) as _).unwrap();
        Self { filesystem, clock }
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.filesystem.root().unwrap()
    }

    fn limit(&self, owner: QuotaOwner, limits: Quota) {
        let quotas = self.filesystem.quotas().unwrap();
        quotas.set_limits(owner, &limits).unwrap();
    }

    fn used(&self, owner: QuotaOwner) -> (u64, u64) {
        let quota = self.filesystem.quotas().unwrap().get(owner).unwrap();
        (quota.used_bytes, quota.inodes)
    }
}

fn user(uid: u32) -> Context {
    Context {
        credentials: Credentials {
            uid,
            gid: uid + 1,
            groups: Vec::new(),
        },
        ..Context::root()
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn file(dir: &Arc<dyn Inode>, uid: u32, called: &str, len: usize) -> Result<Arc<dyn Inode>> {
    let inode = dir.create(&user(uid), name(called), CreateKind::Regular, 0o644)?;
    if len > 0 {
        inode.write_at(0, &noise(u64::from(uid), len))?;
    }
    Ok(inode)
}

/// Space and inodes by id, as debugfs lists them.
fn listed(image: &Image, kind: &str) -> BTreeMap<u32, (u64, u64)> {
    let mut command = tool("debugfs");
    let text = run(
        command
            .arg("-R")
            .arg(format!("lq {kind}"))
            .arg(image.path()),
        "",
    );
    let numbers = |line: &str| -> Option<Vec<u64>> {
        let words = line.split_whitespace().map(|word| word.parse().ok());
        words.collect()
    };
    let lines = text
        .lines()
        .filter_map(numbers)
        .filter(|line| line.len() == 7);
    lines
        .map(|line| (u32::try_from(line[0]).unwrap(), (line[1], line[4])))
        .collect()
}

fn is_exceeded<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::Condition(Condition::QuotaExceeded)))
}

#[test]
fn usage_follows_every_change() {
    for options in [
        ALL_KINDS,
        &["-t", "ext4", "-O", "has_journal,extent,flex_bg,64bit,quota"],
        &["-t", "ext4", "-O", "extent,quota,inline_data"],
        &["-b", "1024", "-O", "has_journal,quota"],
        &[
            "-t",
            "ext4",
            "-O",
            "has_journal,extent,quota,bigalloc",
            "-C",
            "16384",
        ],
    ] {
        let image = Image::format(options, "32M");
        let mount = Mount::new(&image, [false; 3]);
        let root = mount.root();
        let has_projects = options == ALL_KINDS;
        let dir = root.create(&user(7), name("dir"), CreateKind::Directory, 0o777);
        let dir = dir.unwrap();
        if has_projects {
            let project = SetAttr {
                project: Some(42),
                flags: Some(0x2000_0000),
                ..SetAttr::default()
            };
            dir.set_attr(&Context::root(), &project).unwrap();
        }
        for number in 0..120u32 {
            let called = format!("file {number} with a long name so that directories grow");
            let written = file(&dir, number % 5, &called, number as usize * 300).unwrap();
            if number % 7 == 0 {
                let value = noise(1, if has_projects { 3000 } else { 300 });
                let set = written.set_xattr(&Context::root(), b"user.a", &value, XattrMode::Set);
                set.unwrap();
            }
            if number % 11 == 0 {
                let owner = SetAttr {
                    uid: Some(900 + number),
                    gid: Some(5),
                    ..SetAttr::default()
                };
                written.set_attr(&Context::root(), &owner).unwrap();
            }
            if number % 6 == 0 {
                written.sync(false).unwrap();
            }
            if number % 4 == 0 {
                let size = SetAttr {
                    size_bytes: Some(u64::from(number) * 100),
                    ..SetAttr::default()
                };
                written.set_attr(&user(number % 5), &size).unwrap();
            }
            if number % 3 == 0 {
                dir.unlink(&user(0), name(&called)).unwrap();
            }
            if number % 10 == 1 && number % 3 != 0 {
                let hidden = root.id();
                let to = format!("moved {number}");
                let mode = RenameMode::Whiteout;
                let moved = dir.rename(&user(3), name(&called), hidden, name(&to), mode);
                if has_projects {
                    assert!(moved.is_ok(), "{moved:?}");
                }
                moved.unwrap();
            }
        }
        let target = CreateKind::Symlink(vec![b'x'; 200]);
        root.create(&user(4), name("link"), target, 0o777).unwrap();
        mount.filesystem.unmount().unwrap();
        drop(root);
        drop(dir);
        let used = mount.used(QuotaOwner::User(4));
        drop(mount);
        assert_eq!(image.faults(), "", "{options:?}");
        assert_eq!(listed(&image, "user")[&4], used);
    }
}

#[test]
fn entries_come_and_go_with_their_ids() {
    let image = Image::format(ALL_KINDS, "32M");
    let ids: Vec<u32> = (0..200u32).map(|id| id.wrapping_mul(0x0101_3f01)).collect();
    for round in 0..3 {
        let mount = Mount::new(&image, [false; 3]);
        let root = mount.root();
        for &id in &ids {
            file(&root, id, &id.to_string(), 100).unwrap();
        }
        mount.filesystem.sync().unwrap();
        for (index, &id) in ids.iter().enumerate() {
            if index % (round + 2) != 0 {
                root.unlink(&user(0), name(&id.to_string())).unwrap();
            }
        }
        drop(root);
        mount.filesystem.unmount().unwrap();
        drop(mount);
        assert_eq!(image.faults(), "");
        let left = ids.len().div_ceil(round + 2);
        assert_eq!(
            listed(&image, "user").len(),
            left,
            "the root is one of them"
        );
        let mount = Mount::new(&image, [false; 3]);
        let root = mount.root();
        for &id in ids.iter().step_by(round + 2) {
            root.unlink(&user(0), name(&id.to_string())).unwrap();
        }
        drop(root);
        mount.filesystem.unmount().unwrap();
        drop(mount);
        assert_eq!(image.faults(), "");
        assert_eq!(listed(&image, "user").len(), 1);
    }
}

#[test]
fn hard_limits_refuse_all_but_the_superuser() {
    let image = Image::format(ALL_KINDS, "32M");
    let mount = Mount::new(&image, [true; 3]);
    let root = mount.root();
    let dir = root.create(&user(0), name("dir"), CreateKind::Directory, 0o777);
    let dir = dir.unwrap();
    mount.limit(
        QuotaOwner::User(1000),
        Quota {
            hard_bytes: Some(64 << 10),
            hard_inodes: Some(3),
            ..Quota::default()
        },
    );
    let first = file(&dir, 1000, "a", 40 << 10).unwrap();
    assert!(is_exceeded(&first.write_at(40 << 10, &noise(2, 30 << 10))));
    // A write before the limit succeeds, and what was reserved for the refused one is free again.
    first.write_at(40 << 10, &noise(2, 20 << 10)).unwrap();
    mount.filesystem.sync().unwrap();
    assert_eq!(mount.used(QuotaOwner::User(1000)).0, 60 << 10);
    file(&dir, 1000, "b", 0).unwrap();
    file(&dir, 1000, "c", 0).unwrap();
    assert!(is_exceeded(&file(&dir, 1000, "d", 0)));
    assert!(dir.lookup(name("d")).is_err());
    let value = noise(3, 20 << 10);
    let set = |context: &Context| first.set_xattr(context, b"user.a", &value, XattrMode::Set);
    assert!(is_exceeded(&set(&user(1000))));
    set(&Context::root()).unwrap();
    // A file of another is not given to the user by its group, but by the superuser.
    let other = file(&dir, 2000, "e", 8 << 10).unwrap();
    let owner = SetAttr {
        uid: Some(1000),
        ..SetAttr::default()
    };
    assert!(is_exceeded(&other.set_attr(&user(2000), &owner)));
    other.set_attr(&Context::root(), &owner).unwrap();
    drop((first, other, dir, root));
    mount.filesystem.unmount().unwrap();
    drop(mount);
    assert_eq!(image.faults(), "");
}

#[test]
fn soft_limits_refuse_after_the_grace_period() {
    let image = Image::format(ALL_KINDS, "32M");
    let mount = Mount::new(&image, [true, false, false]);
    let root = mount.root();
    let soft = Quota {
        soft_bytes: Some(10 << 10),
        soft_inodes: Some(1),
        ..Quota::default()
    };
    mount.limit(QuotaOwner::User(1000), soft);
    let first = file(&root, 1000, "a", 20 << 10).unwrap();
    first.sync(false).unwrap();
    file(&root, 1000, "b", 0).unwrap();
    mount.clock.advance(WEEK / 2);
    first.write_at(20 << 10, &[1; 1024]).unwrap();
    mount.clock.advance(WEEK);
    assert!(is_exceeded(&first.write_at(30 << 10, &[1; 1024])));
    assert!(is_exceeded(&file(&root, 1000, "c", 0)));
    root.unlink(&user(1000), name("b")).unwrap();
    // One inode is what the limit allows, and the next begins a new period.
    file(&root, 1000, "c", 0).unwrap();
    // The limits of groups are not enforced.
    let group = Quota {
        hard_inodes: Some(1),
        ..Quota::default()
    };
    mount.limit(QuotaOwner::Group(1001), group);
    file(&root, 1000, "d", 0).unwrap();
    drop((first, root));
    mount.filesystem.unmount().unwrap();
    drop(mount);
    assert_eq!(image.faults(), "");
}

#[test]
fn space_of_a_directory_ends_with_the_limits_of_its_project() {
    let image = Image::format(ALL_KINDS, "32M");
    for enforced in [true, false] {
        let mount = Mount::new(&image, [false, false, enforced]);
        let root = mount.root();
        let made = root.create(&user(0), name("dir"), CreateKind::Directory, 0o777);
        let dir = made.or_else(|_| root.lookup(name("dir"))).unwrap();
        let inherit = SetAttr {
            project: Some(7),
            flags: Some(dir.attr().unwrap().flags | PROJECT_INHERIT),
            ..SetAttr::default()
        };
        dir.set_attr(&Context::root(), &inherit).unwrap();
        mount.limit(
            QuotaOwner::Project(7),
            Quota {
                soft_bytes: Some(400 << 10),
                hard_bytes: Some(500 << 10),
                hard_inodes: Some(20),
                ..Quota::default()
            },
        );
        let file = file(&dir, 1000, if enforced { "a" } else { "b" }, 40 << 10).unwrap();
        file.sync(false).unwrap();
        let (used_bytes, inodes) = mount.used(QuotaOwner::Project(7));
        let whole = mount.filesystem.stat_fs().unwrap();
        let at = |inode: &Arc<dyn Inode>| mount.filesystem.stat_fs_at(inode.id()).unwrap();
        assert_eq!(at(&root), whole);
        assert_eq!(at(&file), whole);
        let limited = at(&dir);
        if enforced {
            let left = (400 << 10) - used_bytes;
            assert_eq!(limited.blocks * 1024, 400 << 10);
            assert_eq!(limited.blocks_free * 1024, left);
            assert_eq!(limited.blocks_available * 1024, left);
            assert_eq!((limited.inodes, limited.inodes_free), (20, 20 - inodes));
        } else {
            assert_eq!(limited, whole);
        }
        drop((file, dir, root));
        mount.filesystem.unmount().unwrap();
    }
    assert_eq!(image.faults(), "");
}

#[test]
fn usage_survives_a_crash_with_orphans() {
    for journal in ["has_journal,extent", "has_journal,extent,orphan_file"] {
        let features = format!("quota,{journal}");
        let image = Image::format(&["-t", "ext4", "-O", &features], "32M");
        let mount = Mount::new(&image, [false; 3]);
        let root = mount.root();
        let open = file(&root, 1000, "gone", 1 << 20).unwrap();
        file(&root, 1001, "kept", 100 << 10).unwrap();
        mount.filesystem.sync().unwrap();
        root.unlink(&user(1000), name("gone")).unwrap();
        mount.filesystem.sync().unwrap();
        file(&root, 1002, "lost", 100 << 10).unwrap();
        drop(mount);
        drop((root, open));
        let mount = Mount::new(&image, [false; 3]);
        assert_eq!(mount.used(QuotaOwner::User(1000)), (0, 0));
        assert_eq!(mount.used(QuotaOwner::User(1001)), (100 << 10, 1));
        assert!(walk(&mount.filesystem, "lost").is_err());
        mount.filesystem.unmount().unwrap();
        drop(mount);
        assert_eq!(image.faults(), "");
        assert!(!listed(&image, "user").contains_key(&1000));
    }
}

/// The kernel puts an EA inode without references on the orphan list.
#[test]
fn orphaned_ea_inode_is_freed_without_a_change_of_usage() {
    let image = Image::format(ALL_KINDS, "32M");
    let mount = Mount::new(&image, [false; 3]);
    file(&mount.root(), 1000, "kept", 100 << 10).unwrap();
    mount.filesystem.unmount().unwrap();
    let used = mount.used(QuotaOwner::User(1000));
    drop(mount);
    let value = image.path().with_extension("value");
    crate::image::write(&value, &noise(1, 5000));
    let printed = image.debugfs(&format!("write {} value\n", value.display()));
    let number = printed.split("Allocated inode: ").nth(1).unwrap();
    let number = number.split_whitespace().next().unwrap();
    // `EXT4_EXTENTS_FL` and `EXT4_EA_INODE_FL`.
    image.debugfs(&format!(
        "sif value uid 1000\nsif value gid 1001\nsif value flags 0x280000\n\
         sif value links_count 0\nunlink value\nssv last_orphan {number}\n"
    ));
    let mount = Mount::new(&image, [false; 3]);
    assert_eq!(mount.used(QuotaOwner::User(1000)), used);
    mount.filesystem.unmount().unwrap();
    drop(mount);
    assert_eq!(image.faults(), "");
    assert_eq!(image.field("First orphan inode"), "");
    assert_eq!(listed(&image, "user")[&1000], used);
}

#[test]
fn limits_need_a_quota_file_of_their_kind() {
    let image = Image::format(&["-t", "ext4", "-O", "quota"], "8M");
    let options = MountOptions {
        read_only: false,
        quota_limits: [true, true, true],
        ..MountOptions::default()
    };
    let error = crate::image::mount(image.device(Access::Write), &options).unwrap_err();
    let expected = "ext4: a limit of projects is not supported \
                    (the filesystem has no quota file of that kind)";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn corrupt_quota_files_are_not_written() {
    let image = Image::format(ALL_KINDS, "8M");
    let mut blocks = tool("debugfs");
    let text = run(blocks.args(["-R", "blocks <3>"]).arg(image.path()), "");
    let blocks: Vec<u64> = text
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(image.path())
        .unwrap();
    // The header is the first block, the leaf is the last.
    let (head, leaf) = (blocks[0] * 1024, blocks[5] * 1024);
    let mut slot = [0; 72];
    file.read_exact_at(&mut slot, leaf + 16).unwrap();
    file.write_all_at(&slot, leaf + 16 + 72).unwrap();
    let options = MountOptions {
        read_only: false,
        ..MountOptions::default()
    };
    let error = crate::image::mount(image.device(Access::Write), &options).unwrap_err();
    assert!(
        error.to_string().contains(QuotaRule::Duplicate.text()),
        "{error}"
    );
    file.write_all_at(&[0; 72], leaf + 16 + 72).unwrap();
    // The root is no leaf with unused slots.
    file.write_all_at(&1u32.to_le_bytes(), head + 28).unwrap();
    let mount = Mount::new(&image, [false; 3]);
    let error = file_error(&mount);
    assert!(error.contains(QuotaRule::FreeList.text()), "{error}");
}

fn file_error(mount: &Mount) -> String {
    file(&mount.root(), 1000, "a", 0).unwrap_err().to_string()
}
