//! A send stream: a header, then commands, each with its attributes. Spec: `btrfs/send_stream`.

use platter_ondisk::rules;

mod command;
mod attribute;
mod decode;
mod encode;
mod reader;
mod writer;
#[cfg(test)]
mod tests;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le16, Le32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use command::{Command, EncodedData, EncodedForm, Source, SourceRank, Times};
pub use reader::StreamReader;
pub use writer::StreamWriter;

/// What a stream begins with.
pub const MAGIC: [u8; 13] = *b"btrfs-stream\0";
/// The newest version that is known.
pub const VERSION_MAX: u32 = 2;
/// Attributes of a command in bytes, at most: more than any sender uses.
pub const COMMAND_BYTES_MAX: usize = 1 << 20;

/// The beginning of a stream.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskStreamHeader {
    /// `magic`.
    pub magic: [u8; 13],
    /// `version`.
    pub version: Le32,
}

/// The beginning of a command; attributes follow.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskCommandHeader {
    /// `len`: of the attributes.
    pub len_bytes: Le32,
    /// `cmd`.
    pub kind: Le16,
    /// `crc`, computed with this field as zero.
    pub checksum: Le32,
}

const _: () = assert!(size_of::<DiskStreamHeader>() == 17);
const _: () = assert!(size_of::<DiskCommandHeader>() == 10);

rules! {
    /// The rules of a send stream.
    pub enum StreamRule of "send stream" {
        /// It begins with the magic.
        Magic => "not a btrfs send stream",
        /// It ends with the command that says so, and not within a header or a command.
        Truncated => "stream ends before its end command",
        /// A command has at most 1 MiB.
        CommandSize => "command exceeds 1 MiB",
        /// Each command matches its checksum.
        Checksum => "command checksum mismatch",
        /// An attribute ends within its command.
        Attribute => "attribute exceeds its command",
        /// A number, time or UUID has the size of its type.
        AttributeSize => "invalid attribute size",
        /// A command has the attributes that it needs.
        MissingAttribute => "command without a needed attribute",
        /// Paths are relative, and their names are those of entries.
        Path => "invalid path",
        /// Nanoseconds are below a second.
        Time => "invalid time",
        /// A range of a file ends below the largest offset.
        Range => "range exceeds the largest file offset",
        /// Mode, owner and flags fit into their types.
        Number => "number too large for its type",
        /// The first command names a subvolume, and each other one follows such.
        Order => "command outside a subvolume",
    }
}

/// The checksum of a command: CRC-32C that begins with zero and is not inverted.
fn checksum(header: DiskCommandHeader, attributes: &[u8]) -> u32 {
    let header = DiskCommandHeader {
        checksum: 0.into(),
        ..header
    };
    crc32c(crc32c(0, header.as_bytes()), attributes)
}
