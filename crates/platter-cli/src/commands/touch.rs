//! `platter touch`: times in an image, and empty files.

use std::ffi::OsString;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use platter::edit::Times;
use platter::vfs::{SetTime, Timestamp};

use super::editing::{Targets, creation, symlinks};
use crate::args::ImageOptions;

/// Change the times of files in an image, and make those that are not there
///
/// All files are changed, or none.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Touch {
    /// The files, as IMAGE[@PARTITION]:PATH
    #[arg(required = true, value_name = "IMAGE:PATH")]
    files: Vec<OsString>,
    /// Change the time of the last read only
    #[arg(short)]
    accessed: bool,
    /// Change the time of the last change only
    #[arg(short)]
    modified: bool,
    /// Make no files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Change symbolic links themselves
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// To this moment instead of now: as 2024-05-06T07:08:09Z, without Z in the local time zone, or
    /// as @SECONDS since 1970
    #[arg(short, long, value_name = "DATE", value_parser = parse_date)]
    date: Option<Timestamp>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Touch {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let time = self.date.map_or(SetTime::Now, SetTime::At);
        let both = self.accessed == self.modified;
        let times = Times {
            accessed: (both || self.accessed).then_some(time),
            modified: (both || self.modified).then_some(time),
        };
        Targets::parse(&self.files)?.edit_each(options, |edit, path| {
            let symlinks = symlinks(self.no_dereference);
            edit.touch(path, times, symlinks, creation(self.no_create))
        })
    }
}

fn parse_date(text: &str) -> Result<Timestamp, String> {
    if let Some(seconds) = text.strip_prefix('@') {
        let seconds = seconds.parse().map_err(|_| "@ takes a number of seconds")?;
        return Ok(Timestamp {
            seconds,
            nanoseconds: 0,
        });
    }
    let moment = match text.parse::<jiff::Timestamp>() {
        Ok(moment) => Ok(moment),
        Err(_) => text.parse::<DateTime>().and_then(|local| {
            let zoned = local.to_zoned(TimeZone::system())?;
            Ok(zoned.timestamp())
        }),
    };
    let moment = moment.map_err(|error| error.to_string())?;
    // Nanoseconds before 1970 count down.
    let floor = moment.as_nanosecond().div_euclid(1_000_000_000);
    let rest = moment.as_nanosecond().rem_euclid(1_000_000_000);
    Ok(Timestamp {
        seconds: i64::try_from(floor).map_err(|error| error.to_string())?,
        nanoseconds: u32::try_from(rest).map_err(|error| error.to_string())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_moments() {
        let found = |text| parse_date(text).map(|time| (time.seconds, time.nanoseconds));
        assert_eq!(found("@-5"), Ok((-5, 0)));
        assert_eq!(found("1970-01-02T00:00:00Z"), Ok((86400, 0)));
        assert_eq!(found("1969-12-31T23:59:59.75Z"), Ok((-1, 750_000_000)));
        assert_eq!(found("1970-01-01T01:00:00+01:00"), Ok((0, 0)));
        assert!(found("2024-05-06").is_ok() && found("2024-05-06 07:08").is_ok());
        assert!(found("yesterday").is_err() && found("@x").is_err());
    }
}
