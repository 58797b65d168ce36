//! The subvolume that becomes the root.

use platter_vfs::{Condition, Error, Name, Result};

use super::options::SubvolumeChoice;
use crate::context::{FsContext, Subvolume};
use crate::directory;
use crate::ondisk::TreeId;
use crate::ondisk::dir_item::Location;

/// The subvolume that is chosen.
///
/// # Errors
/// `NotFound` if there is none, `InvalidArgument` for a path to something else, or to another one than the number is of.
pub(super) fn choose(context: &FsContext, choice: &SubvolumeChoice) -> Result<Subvolume> {
    match choice {
        SubvolumeChoice::Default => existing(context, context.default_subvolume()?),
        SubvolumeChoice::Id(id) => by_number(context, *id),
        SubvolumeChoice::Path(path) => at(context, path),
        SubvolumeChoice::PathAndId(path, id) => {
            let found = at(context, path)?;
            let id = numbered(*id);
            if found.id != id {
                let text = "subvol= and subvolid= name different subvolumes";
                let text = format!("{text}, {} and {}", found.id.0, id.0);
                return Err(Condition::InvalidArgument.because(text));
            }
            Ok(found)
        }
    }
}

/// Zero means the top-level subvolume.
fn numbered(id: u64) -> TreeId {
    match id {
        0 => TreeId::FS,
        id => TreeId(id),
    }
}

fn by_number(context: &FsContext, id: u64) -> Result<Subvolume> {
    let missing = || Condition::NotFound.because(format!("has no subvolume with the number {id}"));
    context.subvolume(numbered(id))?.ok_or_else(missing)
}

/// The subvolume at a path, with errors that name it.
fn at(context: &FsContext, path: &[u8]) -> Result<Subvolume> {
    by_path(context, path).map_err(|error| named(path, error))
}

/// An error of looking for a subvolume by its path.
fn named(path: &[u8], error: Error) -> Error {
    let Error::Condition(condition) = error else {
        return error;
    };
    let path = path.escape_ascii();
    if [Condition::NotFound, Condition::NotDirectory].contains(&condition) {
        condition.because(format!("has no subvolume '{path}'"))
    } else if condition == Condition::InvalidArgument {
        condition.because(format!("'{path}' is not a subvolume"))
    } else {
        condition.into()
    }
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
