//! Extended attributes, properties included. They are stored under their full names; an access control
//! list has the form that user space knows.

pub mod change;

use platter_vfs::{Condition, Result};

use crate::context::FsContext;
use crate::ondisk::Key;
use crate::ondisk::checksum::name_hash;
use crate::ondisk::dir_item::Xattr;
use crate::ondisk::key::ItemKind;
use crate::tree::Tree;

/// The value of the attribute with this full name.
///
/// # Errors
/// `NoAttribute`.
pub fn get(context: &FsContext, tree: Tree, number: u64, name: &[u8]) -> Result<Vec<u8>> {
    let key = Key::new(number, ItemKind::XATTR_ITEM, name_hash(name));
    let found = context.find(tree, key, |data| {
        let attributes = Xattr::decode_all(key, data, tree.locus(key))?;
        let attribute = attributes.iter().find(|attribute| attribute.name == name);
        Ok(attribute.map(|attribute| attribute.value.to_vec()))
    })?;
    Ok(found.flatten().ok_or(Condition::NoAttribute)?)
}

/// The full names of all attributes, in the order they are stored.
pub fn list(context: &FsContext, tree: Tree, number: u64) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let mut cursor = context.cursor(tree);
    cursor.seek(Key::new(number, ItemKind::XATTR_ITEM, 0))?;
    while let Some((key, data)) = cursor.item() {
        if key.object != number || key.kind != ItemKind::XATTR_ITEM {
            break;
        }
        let attributes = Xattr::decode_all(key, data, tree.locus(key))?;
        names.extend(attributes.iter().map(|attribute| attribute.name.to_vec()));
        cursor.step()?;
    }
    Ok(names)
}
