//! Times in the local time zone.

use std::sync::LazyLock;

use jiff::tz::TimeZone;
use platter::vfs::Timestamp;
use platter::vfs::clock::{Clock, SystemClock};

/// Half a year: beyond this, `ls` shows the year instead of the time of day.
const RECENT_SECONDS: i64 = 31_556_952 / 2;

/// Writes times relative to one moment, in one time zone.
#[derive(Debug)]
pub(crate) struct TimeFormat {
    now: i64,
    /// Looked up at the first time: that reads many directories of the host.
    zone: LazyLock<TimeZone>,
    is_full: bool,
}

impl TimeFormat {
    /// The local time zone, now; times in full, or as short as `ls` has them.
    pub(crate) fn local(is_full: bool) -> Self {
        Self {
            is_full,
            now: SystemClock::new().now().seconds,
            zone: LazyLock::new(TimeZone::system),
        }
    }

    /// Shows a time.
    pub(crate) fn show(&self, time: Timestamp) -> String {
        if self.is_full {
            return self.format(time, "%Y-%m-%d %H:%M:%S.%9N %z");
        }
        let age = self.now.saturating_sub(time.seconds);
        let is_recent = (0..RECENT_SECONDS).contains(&age);
        self.format(
            time,
            if is_recent {
                "%b %e %H:%M"
            } else {
                "%b %e  %Y"
            },
        )
    }

    /// Seconds since 1970 where the calendar ends.
    fn format(&self, time: Timestamp, format: &str) -> String {
        let nanoseconds = i32::try_from(time.nanoseconds).unwrap_or_default();
        match jiff::Timestamp::new(time.seconds, nanoseconds) {
            Ok(moment) => moment
                .to_zoned(self.zone.clone())
                .strftime(format)
                .to_string(),
            Err(_) => format!("@{}.{:09}", time.seconds, time.nanoseconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp {
            seconds,
            nanoseconds,
        }
    }

    #[test]
    fn old_and_future_times_show_the_year() {
        let format = TimeFormat {
            now: 1_700_000_000,
            zone: LazyLock::new(|| TimeZone::UTC),
            is_full: false,
        };
        assert_eq!(format.show(time(1_699_999_999, 0)), "Nov 14 22:13");
        assert_eq!(format.show(time(1_600_000_000, 0)), "Sep 13  2020");
        assert_eq!(format.show(time(1_700_000_001, 0)), "Nov 14  2023");
    }

    #[test]
    fn times_outside_the_calendar_are_numbers() {
        let format = TimeFormat {
            now: 0,
            zone: LazyLock::new(|| TimeZone::UTC),
            is_full: true,
        };
        assert_eq!(
            format.show(time(-2, 999_999_999)),
            "1969-12-31 23:59:58.999999999 +0000"
        );
        assert_eq!(
            format.show(time(i64::MAX, 5)),
            "@9223372036854775807.000000005"
        );
    }
}
