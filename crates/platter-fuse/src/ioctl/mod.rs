//! The ioctls that are answered: their numbers and structures, for the server and for its callers. See
//! `linux/fs.h`, `linux/btrfs.h`.

mod command;
mod structures;
mod call;

pub(crate) use call::call;
pub(crate) use command::{Command, SubvolumeCommand, sets_flags};
pub(crate) use structures::{
    FSLABEL_BYTES, FsInfo, InoLookup, NextSubvolume, SUBVOL_RDONLY, SUBVOL_SPEC_BY_ID,
    SubvolumeInfo, TrimRange, VolArgs, VolArgsV2, text,
};
