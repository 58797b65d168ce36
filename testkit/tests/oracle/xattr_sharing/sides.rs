//! The kernel and platter, which take the same steps.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use platter::block::{self, BlockDevice, FileDevice};
use platter_cache::MemoryBudget;
use platter_ext4::{Ext4, MountOptions, Recovery, SharingStatistics};
use platter_vfs::{Context, CreateKind, Error, Filesystem, Inode, Name, SystemClock, XattrMode};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use testkit::loopdev::Mount;

use super::steps::{Scale, Step, file_of, name_of};

/// The kernel, or platter.
pub(super) trait Side {
    fn take(&self, scale: &Scale, step: Step) -> Result<(), Errno>;
}

pub(super) struct Kernel(pub(super) Mount);

impl Side for Kernel {
    fn take(&self, scale: &Scale, step: Step) -> Result<(), Errno> {
        let path = |file| self.0.root().join(file_of(file));
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap();
        match step {
            Step::Create(file) => fs::File::create_new(path(file)).map(drop).map_err(errno),
            Step::Unlink(file) => fs::remove_file(path(file)).map_err(errno),
            Step::Set { file, name, value } => {
                let value = scale.value_of(value);
                rustix::fs::lsetxattr(path(file), name_of(name), &value, XattrFlags::empty())
            }
            Step::Remove { file, name } => rustix::fs::lremovexattr(path(file), name_of(name)),
            Step::Read { file, name } => {
                let mut value = vec![0; 64 << 10];
                rustix::fs::lgetxattr(path(file), name_of(name), &mut value).map(drop)
            }
            Step::Write { file, length } => {
                let file = fs::OpenOptions::new()
                    .write(true)
                    .open(path(file))
                    .map_err(errno)?;
                std::io::Write::write_all(&mut &file, &vec![7; usize::try_from(length).unwrap()])
                    .map_err(errno)
            }
        }
    }
}

pub(super) struct Ours(pub(super) Ext4);

impl Side for Ours {
    fn take(&self, scale: &Scale, step: Step) -> Result<(), Errno> {
        let context = Context::root();
        let taken = match step {
            Step::Create(file) => self.create(&context, file),
            Step::Unlink(file) => self.root().unlink(&context, name(&file_of(file))),
            Step::Set { file, name, value } => self.file(file).and_then(|file| {
                let value = scale.value_of(value);
                file.set_xattr(&context, name_of(name).as_bytes(), &value, XattrMode::Set)
            }),
            Step::Remove { file, name } => self
                .file(file)
                .and_then(|file| file.remove_xattr(&context, name_of(name).as_bytes())),
            Step::Read { file, name } => self
                .file(file)
                .and_then(|file| file.get_xattr(name_of(name).as_bytes()).map(drop)),
            Step::Write { file, length } => self.file(file).and_then(|file| {
                file.write_at(0, &vec![7; usize::try_from(length).unwrap()])?;
                // The kernel moves inline contents out as it writes, platter as it writes back.
                file.sync(false)
            }),
        };
        taken.map_err(|error| error.errno())
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

impl Ours {
    pub(super) fn mount(image: &Path, mbcache: bool) -> Self {
        Self(mount(image, false, mbcache))
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.0.root().unwrap()
    }

    pub(super) fn file(&self, number: u64) -> Result<Arc<dyn Inode>, Error> {
        self.root().lookup(name(&file_of(number)))
    }

    fn create(&self, context: &Context, number: u64) -> Result<(), Error> {
        let file = file_of(number);
        let made = self
            .root()
            .create(context, name(&file), CreateKind::Regular, 0o644);
        made.map(drop)
    }

    pub(super) fn unmount(self) -> SharingStatistics {
        let statistics = self.0.sharing().unwrap_or_default();
        self.0.unmount().unwrap();
        statistics
    }
}

pub(super) fn mount(image: &Path, read_only: bool, mbcache: bool) -> Ext4 {
    let (access, recovery) = if read_only {
        (block::Access::Read, Recovery::InMemory)
    } else {
        (block::Access::Write, Recovery::OnDevice)
    };
    let options = block::OpenOptions {
        access,
        ..block::OpenOptions::default()
    };
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(image, options).unwrap());
    let options = MountOptions {
        read_only,
        recovery,
        mbcache: mbcache.then(Default::default),
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(64 << 20));
    Ext4::mount(device, &options, budget, Arc::new(SystemClock::new())).unwrap()
}
