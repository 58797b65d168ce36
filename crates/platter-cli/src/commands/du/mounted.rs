//! Files of a mount, whose extents are listed by the process that serves it.

use std::collections::HashSet;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use platter::usage::{Usage, UsageCounter};
use platter::{FileKind, Result};
use platter_fuse::Control;
use rustix::fs::OFlags;

use crate::commands::mount_walk::{MountEvent, MountFile, MountWalk};
use crate::commands::mounted::named;

/// The usage of a file and all below it, what is in a directory before the directory itself.
pub(super) struct MountUsages {
    walk: MountWalk,
    /// Files with several names, which count once.
    linked: HashSet<u64>,
    counter: UsageCounter,
}

impl MountUsages {
    /// That of what an operand names.
    pub(super) fn of(given: &Path) -> Result<Self> {
        let walk = MountWalk::new(given).map_err(|error| named(given, &error))?;
        // What has no extents yet gets some.
        let synced = walk.control().and_then(|control| control.sync());
        synced.map_err(|error| named(given, &error))?;
        Ok(Self {
            walk,
            linked: HashSet::new(),
            counter: UsageCounter::default(),
        })
    }

    fn path_of(&self, path: &Path) -> Vec<u8> {
        self.walk.shown(path).into_os_string().into_vec()
    }

    /// `None` for what comes later or does not count.
    fn visit(&mut self, file: &MountFile) -> Option<Result<Usage>> {
        let found = &file.found;
        if found.is_dir() {
            self.counter.enter_directory();
            return None;
        }
        let is_counted = found.nlink() < 2 || self.linked.insert(found.ino());
        if !found.is_file() || !is_counted {
            return None;
        }
        let opened = match file.open(OFlags::empty()) {
            Ok(opened) => opened?,
            Err(error) => return Some(Err(self.walk.named(&file.path, &error))),
        };
        let path = self.path_of(&file.path);
        let counted = self.counter.count(path, FileKind::Regular, |sink| {
            Control::extents(&opened, sink)
        });
        Some(counted.map_err(|error| self.walk.named(&file.path, &error)))
    }
}

impl Iterator for MountUsages {
    type Item = Result<Usage>;

    fn next(&mut self) -> Option<Result<Usage>> {
        loop {
            match self.walk.next()? {
                MountEvent::Visit(file) => {
                    if let Some(found) = self.visit(&file) {
                        return Some(found);
                    }
                }
                MountEvent::Leave(dir) => {
                    let path = self.path_of(&dir);
                    return Some(Ok(self.counter.leave_directory(path)));
                }
                MountEvent::Failed { path, error } => {
                    return Some(Err(self.walk.named(&path, &error)));
                }
            }
        }
    }
}
