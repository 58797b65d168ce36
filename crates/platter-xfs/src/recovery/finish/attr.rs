//! The intent to change an extended attribute, or a pointer to a parent. Spec:
//! `xfs-headers/xfs_log_format.h`.

use platter_ondisk::Locus;
use platter_vfs::Result;

use super::{Finisher, broken, inode_nr};
use crate::fork::{Attr, AttrSet, InodeEdit};
use crate::ondisk::attr::Namespace;
use crate::ondisk::log::intent::{AttrFilter, AttrIntent, AttrOp};
use crate::recovery::rules::IntentRule;

impl Finisher {
    pub(super) fn attr(&mut self, intent: &AttrIntent) -> Result<()> {
        let mut inode = InodeEdit::read(&self.groups, inode_nr(intent.inode)?)?;
        let is_parent = matches!(
            intent.op,
            AttrOp::ParentSet | AttrOp::ParentRemove | AttrOp::ParentReplace
        );
        if is_parent && inode.inode().generation != intent.generation {
            return Err(broken(Locus::inode(intent.inode), IntentRule::Generation));
        }
        let namespace = match intent.filter - AttrFilter::INCOMPLETE {
            AttrFilter::ROOT => Namespace::Root,
            AttrFilter::SECURE => Namespace::Secure,
            AttrFilter::PARENT => Namespace::Parent,
            _ => Namespace::User,
        };
        let namespace = if is_parent {
            Namespace::Parent
        } else {
            namespace
        };
        let old = Attr {
            namespace,
            name: intent.name.clone(),
            value: intent.value.clone().unwrap_or_default(),
        };
        let mut set = AttrSet::read(&mut self.groups, &inode)?;
        // Pointers to several parents may have one name.
        set.0.retain(|attr| {
            let is_same = attr.namespace == namespace && attr.name == old.name;
            !is_same || is_parent && attr.value != old.value
        });
        match intent.op {
            AttrOp::Set | AttrOp::Replace | AttrOp::ParentSet => set.0.push(old),
            AttrOp::Remove | AttrOp::ParentRemove => {}
            AttrOp::ParentReplace => set.0.push(Attr {
                namespace,
                name: intent.new_name.clone().unwrap_or_default(),
                value: intent.new_value.clone().unwrap_or_default(),
            }),
        }
        set.write(&mut self.groups, &mut inode)?;
        inode.store(&mut self.groups);
        Ok(())
    }
}
