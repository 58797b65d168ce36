//! What changes a file or a name in the memory filesystem.

use super::content::Content;
use super::directory::Directory;
use super::node::{Body, Node, Nodes, Number};
use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclChange};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::creation::NewFile;
use platter_vfs::{
    Condition, Context, CreateKind, FileKind, Name, Result, SetAttr, SetTime, Timestamp, XattrMode,
};

/// The longest target of a link, the largest attribute, and the longest name of one, in bytes.
const TARGET_LEN_MAX: usize = 4095;
const XATTR_BYTES_MAX: usize = 65_536;
const XATTR_NAME_LEN_MAX: usize = 255;

/// A file about to be made.
pub(super) struct NewNode {
    pub(super) number: Number,
    pub(super) kind: CreateKind,
    pub(super) permissions: u32,
}

impl Nodes {
    pub(super) fn reserve_number(&mut self) -> Number {
        let number = Number(self.next_number);
        self.next_number += 1;
        number
    }

    /// Makes a file in `dir`, named `name` if at all.
    pub(super) fn create(
        &mut self,
        dir: Number,
        name: Option<Name<'_>>,
        new: NewNode,
        context: &Context,
        now: Timestamp,
    ) -> Result<()> {
        self.inodes_free = self.inodes_free.checked_sub(1).ok_or(Condition::NoSpace)?;
        let node = match self.new_node(dir, new.kind, new.permissions, context, now) {
            Ok(node) => node,
            Err(error) => {
                self.inodes_free += 1;
                return Err(error);
            }
        };
        let is_directory = node.is_directory();
        self.by_number.insert(new.number, node);
        match name {
            Some(name) => self.add_name(dir, name, new.number, now),
            None => self.get_mut(new.number).may_get_first_name = true,
        }
        if is_directory {
            self.get_mut(new.number).links += 1;
            self.get_mut(dir).links += 1;
        }
        Ok(())
    }

    /// A node without names yet.
    fn new_node(
        &self,
        dir: Number,
        kind: CreateKind,
        permissions: u32,
        context: &Context,
        now: Timestamp,
    ) -> Result<Node> {
        let body = match kind {
            CreateKind::Regular => Body::Regular(Content::default()),
            CreateKind::Directory => Body::Directory(Directory::new(dir)),
            CreateKind::Symlink(target) if target.is_empty() => {
                return Err(Condition::NotFound.into());
            }
            CreateKind::Symlink(target) if target.len() > TARGET_LEN_MAX => {
                return Err(Condition::NameTooLong.into());
            }
            CreateKind::Symlink(target) => Body::Symlink(target),
            CreateKind::CharDevice(device) => Body::Special(FileKind::CharDevice, device),
            CreateKind::BlockDevice(device) => Body::Special(FileKind::BlockDevice, device),
            CreateKind::Fifo => Body::Special(FileKind::Fifo, DeviceNumber::default()),
            CreateKind::Socket => Body::Special(FileKind::Socket, DeviceNumber::default()),
        };
        let mut node = Node::new(body, now);
        let parent = self.get(dir);
        let default_acl = parent.acl(ACL_DEFAULT_NAME)?;
        let (attr, kind) = (parent.attr(dir), node.kind());
        let acl = default_acl.as_ref();
        let new = NewFile::in_directory(&attr, acl, context, kind, permissions);
        (node.uid, node.gid, node.permissions) = (new.uid, new.gid, new.permissions);
        if let Some(acl) = new.access_acl {
            node.xattrs.insert(ACL_ACCESS_NAME.to_vec(), acl.encode());
        }
        if let (Some(acl), true) = (default_acl, new.inherits_default_acl) {
            node.xattrs.insert(ACL_DEFAULT_NAME.to_vec(), acl.encode());
        }
        Ok(node)
    }

    /// Removes a name of `target`.
    pub(super) fn unlink(&mut self, dir: Number, name: Name<'_>, target: Number, now: Timestamp) {
        self.touch_names(dir, now).remove(name);
        if self.get(target).is_directory() {
            self.get_mut(dir).links -= 1;
        }
        self.drop_link(target, now);
    }

    pub(super) fn set_attr(
        &mut self,
        number: Number,
        changes: &SetAttr,
        now: Timestamp,
    ) -> Result<()> {
        let node = self.get_mut(number);
        if let Some(permissions) = changes.permissions {
            node.set_permissions(permissions)?;
        }
        let SetAttr {
            permissions: _,
            uid,
            gid,
            size_bytes: _,
            accessed,
            modified,
            changed,
            flags,
            project,
            xflags,
            extent_size_bytes,
            cow_extent_size_bytes,
        } = *changes;
        let time = |set: SetTime| set.resolve(now);
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        node.accessed = accessed.map_or(node.accessed, time);
        node.modified = modified.map_or(node.modified, time);
        node.changed = changed.unwrap_or(now);
        node.flags = flags.unwrap_or(node.flags);
        node.project = project.unwrap_or(node.project);
        let extended = &mut node.extended;
        extended.xflags = xflags.unwrap_or(extended.xflags);
        extended.extent_size_bytes = extent_size_bytes.unwrap_or(extended.extent_size_bytes);
        extended.cow_extent_size_bytes =
            cow_extent_size_bytes.unwrap_or(extended.cow_extent_size_bytes);
        Ok(())
    }

    pub(super) fn set_xattr(
        &mut self,
        number: Number,
        context: &Context,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
        now: Timestamp,
    ) -> Result<()> {
        if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX {
            return Err(Condition::OutOfRange.into());
        }
        if value.len() > XATTR_BYTES_MAX {
            return Err(Condition::TooBig.into());
        }
        let node = self.get_mut(number);
        if let Some(acl) = AclChange::setting(node.kind(), name, value)? {
            node.change_acl(name, &acl, context, now);
            return Ok(());
        }
        let exists = node.xattrs.contains_key(name);
        match mode {
            XattrMode::Create if exists => return Err(Condition::Exists.into()),
            XattrMode::Replace if !exists => return Err(Condition::NoAttribute.into()),
            XattrMode::Set | XattrMode::Create | XattrMode::Replace => {}
        }
        let before = node.xattrs.insert(name.to_vec(), value.to_vec());
        // To set what is there already is no change.
        if before.as_deref() != Some(value) {
            node.changed = now;
        }
        Ok(())
    }

    pub(super) fn remove_xattr(
        &mut self,
        number: Number,
        context: &Context,
        name: &[u8],
        now: Timestamp,
    ) -> Result<()> {
        let node = self.get_mut(number);
        if let Some(acl) = AclChange::removing(node.kind(), name)? {
            node.change_acl(name, &acl, context, now);
            return Ok(());
        }
        node.xattrs.remove(name).ok_or(Condition::NoAttribute)?;
        node.changed = now;
        Ok(())
    }

    pub(super) fn add_name(&mut self, dir: Number, name: Name<'_>, target: Number, now: Timestamp) {
        self.touch_names(dir, now).insert(name, target);
        let node = self.get_mut(target);
        node.links += 1;
        node.changed = now;
    }

    /// The names of a directory that is known to be one, which changes now.
    pub(super) fn touch_names(&mut self, dir: Number, now: Timestamp) -> &mut Directory {
        let node = self.get_mut(dir);
        (node.modified, node.changed) = (now, now);
        node.directory_mut().expect("names are only in directories")
    }

    /// Takes one link from `target`, and from a directory both.
    pub(super) fn drop_link(&mut self, target: Number, now: Timestamp) {
        let node = self.get_mut(target);
        node.links -= if node.is_directory() { 2 } else { 1 };
        node.changed = now;
    }

    /// Sets the times of a change of contents.
    pub(super) fn touch_contents(&mut self, number: Number, now: Timestamp) {
        let node = self.get_mut(number);
        (node.modified, node.changed) = (now, now);
    }

    /// Changes contents, and counts the pages that came or went.
    pub(super) fn change_content<T>(
        &mut self,
        number: Number,
        change: impl FnOnce(&mut Content) -> T,
    ) -> Result<T> {
        let node = self.by_number.get_mut(&number);
        let content = node.expect("the caller uses it").content_mut()?;
        let held_before = content.pages_held();
        let changed = change(content);
        self.pages_free = self.pages_free + held_before - content.pages_held();
        Ok(changed)
    }

    pub(super) fn must_have_pages(&self, pages: u64) -> Result<()> {
        if pages > self.pages_free {
            return Err(Condition::NoSpace.into());
        }
        Ok(())
    }
}
