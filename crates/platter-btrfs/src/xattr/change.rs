//! Extended attributes that are set and removed.

use platter_vfs::{Condition, Result, XattrMode};

use crate::directory::change::{replace, without};
use crate::ondisk::checksum::name_hash;
use crate::ondisk::dir_item::Xattr;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key};
use crate::txn::Editor;

/// Sets the attribute `name` of an inode.
///
/// # Errors
/// `Exists` and `NoAttribute`, as `mode` asks; `NoSpace` where the value is too large, or too many attributes have
/// the hash of its name. Then nothing was changed.
pub fn set(
    editor: &mut Editor<'_, '_>,
    transaction: Generation,
    (inode, name): (u64, &[u8]),
    value: &[u8],
    mode: XattrMode,
) -> Result<()> {
    let key = Key::new(inode, ItemKind::XATTR_ITEM, name_hash(name));
    let (mut item, is_there) = without_name(editor, key, name)?;
    match mode {
        XattrMode::Create if is_there => return Err(Condition::Exists.into()),
        XattrMode::Replace if !is_there => return Err(Condition::NoAttribute.into()),
        XattrMode::Set | XattrMode::Create | XattrMode::Replace => {}
    }
    if name.len().saturating_add(value.len()) > editor.item_bytes_max() {
        return Err(Condition::NoSpace.into());
    }
    Xattr {
        transaction,
        name,
        value,
    }
    .encode(&mut item);
    if item.len() > editor.item_bytes_max() {
        return Err(Condition::NoSpace.into());
    }
    editor.set(key, &item)
}

/// Removes the attribute `name` of an inode.
///
/// # Errors
/// `NoAttribute`.
pub fn remove(editor: &mut Editor<'_, '_>, inode: u64, name: &[u8]) -> Result<()> {
    let key = Key::new(inode, ItemKind::XATTR_ITEM, name_hash(name));
    let (rest, is_there) = without_name(editor, key, name)?;
    if !is_there {
        return Err(Condition::NoAttribute.into());
    }
    replace(editor, key, &rest)
}

/// What an item holds without the attribute, and whether it has it.
fn without_name(editor: &Editor<'_, '_>, key: Key, name: &[u8]) -> Result<(Vec<u8>, bool)> {
    let Some(data) = editor.get(key)? else {
        return Ok((Vec::new(), false));
    };
    let attributes = Xattr::decode_all(key, &data, editor.tree().locus(key))?;
    let Some(at) = attributes.iter().position(|it| it.name == name) else {
        return Ok((data, false));
    };
    let lens = attributes.iter().map(Xattr::len_bytes);
    Ok((without(&data, lens, at), true))
}
