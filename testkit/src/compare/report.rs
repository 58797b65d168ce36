//! What a comparison walk saw and what it found.

use std::fmt;

/// Beyond so many differences only their number is kept.
const DIFFERENCES_KEPT: usize = 40;

/// The sum of a walk.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Files of all kinds that were compared.
    pub files: u64,
    /// Bytes of contents that were compared.
    pub bytes: u64,
    /// Values of extended attributes that were compared.
    pub xattrs: u64,
    /// How many differences there are.
    pub differences: u64,
    kept: Vec<String>,
    path: Vec<u8>,
}

impl Outcome {
    /// Adds what another walk saw.
    pub fn add(&mut self, other: Self) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.xattrs += other.xattrs;
        self.differences += other.differences;
        self.kept.extend(other.kept);
        self.kept.truncate(DIFFERENCES_KEPT);
    }

    /// Records a difference at the current path.
    pub(super) fn differ(&mut self, what: impl fmt::Display) {
        self.differences += 1;
        if self.kept.len() < DIFFERENCES_KEPT {
            let path = self.path.escape_ascii();
            self.kept.push(format!("/{path}: {what}"));
        }
    }

    /// Records a difference when two values are not equal.
    #[expect(clippy::needless_pass_by_value, reason = "most values are numbers")]
    pub(super) fn same<T: PartialEq + fmt::Debug>(&mut self, what: &str, platter: T, host: T) {
        if platter != host {
            self.differ(format_args!(
                "{what}: platter says {platter:?}, the host {host:?}"
            ));
        }
    }

    /// Does `action` with `name` added to the current path.
    pub(super) fn below(&mut self, name: &[u8], action: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        action(self);
        self.path.truncate(length);
    }

    /// The current path, relative to the root.
    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }

    /// Holds a test to it that there are no differences.
    ///
    /// # Panics
    /// With what was found, when there are differences.
    pub fn assert_equal(&self) {
        assert!(self.differences == 0, "{self}");
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} files, {} bytes, {} attributes compared: {} differences",
            self.files, self.bytes, self.xattrs, self.differences
        )?;
        for line in &self.kept {
            write!(out, "\n  {line}")?;
        }
        Ok(())
    }
}
