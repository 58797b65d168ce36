//! A filesystem that the suite runs on.

use std::sync::Arc;

use anyhow::{Result, ensure};
use platter_block::sim::{Effect, Fault, FaultDevice, When};
use platter_block::{Access, BlockDevice, Operation};
use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{Context, CreateKind, Filesystem, FixedClock, Inode, Name, Timestamp};
use rustix::io::Errno;

use crate::crash::ImageFiles;
use crate::subject::{Devices, Scene, scene};
use crate::workload::Abilities;

/// Space for what the cases write.
const SIZE_KIB: u64 = 48 << 10;

/// A way to get a new filesystem.
#[derive(Debug, Clone, Copy)]
pub enum Candidate {
    /// The one in memory.
    Memory,
    /// A driver on devices.
    Scene(&'static Scene),
}

/// A new filesystem, mounted for writing.
#[derive(Debug)]
pub(super) struct Mounted {
    candidate: Candidate,
    seed: u64,
    /// Absent only while it is mounted anew.
    fs: Option<Arc<dyn Filesystem>>,
    memory: Option<Arc<MemFs>>,
    faults: Vec<Arc<FaultDevice>>,
}

/// What the devices of a filesystem held at some moment.
#[derive(Debug)]
pub(super) struct Copied {
    scene: &'static Scene,
    images: ImageFiles,
}

impl Copied {
    /// Returns the contents of a file of the root directory. Nothing is replayed.
    pub(super) fn contents(&self, name: &str) -> Result<Vec<u8>> {
        let devices = self.images.devices(Access::Read)?;
        let fs = self.scene.mount_to_read(&devices)?;
        let file = fs.root()?.lookup(Name::new(name.as_bytes())?)?;
        let mut contents = vec![0; usize::try_from(file.attr()?.size_bytes)?];
        let len = file.read_at(0, &mut contents)?;
        ensure!(len == contents.len(), "{len} bytes read");
        Ok(contents)
    }

    /// Whether the devices still hold that.
    pub(super) fn is_equal(&self, mounted: &Mounted) -> Result<bool> {
        self.images.is_equal(&ImageFiles::of(&mounted.devices())?)
    }
}

impl Candidate {
    /// Returns the scene of that name, or `memory`.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "memory" => Ok(Self::Memory),
            name => Ok(Self::Scene(scene(name)?)),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Scene(scene) => scene.name,
        }
    }

    /// The operations it supports.
    #[must_use]
    pub fn abilities(self) -> Abilities {
        match self {
            Self::Memory => Abilities {
                shift_bytes: 4096,
                fallocate: true,
                copies: true,
                clones: true,
                exchanges: true,
                subvolumes: true,
            },
            Self::Scene(scene) => scene.abilities(),
        }
    }

    pub(super) fn mount(self, seed: u64) -> Result<Mounted> {
        let mut mounted = Mounted {
            candidate: self,
            seed,
            fs: None,
            memory: None,
            faults: Vec::new(),
        };
        match self {
            Self::Memory => {
                let clock = Arc::new(FixedClock::new(Timestamp::default(), seed));
                let memory = Arc::new(MemFs::new(clock, MemFsLimits::default()));
                mounted.memory = Some(Arc::clone(&memory));
                mounted.fs = Some(memory);
            }
            Self::Scene(scene) => {
                let devices = scene.devices_of(SIZE_KIB.max(scene.size_kib))?;
                mounted.faults = devices
                    .into_iter()
                    .map(|device| Arc::new(FaultDevice::new(device)))
                    .collect();
                mounted.fs = Some(scene.mount(&mounted.devices(), seed)?);
            }
        }
        Ok(mounted)
    }
}

impl Mounted {
    pub(super) fn fs(&self) -> &dyn Filesystem {
        &**self.fs.as_ref().expect("it is mounted")
    }

    pub(super) fn root(&self) -> Result<Arc<dyn Inode>> {
        Ok(self.fs().root()?)
    }

    /// Makes a regular file in the root directory.
    pub(super) fn file(&self, name: &str) -> Result<Arc<dyn Inode>> {
        let name = Name::new(name.as_bytes())?;
        let context = Context::root();
        Ok(self
            .root()?
            .create(&context, name, CreateKind::Regular, 0o644)?)
    }

    /// Returns a file of the root directory.
    pub(super) fn lookup(&self, name: &str) -> Result<Arc<dyn Inode>> {
        Ok(self.root()?.lookup(Name::new(name.as_bytes())?)?)
    }

    fn devices(&self) -> Devices {
        let faults = self.faults.iter();
        faults
            .map(|device| Arc::clone(device) as Arc<dyn BlockDevice>)
            .collect()
    }

    /// Makes every write of contents fail, or none any more.
    pub(super) fn fail_writes(&self, fails: bool) {
        if let Some(memory) = &self.memory {
            memory.fail_writes(fails);
        }
        for device in &self.faults {
            device.disarm();
            if fails {
                device.arm(Fault {
                    operation: Operation::Write,
                    when: When::Always,
                    effect: Effect::Fail(Errno::IO),
                });
            }
        }
    }

    /// Unmounts it, checks it, and mounts it anew; one in memory is synced. No inode is in use.
    pub(super) fn remount(&mut self) -> Result<()> {
        match self.candidate {
            Candidate::Memory => Ok(self.fs().sync()?),
            Candidate::Scene(scene) => {
                self.unmount(scene)?;
                self.fs = Some(scene.mount(&self.devices(), self.seed)?);
                Ok(())
            }
        }
    }

    /// Mounts anew what could not be unmounted without an error.
    pub(super) fn mount_after_failure(&mut self) -> Result<()> {
        if let Candidate::Scene(scene) = self.candidate {
            let _ = self.fs().unmount();
            self.fs = None;
            self.fs = Some(scene.mount(&self.devices(), self.seed)?);
        }
        Ok(())
    }

    /// Returns what its devices hold now; `None` of the one in memory.
    pub(super) fn copy(&self) -> Result<Option<Copied>> {
        let Candidate::Scene(scene) = self.candidate else {
            return Ok(None);
        };
        let images = ImageFiles::of(&self.devices())?;
        Ok(Some(Copied { scene, images }))
    }

    /// Returns what its devices hold now, and demands that nothing is left to recover, and nothing wrong.
    pub(super) fn copy_offline(&self) -> Result<Option<Copied>> {
        let copied = self.copy()?;
        if let Some(Copied { scene, images }) = &copied {
            let found = images.complaints(scene)?;
            ensure!(found.is_empty(), "fsck: {}", found.join("\n"));
            ensure!(images.is_clean(scene)?, "there is something to recover");
        }
        Ok(copied)
    }

    /// Demands that a crash would leave what can be recovered, with a file of this name.
    pub(super) fn ensure_recovered_with(&self, name: &str) -> Result<()> {
        let Some(copied) = self.copy()? else {
            return Ok(());
        };
        let found = copied.images.recover(copied.scene)?;
        ensure!(found.is_empty(), "fsck: {}", found.join("\n"));
        copied.contents(name).map(drop)
    }

    /// Unmounts it, and demands that its check finds nothing, and the checker of Linux neither.
    pub(super) fn finish(mut self) -> Result<()> {
        match self.candidate {
            Candidate::Memory => Ok(self.fs().sync()?),
            Candidate::Scene(scene) => {
                self.unmount(scene)?;
                let found = ImageFiles::of(&self.devices())?.complaints(scene)?;
                ensure!(found.is_empty(), "fsck: {}", found.join("\n"));
                Ok(())
            }
        }
    }

    fn unmount(&mut self, scene: &Scene) -> Result<()> {
        self.fs().unmount()?;
        self.fs = None;
        let found = scene.check(&self.devices())?;
        ensure!(found.is_empty(), "our check: {}", found.join("\n"));
        Ok(())
    }
}
