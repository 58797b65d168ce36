//! The thread that makes changes durable by themselves: at the latest after the commit interval, and
//! soon after the last change. `sync(2)` does not reach a FUSE filesystem, and
//! `umount(8)` does not wait for one.

use std::sync::Arc;
use std::time::Duration;

use platter_vfs::Result;

use super::lifetime::Lifetime;
use super::ticker::{Next, Ticker};
use crate::ops::Tree;
use crate::txn::Log;

/// How often the journal and the caches are looked after.
const TICK: Duration = Duration::from_secs(1);
/// Changes are committed when none came for this long...
const QUIET_MIN: Duration = Duration::from_millis(200);
/// ...and at least this passes between two looks.
const LOOK_MIN: Duration = Duration::from_millis(10);

/// Starts the thread, which makes changes durable at least once in every `interval`, and frees space in
/// the journal meanwhile.
pub(super) fn start(
    tree: &Arc<Tree>,
    lifetime: &Arc<Lifetime>,
    interval: Duration,
) -> Result<Ticker> {
    let clock = Arc::clone(&tree.clock);
    let first = clock.monotonic();
    let (weak, lifetime) = (Arc::downgrade(tree), Arc::clone(lifetime));
    let mut schedule = Schedule::new(interval, first);
    let mut tended = first;
    let ticker = Ticker::start("ext4-flusher", schedule.next(first), move || {
        let Some(tree) = weak.upgrade() else {
            return Next::Never;
        };
        let now = clock.monotonic();
        let changes = || tree.volume.log().map_or(0, Log::handles_begun);
        // An error is recorded in the filesystem, and the next sync returns it.
        if let Some(due) = schedule.due(now, changes()) {
            if due == Due::Interval {
                let _ = lifetime.note_when_due(&tree.volume, now);
            }
            let _ = tree.sync();
        }
        if now.saturating_sub(tended) >= TICK {
            tended = now;
            if let Some(log) = tree.volume.log() {
                let _ = log.tend();
            }
            if let Some(sharing) = tree.volume.sharing() {
                sharing.shrink();
            }
        }
        schedule.next(clock.monotonic())
    })?;
    if let Some(log) = tree.volume.log() {
        let bell = ticker.bell();
        log.on_first_change(move || bell.ring());
    }
    Ok(ticker)
}

/// Why a commit is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
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
struct Schedule {
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

impl Schedule {
    fn new(interval: Duration, now: Duration) -> Self {
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
    fn due(&mut self, now: Duration, changes: u32) -> Option<Due> {
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
            Due::Quiet
        } else if since_commit >= self.interval {
            Due::Interval
        } else {
            return None;
        };
        self.is_paused |= due == Due::Quiet;
        (self.committed_at, self.committed) = (now, changes);
        Some(due)
    }

    /// When to look again.
    fn next(&self, now: Duration) -> Next {
        let tick = TICK.min(self.interval);
        if self.changes == self.committed {
            return Next::WhenRungOrIn(tick);
        }
        let quiet_at = self.changed_at.saturating_add(self.quiet);
        Next::In(quiet_at.saturating_sub(now).clamp(LOOK_MIN, tick))
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
    fn commits(schedule: &mut Schedule, at: &[u64], end: u64) -> Vec<(u64, Due)> {
        let (mut now, mut commits) = (0, Vec::new());
        while now < end {
            let changes = at.iter().filter(|&&at| at <= now).count();
            let changes = u32::try_from(changes).unwrap();
            commits.extend(schedule.due(ms(now), changes).map(|due| (now, due)));
            now = match schedule.next(ms(now)) {
                Next::In(wait) => now + u64::try_from(wait.as_millis()).unwrap(),
                Next::WhenRungOrIn(wait) => {
                    let timeout = now + u64::try_from(wait.as_millis()).unwrap();
                    let rung = at.iter().copied().find(|&at| at > now);
                    rung.map_or(timeout, |rung| rung.min(timeout))
                }
                Next::Never => unreachable!(),
            };
        }
        commits
    }

    fn quiet(commits: &[(u64, Due)]) -> usize {
        commits.iter().filter(|(_, due)| *due == Due::Quiet).count()
    }

    #[test]
    fn a_change_is_committed_as_soon_as_no_other_follows() {
        let mut schedule = Schedule::new(INTERVAL, ms(0));
        let found = commits(&mut schedule, &[1000, 1100, 1250], 4000);
        assert_eq!(found, [(1600, Due::Quiet)]);
    }

    #[test]
    fn changes_that_go_on_are_committed_once_in_an_interval() {
        let mut schedule = Schedule::new(INTERVAL, ms(0));
        let busy: Vec<u64> = (1..200).map(|count| count * 100).collect();
        let found = commits(&mut schedule, &busy, 19_800);
        assert_eq!(quiet(&found), 0, "{found:?}");
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn repeated_pauses_do_not_multiply_commits() {
        for period in [300, 500, 1000, 2000, 3000, 4500] {
            let mut schedule = Schedule::new(INTERVAL, ms(0));
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
    fn after_a_long_pause_it_is_quick_again() {
        let mut schedule = Schedule::new(INTERVAL, ms(0));
        let mut changes: Vec<u64> = (1..=10).map(|count| count * 1000).collect();
        changes.push(60_000);
        let found = commits(&mut schedule, &changes, 62_000);
        assert_eq!(found.last(), Some(&(60_200, Due::Quiet)), "{found:?}");
    }

    #[test]
    fn an_interval_shorter_than_a_pause_counts_alone() {
        let mut schedule = Schedule::new(ms(50), ms(0));
        let found = commits(&mut schedule, &[1010], 1070);
        let in_time = |&(at, _): &(u64, Due)| (1010..=1060).contains(&at);
        assert!(found.iter().any(in_time), "{found:?}");
    }
}
