//! Asks a filesystem everything a program can ask, within limits, and counts the answers.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use platter::{ImageSet, MountOptions};
use platter_vfs::{
    Attr, CheckSink, DirCursor, Error, FileKind, Filesystem, Finding, Inode, Name, NameBuf, Result,
    SeekTarget, Severity,
};

/// Files visited in one image.
const FILES_MAX: u64 = 1500;
/// Entries taken from one directory.
const ENTRIES_MAX: usize = 400;
/// Directories within directories.
const DEPTH_MAX: usize = 40;
/// Bytes read from the start of a file.
const HEAD_BYTES: u64 = 48 << 10;
/// Runs of data looked at in a file.
const RUNS_MAX: u32 = 40;
/// Extents taken of a file.
const EXTENTS_MAX: u32 = 300;
/// Attributes read of a file.
const XATTRS_MAX: usize = 40;
/// Findings taken from a check.
const FINDINGS_MAX: u64 = 5000;
/// How much is read at once.
const PIECE_BYTES: usize = 8 << 10;

/// What came back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Files visited.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Errors by their kind; of corruption, by structure.
    pub errors: BTreeMap<String, u64>,
    /// Findings of the check.
    pub findings: u64,
}

impl Tally {
    /// Counts an error.
    pub fn error(&mut self, error: &Error) {
        let kind = match error {
            Error::Condition(condition) => format!("condition: {condition}"),
            Error::Refused(refused) => format!("condition: {}", refused.condition),
            Error::Unsupported(_) => "unsupported".to_owned(),
            Error::Corrupt(corruption) => format!("corrupt: {}", corruption.structure),
            Error::Io(_) => "device".to_owned(),
        };
        *self.errors.entry(kind).or_default() += 1;
    }

    /// Counts the error of an image that would not open.
    pub fn refusal(&mut self, error: &platter::Error) {
        if let platter::Cause::Filesystem(error) = &error.cause {
            self.error(error);
        } else {
            *self.errors.entry("not recognised".to_owned()).or_default() += 1;
        }
    }

    /// Counts the error of the library.
    pub fn failure(&mut self, error: &platter::Error) {
        if let platter::Cause::Filesystem(error) = &error.cause {
            self.error(error);
        } else {
            *self
                .errors
                .entry("of the host or the request".to_owned())
                .or_default() += 1;
        }
    }

    /// Counts an error, if it is one.
    pub fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.error(&error)).ok()
    }
}

impl CheckSink for Tally {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        std::hint::black_box(finding.corruption.to_string());
        self.findings += u64::from(finding.severity != Severity::Notice);
        if self.findings < FINDINGS_MAX {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }
}

/// Checks the images, data with them where it has checksums; whether the metadata is clean.
pub fn check(options: &MountOptions, images: &ImageSet, tally: &mut Tally) -> bool {
    let is_clean = options
        .check(images, tally)
        .is_ok_and(|report| report.is_clean());
    // Other formats refuse it.
    let _ = options.verify_data(images, tally);
    is_clean
}

/// Walks the whole filesystem.
pub fn exercise(filesystem: &dyn Filesystem, tally: &mut Tally) {
    let description = filesystem.describe();
    std::hint::black_box(&description);
    tally.note(filesystem.stat_fs());
    if let Some(root) = tally.note(filesystem.root()) {
        visit(&root, 0, tally);
    }
    for tree in [0, 1, 2, 5, 256, 257, u64::MAX] {
        for number in [
            0,
            1,
            3,
            7,
            8,
            11,
            12,
            256,
            257,
            u64::from(u32::MAX),
            u64::MAX,
        ] {
            let id = platter_vfs::InodeId { tree, number };
            if let Ok(inode) = filesystem.inode(id) {
                tally.note(inode.attr());
            }
        }
    }
    tally.note(filesystem.unmount());
}

fn visit(inode: &Arc<dyn Inode>, depth: usize, tally: &mut Tally) {
    if tally.files >= FILES_MAX || depth > DEPTH_MAX {
        return;
    }
    tally.files += 1;
    let Some(attr) = tally.note(inode.attr()) else {
        return;
    };
    xattrs(&**inode, tally);
    match attr.kind {
        FileKind::Regular => contents(&**inode, &attr, tally),
        FileKind::Symlink => {
            tally.note(inode.read_link());
        }
        FileKind::Directory => directory(inode, depth, tally),
        FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {}
    }
}

fn directory(dir: &Arc<dyn Inode>, depth: usize, tally: &mut Tally) {
    let mut names: Vec<NameBuf> = Vec::new();
    let listed = dir.read_dir(DirCursor::START, &mut |entry| {
        if !entry.name.is_dot_or_dotdot() {
            names.push(entry.name.to_owned());
        }
        if names.len() < ENTRIES_MAX {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    tally.note(listed);
    if let Ok(absent) = Name::new(b"no such name") {
        let _ = dir.lookup(absent);
    }
    for name in names {
        if let Some(inode) = tally.note(dir.lookup(name.as_name())) {
            visit(&inode, depth + 1, tally);
        }
    }
    if let Some(parent) = Name::new(b"..")
        .ok()
        .and_then(|name| tally.note(dir.lookup(name)))
    {
        tally.note(parent.attr());
    }
}

fn contents(inode: &dyn Inode, attr: &Attr, tally: &mut Tally) {
    let size = attr.size_bytes;
    let mut piece = vec![0; PIECE_BYTES];
    let mut read = |offset: u64, tally: &mut Tally| {
        let count = tally.note(inode.read_at(offset, &mut piece));
        tally.bytes += count.unwrap_or(0) as u64;
        count.is_some()
    };
    for offset in (0..size.min(HEAD_BYTES)).step_by(PIECE_BYTES) {
        read(offset, tally);
    }
    read(size.saturating_sub(100), tally);
    read(size.saturating_add(1), tally);
    let mut at = 0;
    for _ in 0..RUNS_MAX {
        let Ok(start) = inode.seek(at, SeekTarget::Data) else {
            break;
        };
        read(start, tally);
        let Some(end) = tally.note(inode.seek(start, SeekTarget::Hole)) else {
            break;
        };
        read(end.saturating_sub(10), tally);
        at = end.max(at.saturating_add(1));
    }
    let mut extents = 0;
    let listed = inode.extents(0..u64::MAX, &mut |_| {
        extents += 1;
        if extents < EXTENTS_MAX {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    tally.note(listed);
}

fn xattrs(inode: &dyn Inode, tally: &mut Tally) {
    let names = tally.note(inode.list_xattrs()).unwrap_or_default();
    for name in names.iter().take(XATTRS_MAX) {
        tally.note(inode.get_xattr(name));
    }
}
