//! The ioctls that are answered: their numbers and structures, for the server and for its callers. See
//! `linux/fs.h`, `linux/btrfs.h`.

mod command;
mod structures;
mod extents;
mod defragment;
mod send;
mod report;
mod call;

pub(crate) use call::call;
pub(crate) use command::{Command, DevicesCommand, SendCommand, SubvolumeCommand, sets_flags};
pub(crate) use defragment::{DEFRAGMENTED_BYTES_MAX, defragment_in_steps};
pub use report::MountReport;
pub(crate) use structures::{
    CANCELLED, DedupeRange, DefragRange, DefragmentStep, DeviceAction, DeviceCommand, DeviceStatus,
    ENDED, FORCED, FSLABEL_BYTES, FileExtents, FsInfo, HAS_DEVICE, InoLookup, LARGER,
    NextSubvolume, OF_DATA, OF_METADATA, OF_SYSTEM, REPAIRS, ROOT_DIRECTORY, ReceivedSubvolume,
    ReportPage, SUBVOL_RDONLY, SUBVOL_SPEC_BY_ID, SendPiece, SendStart, SubvolumeInfo, TrimRange,
    VolArgs, VolArgsV2, argument, put_part, text,
};
