//! ext2, ext3 and ext4: every structure found by the tables and maps of a good image.

mod format;
mod parts;
mod journal;
mod seal;
mod still;

use anyhow::Result;

pub use format::Format;
pub use parts::{JournalSums, Kind};

use crate::contents::Contents;

use super::bytes;
use super::{Kind as AnyKind, Part, Units};

impl Format {
    pub(super) fn units(&self) -> Units {
        Units {
            block_bytes: self.block_bytes,
            addresses: self.blocks,
            inodes: self.inodes.into(),
        }
    }
}

/// Finds every structure.
pub(super) fn read(image: &Contents) -> Result<(Format, Vec<Part>)> {
    let format = Format::read(image)?;
    let block_bytes = format.block_bytes;
    let found = parts::find(image, &format).into_iter();
    let part = |part: parts::Part| Part {
        kind: AnyKind::Ext4(part.kind),
        address: (part.range.start / block_bytes) as u64,
        range: part.range,
    };
    let parts = found.map(part).collect();
    Ok((format, parts))
}

/// Seals `parts`, then what holds or covers the checksums of others.
pub(super) fn seal(image: &mut Contents, format: &Format, all: &[Part], parts: &[Part]) {
    seal::seal(image, format, &of_ext4(all), &of_ext4(parts));
}

/// Sets every time to one moment.
pub(super) fn set_times(image: &mut Contents, parts: &[Part]) {
    still::set_times(image, &of_ext4(parts));
}

/// Whether the inode at `at` holds the value of an attribute.
#[cfg(test)]
pub(super) fn holds_value(image: &Contents, at: usize) -> bool {
    still::holds_value(image, at)
}

fn of_ext4(parts: &[Part]) -> Vec<parts::Part> {
    let part = |part: &Part| match part.kind {
        AnyKind::Ext4(kind) => Some(parts::Part {
            kind,
            range: part.range.clone(),
        }),
        AnyKind::Btrfs(_) | AnyKind::Xfs(_) => None,
    };
    parts.iter().filter_map(part).collect()
}
