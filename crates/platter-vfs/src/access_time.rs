//! When reading a file changes its time of access.

use crate::Timestamp;

/// A day: how old a time of access may become with [`AccessTimes::Relative`], in seconds.
const DAY_SECONDS: i64 = 24 * 60 * 60;

/// Which reads change times of access, as the options of `mount(8)` have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessTimes {
    /// `noatime`: none.
    Never,
    /// `relatime`: the first after a change of the file, and one a day.
    #[default]
    Relative,
    /// `strictatime`: all.
    Strict,
}

/// The times of a file that reading looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileTimes {
    /// Of the last read, as it is kept.
    pub accessed: Timestamp,
    /// Of the last change of the contents.
    pub modified: Timestamp,
    /// Of the last change of the inode.
    pub changed: Timestamp,
}

impl AccessTimes {
    /// Whether a read at `now`, as the inode can hold it, changes the time of access.
    #[must_use]
    pub fn is_due(self, times: &FileTimes, now: Timestamp) -> bool {
        let accessed = times.accessed;
        match self {
            Self::Never => false,
            Self::Strict => accessed != now,
            Self::Relative => {
                accessed != now
                    && (accessed <= times.modified
                        || accessed <= times.changed
                        || now.seconds.saturating_sub(accessed.seconds) >= DAY_SECONDS)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp {
            seconds,
            nanoseconds: 500,
        }
    }

    fn times(accessed: i64, modified: i64, changed: i64) -> FileTimes {
        FileTimes {
            accessed: at(accessed),
            modified: at(modified),
            changed: at(changed),
        }
    }

    #[test]
    fn relatime_follows_changes_and_days() {
        let is_due = |times, now| AccessTimes::Relative.is_due(&times, at(now));
        assert!(
            is_due(times(10, 10, 5), 11),
            "not read since it was written"
        );
        assert!(
            is_due(times(10, 5, 10), 11),
            "not read since its mode was set"
        );
        assert!(!is_due(times(11, 10, 10), 12), "read already");
        assert!(!is_due(times(11, 10, 10), 11 + DAY_SECONDS - 1));
        assert!(is_due(times(11, 10, 10), 11 + DAY_SECONDS), "a day ago");
        assert!(!is_due(times(10, 10, 10), 10), "it would be the same");
        assert!(!is_due(times(i64::MAX, 0, 0), i64::MIN), "no overflow");
    }

    #[test]
    fn the_other_ways_ask_no_other_time() {
        let read = times(11, 10, 10);
        assert!(AccessTimes::Strict.is_due(&read, at(12)));
        assert!(!AccessTimes::Strict.is_due(&read, at(11)));
        assert!(!AccessTimes::Never.is_due(&times(0, 9, 9), at(1 << 40)));
    }
}
