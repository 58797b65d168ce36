//! Identification of a run of bytes by the magic numbers at its beginning, as blkid does it.
//!
//! Only names are found here; what a filesystem says about itself is read by its driver.

mod table;
#[cfg(test)]
mod tests;

use std::fmt;

pub use table::Format;

/// What a program must do about a format before the files in it can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FormatClass {
    /// Holds files.
    Filesystem,
    /// Holds other volumes or encrypted bytes: LVM, LUKS, RAID.
    Container,
    /// A disk in a file format of a virtual machine, or compressed.
    Wrapping,
    /// Holds no files: swap.
    Other,
}

/// The number of bytes from the beginning that [`Format::identify`] looks at.
pub const SIGNATURE_LEN_BYTES: usize = 68 << 10;

impl Format {
    /// Returns the format of what begins with `head`, the first bytes of a device or file; fewer than
    /// [`SIGNATURE_LEN_BYTES`] if it is shorter.
    ///
    /// A container goes before a filesystem, whose superblock may be left over from before.
    #[must_use]
    pub fn identify(head: &[u8]) -> Option<Self> {
        table::FORMATS
            .iter()
            .find(|row| {
                row.magics.iter().any(|set| {
                    set.iter().all(|&(offset, magic)| {
                        head.get(offset..)
                            .is_some_and(|tail| tail.starts_with(magic))
                    })
                })
            })
            .map(|row| row.format)
    }

    /// The name that blkid and the format's own tools give it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().map_or("unknown", |row| row.name)
    }

    /// The class of the format.
    #[must_use]
    pub fn class(self) -> FormatClass {
        self.row().map_or(FormatClass::Other, |row| row.class)
    }

    /// Whether the bytes of what it holds lie in it in another form.
    pub(crate) fn is_wrapped(self) -> bool {
        matches!(self.class(), FormatClass::Container | FormatClass::Wrapping)
    }

    /// Advice for users of a format that no driver serves.
    #[must_use]
    pub fn advice(self) -> Option<&'static str> {
        self.row().and_then(|row| row.advice)
    }

    fn row(self) -> Option<&'static table::Row> {
        table::FORMATS.iter().find(|row| row.format == self)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}
