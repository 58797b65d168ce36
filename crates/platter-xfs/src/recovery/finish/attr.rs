//! The intent to change an extended attribute, or a pointer to a parent. Spec:
//! `xfs-headers/xfs_log_format.h`.

use platter_ondisk::Locus;
use platter_vfs::Result;

use super::{Finisher, broken, inode_nr};
use crate::fork::{Attr, AttrEdit, InodeEdit};
use crate::ondisk::attr::Namespace;
use crate::ondisk::log::intent::{AttrFilter, AttrIntent, AttrOp};
use crate::recovery::rules::IntentRule;

/// Finishes a change of an attribute.
pub(super) fn finish(finisher: &mut Finisher, intent: &AttrIntent) -> Result<()> {
    let mut inode = InodeEdit::read(&finisher.groups, inode_nr(intent.inode)?)?;
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
    let mut attrs = AttrEdit::open(&mut finisher.groups, &mut inode)?.for_recovery();
    match intent.op {
        AttrOp::Set | AttrOp::Replace | AttrOp::ParentSet => attrs.set(&old)?,
        AttrOp::Remove | AttrOp::ParentRemove => {
            attrs.remove(&old.key())?;
        }
        AttrOp::ParentReplace => {
            attrs.remove(&old.key())?;
            attrs.set(&Attr {
                namespace,
                name: intent.new_name.clone().unwrap_or_default(),
                value: intent.new_value.clone().unwrap_or_default(),
            })?;
        }
    }
    attrs.finish()?;
    inode.store(&mut finisher.groups)?;
    Ok(())
}
