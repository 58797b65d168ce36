//! `platter tune`: what a filesystem says of itself.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use platter::vfs::Tune as Change;

use super::editing::edit;
use super::operands::parse_image;
use crate::args::ImageOptions;
use crate::output::error::misuse;

/// Change the label, the UUID or the features of a filesystem that is not mounted
///
/// All is changed, or nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Tune {
    /// The image, as IMAGE[@PARTITION]
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
        let spec = parse_image(&self.image)?;
        edit(options, &spec, |edit| Ok(edit.tune(&changes)?))
    }
}
