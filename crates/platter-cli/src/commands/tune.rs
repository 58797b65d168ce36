//! `platter tune`: what a filesystem says of itself.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use anyhow::bail;
use platter::Escaped;
use platter::vfs::{Condition, Tune as Change};
use rustix::io::Errno;

use super::editing::edit;
use super::mounted::{self, is_mount};
use super::operands::parse_image;
use crate::args::ImageOptions;
use crate::output::error::misuse;

/// Change the label, the UUID or the features of a filesystem
///
/// All is changed, or nothing. ext2, ext3 and ext4: the label. XFS: the label and the UUID; bigtime, inobtcount and
/// nrext64 (with a log of at least 64 MiB, or 192 MiB with blocks above 16 KiB) are switched on. btrfs: the label and, on
/// one device, the UUID; extref, skinny-metadata, no-holes, free-space-tree and block-group-tree are switched on,
/// block-group-tree also off. Of a mount, the label alone, by a directory of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Tune {
    /// The image, as IMAGE[@PARTITION], or a directory of a mount
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// The label
    #[arg(short = 'L', long, value_name = "LABEL")]
    label: Option<OsString>,
    /// The UUID
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<platter::make::Uuid>,
    /// Features to switch on, or off with ^, by their names in the format's own tools
    #[arg(short = 'O', long, value_name = "FEATURE", value_delimiter = ',')]
    features: Vec<String>,
}

impl Tune {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let label = self.label.clone().map(OsStringExt::into_vec);
        let features = self
            .features
            .iter()
            .map(|word| match word.strip_prefix('^') {
                Some(name) => Change::Feature {
                    name: name.to_owned(),
                    on: false,
                },
                None => Change::Feature {
                    name: word.clone(),
                    on: true,
                },
            });
        let changes: Vec<Change> = label
            .map(Change::Label)
            .into_iter()
            .chain(self.uuid.map(Change::Uuid))
            .chain(features)
            .collect();
        if changes.is_empty() {
            misuse!("there is nothing to change; give --label, --uuid or --features");
        }
        if is_mount(&self.image, options)? {
            return set_label(Path::new(&self.image), &changes);
        }
        let spec = parse_image(&self.image)?;
        edit(options, &spec, |edit| Ok(edit.tune(&changes)?))
    }
}

/// Changes what can be changed of a mounted filesystem.
fn set_label(dir: &Path, changes: &[Change]) -> anyhow::Result<u8> {
    let [Change::Label(label)] = changes else {
        let dir = Escaped(dir.as_os_str().as_bytes());
        bail!("{dir}: is mounted; only the label can be changed");
    };
    let set = mounted::open(dir)?.set_label(label);
    set.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::INVAL) => {
            let text = format!("a label of {} bytes is too long", label.len());
            let refused = Condition::InvalidArgument.because(text);
            platter::Error::new(&mounted::shown(dir), refused)
        }
        _ => mounted::named(dir, &error),
    })?;
    Ok(0)
}
