//! What every driver implements and every front end uses: the filesystem and inode traits, path
//! walk, dentry and inode caches, permission checks, errors with their errno, clock and seed.
//!
//! Paths and names are bytes; nothing here knows a disk format, FUSE, or a file descriptor.
#![forbid(unsafe_code)]

pub mod error;
pub mod errno;
pub mod name;
pub mod attr;
pub mod clock;
pub mod access_time;
pub mod credentials;
pub mod acl;
mod defragment;
pub mod inode;
pub mod ranges;
pub mod description;
pub mod check;
mod finding_ranges;
pub mod devices;
pub mod subvolumes;
pub mod quotas;
pub mod filesystem;
pub mod shown_numbers;
mod sync;
mod shard;
mod second_chance;
pub mod inode_cache;
pub mod dentry;
pub mod permission;
pub mod xattr;
pub mod path;
pub mod creation;
pub mod whole_file;
pub mod stripes;
pub mod writing;
pub mod file;
pub mod namei;
pub mod tree_walk;

pub use platter_block::lock;
pub use platter_block::{BlockDevice, MountEntry, MountTable, MountedDevice};
pub use platter_ondisk::{Corruption, Locus, Uuid};

pub use access_time::{AccessTimes, FileTimes};
pub use acl::{AclEntry, AclSubject, PosixAcl};
pub use attr::{Attr, ExtendedFlags, FileKind, SetAttr, SetTime, StatFs, Timestamp};
pub use check::{CheckProgress, CheckReport, CheckReporter, CheckSink, Finding, Severity};
pub use clock::{Clock, FixedClock, SystemClock};
pub use credentials::{Context, Credentials};
pub use defragment::Defragment;
pub use dentry::{DentryCache, Recall, Remembered};
pub use description::{Counters, Description, Detail, DetailValue, Feature, FeatureClass};
pub use devices::Devices;
pub use error::{Condition, Error, Refused, Result, Unsupported};
pub use filesystem::{Filesystem, Trim, Tune};
pub use finding_ranges::FindingRanges;
pub use inode::{
    CreateKind, DirCursor, DirEntry, DirSink, Extent, ExtentSink, FallocateMode, Inode, InodeId,
    Place, RenameMode, SeekTarget, WriteTo, XattrMode,
};
pub use inode_cache::{InodeCache, Seat};
pub use name::{Name, NameBuf};
pub use path::{LastComponent, Located, PathWalk};
pub use permission::Access;
pub use quotas::Quotas;
pub use ranges::{Deduped, Exchange};
pub use shown_numbers::ShownNumbers;
pub use subvolumes::Subvolumes;
pub use tree_walk::{TreeWalk, Visited, WalkEvent, WalkOrder};
pub use whole_file::{Unmade, WholeFile};
