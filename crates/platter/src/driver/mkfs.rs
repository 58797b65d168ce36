//! How a driver makes a filesystem.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_ondisk::Uuid;
use platter_vfs::{Clock, Filesystem, Result};

use super::DRIVERS;
use crate::Format;
use crate::devices::Devices;
use crate::options::OptionError;

/// A filesystem that is to be made: its options, and how its driver makes it. The same options, clock
/// and seed make the same bytes.
pub(crate) trait Mkfs: fmt::Debug + Send + Sync {
    /// A copy of it.
    fn boxed(&self) -> Box<dyn Mkfs>;

    /// Its format.
    fn format(&self) -> Format;

    /// Whether directories can be subvolumes.
    fn has_subvolumes(&self) -> bool {
        false
    }

    /// Whether files can share extents.
    fn shares_extents(&self) -> bool {
        false
    }

    /// Its label.
    ///
    /// # Errors
    /// What it takes, where it is longer.
    fn set_label(&mut self, label: Vec<u8>) -> Result<(), OptionError>;

    /// Its UUID; a random one by default.
    fn set_uuid(&mut self, uuid: Uuid);

    /// User and group of the root directory; the superuser's by default.
    fn set_root_owner(&mut self, uid: u32, gid: u32);

    /// The owner of the root directory, if one was given.
    fn root_owner(&self) -> Option<(u32, u32)>;

    /// Switches a feature on or off, by its name in the format's own tools.
    ///
    /// # Errors
    /// `Unsupported` for a feature that cannot be made.
    fn set_feature(&mut self, name: &str, on: bool) -> Result<()>;

    /// Sets an option that is a number, or 1 for a flag, by the long name of the command line.
    fn set_number(&mut self, name: &str, value: u64) -> Result<(), OptionError>;

    /// Sets an option that is a word.
    fn set_word(&mut self, _name: &str, _value: &str) -> Result<(), OptionError> {
        Err(OptionError::Unknown)
    }

    /// An option that was given and changes nothing without another one, in words for the caller.
    fn idle_option(&self) -> Option<&'static str> {
        None
    }

    /// Has at least so many inodes, where their number is fixed.
    fn require_inodes(&mut self, inodes: u32);

    /// Bytes that an image has beyond what its content takes, so that the filesystem can be written, too.
    fn spare_bytes(&self) -> u64 {
        0
    }

    /// Has it leave as little space unused as it can: its image is to be as short as its content allows.
    fn set_minimal(&mut self) {}

    /// Chooses what is random, so that it is the same however often it is made.
    fn choose_random(&mut self, clock: &dyn Clock);

    /// Refuses what [`make`](Self::make) would refuse for devices of these lengths, before anything
    /// is changed.
    fn check(&self, targets: &Devices, clock: &dyn Clock) -> Result<()>;

    /// Makes it.
    ///
    /// # Errors
    /// `NoSpace` on devices that are too small, `InvalidArgument` for sizes that do not go together,
    /// `Unsupported` for what cannot be made.
    fn make(&self, request: MkfsRequest<'_>) -> Result<()>;

    /// Mounts what was made, to fill it.
    fn mount(&self, request: FillRequest<'_>) -> Result<Arc<dyn Filesystem>>;

    /// The free bytes of a filesystem that is not mounted, by its superblock.
    fn free_bytes(&self, device: &Arc<dyn BlockDevice>) -> Result<u64>;

    /// Lengths within which the content takes the same space.
    fn length_classes(&self) -> Vec<Range<u64>>;

    /// A number of bytes that lengths are multiples of.
    fn length_unit_bytes(&self) -> u64;
}

/// Whether devices hold zeros all over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDevice {
    /// As a new file does. Nothing refers to it before it is finished.
    Zeros,
    /// Anything.
    Anything,
}

/// Where to make a filesystem.
#[derive(Debug)]
pub(crate) struct MkfsRequest<'r> {
    /// All of each is used.
    pub(crate) targets: &'r Devices,
    pub(crate) before: OnDevice,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) clock: &'r dyn Clock,
}

/// What to fill.
#[derive(Debug)]
pub(crate) struct FillRequest<'r> {
    pub(crate) targets: &'r Devices,
    /// What was on the devices before the filesystem.
    pub(crate) before: OnDevice,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// A type of filesystem that can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FilesystemType {
    /// ext2: without a journal.
    Ext2,
    /// ext3: with a journal.
    Ext3,
    /// ext4: with a journal, extents and checksums.
    Ext4,
    /// btrfs.
    Btrfs,
    /// XFS of version 5.
    Xfs,
}

impl FilesystemType {
    /// Returns the name, as `mount` knows it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext2 => "ext2",
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
            Self::Btrfs => "btrfs",
            Self::Xfs => "xfs",
        }
    }
}

/// A filesystem that is to be made: its type and options.
pub struct NewFilesystem(Box<dyn Mkfs>);

impl NewFilesystem {
    pub(crate) fn new(mkfs: impl Mkfs + 'static) -> Self {
        Self(Box::new(mkfs))
    }

    /// The defaults of a [type](crate::make::types).
    #[must_use]
    pub fn of_type(kind: &str) -> Option<Self> {
        DRIVERS
            .iter()
            .find_map(|driver| driver.mkfs(kind))
            .map(Self)
    }

    pub(crate) fn driver(&self) -> &dyn Mkfs {
        &*self.0
    }

    pub(crate) fn driver_mut(&mut self) -> &mut dyn Mkfs {
        &mut *self.0
    }

    /// Whether directories of its content can be subvolumes.
    #[must_use]
    pub fn has_subvolumes(&self) -> bool {
        self.0.has_subvolumes()
    }

    /// Whether files can share extents, with the features that are set.
    #[must_use]
    pub fn shares_extents(&self) -> bool {
        self.0.shares_extents()
    }

    /// Sets the label.
    ///
    /// # Errors
    /// What a label is, where this is none.
    pub fn set_label(&mut self, label: impl Into<Vec<u8>>) -> Result<(), OptionError> {
        self.0.set_label(label.into())
    }

    /// Sets the UUID.
    pub fn set_uuid(&mut self, uuid: Uuid) {
        self.0.set_uuid(uuid);
    }

    /// Sets user and group of the root directory.
    pub fn set_root_owner(&mut self, uid: u32, gid: u32) {
        self.0.set_root_owner(uid, gid);
    }

    /// Switches a feature on or off, by its name in the format's own tools.
    ///
    /// # Errors
    /// `Unsupported` for a feature that cannot be made.
    pub fn set_feature(&mut self, name: &str, on: bool) -> Result<()> {
        self.0.set_feature(name, on)
    }

    /// Sets an option of this type that is a number, or 1 for a flag, by its long name on the command
    /// line of `platter mkfs`.
    ///
    /// # Errors
    /// `Unknown` where the type has none of this name.
    pub fn set_number(&mut self, name: &str, value: u64) -> Result<(), OptionError> {
        self.0.set_number(name, value)
    }

    /// Sets an option of this type that is a word.
    ///
    /// # Errors
    /// `Unknown` where the type has none of this name.
    pub fn set_word(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        self.0.set_word(name, value)
    }

    /// An option that was given and changes nothing without another one, in words for the caller.
    #[must_use]
    pub fn idle_option(&self) -> Option<&'static str> {
        self.0.idle_option()
    }
}

impl From<FilesystemType> for NewFilesystem {
    /// A filesystem with the defaults of the format's own `mkfs`.
    fn from(kind: FilesystemType) -> Self {
        let Some(new) = Self::of_type(kind.name()) else {
            unreachable!("a driver makes each type");
        };
        new
    }
}

impl Clone for NewFilesystem {
    fn clone(&self) -> Self {
        Self(self.0.boxed())
    }
}

impl fmt::Debug for NewFilesystem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// A number that fits the option.
pub(super) fn fit<T: TryFrom<u64>>(value: u64) -> Result<T, OptionError> {
    T::try_from(value).map_err(|_| OptionError::Invalid("a smaller number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::make::types;

    #[test]
    fn each_type_is_made_by_a_driver() {
        let all = [
            FilesystemType::Ext2,
            FilesystemType::Ext3,
            FilesystemType::Ext4,
            FilesystemType::Btrfs,
            FilesystemType::Xfs,
        ];
        let names: Vec<&str> = all.into_iter().map(FilesystemType::name).collect();
        assert_eq!(types().collect::<Vec<_>>(), names);
        for kind in all {
            let by_name = NewFilesystem::of_type(kind.name()).unwrap();
            let by_kind = format!("{:?}", NewFilesystem::from(kind));
            assert_eq!(by_kind, format!("{by_name:?}"));
        }
    }
}
