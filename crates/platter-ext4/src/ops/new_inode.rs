//! A new inode: whose it is, what it takes from its directory, and what is in it from the start.

use std::io::IoSlice;

use platter_vfs::acl::{ACL_DEFAULT_NAME, PosixAcl};
use platter_vfs::creation::NewFile;
use platter_vfs::namei::NewInode;
use platter_vfs::{Condition, Context, CreateKind, FileKind, Result};

use super::inode_quota::{cluster_bytes, cluster_sectors};
use super::{Ext4Inode, quotas};
use crate::alloc::{self, Portion, Taken};
use crate::directory::DirectoryMut;
use crate::inode;
use crate::mapping::{Backing, BlockMap, BlockSource, MapChange, Run};
use crate::ondisk::features::{Incompat, RoCompat};
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::{FileBlock, Geometry, Inode, InodeFlags, InodeNr};
use crate::quota::{Held, Owners};
use crate::txn::Handle;
use crate::xattr::{self, XattrChange};

/// The longest target of a link (`PATH_MAX` without its end).
const TARGET_LEN_MAX: usize = 4095;
/// `EXT4_FL_INHERITED`: `s`, `u`, `c`, `S`, `d`, `A`, `X`, `j`, `t`, `D`, `x`, `P` and `F` of
/// `chattr(1)`.
const INHERITED: u32 = 0x6201_c4cf;
/// Of the inherited flags, those that mean nothing for what is no directory: `D`, `T`, `P`, `F`.
const DIRECTORY_ONLY: u32 = 0x6003_0000;
/// `d` and `A`, all that devices, links and the like inherit.
const INHERITED_BY_OTHERS: u32 = 0x00c0;

/// A file about to be made.
pub(super) struct Blueprint<'a> {
    pub(super) context: &'a Context,
    pub(super) kind: &'a CreateKind,
    pub(super) permissions: u32,
    pub(super) default_acl: Option<PosixAcl>,
    /// Where the target of a symbolic link was written, if it is too long for the inode.
    pub(super) target_block: Option<Taken>,
}

impl Blueprint<'_> {
    pub(super) fn file_kind(&self) -> FileKind {
        self.kind.file_kind()
    }

    /// Frees what was allocated for a file that is not created.
    pub(super) fn give_up(self, space: Portion<'_>) {
        if let Some(taken) = self.target_block {
            alloc::give_back(space.space, taken);
        }
    }

    /// The owners of the file.
    pub(super) fn owners(&self, dir: &Inode, geometry: &Geometry) -> Owners {
        let new = self.new_file(dir, geometry);
        [
            new.uid,
            new.gid,
            inherited_project(dir, geometry).unwrap_or(0),
        ]
    }

    /// What the file takes from its maker and from its directory.
    fn new_file(&self, dir: &Inode, geometry: &Geometry) -> NewFile {
        let attr = inode::attr(dir, geometry);
        let (acl, kind) = (self.default_acl.as_ref(), self.file_kind());
        NewFile::in_directory(&attr, acl, self.context, kind, self.permissions)
    }
}

/// Plans a file to be made in this directory. What lies outside its inode is written to the
/// device already, where nothing names it yet: the caller has no handle.
///
/// # Errors
/// `NotFound` for a link to nothing, `NameTooLong` for one that leads too far; `NoSpace`.
pub(super) fn plan<'a>(
    node: &Ext4Inode,
    space: Portion<'_>,
    new: &NewInode<'a>,
) -> Result<Blueprint<'a>> {
    let NewInode {
        context,
        kind,
        permissions,
    } = *new;
    let default_acl = {
        let state = node.state.read();
        xattr::acl(node.fs(), &state.inode, ACL_DEFAULT_NAME)?
    };
    let target_block = match kind {
        CreateKind::Symlink(target) => write_target(node, space, target)?,
        CreateKind::Regular
        | CreateKind::Directory
        | CreateKind::CharDevice(_)
        | CreateKind::BlockDevice(_)
        | CreateKind::Fifo
        | CreateKind::Socket => None,
    };
    Ok(Blueprint {
        context,
        kind,
        permissions,
        default_acl,
        target_block,
    })
}

/// Plans a file to be made in this directory, with a reservation of the quotas of its owners, which
/// lasts until the file is stored.
///
/// # Errors
/// Those of [`plan`], and `QuotaExceeded`.
pub(super) fn plan_counted<'a>(
    node: &Ext4Inode,
    space: Portion<'_>,
    new: &NewInode<'a>,
) -> Result<(Blueprint<'a>, Option<Held>)> {
    let blueprint = plan(node, space, new)?;
    match hold_new(node, &blueprint) {
        Ok(held) => Ok((blueprint, held)),
        Err(error) => {
            blueprint.give_up(space);
            Err(error)
        }
    }
}

/// Reserves an inode for a file to be made in this directory, and the cluster that it is made with.
/// `None` where nothing is counted. The caller has no handle.
///
/// # Errors
/// `QuotaExceeded`, and `NoSpace` in the quota files.
fn hold_new(node: &Ext4Inode, blueprint: &Blueprint<'_>) -> Result<Option<Held>> {
    let fs = node.fs();
    let Some(quotas) = fs.quotas() else {
        return Ok(None);
    };
    let owners = blueprint.owners(&node.state.read().inode, &fs.geometry);
    quotas::add_owners(&node.sb, &owners)?;
    let has_block = match blueprint.kind {
        CreateKind::Directory => !fs
            .geometry
            .features
            .incompat
            .contains(Incompat::INLINE_DATA),
        CreateKind::Symlink(target) => target.len() >= BLOCK_AREA_BYTES,
        CreateKind::Regular
        | CreateKind::CharDevice(_)
        | CreateKind::BlockDevice(_)
        | CreateKind::Fifo
        | CreateKind::Socket => false,
    };
    let space = if has_block { cluster_bytes(fs) } else { 0 };
    let may_exceed = quotas::may_exceed(blueprint.context);
    Ok(Some(quotas.hold(owners, space, 1, may_exceed)?))
}

/// Writes the target of a link to a block, if it is too long for an inode.
fn write_target(node: &Ext4Inode, space: Portion<'_>, target: &[u8]) -> Result<Option<Taken>> {
    let fs = node.fs();
    let block_bytes = fs.geometry.block_bytes as usize;
    if target.is_empty() {
        return Err(Condition::NotFound.into());
    }
    if target.len() > TARGET_LEN_MAX || target.len() >= block_bytes {
        return Err(Condition::NameTooLong.into());
    }
    if target.contains(&0) {
        return Err(Condition::InvalidArgument.into());
    }
    if target.len() < BLOCK_AREA_BYTES {
        return Ok(None);
    }
    let goal = space.space.first_goal(node.number, FileKind::Symlink);
    let taken = alloc::take(space.space, fs, goal, 1, space.from)?;
    let mut block = target.to_vec();
    block.resize(block_bytes, 0);
    let offset = taken.start().0 << fs.geometry.block_bits;
    match node.sb.write_data(offset, &[IoSlice::new(&block)]) {
        Ok(()) => Ok(Some(taken)),
        Err(error) => {
            alloc::give_back(space.space, taken);
            Err(error)
        }
    }
}

/// The inode of a file that is made in this directory, which has the inode `dir`: without
/// contents, and without names.
pub(super) fn build(
    node: &Ext4Inode,
    dir: &Inode,
    number: InodeNr,
    blueprint: &Blueprint<'_>,
) -> (Inode, BlockMap) {
    let fs = node.fs();
    let geometry = &fs.geometry;
    let kind = blueprint.file_kind();
    let new = blueprint.new_file(dir, geometry);
    let [b0, b1, b2, b3, ..] = node.sb.clock.random_u64().to_le_bytes();
    let generation = u32::from_le_bytes([b0, b1, b2, b3]);
    let extra_bytes = fs.superblock.inode_extra_bytes;
    let mut inode = Inode::new(number, kind, generation, extra_bytes, geometry);
    (inode.uid, inode.gid) = (new.uid, new.gid);
    inode.permissions = new.permissions;
    inode.version = 1;
    let now = node.sb.clock.now();
    inode.created = inode.storable_creation(now);
    let now = inode.storable(now);
    (inode.accessed, inode.modified, inode.changed) = (now, now, now);
    inode.flags = inherited_flags(dir.flags, kind);
    inode.project = inherited_project(dir, geometry).unwrap_or(0);
    let has_extents = geometry.features.incompat.contains(Incompat::EXTENTS);
    let has_map =
        matches!(kind, FileKind::Regular | FileKind::Directory) || blueprint.target_block.is_some();
    inode.flags.set(InodeFlags::EXTENTS, has_extents && has_map);
    match blueprint.kind {
        CreateKind::Symlink(target) => {
            inode.size_bytes = target.len() as u64;
            if blueprint.target_block.is_some() {
                // The target lies where the space is.
                inode.sectors = cluster_sectors(geometry);
            } else if let Some(place) = inode.block.get_mut(..target.len()) {
                place.copy_from_slice(target);
            }
        }
        CreateKind::CharDevice(device) | CreateKind::BlockDevice(device) => {
            inode.set_device(*device);
        }
        CreateKind::Regular | CreateKind::Directory | CreateKind::Fifo | CreateKind::Socket => {}
    }
    let map = BlockMap::begin(fs, &mut inode);
    (inode, map)
}

/// Sets the access control lists of a new inode and what lies outside it: the first block of a
/// directory, the target of a link.
///
/// # Errors
/// `NoSpace`; with an error, nothing was changed, but that the target's block is given back.
pub(super) fn fill(
    node: &Ext4Inode,
    space: Portion<'_>,
    handle: &mut Handle<'_>,
    dir: &Inode,
    (inode, map): (&mut Inode, &mut BlockMap),
    blueprint: Blueprint<'_>,
) -> Result<()> {
    let fs = node.fs();
    if let Some(taken) = blueprint.target_block {
        return place_target(node, space, handle, (inode, map), taken);
    }
    if let Some(acl) = &blueprint.default_acl {
        let new = blueprint.new_file(dir, &fs.geometry);
        let mut change = new_xattrs(node, blueprint.context, space, handle, inode);
        if let Err(error) = xattr::inherit(&mut change, &new, Some(acl)) {
            // One of two lists may be there already.
            release(&mut change)?;
            return Err(error);
        }
    }
    if inode.kind != FileKind::Directory {
        return Ok(());
    }
    let begun = DirectoryMut::open(fs, &space, handle, inode, map)
        .and_then(|mut directory| directory.begin(node.number));
    if begun.is_err() {
        let context = blueprint.context;
        release(&mut new_xattrs(node, context, space, handle, inode))?;
    }
    begun
}

/// Maps the block in which the target of a link lies.
fn place_target(
    node: &Ext4Inode,
    space: Portion<'_>,
    handle: &mut Handle<'_>,
    (inode, map): (&mut Inode, &mut BlockMap),
    taken: Taken,
) -> Result<()> {
    let fs = node.fs();
    let blocks = taken.blocks();
    alloc::record(space.space, fs, handle, taken)?;
    let run = Run {
        first: FileBlock(0),
        count: 1,
        backing: Backing::Written(blocks.start),
    };
    let mut change = MapChange {
        fs,
        space: &space,
        handle,
        inode,
    };
    if let Err(error) = map.insert(&mut change, run) {
        let freed = space.free(fs, handle, blocks);
        freed.map_err(|error| handle.abort(error))?;
        return Err(error);
    }
    Ok(())
}

/// A change of the attributes of a new inode.
fn new_xattrs<'a, 'h>(
    node: &'a Ext4Inode,
    context: &Context,
    space: Portion<'a>,
    handle: &'a mut Handle<'h>,
    inode: &'a mut Inode,
) -> XattrChange<'a, 'h> {
    XattrChange {
        fs: node.fs(),
        space: space.space,
        handle,
        from: space.from,
        now: inode.changed,
        clock: &*node.sb.clock,
        holding: quotas::hold_for_xattrs(node, context, inode),
        needed: None,
        inode,
    }
}

/// Releases the attributes of a new inode, which is not created.
fn release(change: &mut XattrChange<'_, '_>) -> Result<()> {
    let released = change.release().map(|_| ());
    released.map_err(|error| change.handle.abort(error))
}

/// Takes back what [`fill`] gave, and the inode itself.
pub(super) fn undo(
    node: &Ext4Inode,
    space: Portion<'_>,
    handle: &mut Handle<'_>,
    (inode, map): (&mut Inode, &mut BlockMap),
) -> Result<()> {
    let fs = node.fs();
    let (number, is_directory) = (inode.number, inode.kind == FileKind::Directory);
    let context = Context::root();
    release(&mut new_xattrs(node, &context, space, handle, inode))?;
    let mut change = MapChange {
        fs,
        space: &space,
        handle,
        inode,
    };
    let emptied = map.remove(&mut change, FileBlock(0)..FileBlock::MAX);
    let freed =
        emptied.and_then(|_| alloc::free_inode(space.space, fs, handle, number, is_directory));
    freed.map_err(|error| handle.abort(error))
}

/// The project of what is made in a directory; `None` where it is not inherited.
pub(super) fn inherited_project(dir: &Inode, geometry: &Geometry) -> Option<u32> {
    let has_projects = geometry.features.ro_compat.contains(RoCompat::PROJECT);
    (has_projects && dir.flags.contains(InodeFlags::PROJECT_INHERIT)).then_some(dir.project)
}

/// What an inode of `kind` inherits of the flags of its directory.
pub(super) fn inherited_flags(dir: InodeFlags, kind: FileKind) -> InodeFlags {
    let taken = match kind {
        FileKind::Directory => INHERITED,
        FileKind::Regular => INHERITED & !DIRECTORY_ONLY,
        FileKind::Symlink
        | FileKind::CharDevice
        | FileKind::BlockDevice
        | FileKind::Fifo
        | FileKind::Socket => INHERITED & INHERITED_BY_OTHERS,
    };
    InodeFlags::from_bits_retain(dir.bits() & taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_inherited_as_far_as_they_mean_something() {
        let all = InodeFlags::from_bits_retain(u32::MAX);
        let bits = |kind| inherited_flags(all, kind).bits();
        assert_eq!(bits(FileKind::Directory), 0x6201_c4cf);
        assert_eq!(bits(FileKind::Regular), 0x0200_c4cf);
        assert_eq!(bits(FileKind::Fifo), 0xc0);
    }
}
