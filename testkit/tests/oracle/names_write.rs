//! Names that are made, moved and removed on filesystems of every layout: with the answers of the
//! model of POSIX, clean for `e2fsck`, and the same tree for the kernel.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use platter::block::{Access, BlockDevice, FileDevice, OpenOptions};
use platter_cache::MemoryBudget;
use platter_ext4::{Ext4, MountOptions, Recovery};
use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::acl::{ACL_DEFAULT_NAME, AclEntry, AclSubject, PosixAcl};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::{
    Context, CreateKind, Credentials, DirCursor, Error, FileKind, Filesystem, FixedClock, Inode,
    Name, NameBuf, RenameMode, Timestamp, XattrMode,
};
use testkit::compare::{Rules, compare};
use testkit::loopdev::{self, Mount};
use testkit::oracle::mke2fs;
use testkit::prng::Prng;

use crate::images::assert_clean;

/// Files that are held at a time, by name or not.
const HELD_MAX: usize = 40;
/// Rounds between which the filesystem is mounted anew.
const ROUNDS: usize = 3;

/// One file in both filesystems.
#[derive(Clone)]
struct Pair {
    model: Arc<dyn Inode>,
    real: Arc<dyn Inode>,
}

/// What is done to both filesystems.
#[derive(Debug)]
enum Step {
    Create(NameBuf, CreateKind, u32),
    Unnamed,
    Link(NameBuf, usize),
    Unlink(NameBuf),
    RemoveDir(NameBuf),
    Rename(NameBuf, usize, NameBuf, RenameMode),
    SetDefaultAcl,
}

/// Both filesystems, and the files that are held.
struct Bench {
    clock: Arc<FixedClock>,
    model: MemFs,
    /// Absent only while it is mounted anew.
    real: Option<Ext4>,
    held: Vec<Pair>,
    random: Prng,
    /// Names are this long at most.
    name_len_max: u64,
}

fn mount(path: &Path, clock: &Arc<FixedClock>, read_only: bool) -> Ext4 {
    let options = OpenOptions {
        access: if read_only {
            Access::Read
        } else {
            Access::Write
        },
        ..OpenOptions::default()
    };
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(path, options).unwrap());
    let options = MountOptions {
        read_only,
        recovery: if read_only {
            Recovery::InMemory
        } else {
            Recovery::OnDevice
        },
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    let clock: Arc<FixedClock> = Arc::clone(clock);
    Ext4::mount(device, &options, budget, clock).unwrap()
}

impl Bench {
    fn new(path: &Path, seed: &[u8], name_len_max: u64) -> Self {
        let now = Timestamp {
            seconds: 1_760_000_000,
            nanoseconds: 0,
        };
        let clock = Arc::new(FixedClock::new(now, 7));
        let model = MemFs::new(Arc::<FixedClock>::clone(&clock), MemFsLimits::default());
        model
            .plant(b"/lost+found", CreateKind::Directory, 0o700)
            .unwrap();
        let real = Some(mount(path, &clock, false));
        let mut bench = Self {
            clock,
            model,
            real,
            held: Vec::new(),
            random: Prng::named(seed),
            name_len_max,
        };
        bench.hold_root();
        // From now on both roots have the same times.
        let name = Name::new(b"first").unwrap();
        let root = bench.held[0].clone();
        for root in [root.model, root.real] {
            let kind = CreateKind::Fifo;
            root.create(&Context::root(), name, kind, 0o600).unwrap();
        }
        bench
    }

    fn hold_root(&mut self) {
        self.held = vec![Pair {
            model: self.model.root().unwrap(),
            real: self.real().root().unwrap(),
        }];
    }

    fn real(&self) -> &Ext4 {
        self.real.as_ref().unwrap()
    }

    fn unmount(&mut self) {
        self.held.clear();
        self.real.take().unwrap().unmount().unwrap();
    }

    fn remount(&mut self, path: &Path) {
        self.unmount();
        self.real = Some(mount(path, &self.clock, false));
        self.hold_root();
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.below(bound as u64)).unwrap()
    }

    fn name(&mut self) -> NameBuf {
        let number = self.random.below(30);
        if number == 0 {
            let dots = [&b"."[..], b".."][self.below(2)];
            return Name::new(dots).unwrap().to_owned();
        }
        let mut name = format!("name-{number}-").into_bytes();
        // The same number is always the same name.
        let length = 3 + number * 7919 % self.name_len_max;
        name.resize(
            usize::try_from(length.max(1)).unwrap().max(name.len()),
            b'n',
        );
        Name::new(&name).unwrap().to_owned()
    }

    /// One of the directories that are held.
    fn directory(&mut self) -> usize {
        let at = self.below(self.held.len());
        let kind = self.held[at].model.attr().unwrap().kind;
        if kind == FileKind::Directory { at } else { 0 }
    }

    fn step(&mut self) -> Step {
        let name = self.name();
        match self.below(20) {
            0..=4 => {
                let kind = CreateKind::Regular;
                Step::Create(name, kind, 0o6777)
            }
            5..=7 => Step::Create(name, CreateKind::Directory, 0o1777),
            8 => {
                let length = [1, 59, 60, 61, 900][self.below(5)];
                let target = vec![b't'; length];
                Step::Create(name, CreateKind::Symlink(target), 0)
            }
            9 => {
                let major = [0, 8, 300][self.below(3)];
                let device = DeviceNumber {
                    major,
                    minor: 70_000,
                };
                let kind = [
                    CreateKind::CharDevice(device),
                    CreateKind::BlockDevice(device),
                    CreateKind::Fifo,
                    CreateKind::Socket,
                ];
                Step::Create(name, kind[self.below(4)].clone(), 0o644)
            }
            10 => Step::Unnamed,
            11 => Step::Link(name, self.below(self.held.len())),
            12 | 13 => Step::Unlink(name),
            14 => Step::RemoveDir(name),
            15 => Step::SetDefaultAcl,
            _ => {
                let mode = match self.below(6) {
                    0 => RenameMode::NoReplace,
                    1 => RenameMode::Exchange,
                    2 => RenameMode::Whiteout,
                    _ => RenameMode::Replace,
                };
                Step::Rename(name, self.directory(), self.name(), mode)
            }
        }
    }

    /// Does one random thing to both, and compares the answers.
    fn run(&mut self, number: usize) {
        self.clock.advance(Duration::from_secs(1));
        let step = self.step();
        let at = self.below(self.held.len());
        let dir = self.held[at].clone();
        let model = self.apply(&dir.model, &step, |pair| &pair.model);
        let real = self.apply(&dir.real, &step, |pair| &pair.real);
        match (model, real) {
            (Ok(model), Ok(real)) => {
                if let (Some(model), Some(real)) = (model, real) {
                    let pair = Pair { model, real };
                    let at = 1 + self.below(HELD_MAX);
                    if at < self.held.len() {
                        self.held[at] = pair;
                    } else {
                        self.held.push(pair);
                    }
                }
            }
            (Err(model), Err(real)) => assert_eq!(
                model.errno(),
                real.errno(),
                "{number}: {step:?}: {model} and {real}"
            ),
            (model, real) => panic!("{number}: {step:?}: {model:?} and {real:?}"),
        }
        assert_eq!(
            attributes(&dir.model),
            attributes(&dir.real),
            "{number}: {step:?}"
        );
        if number.is_multiple_of(50) {
            for pair in &self.held {
                assert_eq!(attributes(&pair.model), attributes(&pair.real), "{number}");
            }
        }
    }

    fn apply(
        &self,
        dir: &Arc<dyn Inode>,
        step: &Step,
        side: impl Fn(&Pair) -> &Arc<dyn Inode>,
    ) -> Result<Option<Arc<dyn Inode>>, Error> {
        let context = Context {
            credentials: Credentials::new(1000, 100),
            umask: 0o022,
        };
        let held = |at: usize| side(&self.held[at]).id();
        let done = match step {
            Step::SetDefaultAcl => {
                if dir.attr()?.kind != FileKind::Directory {
                    return Ok(None);
                }
                let acl = default_acl().encode();
                dir.set_xattr(&context, ACL_DEFAULT_NAME, &acl, XattrMode::Set)
            }
            Step::Create(name, kind, permissions) => {
                let made = dir.create(&context, name.as_name(), kind.clone(), *permissions)?;
                return Ok(Some(made));
            }
            Step::Unnamed => {
                // The model makes one below any file.
                if dir.attr()?.kind != FileKind::Directory {
                    return Ok(None);
                }
                return Ok(Some(dir.create_unnamed(&context, 0o666)?));
            }
            Step::Link(name, target) => dir.link(&context, name.as_name(), held(*target)),
            Step::Unlink(name) => dir.unlink(&context, name.as_name()),
            Step::RemoveDir(name) => dir.remove_dir(&context, name.as_name()),
            Step::Rename(name, to, new_name, mode) => dir.rename(
                &context,
                name.as_name(),
                held(*to),
                new_name.as_name(),
                *mode,
            ),
        };
        done.map(|()| None)
    }
}

/// A list that lets one more user in.
fn default_acl() -> PosixAcl {
    let subjects = [
        (AclSubject::Owner, 7),
        (AclSubject::User(1001), 6),
        (AclSubject::OwningGroup, 5),
        (AclSubject::Mask, 7),
        (AclSubject::Other, 4),
    ];
    let entries = subjects.map(|(subject, permissions)| AclEntry {
        subject,
        permissions,
    });
    PosixAcl::new(entries.to_vec()).unwrap()
}

/// The attributes of a file that must be equal in both filesystems.
fn attributes(inode: &Arc<dyn Inode>) -> impl PartialEq + std::fmt::Debug {
    let attr = inode.attr().unwrap();
    let is_directory = attr.kind == FileKind::Directory;
    let size_bytes = if is_directory { 0 } else { attr.size_bytes };
    let times = (attr.modified, attr.changed);
    let target = inode.read_link().ok();
    let mut xattrs = inode.list_xattrs().unwrap();
    xattrs.sort();
    let values = xattrs.iter().map(|name| inode.get_xattr(name).unwrap());
    let xattrs: Vec<_> = xattrs.iter().cloned().zip(values).collect();
    let owner = (attr.uid, attr.gid, attr.permissions);
    (
        attr.kind,
        owner,
        attr.links,
        size_bytes,
        attr.device,
        times,
        (target, xattrs),
    )
}

/// Every path below `dir`, with its attributes.
fn paths(dir: &Arc<dyn Inode>, path: &str, found: &mut BTreeMap<String, String>) {
    let mut names = Vec::new();
    dir.read_dir(DirCursor::START, &mut |entry| {
        names.push(entry.name.to_owned());
        ControlFlow::Continue(())
    })
    .unwrap();
    for name in names {
        let inode = dir.lookup(name.as_name()).unwrap();
        if name.as_name().is_dot_or_dotdot() {
            continue;
        }
        let path = format!("{path}/{}", name.as_name().escape_ascii());
        let is_directory = inode.attr().unwrap().kind == FileKind::Directory;
        if path != "/lost+found" {
            let shown = format!("{:?}", attributes(&inode));
            assert_eq!(
                found.insert(path.clone(), shown),
                None,
                "{path} is listed twice"
            );
        }
        if is_directory {
            paths(&inode, &path, found);
        }
    }
}

fn tree(filesystem: &dyn Filesystem) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    paths(&filesystem.root().unwrap(), "", &mut found);
    found
}

/// Changes a new filesystem and the model, `steps` times in each round.
fn assert_like_the_model(size_kib: u64, options: &[&str], steps: usize, kernel_reads: bool) {
    let host_dir = tempfile::tempdir().unwrap();
    let path = host_dir.path().join("image");
    mke2fs::make(&path, size_kib, options, None).unwrap();
    let name_len_max = if options.contains(&"1024") { 250 } else { 60 };
    let mut bench = Bench::new(&path, options.concat().as_bytes(), name_len_max);
    for round in 0..ROUNDS {
        for number in 0..steps {
            bench.run(round * steps + number);
        }
        assert_eq!(tree(bench.real()), tree(&bench.model), "{options:?}");
        bench.remount(&path);
        assert_eq!(tree(bench.real()), tree(&bench.model), "{options:?}");
    }
    bench.unmount();
    assert_clean(&path, options.join(" "));
    if !kernel_reads {
        return;
    }
    let ours = mount(&path, &bench.clock, true);
    let kernel = Mount::image(&path, "noload", loopdev::Access::ReadOnly).unwrap();
    let rules = Rules::KERNEL_MOUNT;
    compare(&ours, kernel.root(), rules).unwrap().assert_equal();
}

#[test]
fn ext2_and_ext3_answer_like_the_model() {
    assert_like_the_model(20_000, &["-t", "ext2", "-b", "1024"], 1500, true);
    assert_like_the_model(
        20_000,
        &["-t", "ext2", "-b", "4096", "-O", "^filetype"],
        700,
        true,
    );
    assert_like_the_model(
        20_000,
        &["-t", "ext3", "-b", "1024", "-J", "size=4"],
        1500,
        true,
    );
    assert_like_the_model(
        20_000,
        &["-t", "ext3", "-b", "2048", "-O", "^dir_index"],
        700,
        true,
    );
}

#[test]
fn ext4_answers_like_the_model() {
    assert_like_the_model(30_000, &["-t", "ext4", "-b", "1024"], 1500, true);
    assert_like_the_model(30_000, &["-t", "ext4", "-b", "4096"], 1500, true);
    assert_like_the_model(
        30_000,
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
        700,
        true,
    );
    assert_like_the_model(
        30_000,
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^has_journal,large_dir,^dir_nlink",
        ],
        700,
        true,
    );
    assert_like_the_model(
        30_000,
        &["-t", "ext4", "-b", "1024", "-I", "128"],
        700,
        true,
    );
}

#[test]
fn inline_directories_and_clusters_answer_like_the_model() {
    assert_like_the_model(
        30_000,
        &["-t", "ext4", "-b", "1024", "-O", "inline_data"],
        1500,
        true,
    );
    assert_like_the_model(
        30_000,
        &[
            "-t",
            "ext4",
            "-b",
            "4096",
            "-I",
            "1024",
            "-O",
            "inline_data",
        ],
        700,
        true,
    );
    assert_like_the_model(
        60_000,
        &["-t", "ext4", "-b", "1024", "-C", "16384", "-O", "bigalloc"],
        1500,
        true,
    );
    assert_like_the_model(
        30_000,
        &["-t", "ext4", "-b", "1024", "-O", "orphan_file"],
        700,
        true,
    );
    assert_like_the_model(
        30_000,
        &["-t", "ext4", "-b", "1024", "-O", "casefold"],
        700,
        false,
    );
}
