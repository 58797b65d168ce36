//! Subvolumes as they are listed and shown.

use std::ops::ControlFlow;

use platter_ondisk::Uuid;
use platter_vfs::subvolumes::{Subvolume, SubvolumeSink};
use platter_vfs::{Condition, Result, Subvolumes};

use super::SuperBlock;
use crate::context::{self, FsContext};
use crate::inode;
use crate::ondisk::TreeId;

impl Subvolumes for SuperBlock {
    fn list(&self, sink: &mut SubvolumeSink<'_>) -> Result<()> {
        let mut broken = None;
        for subvolume in self.context.subvolumes()? {
            match describe(&self.context, &subvolume) {
                Ok(described) => {
                    if sink(described) == ControlFlow::Break(()) {
                        return Ok(());
                    }
                }
                Err(error) => broken = broken.or(Some(error)),
            }
        }
        broken.map_or(Ok(()), Err)
    }

    fn get(&self, id: u64) -> Result<Subvolume> {
        let subvolume = self.context.subvolume(TreeId(id))?;
        describe(&self.context, &subvolume.ok_or(Condition::NotFound)?)
    }

    fn default_id(&self) -> Result<u64> {
        Ok(self.context.default_subvolume()?.0)
    }
}

fn describe(context: &FsContext, subvolume: &context::Subvolume) -> Result<Subvolume> {
    let history = &subvolume.item.history;
    let present = |uuid: Uuid| Some(uuid).filter(|uuid| !uuid.is_nil());
    let name = context.parent_name(subvolume.id)?;
    Ok(Subvolume {
        id: subvolume.id.0,
        parent: name.map(|name| name.parent.0),
        path: path(context, subvolume.id)?,
        uuid: history.uuid,
        parent_uuid: present(history.parent_uuid),
        received_uuid: present(history.received_uuid),
        generation: subvolume.item.root.generation.0,
        created_generation: history.creation_transaction.0,
        created: history.created,
        read_only: subvolume.is_read_only(),
    })
}

/// The path of a subvolume from the top-level one.
fn path(context: &FsContext, id: TreeId) -> Result<Vec<u8>> {
    let mut names = Vec::new();
    for name in context.ancestry(id)? {
        let parent = context.root_item(name.parent)?;
        let parent = parent.map(|item| context::Subvolume {
            id: name.parent,
            item,
        });
        let parent = parent.ok_or(Condition::NotFound)?;
        let top = parent.root_dir();
        names.extend(inode::names_between(context, parent.tree(), top, name.dir)?);
        names.push(name.name);
    }
    Ok(names.join(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::tests::{root_item, sample};
    use crate::ondisk::Key;
    use crate::ondisk::inode_ref::InodeRef;
    use crate::ondisk::key::ItemKind;
    use crate::ondisk::root_ref::RootRef;
    use crate::ondisk::superblock::RootPointer;
    use zerocopy::IntoBytes;

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
        let name = RootRef {
            dir: 257,
            index: 2,
            name: b"sub",
        };
        let name = name.encode();
        let roots = [
            (Key::new(300, ItemKind::ROOT_ITEM, 0), item.as_bytes()),
            (Key::new(300, ItemKind::ROOT_BACKREF, 5), &name[..]),
        ];
        let context = sample(&items, &roots);
        let subvolume = context.subvolume(TreeId(300)).unwrap().unwrap();
        let described = describe(&context, &subvolume).unwrap();
        assert_eq!(described.path, b"dir/sub");
        assert_eq!((described.id, described.parent), (300, Some(5)));
        assert_eq!(described.uuid, Uuid::from_u128(1));
        assert_eq!(described.parent_uuid, None);
        assert_eq!(described.received_uuid, Some(Uuid::from_u128(2)));
        let top = context.subvolume(TreeId::FS).unwrap().unwrap();
        let described = describe(&context, &top).unwrap();
        assert_eq!((described.path, described.parent), (Vec::new(), None));
    }
}
