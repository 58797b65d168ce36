//! A tree as the host's kernel shows it.

use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use platter_vfs::FileKind;
use platter_vfs::attr::DeviceNumber;

use super::tree::{Entry, LOST_AND_FOUND, Tree, join};
use crate::attributes;

/// How deep directories may lie.
const DEPTH_MAX: usize = 32;

impl Tree {
    /// Everything below `root`, a directory of the host.
    pub fn read_host(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        tree.add_host(&root.join("."), "", 0)?;
        Ok(tree)
    }

    fn add_host(&mut self, at: &Path, path: &str, depth: usize) -> Result<()> {
        ensure!(depth < DEPTH_MAX, "{path}: too deep");
        let entry = read_entry(at).with_context(|| format!("/{path}"))?;
        let is_directory = entry.kind == FileKind::Directory;
        self.entries.insert(path.to_owned(), entry);
        if !is_directory {
            return Ok(());
        }
        for listed in std::fs::read_dir(at)? {
            let name = listed?.file_name();
            let name = name.to_str().context("a name")?;
            if !(path.is_empty() && name == LOST_AND_FOUND) {
                self.add_host(&at.join(name), &join(path, name), depth + 1)?;
            }
        }
        Ok(())
    }
}

fn read_entry(at: &Path) -> Result<Entry> {
    let found = at.symlink_metadata()?;
    let kind = FileKind::from_mode(found.mode()).context("a file type")?;
    let target = (kind == FileKind::Symlink).then(|| std::fs::read_link(at));
    let target = target.transpose()?;
    let content = (kind == FileKind::Regular).then(|| std::fs::read(at));
    Ok(Entry {
        // Subvolumes of btrfs have numbers of their own.
        file: found.ino() ^ found.dev().rotate_left(32),
        kind,
        permissions: found.mode() & 0o7777,
        uid: found.uid(),
        gid: found.gid(),
        links: u32::try_from(found.nlink())?,
        device: DeviceNumber {
            major: rustix::fs::major(found.rdev()),
            minor: rustix::fs::minor(found.rdev()),
        },
        target: target.map(|target| target.into_os_string().into_vec()),
        xattrs: attributes::of(at)?.into_iter().collect(),
        content: content.transpose()?.map(Into::into),
    })
}
