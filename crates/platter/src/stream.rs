//! Send streams of btrfs, command by command: for receivers that are no [`Volume`](crate::Volume), as what another
//! process has mounted.

pub use crate::driver::{
    EncodedData, SourceRank, StreamCommand, StreamGeneration, StreamReader, StreamSource,
    StreamTimes, decode_data, inode_flags,
};
