//! The subvolume that becomes the root.

use platter_vfs::{Condition, Name, Result};

use super::options::SubvolumeChoice;
use crate::context::{FsContext, Subvolume};
use crate::directory;
use crate::ondisk::TreeId;
use crate::ondisk::dir_item::Location;

/// The subvolume that is chosen.
///
/// # Errors
/// `NotFound` if there is none, `InvalidArgument` for a path to something else.
pub(super) fn choose(context: &FsContext, choice: &SubvolumeChoice) -> Result<Subvolume> {
    let id = match choice {
        SubvolumeChoice::Default => context.default_subvolume()?,
        SubvolumeChoice::Id(0) => TreeId::FS,
        SubvolumeChoice::Id(id) => TreeId(*id),
        SubvolumeChoice::Path(path) => return by_path(context, path),
    };
    existing(context, id)
}

fn existing(context: &FsContext, id: TreeId) -> Result<Subvolume> {
    Ok(context.subvolume(id)?.ok_or(Condition::NotFound)?)
}

fn by_path(context: &FsContext, path: &[u8]) -> Result<Subvolume> {
    let mut subvolume = existing(context, TreeId::FS)?;
    let mut dir = subvolume.root_dir();
    for component in path.split(|byte| *byte == b'/') {
        if component.is_empty() || component == b"." {
            continue;
        }
        let name = Name::new(component)?;
        let found = directory::lookup(context, subvolume.tree(), dir, name)?;
        match found.ok_or(Condition::NotFound)?.location {
            Location::Inode(number) => dir = number,
            Location::Subvolume(id) => {
                subvolume = existing(context, TreeId(id))?;
                dir = subvolume.root_dir();
            }
        }
    }
    if dir != subvolume.root_dir() {
        return Err(Condition::InvalidArgument.into());
    }
    Ok(subvolume)
}
