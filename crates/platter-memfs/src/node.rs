//! What the memory filesystem keeps of one inode, and all of them together.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::content::Content;
use super::directory::Directory;
use super::disk::{BLOCK_BYTES, PAGE};
use platter_vfs::acl::{ACL_ACCESS_NAME, AclChange};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::namei::LinkState;
use platter_vfs::{
    Attr, Condition, Context, ExtendedFlags, FileKind, InodeId, PosixAcl, Result, Timestamp,
};

/// An inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Number(pub(super) u64);

/// The root directory.
pub(super) const ROOT: Number = Number(1);

/// The most names a file may have, as few as any driver allows.
pub(super) const LINKS_MAX: u32 = 65_000;

/// All inodes.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) by_number: HashMap<Number, Node>,
    pub(super) next_number: u64,
    pub(super) pages_free: u64,
    pub(super) inodes_free: u64,
    pub(super) read_only: bool,
    pub(super) label: Vec<u8>,
}

/// One inode.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) body: Body,
    pub(super) permissions: u32,
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) project: u32,
    pub(super) flags: u32,
    pub(super) extended: ExtendedFlags,
    pub(super) accessed: Timestamp,
    pub(super) modified: Timestamp,
    pub(super) changed: Timestamp,
    pub(super) created: Timestamp,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Made without a name, so it may still get its first.
    pub(super) may_get_first_name: bool,
}

#[derive(Debug)]
pub(super) enum Body {
    Regular(Content),
    Directory(Directory),
    Symlink(Vec<u8>),
    /// A device, FIFO or socket; the number is 0:0 for the latter two.
    Special(FileKind, DeviceNumber),
}

impl Nodes {
    /// The inode of a number that is in use.
    pub(super) fn get(&self, number: Number) -> &Node {
        &self.by_number[&number]
    }

    pub(super) fn get_mut(&mut self, number: Number) -> &mut Node {
        let node = self.by_number.get_mut(&number);
        node.expect("an inode stays while it is in use or has a name")
    }

    /// Forgets an inode that neither a name nor a user holds.
    pub(super) fn free(&mut self, number: Number) {
        let node = self.by_number.remove(&number).expect("freed once");
        self.inodes_free += 1;
        if let Body::Regular(content) = &node.body {
            self.pages_free += content.pages_held();
        }
    }
}

impl Node {
    /// A node without names that belongs to the superuser, with no permissions for others.
    pub(super) fn new(body: Body, now: Timestamp) -> Self {
        Self {
            body,
            permissions: 0,
            links: 0,
            uid: 0,
            gid: 0,
            project: 0,
            flags: 0,
            extended: ExtendedFlags::default(),
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            xattrs: BTreeMap::new(),
            may_get_first_name: false,
        }
    }

    pub(super) fn kind(&self) -> FileKind {
        match self.body {
            Body::Regular(_) => FileKind::Regular,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Special(kind, _) => kind,
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    pub(super) fn link_state(&self) -> LinkState {
        LinkState {
            links: self.links,
            may_get_first_name: self.may_get_first_name,
            flags: self.flags,
            project: self.project,
        }
    }

    /// The directory it is.
    pub(super) fn directory(&self) -> Result<&Directory> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            Body::Regular(_) | Body::Symlink(_) | Body::Special(..) => {
                Err(Condition::NotDirectory.into())
            }
        }
    }

    pub(super) fn directory_mut(&mut self) -> Result<&mut Directory> {
        match &mut self.body {
            Body::Directory(directory) => Ok(directory),
            Body::Regular(_) | Body::Symlink(_) | Body::Special(..) => {
                Err(Condition::NotDirectory.into())
            }
        }
    }

    /// The contents of the regular file it is.
    pub(super) fn content(&self) -> Result<&Content> {
        match &self.body {
            Body::Regular(content) => Ok(content),
            Body::Directory(_) => Err(Condition::IsDirectory.into()),
            Body::Symlink(_) | Body::Special(..) => Err(Condition::InvalidArgument.into()),
        }
    }

    pub(super) fn content_mut(&mut self) -> Result<&mut Content> {
        match &mut self.body {
            Body::Regular(content) => Ok(content),
            Body::Directory(_) => Err(Condition::IsDirectory.into()),
            Body::Symlink(_) | Body::Special(..) => Err(Condition::InvalidArgument.into()),
        }
    }

    /// One of its ACLs.
    pub(super) fn acl(&self, name: &[u8]) -> Result<Option<PosixAcl>> {
        let value = self.xattrs.get(name);
        value.map(|value| PosixAcl::decode(value)).transpose()
    }

    /// Sets or removes one of its ACLs.
    pub(super) fn change_acl(
        &mut self,
        name: &[u8],
        acl: &AclChange,
        context: &Context,
        now: Timestamp,
    ) {
        let stored = acl.stored.as_ref().map(PosixAcl::encode);
        let permissions = acl.permissions(self.permissions, self.gid, context);
        // To set what is there already is no change.
        if self.xattrs.get(name) == stored.as_ref() && self.permissions == permissions {
            return;
        }
        match stored {
            Some(value) => self.xattrs.insert(name.to_vec(), value),
            None => self.xattrs.remove(name),
        };
        self.permissions = permissions;
        self.changed = now;
    }

    /// Sets the permission bits, and with them what its ACL says of the same.
    pub(super) fn set_permissions(&mut self, permissions: u32) -> Result<()> {
        self.permissions = permissions & 0o7777;
        if let Some(acl) = self.acl(ACL_ACCESS_NAME)? {
            let acl = acl.with_mode(permissions);
            self.xattrs.insert(ACL_ACCESS_NAME.to_vec(), acl.encode());
        }
        Ok(())
    }

    pub(super) fn attr(&self, number: Number) -> Attr {
        let (size_bytes, pages) = match &self.body {
            Body::Regular(content) => (content.size_bytes(), content.pages_held()),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Directory(_) => (PAGE, 1),
            Body::Special(..) => (0, 0),
        };
        let device = match self.body {
            Body::Special(_, device) => device,
            Body::Regular(_) | Body::Directory(_) | Body::Symlink(_) => DeviceNumber::default(),
        };
        Attr {
            inode: number.0,
            generation: 0,
            kind: self.kind(),
            permissions: self.permissions,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            project: self.project,
            size_bytes,
            sectors: pages * (PAGE / 512),
            space_is_estimated: false,
            io_block_bytes: BLOCK_BYTES,
            device,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            created: Some(self.created),
            flags: self.flags,
        }
    }
}

impl Number {
    pub(super) fn id(self) -> InodeId {
        InodeId {
            tree: 0,
            number: self.0,
        }
    }
}
