//! Regular files that are made with all that belongs to them.

use crate::{
    Context, CreateKind, Credentials, Error, Inode, Name, Result, SetAttr, SetTime, Timestamp,
};

/// A regular file about to be made, which becomes visible with its final contents.
#[derive(Debug, Clone, Copy)]
pub struct WholeFile<'a> {
    /// What it is called.
    pub name: Name<'a>,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits, to which no umask applies.
    pub permissions: u32,
    /// When the contents were changed, and read.
    pub modified: Timestamp,
    /// All of the contents.
    pub contents: &'a [u8],
}

/// Makes files in a directory. `together` makes as many of the first of those it gets as there is no obstacle to, and
/// returns how many; others are made one step after the other.
///
/// # Errors
/// The first file that could not be made, and why.
pub fn create_whole_files<I: Inode>(
    dir: &I,
    files: &[WholeFile<'_>],
    together: impl Fn(&[WholeFile<'_>]) -> usize,
) -> Result<(), Unmade> {
    let mut made = 0;
    while let Some(rest @ [file, ..]) = files.get(made..) {
        let count = together(rest);
        if count == 0 {
            // What kept it from being made with others occurs again if it keeps it from being made at all.
            let alone = file.make_in(dir);
            alone.map_err(|error| Unmade { index: made, error })?;
        }
        made += count.max(1);
    }
    Ok(())
}

/// Which of several files could not be made, and why. Those before it are there.
#[derive(Debug)]
pub struct Unmade {
    /// Its place among them.
    pub index: usize,
    /// What kept it from being made.
    pub error: Error,
}

impl WholeFile<'_> {
    /// Credentials of the user that the file is made for.
    #[must_use]
    pub fn context(&self) -> Context {
        Context {
            credentials: Credentials::new(self.uid, self.gid),
            umask: 0,
        }
    }

    /// Makes it in a directory, one step after the other.
    pub fn make_in<I: Inode + ?Sized>(&self, dir: &I) -> Result<()> {
        let kind = CreateKind::Regular;
        let inode = dir.create(&self.context(), self.name, kind, self.permissions)?;
        if !self.contents.is_empty() {
            inode.write_at(0, self.contents)?;
        }
        let time = Some(SetTime::At(self.modified));
        let changes = SetAttr {
            permissions: Some(self.permissions),
            uid: Some(self.uid),
            gid: Some(self.gid),
            accessed: time,
            modified: time,
            ..SetAttr::default()
        };
        inode.set_attr(&Context::root(), &changes)?;
        Ok(())
    }
}
