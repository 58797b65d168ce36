//! When a filesystem commits by itself: at the latest after the commit interval, and soon after the last
//! change.

use std::time::Duration;

use super::NextRun;

/// How often a worker looks when there is nothing to commit.
const TICK: Duration = Duration::from_secs(1);
/// Changes are committed when none came for this long...
const QUIET_MIN: Duration = Duration::from_millis(200);
/// ...and at least this passes between two looks.
const LOOK_MIN: Duration = Duration::from_millis(10);

/// Why a commit is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitDue {
    /// The interval is over.
    Interval,
    /// There were changes, and there have been none for a while.
    Quiet,
}

/// When to commit.
///
/// A load that pauses again and again must not be committed in each pause: when changes go on soon
/// after a commit in a pause, the next one waits for a pause twice as long, up to the interval. After an
/// interval without changes, the first length counts again.
#[derive(Debug)]
pub struct CommitSchedule {
    interval: Duration,
    /// When the last commit was begun, and how many changes there had been.
    committed_at: Duration,
    committed: u32,
    /// The last commit came because of a pause, which has not ended yet.
    is_paused: bool,
    /// How many changes there were at the last look, and when they were found to have grown.
    changes: u32,
    changed_at: Duration,
    /// How long a pause has to be.
    quiet: Duration,
}

impl CommitSchedule {
    /// For a mount with this commit interval, which begins `now`, on the monotonic clock.
    #[must_use]
    pub fn new(interval: Duration, now: Duration) -> Self {
        Self {
            interval,
            committed_at: now,
            committed: 0,
            is_paused: false,
            changes: 0,
            changed_at: now,
            quiet: QUIET_MIN.min(interval),
        }
    }

    /// Whether to commit now, when so many changes were begun since the mount.
    pub fn due(&mut self, now: Duration, changes: u32) -> Option<CommitDue> {
        let since_commit = now.saturating_sub(self.committed_at);
        if changes != self.changes {
            let pause = now.saturating_sub(self.changed_at);
            (self.changes, self.changed_at) = (changes, now);
            if pause >= self.interval {
                self.quiet = QUIET_MIN.min(self.interval);
            } else if self.is_paused {
                self.quiet = self.quiet.saturating_mul(2).min(self.interval);
            }
            self.is_paused = false;
        }
        let is_quiet = now.saturating_sub(self.changed_at) >= self.quiet;
        let due = if self.changes != self.committed && is_quiet {
            CommitDue::Quiet
        } else if since_commit >= self.interval {
            CommitDue::Interval
        } else {
            return None;
        };
        self.is_paused |= due == CommitDue::Quiet;
        (self.committed_at, self.committed) = (now, changes);
        Some(due)
    }

    /// When to look again.
    #[must_use]
    pub fn next(&self, now: Duration) -> NextRun {
        let tick = TICK.min(self.interval);
        if self.changes == self.committed {
            return NextRun::WhenWokenOrIn(tick);
        }
        let quiet_at = self.changed_at.saturating_add(self.quiet);
        NextRun::In(quiet_at.saturating_sub(now).clamp(LOOK_MIN, tick))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Looks as the thread would until `end`, while a change comes at each of `at`. Returns when
    /// commits were due, in milliseconds.
    fn commits(schedule: &mut CommitSchedule, at: &[u64], end: u64) -> Vec<(u64, CommitDue)> {
        let (mut now, mut commits) = (0, Vec::new());
        while now < end {
            let changes = at.iter().filter(|&&at| at <= now).count();
            let changes = u32::try_from(changes).unwrap();
            commits.extend(schedule.due(ms(now), changes).map(|due| (now, due)));
            now = match schedule.next(ms(now)) {
                NextRun::In(wait) => now + u64::try_from(wait.as_millis()).unwrap(),
                NextRun::WhenWokenOrIn(wait) => {
                    let timeout = now + u64::try_from(wait.as_millis()).unwrap();
                    let woken = at.iter().copied().find(|&at| at > now);
                    woken.map_or(timeout, |woken| woken.min(timeout))
                }
                NextRun::Never => unreachable!(),
            };
        }
        commits
    }

    fn quiet(commits: &[(u64, CommitDue)]) -> usize {
        commits
            .iter()
            .filter(|(_, due)| *due == CommitDue::Quiet)
            .count()
    }

    #[test]
    fn change_is_committed_when_no_other_follows() {
        let mut schedule = CommitSchedule::new(INTERVAL, ms(0));
        let found = commits(&mut schedule, &[1000, 1100, 1250], 4000);
        assert_eq!(found, [(1600, CommitDue::Quiet)]);
    }

    #[test]
    fn steady_changes_are_committed_once_an_interval() {
        let mut schedule = CommitSchedule::new(INTERVAL, ms(0));
        let busy: Vec<u64> = (1..200).map(|count| count * 100).collect();
        let found = commits(&mut schedule, &busy, 19_800);
        assert_eq!(quiet(&found), 0, "{found:?}");
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn repeated_pauses_do_not_multiply_commits() {
        for period in [300, 500, 1000, 2000, 3000, 4500] {
            let mut schedule = CommitSchedule::new(INTERVAL, ms(0));
            let changes: Vec<u64> = (1..=200).map(|count| count * period).collect();
            let found = commits(&mut schedule, &changes, 200 * period);
            let at_least = 200 * period / 5000;
            assert!(
                found.len() as u64 <= at_least + 6,
                "{period}: {} instead of {at_least}",
                found.len()
            );
        }
    }

    #[test]
    fn commit_is_quick_again_after_a_long_pause() {
        let mut schedule = CommitSchedule::new(INTERVAL, ms(0));
        let mut changes: Vec<u64> = (1..=10).map(|count| count * 1000).collect();
        changes.push(60_000);
        let found = commits(&mut schedule, &changes, 62_000);
        assert_eq!(found.last(), Some(&(60_200, CommitDue::Quiet)), "{found:?}");
    }

    #[test]
    fn interval_shorter_than_a_pause_counts_alone() {
        let mut schedule = CommitSchedule::new(ms(50), ms(0));
        let found = commits(&mut schedule, &[1010], 1070);
        let in_time = |&(at, _): &(u64, CommitDue)| (1010..=1060).contains(&at);
        assert!(found.iter().any(in_time), "{found:?}");
    }
}
