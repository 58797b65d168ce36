//! The actions of `platter subvolume` that change an image, each in one transaction, or a mount.

use std::ffi::OsString;
use std::path::Path;

use platter::Edit;
use platter::edit::SubvolumeAccess;
use platter_fuse::Control;

use crate::args::ImageOptions;
use crate::commands::editing::{Targets, edit};
use crate::commands::mounted::{self, Place, are_in_mounts, is_file_in_mount, is_in_mount};
use crate::commands::operands::parse_image;

/// A change of subvolumes.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Change {
    /// Make empty subvolumes
    Create {
        /// The subvolumes, as IMAGE[@PARTITION]:PATH, or paths in mounts
        #[arg(required = true, value_name = "IMAGE:PATH")]
        paths: Vec<OsString>,
    },
    /// Make a snapshot of a subvolume
    Snapshot {
        /// Have it refuse changes
        #[arg(short, long)]
        read_only: bool,
        /// The subvolume, as IMAGE[@PARTITION]:PATH, or a directory of a mount
        #[arg(value_name = "IMAGE:SOURCE")]
        source: OsString,
        /// The snapshot, or the directory that it is made in with the name of the source
        #[arg(value_name = "IMAGE:PATH")]
        path: OsString,
    },
    /// Delete subvolumes
    Delete {
        /// The subvolumes, as IMAGE[@PARTITION]:PATH, or paths in mounts
        #[arg(required = true, value_name = "IMAGE:PATH")]
        paths: Vec<OsString>,
    },
    /// Make a subvolume the one that is mounted where none is asked for
    SetDefault {
        /// The subvolume, as IMAGE[@PARTITION]:PATH or a directory of a mount, or the image or mount alone with --id
        #[arg(value_name = "IMAGE[:PATH]")]
        path: OsString,
        /// Its number, instead of a path
        #[arg(long, value_name = "ID")]
        id: Option<u64>,
    },
    /// Have subvolumes refuse changes
    SetReadOnly {
        /// Have them take changes again
        #[arg(long)]
        off: bool,
        /// The subvolumes, as IMAGE[@PARTITION]:PATH, or paths in mounts
        #[arg(required = true, value_name = "IMAGE:PATH")]
        paths: Vec<OsString>,
    },
}

impl Change {
    pub(super) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let operands = match self {
            Self::Create { paths } | Self::Delete { paths } | Self::SetReadOnly { paths, .. } => {
                paths.clone()
            }
            Self::Snapshot { source, path, .. } => vec![source.clone(), path.clone()],
            Self::SetDefault { path, .. } => vec![path.clone()],
        };
        // An image alone is named with a number; of others, there is a path in it.
        let is_in = if matches!(self, Self::SetDefault { id: Some(_), .. }) {
            is_in_mount
        } else {
            is_file_in_mount
        };
        if are_in_mounts(&operands, is_in, options)? {
            self.run_mounted()?;
            return Ok(0);
        }
        self.run_on_image(options)
    }

    /// Asks the server of a mount, for each path in turn.
    fn run_mounted(&self) -> platter::Result<()> {
        match self {
            Self::Create { paths } => {
                for path in paths {
                    let place = Place::of(Path::new(path))?;
                    place.named(place.dir.create_subvolume(&place.name))?;
                }
            }
            Self::Delete { paths } => {
                for path in paths {
                    let place = Place::of(Path::new(path))?;
                    // Mapped files that stay in use lose what comes later.
                    let flushed = place.dir.flush_cache();
                    let deleted = flushed.and_then(|()| place.dir.delete_subvolume(&place.name));
                    place.named_subvolume(deleted)?;
                }
            }
            Self::SetReadOnly { off, paths } => {
                for path in paths.iter().map(Path::new) {
                    let root = open_subvolume(path)?;
                    let set = root.flush_cache().and_then(|()| root.set_read_only(!off));
                    set.map_err(|error| mounted::named_subvolume(path, &error))?;
                }
            }
            Self::Snapshot {
                read_only,
                source,
                path,
            } => {
                let source = Path::new(source);
                let root = open_subvolume(source)?;
                let id = root.subvolume_id();
                id.map_err(|error| mounted::named_subvolume(source, &error))?;
                let place = Place::for_source(Path::new(path), source)?;
                let flushed = root.flush_cache();
                flushed.map_err(|error| mounted::named(source, &error))?;
                place.named(place.dir.snapshot(&root, &place.name, *read_only))?;
            }
            Self::SetDefault { path, id } => {
                let path = Path::new(path);
                let root = open_subvolume(path)?;
                let id = id.map_or_else(|| root.subvolume_id(), Ok);
                let id = id.map_err(|error| mounted::named_subvolume(path, &error))?;
                let set = root.set_default_subvolume(id);
                set.map_err(|error| mounted::named(path, &error))?;
            }
        }
        Ok(())
    }

    fn run_on_image(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        match self {
            Self::Create { paths } => {
                Targets::parse(paths)?.edit_each(options, Edit::create_subvolume)
            }
            Self::Delete { paths } => {
                Targets::parse(paths)?.edit_each(options, Edit::delete_subvolume)
            }
            Self::SetReadOnly { off, paths } => {
                let access = access(!off);
                Targets::parse(paths)?.edit_each(options, |edit, path| {
                    edit.set_subvolume_access(path, access)
                })
            }
            Self::Snapshot {
                read_only,
                source,
                path,
            } => {
                let operands = [source.clone(), path.clone()];
                Targets::parse(&operands)?.edit(options, |edit, paths| {
                    if let [source, path] = paths {
                        edit.snapshot(source, path, access(*read_only))?;
                    }
                    Ok(())
                })
            }
            Self::SetDefault { path, id: Some(id) } => {
                let spec = parse_image(path)?;
                edit(options, &spec, |edit| Ok(edit.set_default_subvolume(*id)?))
            }
            Self::SetDefault { path, id: None } => {
                let targets = Targets::parse(std::slice::from_ref(path))?;
                targets.edit_each(options, |edit, path| {
                    edit.set_default_subvolume(edit.subvolume_at(path)?)
                })
            }
        }
    }
}

/// The root directory of a subvolume of a mount, as far as it is known to be one.
fn open_subvolume(path: &Path) -> platter::Result<Control> {
    Control::open(path).map_err(|error| mounted::named_subvolume(path, &error))
}

fn access(is_read_only: bool) -> SubvolumeAccess {
    if is_read_only {
        SubvolumeAccess::ReadOnly
    } else {
        SubvolumeAccess::ReadWrite
    }
}
