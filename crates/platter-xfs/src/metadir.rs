//! The metadata directory tree: names of the inodes that the filesystem keeps for itself.

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::{Condition, Error, Name, Result};

use crate::context::FsContext;
use crate::directory::Directory;
use crate::inode;
use crate::mapping::ForkMap;
use crate::ondisk::inode::MetafileKind;
use crate::ondisk::{InodeFlags2, InodeNr};

rules! {
    /// What the tree must hold to.
    pub enum MetadirRule of "metadata directory" {
        /// The file is a metadata inode, and `di_metatype` is that of its name.
        Kind => "bad metadata file type",
    }
}

/// The inode at a path below the root of the tree, which is a file of this type; `None` where there is none, or no
/// tree.
pub fn find(context: &FsContext, path: &[&str], kind: MetafileKind) -> Result<Option<InodeNr>> {
    let Some(mut number) = context.superblock.metadir_inode else {
        return Ok(None);
    };
    for name in path {
        let inode = inode::read(context, number)?;
        let map = ForkMap::of_data(context, &inode)?;
        let directory = Directory::open(context, &inode, &map)?;
        match directory.lookup(Name::new(name.as_bytes())?) {
            Ok(found) => number = found.inode,
            Err(Error::Condition(Condition::NotFound)) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    let found = inode::read(context, number)?;
    if !found.flags2.contains(InodeFlags2::METADATA) || found.metadata_kind != kind as u16 {
        return Err(Corrupt::new(Locus::inode(number.get()), MetadirRule::Kind).into());
    }
    Ok(Some(number))
}
