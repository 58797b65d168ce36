//! Sources applied in order, each over the result of the earlier ones, as image layers are.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use platter_vfs::{Condition, Name};

use super::dir::{self, host_error};
use super::tape::{self, Whiteouts};
use super::{Content, FileId, Member, MemberKind, MemberPath, broken, oci, unpack};
use crate::{Cause, Error, Escaped, Result};

/// Prefix of the name of a whiteout. Spec: OCI Image Format 1.1, `layer.md`.
const WHITEOUT: &[u8] = b".wh.";
/// Marks a directory whose contents in lower layers are hidden.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Other names with this prefix are metadata of AUFS.
const WHITEOUT_METADATA: &[u8] = b".wh..wh.";
/// Symbolic links in one path, as in Linux.
const LINKS_MAX: u32 = 40;

/// Collects the content of a new filesystem from several sources, lowest first.
///
/// A later entry replaces an earlier one of the same path. A directory over a directory keeps what is in
/// it and takes the later attributes; anything else replaces a whole directory.
#[derive(Debug)]
pub struct ContentLayers {
    stack: Stack,
    names: Vec<Arc<str>>,
    sources: Vec<FileId>,
    data_bytes_max: u64,
}

impl ContentLayers {
    /// No sources yet. Each compressed archive may unpack to `data_bytes_max` bytes, zeros not counted.
    #[must_use]
    pub fn new(data_bytes_max: u64) -> Self {
        Self {
            stack: Stack::default(),
            names: Vec::new(),
            sources: Vec::new(),
            data_bytes_max,
        }
    }

    /// Adds all below a directory of the host, except the file `left_out`.
    pub fn add_directory(&mut self, directory: &Path, left_out: Option<&Path>) -> Result<()> {
        let content = dir::index(directory, left_out)?;
        let name = content.name;
        self.stack.begin_layer();
        for (path, member) in content.members {
            let text = path.text();
            let added = match &member.kind {
                MemberKind::Link(first) => self.stack.link(path, first),
                MemberKind::Directory
                | MemberKind::File(_)
                | MemberKind::Clone(..)
                | MemberKind::Symlink(_)
                | MemberKind::CharDevice(_)
                | MemberKind::BlockDevice(_)
                | MemberKind::Fifo
                | MemberKind::Socket => self.stack.insert(path, member),
            };
            added.map_err(|cause| Error::at_path(&name, &text, cause))?;
        }
        self.names.push(name);
        Ok(())
    }

    /// Adds the members of a tar archive, which may be compressed by gzip, zstd or xz.
    pub fn add_archive(&mut self, archive: &Path) -> Result<()> {
        self.add_tape(archive, Whiteouts::PlainFiles)
    }

    /// Adds a layer of a container image: an archive whose whiteouts remove files of lower layers.
    pub fn add_layer(&mut self, layer: &Path) -> Result<()> {
        self.add_tape(layer, Whiteouts::Honoured)
    }

    /// Adds the layers of an image in an OCI image layout: the one tagged `reference`, or the only one
    /// there is for this machine. The digests of all blobs are verified.
    pub fn add_image(&mut self, layout: &Path, reference: Option<&str>) -> Result<()> {
        let name = text_of(layout);
        for layer in oci::layers(layout, reference)? {
            self.add_file(&layer.name, layer.file, Whiteouts::Honoured)?;
        }
        self.names.push(name);
        Ok(())
    }

    /// Adds the members of an archive read from a pipe. Errors call it `name`.
    pub fn add_stream(&mut self, name: &str, stream: impl Read) -> Result<()> {
        let name = name.into();
        let plain = unpack::unpack(stream, self.data_bytes_max);
        let plain = plain.map_err(|cause| Error::new(&name, cause))?;
        self.stack.begin_layer();
        tape::add(&mut self.stack, &name, plain, Whiteouts::PlainFiles)?;
        self.names.push(name);
        Ok(())
    }

    fn add_tape(&mut self, path: &Path, whiteouts: Whiteouts) -> Result<()> {
        let name = text_of(path);
        let file = File::open(path).map_err(|error| host_error(path, error))?;
        self.add_file(&name, file, whiteouts)?;
        self.names.push(name);
        Ok(())
    }

    fn add_file(&mut self, name: &Arc<str>, file: File, whiteouts: Whiteouts) -> Result<()> {
        let metadata = file.metadata().map_err(|error| Error::new(name, error))?;
        self.sources.push(FileId::from(&metadata));
        let plain = unpack::plain(file, self.data_bytes_max);
        let plain = plain.map_err(|cause| Error::new(name, cause))?;
        self.stack.begin_layer();
        tape::add(&mut self.stack, name, plain, whiteouts)
    }

    /// The content of all sources.
    #[must_use]
    pub fn finish(self) -> Content {
        let mut content = Content::new(self.names.join(", ").into());
        content.members = self.stack.into_members();
        content.sources = self.sources;
        content
    }
}

fn text_of(path: &Path) -> Arc<str> {
    Escaped(path.as_os_str().as_bytes()).to_string().into()
}

/// The tree that unpacking all layers so far would leave.
#[derive(Debug, Default)]
pub(super) struct Stack {
    names: BTreeMap<MemberPath, Named>,
    inodes: Vec<Member>,
    /// The layer that is being added; the first is 1.
    layer: u32,
}

/// What a path names.
#[derive(Debug, Clone, Copy)]
struct Named {
    inode: usize,
    layer: u32,
}

impl Stack {
    /// What is added from now on lies over all before.
    fn begin_layer(&mut self) {
        self.layer += 1;
    }

    /// Adds a file.
    pub(super) fn insert(&mut self, path: MemberPath, member: Member) -> Result<(), Cause> {
        let path = self.resolve(path)?;
        let is_directory = matches!(member.kind, MemberKind::Directory);
        if path.is_root() && !is_directory {
            return Err(broken("the root is not a directory"));
        }
        if !is_directory {
            self.hide_below(&path);
        }
        let inode = self.inodes.len();
        self.inodes.push(member);
        self.name(path, inode);
        Ok(())
    }

    /// Adds a further name of the file that `target` names now, whatever replaces that name later.
    pub(super) fn link(&mut self, path: MemberPath, target: &MemberPath) -> Result<(), Cause> {
        let path = self.resolve(path)?;
        let target = self.resolve(target.clone())?;
        let Some(&Named { inode, .. }) = self.names.get(&target) else {
            return Err(broken("hard link to a member that does not precede it"));
        };
        if matches!(self.inodes[inode].kind, MemberKind::Directory) {
            return Err(broken("hard link to a directory"));
        }
        if path.is_root() {
            return Err(broken("the root is not a directory"));
        }
        self.hide_below(&path);
        self.name(path, inode);
        Ok(())
    }

    fn name(&mut self, path: MemberPath, inode: usize) {
        let layer = self.layer;
        self.names.insert(path, Named { inode, layer });
    }

    /// Whether a member is a whiteout. Files of lower layers that it names are removed if so.
    pub(super) fn white_out(&mut self, path: &MemberPath) -> Result<(), Cause> {
        let Some(hidden) = Whiteout::of(path)? else {
            return Ok(());
        };
        match hidden {
            Whiteout::Metadata => {}
            Whiteout::Opaque => {
                let marker = self.resolve(path.clone())?;
                self.hide_below(&marker.parent());
            }
            Whiteout::Of(hidden) => {
                let hidden = self.resolve(hidden)?;
                let is_lower = |named: &Named| named.layer < self.layer;
                if self.names.get(&hidden).is_some_and(is_lower) {
                    self.names.remove(&hidden);
                }
                self.hide_below(&hidden);
            }
        }
        Ok(())
    }

    /// Removes what lower layers have below a path.
    fn hide_below(&mut self, path: &MemberPath) {
        let layer = self.layer;
        let range = (Bound::Excluded(path), Bound::Unbounded);
        let below = self.names.range::<MemberPath, _>(range);
        let hidden: Vec<_> = below
            .take_while(|(other, _)| other.is_below(path))
            .filter(|(_, named)| named.layer < layer)
            .map(|(other, _)| other.clone())
            .collect();
        for path in hidden {
            self.names.remove(&path);
        }
    }

    /// Follows directories of a path that are symbolic links in lower layers, within the root, as
    /// unpacking a layer does.
    fn resolve(&self, path: MemberPath) -> Result<MemberPath, Cause> {
        if self.layer <= 1 {
            return Ok(path);
        }
        let mut components: Vec<Vec<u8>> = path.components().map(<[u8]>::to_vec).collect();
        components.reverse();
        let (mut at, mut links) = (MemberPath::root(), 0);
        while let Some(component) = components.pop() {
            match &*component {
                b"" | b"." => continue,
                b".." => {
                    at = at.parent();
                    continue;
                }
                _ => {}
            }
            let next = at.below(&component);
            if components.is_empty() {
                return Ok(next);
            }
            match self.lower_link(&next) {
                None => at = next,
                Some(target) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(
                            platter_vfs::Error::from(Condition::TooManyLinksFollowed).into()
                        );
                    }
                    if target.starts_with(b"/") {
                        at = MemberPath::root();
                    }
                    let target = target.split(|&byte| byte == b'/').rev();
                    components.extend(target.map(<[u8]>::to_vec));
                }
            }
        }
        Ok(at)
    }

    /// The target of a symbolic link of a lower layer.
    fn lower_link(&self, path: &MemberPath) -> Option<&[u8]> {
        let named = self.names.get(path)?;
        if let MemberKind::Symlink(target) = &self.inodes[named.inode].kind
            && named.layer < self.layer
        {
            return Some(target);
        }
        None
    }

    /// Assigns each inode to the first of its names.
    fn into_members(self) -> Vec<(MemberPath, Member)> {
        let mut places: Vec<_> = self.inodes.into_iter().map(Assigned::Not).collect();
        let mut members = Vec::with_capacity(self.names.len());
        for (path, Named { inode, .. }) in self.names {
            let place = std::mem::replace(&mut places[inode], Assigned::To(path.clone()));
            let member = match place {
                Assigned::Not(member) => member,
                Assigned::To(first) => {
                    places[inode] = Assigned::To(first.clone());
                    Member::link(first)
                }
            };
            members.push((path, member));
        }
        members
    }
}

/// Whether an inode has a name already.
enum Assigned {
    Not(Member),
    To(MemberPath),
}

/// What a whiteout hides in lower layers.
enum Whiteout {
    /// A file, with all below it.
    Of(MemberPath),
    /// All in its directory.
    Opaque,
    /// Nothing.
    Metadata,
}

impl Whiteout {
    fn of(path: &MemberPath) -> Result<Option<Self>, Cause> {
        let Ok(name) = path.name() else {
            return Ok(None);
        };
        let name = name.as_bytes();
        let Some(hidden) = name.strip_prefix(WHITEOUT) else {
            return Ok(None);
        };
        if name == OPAQUE {
            return Ok(Some(Self::Opaque));
        }
        if name.starts_with(WHITEOUT_METADATA) {
            return Ok(Some(Self::Metadata));
        }
        let is_name = Name::new(hidden).is_ok_and(|name| !name.is_dot_or_dotdot());
        if !is_name {
            return Err(broken("whiteout without a valid name"));
        }
        Ok(Some(Self::Of(path.parent().below(hidden))))
    }
}

/// Whether a member of a layer is a whiteout, and no file.
pub(super) fn is_whiteout(path: &MemberPath) -> bool {
    let name = path.name();
    name.is_ok_and(|name| name.as_bytes().starts_with(WHITEOUT))
}
