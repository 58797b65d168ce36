//! What a tree holds, a line for each file, of the host and of an image alike.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use platter::vfs::{FileKind, TreeWalk, WalkEvent, WalkOrder};
use platter::{ImageSpec, MountOptions};

/// Made with every filesystem.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Larger contents do not come up.
const CONTENTS_BYTES_MAX: usize = 4 << 20;

/// One file.
struct Line<'a> {
    path: &'a [u8],
    mode: u32,
    owner: (u32, u32),
    links: u64,
    contents: &'a [u8],
    comment: &'a [u8],
}

impl Line<'_> {
    fn text(&self) -> String {
        let (path, contents) = (self.path.escape_ascii(), self.contents);
        let is_directory = self.mode & 0o17_0000 == 0o4_0000;
        let links = if is_directory { 0 } else { self.links };
        // FNV-1a.
        let hash = contents
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let ((uid, gid), comment) = (self.owner, self.comment.escape_ascii());
        let (mode, len) = (self.mode, contents.len());
        format!("{path} {mode:o} {uid}:{gid} {links} {len} {hash:x} {comment}")
    }
}

/// What is below a directory.
pub(super) fn of_dir(dir: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    add_dir(dir, b"", &mut lines)?;
    lines.sort_unstable();
    Ok(lines)
}

fn add_dir(dir: &Path, below: &[u8], lines: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let path = [below, b"/", entry.file_name().as_bytes()].concat();
        let contents = if metadata.is_symlink() {
            fs::read_link(entry.path())?.as_os_str().as_bytes().to_vec()
        } else if metadata.is_file() {
            fs::read(entry.path())?
        } else {
            Vec::new()
        };
        let mut value = [0; 256];
        let found = rustix::fs::lgetxattr(entry.path(), "user.comment", &mut value);
        let line = Line {
            path: &path,
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            links: metadata.nlink(),
            contents: &contents,
            comment: &value[..found.unwrap_or(0)],
        };
        lines.push(line.text());
        if metadata.is_dir() {
            add_dir(&entry.path(), &path, lines)?;
        }
    }
    Ok(())
}

/// What is in an image.
pub(super) fn of_image(image: &Path) -> Result<Vec<String>> {
    let volume = MountOptions::new().open(&ImageSpec::new(image))?;
    let fs = volume.filesystem().clone();
    let root = fs.root()?;
    let mut lines = Vec::new();
    for event in TreeWalk::new(fs, root, WalkOrder::Driver) {
        match event {
            WalkEvent::Visit(visited) if visited.path.is_empty() => {}
            WalkEvent::Visit(visited) if visited.path == LOST_AND_FOUND => {}
            WalkEvent::Visit(visited) => {
                let path = [b"/", &visited.path[..]].concat();
                let file = volume.open_no_follow(&path)?;
                let attr = &visited.attr;
                let contents = match attr.kind {
                    FileKind::Symlink => file.read_link()?,
                    FileKind::Regular => file.read_all(CONTENTS_BYTES_MAX)?,
                    FileKind::Directory
                    | FileKind::CharDevice
                    | FileKind::BlockDevice
                    | FileKind::Fifo
                    | FileKind::Socket => Vec::new(),
                };
                let line = Line {
                    path: &path,
                    mode: attr.mode(),
                    owner: (attr.uid, attr.gid),
                    links: attr.links.into(),
                    contents: &contents,
                    comment: &file.get_xattr(b"user.comment").unwrap_or_default(),
                };
                lines.push(line.text());
            }
            WalkEvent::Leave(_) => {}
            WalkEvent::Failed { path, error } => {
                let path = path.escape_ascii().to_string();
                return Err(error).context(path);
            }
        }
    }
    lines.sort_unstable();
    Ok(lines)
}
