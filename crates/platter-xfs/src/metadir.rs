//! The metadata directory tree: names of the inodes that the filesystem keeps for itself.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Error, Name, Result};

use crate::context::FsContext;
use crate::directory::Directory;
use crate::inode;
use crate::mapping::ForkMap;
use crate::ondisk::InodeNr;
use crate::ondisk::inode::MetafileKind;

rules! {
    /// What the tree must hold to.
    pub enum MetadirRule of "metadata directory" {
        /// `di_metatype` is that of the file's name.
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
    if inode::read(context, number)?.metadata_kind != kind as u16 {
        return Err(Corrupt::new(Locus::inode(number.get()), MetadirRule::Kind).into());
    }
    Ok(Some(number))
}
