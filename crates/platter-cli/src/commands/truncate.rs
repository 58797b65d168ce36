//! `platter truncate`: sizes in an image.

use std::ffi::OsString;

use platter::edit::SizeChange;

use super::editing::{Targets, creation};
use crate::args::{ImageOptions, parse_size};

/// Change the sizes of files in an image
///
/// What is added is a hole. All files are changed, or none.
#[derive(Debug, clap::Args)]
pub(crate) struct Truncate {
    /// The files, as IMAGE[@PARTITION]:PATH; those that are not there are made
    #[arg(required = true, value_name = "IMAGE:PATH")]
    files: Vec<OsString>,
    /// To SIZE, by +SIZE or -SIZE, to <SIZE at most, to >SIZE at least, or to a multiple of it, the
    /// next smaller with / or larger with %
    #[arg(short, long, value_name = "SIZE", value_parser = parse_change, allow_hyphen_values = true)]
    size: SizeChange,
    /// Make no files
    #[arg(short = 'c', long)]
    no_create: bool,
}

impl Truncate {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        Targets::parse(&self.files)?.edit_each(options, |edit, path| {
            edit.truncate(path, self.size, creation(self.no_create))
        })
    }
}

fn parse_change(text: &str) -> Result<SizeChange, String> {
    let change = match text.chars().next() {
        Some('+') => SizeChange::Grow,
        Some('-') => SizeChange::Shrink,
        Some('<') => SizeChange::AtMost,
        Some('>') => SizeChange::AtLeast,
        Some('/') => SizeChange::RoundDown,
        Some('%') => SizeChange::RoundUp,
        _ => return parse_size(text).map(SizeChange::Set),
    };
    match (parse_size(&text[1..])?, &text[..1]) {
        (0, "/" | "%") => Err("there are no multiples of nothing".into()),
        (size, _) => Ok(change(size)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_signs() {
        assert_eq!(parse_change("4K"), Ok(SizeChange::Set(4096)));
        assert_eq!(parse_change("-1"), Ok(SizeChange::Shrink(1)));
        assert_eq!(parse_change("%1M"), Ok(SizeChange::RoundUp(1 << 20)));
        for text in ["", "+", "%0", "/0", "x", "+-1"] {
            assert!(parse_change(text).is_err(), "{text}");
        }
    }
}
