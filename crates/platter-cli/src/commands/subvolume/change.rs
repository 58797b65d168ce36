//! The actions of `platter subvolume` that change an image, each in one transaction.

use std::ffi::OsString;

use platter::Edit;
use platter::edit::SubvolumeAccess;

use crate::args::ImageOptions;
use crate::commands::editing::{Targets, edit};
use crate::commands::operands::parse_image;

/// A change of subvolumes.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Change {
    /// Make empty subvolumes
    Create {
        /// The subvolumes, as IMAGE[@PARTITION]:PATH
        #[arg(required = true, value_name = "IMAGE:PATH")]
        paths: Vec<OsString>,
    },
    /// Make a snapshot of a subvolume
    Snapshot {
        /// Have it refuse changes
        #[arg(short, long)]
        read_only: bool,
        /// The subvolume, as IMAGE[@PARTITION]:PATH
        #[arg(value_name = "IMAGE:SOURCE")]
        source: OsString,
        /// The snapshot, or the directory that it is made in with the name of the source
        #[arg(value_name = "IMAGE:PATH")]
        path: OsString,
    },
    /// Delete subvolumes
    Delete {
        /// The subvolumes, as IMAGE[@PARTITION]:PATH
        #[arg(required = true, value_name = "IMAGE:PATH")]
        paths: Vec<OsString>,
    },
    /// Make a subvolume the one that is mounted where none is asked for
    SetDefault {
        /// The subvolume, as IMAGE[@PARTITION]:PATH, or the image alone with --id
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
        /// The subvolumes, as IMAGE[@PARTITION]:PATH
        #[arg(required = true, value_name = "IMAGE:PATH")]
        paths: Vec<OsString>,
    },
}

impl Change {
    pub(super) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
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

fn access(is_read_only: bool) -> SubvolumeAccess {
    if is_read_only {
        SubvolumeAccess::ReadOnly
    } else {
        SubvolumeAccess::ReadWrite
    }
}
