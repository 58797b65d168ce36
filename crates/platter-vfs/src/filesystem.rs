//! The filesystem trait: one mounted filesystem.

use std::fmt::Debug;
use std::sync::Arc;

use platter_ondisk::Uuid;

use crate::{Inode, InodeId, Result, StatFs};

/// How a driver must treat a feature it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeatureClass {
    /// May be ignored.
    Compatible,
    /// Forbids writing.
    ReadOnlyCompatible,
    /// Forbids mounting.
    Incompatible,
}

/// A feature that is switched on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// Its name in the format's own tools.
    pub name: &'static str,
    /// What not knowing it would mean.
    pub class: FeatureClass,
}

/// What a filesystem says about itself, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// `ext2`, `ext3`, `ext4`, `btrfs`, `xfs`.
    pub kind: &'static str,
    /// The volume's UUID.
    pub uuid: Uuid,
    /// The label, as bytes without padding.
    pub label: Vec<u8>,
    /// Features that are on.
    pub features: Vec<Feature>,
    /// What else the format has to tell, as name and value, in a fixed order: block size, journal
    /// state, mount counts, times.
    pub details: Vec<(&'static str, String)>,
}

/// One mounted filesystem. Dropping it without [`unmount`](Self::unmount) is a power cut.
pub trait Filesystem: Send + Sync + Debug {
    /// What it says about itself.
    fn describe(&self) -> Description;

    /// Whether changes are refused.
    fn is_read_only(&self) -> bool;

    /// The unit in which times are kept, in nanoseconds: a power of ten up to a second.
    fn time_granularity(&self) -> u32 {
        1
    }

    /// The root directory.
    fn root(&self) -> Result<Arc<dyn Inode>>;

    /// The inode with this identity.
    ///
    /// # Errors
    /// `Stale` when there is no such inode in use.
    fn inode(&self, id: InodeId) -> Result<Arc<dyn Inode>>;

    /// Space and inodes.
    fn stat_fs(&self) -> Result<StatFs>;

    /// Returns when everything done so far survives a power cut.
    fn sync(&self) -> Result<()>;

    /// Brings the medium to rest. Further changes fail with `ReadOnly`.
    fn unmount(&self) -> Result<()>;
}
