//! New subvolumes, and snapshots.

use std::sync::Arc;

use platter_ondisk::Uuid;
use platter_vfs::attr::DeviceNumber;
use platter_vfs::namei::{NamedInode, NewInode, may_create};
use platter_vfs::{
    Condition, Context, CreateKind, Error, FileKind, Inode, InodeId, Name, Result, XattrMode,
};

use super::in_use::SnapshotInMaking;
use super::names;
use crate::inode;
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::RootItem;
use crate::ondisk::types::FIRST_FREE_OBJECT;
use crate::ondisk::{Generation, Key, TreeId};
use crate::ops::create::{self, Blueprint};
use crate::ops::state::{INODE_CREDITS, NAME_CREDITS, Purpose, States};
use crate::ops::{BtrfsInode, SuperBlock, orphans, sync};
use crate::subvolume;
use crate::txn::{Handle, Snapshot, roots, snapshots, trees};
use crate::xattr;

/// Tree blocks that a new subvolume or a snapshot changes: names in its parent, the root tree, the tree of UUIDs.
const CREDITS: u32 = 2 * NAME_CREDITS + INODE_CREDITS;
/// What a root directory may be, before the umask.
const PERMISSIONS: u32 = 0o777;

/// A directory that takes a new name.
fn directory_for(superblock: &Arc<SuperBlock>, parent: InodeId) -> Result<Arc<BtrfsInode>> {
    superblock.transactions()?;
    let dir = superblock.load(parent)?.ok_or(Condition::NotFound)?;
    if dir.kind != FileKind::Directory {
        return Err(Condition::NotDirectory.into());
    }
    Ok(dir)
}

/// The number of a new subvolume: none of this mount has it, be it that it was deleted.
fn next_subvolume(superblock: &SuperBlock, handle: &Handle<'_>) -> Result<TreeId> {
    let mut last = superblock.last_subvolume.lock();
    let next = subvolume::next_id(handle)?.max(TreeId(last.0.saturating_add(1)));
    if !next.is_subvolume() {
        return Err(Condition::NoSpace.into());
    }
    *last = next;
    Ok(next)
}

/// Creates a subvolume; see [`platter_vfs::Subvolumes::create`].
pub(super) fn create_subvolume(
    superblock: &Arc<SuperBlock>,
    context: &Context,
    parent: InodeId,
    name: Name<'_>,
) -> Result<Arc<dyn Inode>> {
    let dir = directory_for(superblock, parent)?;
    dir.space()?;
    let _order = dir.order.write();
    dir.vacancy(name)?;
    may_create(&dir.link_state())?;
    let blueprint = create::plan(
        &dir,
        NewInode {
            context,
            kind: &CreateKind::Directory,
            permissions: PERMISSIONS,
        },
    )?;
    let changing = superblock.subvolume_changes.lock();
    // Its subvolume may have been deleted meanwhile, also below.
    dir.space()?;
    let handle = superblock.begin(CREDITS, Purpose::ChangeNow(dir.tree_id()))?;
    let mut states = States::lock(&[&*dir]);
    let id = handle.whole(|handle| {
        let id = next_subvolume(superblock, handle)?;
        let uuid = superblock.clock.random_uuid();
        names::add(&dir, handle, &mut states, name, id)?;
        make_tree(superblock, handle, (id, dir.tree_id()), uuid, &blueprint)?;
        subvolume::add_uuid(
            handle,
            superblock.context(),
            uuid,
            ItemKind::UUID_SUBVOL,
            id,
        )?;
        states.store(handle)?;
        Ok(id)
    })?;
    states.end();
    drop(handle);
    superblock.context().forget_root_item(id);
    drop(changing);
    root_directory(superblock, id)
}

fn root_directory(superblock: &Arc<SuperBlock>, id: TreeId) -> Result<Arc<dyn Inode>> {
    let root = InodeId {
        tree: id.0,
        number: FIRST_FREE_OBJECT,
    };
    Ok(superblock.find(root)?.ok_or(Condition::Stale)?)
}

/// Makes the tree of a new subvolume, with its root directory.
fn make_tree(
    superblock: &SuperBlock,
    handle: &Handle<'_>,
    (id, container): (TreeId, TreeId),
    uuid: Uuid,
    blueprint: &Blueprint<'_>,
) -> Result<()> {
    let (generation, now) = (handle.generation(), superblock.clock.now());
    let root = roots::create(handle, id, container)?;
    let node_bytes = superblock.context().superblock.node_bytes;
    let mut item = RootItem::of_new_tree(root, node_bytes.into());
    item.root_dir = FIRST_FREE_OBJECT;
    let history = &mut item.history;
    history.uuid = uuid;
    history.creation_transaction = generation;
    history.change_transaction = generation;
    (history.created, history.changed) = (now, now);
    subvolume::insert_root(handle, id, &item)?;
    let directory = InodeItem {
        generation,
        transaction: generation,
        size_bytes: 0,
        allocated_bytes: 0,
        links: 1,
        uid: blueprint.file.uid,
        gid: blueprint.file.gid,
        kind: FileKind::Directory,
        permissions: blueprint.file.permissions,
        device: DeviceNumber { major: 0, minor: 0 },
        flags: InodeFlags::empty(),
        sequence: 0,
        accessed: now,
        changed: now,
        modified: now,
        created: now,
    };
    handle.edit(id, |editor| {
        let number = FIRST_FREE_OBJECT;
        inode::change::insert(editor, number, &directory)?;
        let mut reference = Vec::new();
        InodeRef {
            parent: number,
            index: 0,
            name: b"..",
        }
        .encode(&mut reference);
        editor.insert(Key::new(number, ItemKind::INODE_REF, number), &reference)?;
        for (name, acl) in blueprint.acls() {
            let value = acl.encode();
            xattr::change::set(editor, generation, (number, name), &value, XattrMode::Set)?;
        }
        Ok(())
    })
}

/// Makes a snapshot; see [`platter_vfs::Subvolumes::snapshot`]. It is that of a commit, which this one waits
/// for.
pub(super) fn create_snapshot(
    superblock: &Arc<SuperBlock>,
    source: TreeId,
    parent: InodeId,
    name: Name<'_>,
    is_read_only: bool,
) -> Result<Arc<dyn Inode>> {
    let dir = directory_for(superblock, parent)?;
    dir.space()?;
    sync::write_dirty(superblock)?;
    let _order = dir.order.write();
    dir.vacancy(name)?;
    may_create(&dir.link_state())?;
    let changing = superblock.subvolume_changes.lock();
    dir.space()?;
    let context = superblock.context();
    let found = context.subvolume(source)?.ok_or(Condition::NotFound)?;
    let writing = superblock.transactions()?;
    trees::follow(writing, source)?;
    // What is written in place would be in the snapshot.
    let none_in_place = writing.in_place().exclude();
    let handle = superblock.begin(CREDITS, Purpose::ChangeNow(dir.tree_id()))?;
    let mut states = States::lock(&[&*dir]);
    let id = handle.whole(|handle| {
        let id = next_subvolume(superblock, handle)?;
        let uuid = superblock.clock.random_uuid();
        names::add(&dir, handle, &mut states, name, id)?;
        states.store(handle)?;
        subvolume::add_uuid(handle, context, uuid, ItemKind::UUID_SUBVOL, id)?;
        if is_read_only {
            let received = found.item.history.received_uuid;
            let kind = ItemKind::UUID_RECEIVED_SUBVOL;
            match subvolume::add_uuid(handle, context, received, kind, id) {
                // As in the kernel, it is left out: a search for the UUID finds others that have it.
                Ok(()) | Err(Error::Condition(Condition::Overflow)) => {}
                Err(error) => return Err(error),
            }
        }
        snapshots::add(
            handle,
            Snapshot {
                source,
                id,
                container: dir.tree_id(),
                uuid,
                is_read_only,
                now: superblock.clock.now(),
            },
        );
        Ok(id)
    })?;
    states.end();
    let generation: Generation = handle.generation();
    drop(handle);
    writing.commit(generation)?;
    drop(none_in_place);
    // The source's says now that its blocks may be shared.
    context.forget_root_item(source);
    context.forget_root_item(id);
    let made = context.subvolume(id)?.ok_or(Condition::Stale)?;
    // What has no name in the source has no user in the snapshot, which is not sent before it is gone.
    let in_making = SnapshotInMaking::begin(superblock.in_use.get_or_add(&made));
    drop(changing);
    orphans::clean_up_subvolume(superblock, &made)?;
    drop(in_making);
    root_directory(superblock, id)
}
