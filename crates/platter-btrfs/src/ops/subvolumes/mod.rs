//! Subvolumes as they are listed, shown, made and deleted.

pub(super) mod in_use;
pub(super) mod names;
mod create;
pub(super) mod delete;
mod flags;
mod send;
mod receive;
#[cfg(test)]
mod race_tests;

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::sync::Arc;

use platter_ondisk::{Corrupt, Locus, Uuid};
use platter_vfs::file::write_back_files;
use platter_vfs::path::PATH_MAX;
use platter_vfs::subvolumes::{Received, SendOptions, Subvolume, SubvolumeSink, Transfer};
use platter_vfs::{
    Condition, Context, Error, FileKind, Inode, InodeId, Name, Result, Subvolumes, Timestamp, namei,
};

use super::SuperBlock;
use crate::context::{self, FsContext, TreesRule};
use crate::inode;
use crate::ondisk::{Generation, TreeId};
use crate::txn::trees;

/// The subvolumes of a mount.
#[derive(Debug, Clone)]
pub struct MountedSubvolumes(pub(crate) Arc<SuperBlock>);

/// Lets parents of subvolumes be read while transactions change them.
fn follow(superblock: &SuperBlock, id: TreeId) -> Result<()> {
    superblock
        .writing()
        .map_or(Ok(()), |writing| trees::follow(writing, id))
}

fn list(superblock: &SuperBlock, sink: &mut SubvolumeSink<'_>) -> Result<()> {
    let mut broken = None;
    let mut all = Vec::new();
    for subvolume in superblock.context().subvolumes()? {
        if unless_gone(superblock, subvolume.id, follow(superblock, subvolume.id))?.is_some() {
            all.push(subvolume);
        }
    }
    for subvolume in all {
        let described = describe(superblock.context(), &subvolume);
        match unless_gone(superblock, subvolume.id, described) {
            Ok(Some(described)) => {
                if sink(described) == ControlFlow::Break(()) {
                    return Ok(());
                }
            }
            Ok(None) => {}
            Err(error) => broken = broken.or(Some(error)),
        }
    }
    broken.map_or(Ok(()), Err)
}

/// What was found of a subvolume; `None` instead of an error if it was deleted meanwhile.
fn unless_gone<T>(superblock: &SuperBlock, id: TreeId, found: Result<T>) -> Result<Option<T>> {
    let error = match found {
        Ok(found) => return Ok(Some(found)),
        Err(error) => error,
    };
    // As it is now: others may remember what was there.
    let item = superblock.context().read_root_item(id)?;
    match item.map(|item| context::Subvolume { id, item }) {
        Some(subvolume) if !subvolume.is_deleted() => Err(error),
        Some(_) | None => Ok(None),
    }
}

impl Subvolumes for MountedSubvolumes {
    fn list(&self, sink: &mut SubvolumeSink<'_>) -> Result<()> {
        list(&self.0, sink)
    }

    fn get(&self, id: u64) -> Result<Subvolume> {
        let context = self.0.context();
        let item = context.subvolume(TreeId(id))?.ok_or(Condition::NotFound)?;
        let now = context.read_root_item(TreeId(id))?.unwrap_or(item.item);
        let found = (|| {
            for above in context.ancestors(TreeId(id))? {
                follow(&self.0, above)?;
            }
            describe(context, &context::Subvolume { item: now, ..item })
        })();
        let found = unless_gone(&self.0, TreeId(id), found)?;
        Ok(found.ok_or(Condition::NotFound)?)
    }

    fn next(&self, id: u64) -> Result<Option<Subvolume>> {
        let mut from = TreeId(id);
        while let Some(found) = self.0.context().next_subvolume(from)? {
            match self.get(found.id.0) {
                // It was deleted meanwhile.
                Err(Error::Condition(Condition::NotFound)) => {
                    from = TreeId(found.id.0.saturating_add(1));
                }
                described => return described.map(Some),
            }
        }
        Ok(None)
    }

    fn root(&self, id: u64) -> Result<InodeId> {
        let found = self.0.context().subvolume(TreeId(id))?;
        Ok(in_use::root_of(&found.ok_or(Condition::NotFound)?))
    }

    fn default_id(&self) -> Result<u64> {
        Ok(self.0.context().default_subvolume()?.0)
    }

    fn set_default(&self, id: u64) -> Result<()> {
        let _writer = self.0.writers.enter();
        flags::set_default(&self.0, TreeId(id))
    }

    fn create(&self, context: &Context, parent: InodeId, name: Name<'_>) -> Result<Arc<dyn Inode>> {
        let _writer = self.0.writers.enter();
        create::create_subvolume(&self.0, context, parent, name)
    }

    fn snapshot(
        &self,
        _: &Context,
        source: u64,
        parent: InodeId,
        name: Name<'_>,
        read_only: bool,
    ) -> Result<Arc<dyn Inode>> {
        let _writer = self.0.writers.enter();
        let source = TreeId(source);
        create::create_snapshot(&self.0, source, parent, name, read_only)
    }

    fn delete(
        &self,
        _: &Context,
        parent: InodeId,
        name: Name<'_>,
        expected: Option<InodeId>,
    ) -> Result<()> {
        let _writer = self.0.writers.enter();
        // Most of what its files have is stored before others wait for the locks. An error is reported by their next
        // sync.
        let _ = self.0.dirty.write_back(write_back_files);
        let dir = self.0.load(parent)?.ok_or(Condition::NotFound)?;
        namei::NamedInode::space(&*dir)?;
        let _order = dir.order.write();
        let (root, _) = namei::NamedInode::child(&*dir, name)?;
        if expected.is_some_and(|expected| expected != root.id) {
            return Err(Condition::Stale.into());
        }
        if root.kind != FileKind::Directory {
            return Err(Condition::NotDirectory.into());
        }
        if !root.is_subvolume_root() {
            return Err(Condition::InvalidArgument.into());
        }
        let _root_order = root.order.write_nth(1);
        let dir_state = namei::NamedInode::link_state(&*dir);
        namei::may_delete(&dir_state, &namei::NamedInode::link_state(&*root))?;
        delete::delete_subvolume(&dir, name, &root)
    }

    fn set_read_only(&self, id: u64, read_only: bool) -> Result<()> {
        let _writer = self.0.writers.enter();
        flags::set_read_only(&self.0, TreeId(id), read_only)
    }

    fn send(&self, id: u64, options: &SendOptions, out: &mut dyn Write) -> Result<()> {
        send::send_subvolume(&self.0, TreeId(id), options, out)
    }

    fn receive(
        &self,
        _: &Context,
        parent: InodeId,
        input: &mut dyn Read,
        sink: &mut dyn FnMut(Received),
    ) -> Result<()> {
        receive::receive(&self.0, parent, input, sink)
    }

    fn set_received(&self, id: u64, uuid: Uuid, generation: u64) -> Result<()> {
        let _writer = self.0.writers.enter();
        let sent = Transfer {
            generation,
            time: Timestamp::default(),
        };
        flags::set_received(&self.0, TreeId(id), uuid, sent)
    }
}

fn describe(context: &FsContext, subvolume: &context::Subvolume) -> Result<Subvolume> {
    let history = &subvolume.item.history;
    let present = |uuid: Uuid| Some(uuid).filter(|uuid| !uuid.is_nil());
    let name = context.parent_name(subvolume.id)?;
    Ok(Subvolume {
        id: subvolume.id.0,
        parent: name.as_ref().map(|name| name.parent.0),
        parent_dir: name.map(|name| name.dir),
        path: path(context, subvolume.id)?,
        uuid: history.uuid,
        parent_uuid: present(history.parent_uuid),
        received_uuid: present(history.received_uuid),
        generation: subvolume.item.root.generation.0,
        changed_generation: history.change_transaction.0,
        changed: history.changed,
        created_generation: history.creation_transaction.0,
        created: history.created,
        read_only: subvolume.is_read_only(),
        sent: transfer(history.send_transaction, history.sent),
        received: transfer(history.receive_transaction, history.received),
    })
}

/// A transfer; `None` if there was none.
fn transfer(generation: Generation, time: Timestamp) -> Option<Transfer> {
    let generation = generation.0;
    (generation > 0).then_some(Transfer { generation, time })
}

/// The most names in a path: as many as fit into [`PATH_MAX`].
const NAMES_MAX: usize = 2048;

/// The path of a subvolume from the top-level one.
fn path(context: &FsContext, id: TreeId) -> Result<Vec<u8>> {
    let mut names = Vec::new();
    let mut at = id;
    while at != TreeId::FS {
        let no_parent = || Corrupt::new(Locus::tree(at.0), TreesRule::Parent);
        let name = context.parent_name(at)?.ok_or_else(no_parent)?;
        let parent = context.root_item(name.parent)?;
        let parent = parent.map(|item| context::Subvolume {
            id: name.parent,
            item,
        });
        let parent = parent.ok_or_else(no_parent)?;
        names.push(name.name);
        let dirs = (parent.root_dir(), name.dir);
        let left = NAMES_MAX.saturating_sub(names.len());
        let above = inode::names_between(context, parent.tree(), dirs, left)?;
        names.extend(above.into_iter().rev());
        let len_bytes: usize = names.iter().map(|name| name.len() + 1).sum();
        if names.len() >= NAMES_MAX || len_bytes > PATH_MAX {
            return Err(Condition::NameTooLong.into());
        }
        at = name.parent;
    }
    names.reverse();
    Ok(names.join(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::tests::{root_item, rule, sample, sample_of};
    use crate::ondisk::Key;
    use crate::ondisk::inode_ref::InodeRef;
    use crate::ondisk::key::ItemKind;
    use crate::ondisk::root_ref::RootRef;
    use crate::ondisk::superblock::RootPointer;
    use crate::tree::tests::Sample;
    use platter_cache::MemoryBudget;
    use platter_ondisk::Rule;
    use platter_vfs::SystemClock;
    use zerocopy::IntoBytes;

    fn named(dir: u64, name: &[u8]) -> Vec<u8> {
        let index = 2;
        RootRef { dir, index, name }.encode()
    }

    #[test]
    fn subvolume_without_a_parent_is_corrupt() {
        let key = |child, parent| Key::new(child, ItemKind::ROOT_BACKREF, parent);
        let item = root_item(RootPointer::default()).encode(None);
        let own = named(256, b"own");
        let lost = named(256, b"lost");
        let roots = [
            (Key::new(300, ItemKind::ROOT_ITEM, 0), item.as_bytes()),
            (key(300, 300), &own[..]),
            (key(301, 999), &lost[..]),
        ];
        let any = Key::new(256, ItemKind::ORPHAN_ITEM, 0);
        let context = sample(&[(any, b"")], &roots);
        let expected = TreesRule::Parent.text();
        for id in [299, 301] {
            assert_eq!(rule(path(&context, TreeId(id))), expected);
        }
        // Its own parent.
        let endless = path(&context, TreeId(300)).unwrap_err();
        let is_long = |error| matches!(error, Error::Condition(Condition::NameTooLong));
        assert!(is_long(endless));
    }

    #[test]
    fn path_of_a_subvolume_fits_into_path_max() {
        let name = [b'n'; 250];
        let refs: Vec<_> = (256..269).map(|dir| (dir, named_in(dir, &name))).collect();
        let key = |dir| Key::new(dir + 1, ItemKind::INODE_REF, dir);
        let items: Vec<_> = refs
            .iter()
            .map(|(dir, data)| (key(*dir), &data[..]))
            .collect();
        let mut blocks = Sample::new();
        let tree = blocks.leaf(&items);
        let root = RootPointer {
            logical: tree.logical,
            generation: tree.generation,
            level: 0,
        };
        let item = root_item(root).encode(None);
        let own = named(269, &name);
        let backref = |child, parent| Key::new(child, ItemKind::ROOT_BACKREF, parent);
        let roots = [
            (Key::new(300, ItemKind::ROOT_ITEM, 0), item.as_bytes()),
            (backref(300, 5), &own[..]),
            (Key::new(301, ItemKind::ROOT_ITEM, 0), item.as_bytes()),
            (backref(301, 300), &own[..]),
        ];
        let context = sample_of(blocks, &items, &roots);
        assert_eq!(path(&context, TreeId(300)).unwrap().len(), 14 * 251 - 1);
        let long = path(&context, TreeId(301)).unwrap_err();
        assert!(matches!(long, Error::Condition(Condition::NameTooLong)));
    }

    /// An inode reference.
    fn named_in(parent: u64, name: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let index = 2;
        InodeRef {
            parent,
            index,
            name,
        }
        .encode(&mut bytes);
        bytes
    }

    #[test]
    fn received_subvolume_is_described() {
        let reference = InodeRef {
            parent: 256,
            index: 2,
            name: b"dir",
        };
        let mut dir = Vec::new();
        reference.encode(&mut dir);
        let items = [(Key::new(257, ItemKind::INODE_REF, 256), &dir[..])];
        let mut item = root_item(RootPointer::default());
        item.history.uuid = Uuid::from_u128(1);
        item.history.received_uuid = Uuid::from_u128(2);
        let item = item.encode(None);
        let name = named(257, b"sub");
        let roots = [
            (Key::new(300, ItemKind::ROOT_ITEM, 0), item.as_bytes()),
            (Key::new(300, ItemKind::ROOT_BACKREF, 5), &name[..]),
        ];
        let context = sample(&items, &roots);
        let subvolume = context.subvolume(TreeId(300)).unwrap().unwrap();
        let described = describe(&context, &subvolume).unwrap();
        assert_eq!(described.path, b"dir/sub");
        assert_eq!((described.id, described.parent), (300, Some(5)));
        assert_eq!(described.parent_dir, Some(257));
        assert_eq!(described.uuid, Uuid::from_u128(1));
        assert_eq!(described.parent_uuid, None);
        assert_eq!(described.received_uuid, Some(Uuid::from_u128(2)));
        let top = context.subvolume(TreeId::FS).unwrap().unwrap();
        let described = describe(&context, &top).unwrap();
        assert_eq!((described.path, described.parent), (Vec::new(), None));
    }

    #[test]
    fn subvolume_that_was_deleted_meanwhile_is_not_corrupt() {
        let key = Key::new(300, ItemKind::ROOT_ITEM, 0);
        let item = root_item(RootPointer::default()).encode(None);
        let mut dead = root_item(RootPointer::default());
        dead.refs = 0;
        let dead = dead.encode(None);
        let dead_key = Key::new(301, ItemKind::ROOT_ITEM, 0);
        let roots = [(key, item.as_bytes()), (dead_key, dead.as_bytes())];
        let any = Key::new(256, ItemKind::ORPHAN_ITEM, 0);
        let context = sample(&[(any, b"")], &roots);
        let root = context.subvolume(TreeId::FS).unwrap().unwrap();
        let budget = Arc::new(MemoryBudget::new(1 << 20));
        let clock = Arc::new(SystemClock::new());
        let fs = SuperBlock::new(context, &root, &[], budget, clock);
        let found = |id| unless_gone(&fs, id, path(fs.context(), id));
        assert_eq!(rule(found(TreeId(300))), TreesRule::Parent.text());
        for gone in [301, 302] {
            assert_eq!(found(TreeId(gone)).unwrap(), None);
        }
    }
}
