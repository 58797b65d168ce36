//! Two trees side by side, directory by directory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use platter_vfs::{Attr, Condition, Error, FileKind, Filesystem, Inode, Name};

use super::content;
use super::host::{self, Device, HostFile};
use super::image;
use super::report::Outcome;
use super::rules::Rules;

/// Deeper trees are not compared.
const DEPTH_MAX: usize = 200;
/// The inode flags that Linux shows to programs and that an image keeps.
const FLAGS_COMPARED: u32 = 0x3000_0000 | 0x000f_ffff;
/// A directory that `mke2fs` makes and no directory has.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Compares the whole of `filesystem` with the tree below `root`.
pub fn compare(filesystem: &dyn Filesystem, root: &Path, rules: Rules) -> Result<Outcome> {
    let mut outcome = compare_below(filesystem, &filesystem.root()?, root, rules)?;
    if rules.statfs {
        outcome.same("statfs", filesystem.stat_fs()?, host::stat_fs(root)?);
    }
    Ok(outcome)
}

/// Compares what lies below `inode` with the tree below `root`.
pub fn compare_below(
    filesystem: &dyn Filesystem,
    inode: &Arc<dyn Inode>,
    root: &Path,
    rules: Rules,
) -> Result<Outcome> {
    let (_, first) = HostFile::new(root, b"").attr()?;
    let mut walk = Walk {
        filesystem,
        root,
        first,
        rules,
        first_path_of_inode: BTreeMap::new(),
    };
    let mut outcome = Outcome::default();
    walk.file(inode, 0, &mut outcome);
    Ok(outcome)
}

struct Walk<'a> {
    filesystem: &'a dyn Filesystem,
    root: &'a Path,
    /// The device of the root.
    first: Device,
    rules: Rules,
    /// The host's inode numbers with platter's: hard links must be the same ones on both sides.
    first_path_of_inode: BTreeMap<(Device, u64), (u64, Vec<u8>)>,
}

impl Walk<'_> {
    fn file(&mut self, inode: &Arc<dyn Inode>, depth: usize, outcome: &mut Outcome) {
        outcome.files += 1;
        if let Err(error) = self.try_file(inode, depth, outcome) {
            outcome.differ(format_args!("cannot be compared: {error:#}"));
        }
    }

    fn try_file(
        &mut self,
        inode: &Arc<dyn Inode>,
        depth: usize,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let host = HostFile::new(self.root, outcome.path());
        let (theirs, device) = host.attr()?;
        let ours = inode.attr()?;
        outcome.same("kind", ours.kind, theirs.kind);
        if ours.kind != theirs.kind {
            return Ok(());
        }
        let is_stub = self.is_stub(&theirs);
        self.attributes(&ours, &theirs, outcome);
        if self.rules.numbers && device == self.first && !is_stub {
            outcome.same("inode", ours.inode, theirs.inode);
        }
        if self.rules.times && !is_stub {
            self.times(&ours, &theirs, outcome);
        }
        let is_new = self.identity(&ours, (&theirs, device), outcome);
        if self.rules.xattrs && is_new {
            let (ours, theirs) = (image::xattrs(&**inode)?, host.xattrs()?);
            outcome.xattrs += theirs.len() as u64;
            outcome.same("attributes", names(&ours), names(&theirs));
            for (name, value) in &theirs {
                if ours.get(name).is_some_and(|ours| ours != value) {
                    let name = name.escape_ascii();
                    outcome.differ(format_args!("the value of the attribute {name} differs"));
                }
            }
        }
        match ours.kind {
            FileKind::Regular if is_new => {
                self.flags(&ours, &host, outcome)?;
                let holes = self.rules.holes;
                content::compare(&**inode, &host.open()?, theirs.size_bytes, holes, outcome)?;
            }
            FileKind::Symlink => {
                outcome.same("target", inode.read_link()?, host.link_target()?);
            }
            FileKind::Directory if depth < DEPTH_MAX => {
                if !is_stub {
                    self.flags(&ours, &host, outcome)?;
                }
                self.directory(inode, &host, depth, outcome)?;
            }
            FileKind::Regular
            | FileKind::Directory
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => {}
        }
        Ok(())
    }

    /// Compares what two names of one file share; says whether the file is seen for the first time.
    fn identity(
        &mut self,
        ours: &Attr,
        (theirs, device): (&Attr, Device),
        outcome: &mut Outcome,
    ) -> bool {
        if theirs.kind == FileKind::Directory || theirs.links == 1 {
            return true;
        }
        let number = (device, theirs.inode);
        let known = self.first_path_of_inode.get(&number);
        if let Some((known, path)) = known {
            if *known != ours.inode {
                let path = path.escape_ascii();
                outcome.differ(format_args!("is another file than /{path}"));
            }
            return false;
        }
        let entry = (ours.inode, outcome.path().to_vec());
        self.first_path_of_inode.insert(number, entry);
        true
    }

    /// Whether this is a directory that stands for a subvolume in a snapshot.
    fn is_stub(&self, theirs: &Attr) -> bool {
        theirs.kind == FileKind::Directory && self.rules.stub_number == Some(theirs.inode)
    }

    fn attributes(&self, ours: &Attr, theirs: &Attr, outcome: &mut Outcome) {
        let is_dir = theirs.kind == FileKind::Directory;
        let rules = self.rules;
        outcome.same("permissions", ours.permissions, theirs.permissions);
        outcome.same("device", ours.device, theirs.device);
        if rules.layout || !is_dir {
            outcome.same("size", ours.size_bytes, theirs.size_bytes);
        }
        if rules.owners {
            outcome.same("owner", ours.uid, theirs.uid);
            outcome.same("group", ours.gid, theirs.gid);
        }
        // The image's root has lost+found, which no directory has.
        if rules.links && (rules.layout || !outcome.path().is_empty()) {
            outcome.same("links", ours.links, theirs.links);
        }
        if rules.layout {
            outcome.same("sectors", ours.sectors, theirs.sectors);
            outcome.same("I/O size", ours.io_block_bytes, theirs.io_block_bytes);
        }
        if !rules.times && rules.modified_seconds && !is_dir {
            let (ours, theirs) = (ours.modified.seconds, theirs.modified.seconds);
            outcome.same("modification time", ours, theirs);
        }
    }

    fn times(&self, ours: &Attr, theirs: &Attr, outcome: &mut Outcome) {
        let since = self.rules.replayed_since;
        let is_replayed = since.is_some_and(|since| theirs.changed >= since);
        outcome.same("access time", ours.accessed, theirs.accessed);
        outcome.same("creation time", ours.created, theirs.created);
        if !is_replayed {
            outcome.same("change time", ours.changed, theirs.changed);
        }
        if !is_replayed || theirs.kind != FileKind::Directory {
            outcome.same("modification time", ours.modified, theirs.modified);
        }
    }

    fn flags(&self, ours: &Attr, host: &HostFile, outcome: &mut Outcome) -> Result<()> {
        if self.rules.layout {
            let theirs = host.flags()? & FLAGS_COMPARED;
            outcome.same("flags", ours.flags & FLAGS_COMPARED, theirs);
        }
        Ok(())
    }

    fn directory(
        &mut self,
        dir: &Arc<dyn Inode>,
        host: &HostFile,
        depth: usize,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let mut ours = image::listing(&**dir)?;
        let theirs = host.listing()?;
        if !self.rules.layout && depth == 0 {
            ours.remove(LOST_AND_FOUND);
        }
        for name in ours.keys().filter(|name| !theirs.contains_key(*name)) {
            outcome.below(name, |outcome| outcome.differ("only platter has it"));
        }
        for (name, host_kind) in &theirs {
            outcome.below(name, |outcome| {
                let Some(kind) = ours.get(name) else {
                    outcome.differ("platter does not list it");
                    return;
                };
                if self.rules.layout {
                    outcome.same("kind in the directory", *kind, *host_kind);
                }
                match Name::new(name).and_then(|name| dir.lookup(name)) {
                    Ok(inode) => self.file(&inode, depth + 1, outcome),
                    Err(error) => outcome.differ(format_args!("lookup: {error}")),
                }
            });
        }
        absent_names(dir, &theirs, outcome)?;
        self.dots(dir, outcome)
    }

    /// `.` is the directory itself, and `..` leads to a directory that can be asked for by number.
    fn dots(&self, dir: &Arc<dyn Inode>, outcome: &mut Outcome) -> Result<()> {
        let itself = dir.lookup(Name::new(b".")?)?;
        outcome.same("inode of .", itself.id(), dir.id());
        let parent = dir.lookup(Name::new(b"..")?)?;
        let by_number = self.filesystem.inode(parent.id())?;
        outcome.same("inode of ..", by_number.attr()?, parent.attr()?);
        Ok(())
    }
}

/// Names that are almost there must not be found.
fn absent_names(
    dir: &Arc<dyn Inode>,
    listing: &host::Listing,
    outcome: &mut Outcome,
) -> Result<()> {
    let near = listing.keys().take(3).map(|name| {
        let mut name = name.clone();
        name.truncate(254);
        name.push(b'!');
        name
    });
    for name in near.chain([b"no such name".to_vec()]) {
        if listing.contains_key(&name) {
            continue;
        }
        match dir.lookup(Name::new(&name)?) {
            Err(Error::Condition(Condition::NotFound)) => {}
            found => {
                let name = name.escape_ascii();
                outcome.differ(format_args!("lookup of the absent {name}: {found:?}"));
            }
        }
    }
    Ok(())
}

fn names(values: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<String> {
    values
        .keys()
        .map(|name| name.escape_ascii().to_string())
        .collect()
}
