//! Every moment of a sequence of operations, and what a power cut may leave of them.

use std::ops::RangeInclusive;
use std::sync::Arc;

use anyhow::Result;
use platter_vfs::FileKind;

use super::operation::{Operation, parent_of};
use super::session::Session;
use super::tree::{Entry, Tree};

/// The unit of a file's contents that reaches the disk completely or not at all.
const SECTOR_BYTES: usize = 512;
/// The largest block.
const BLOCK_BYTES_MAX: usize = 4096;
/// Maximum number of differences that are reported.
const LINES_MAX: usize = 12;

/// What a filesystem keeps without being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// After a power cut, names and attributes are what they were at some moment.
    Journaled,
    /// What was synced as a whole and not touched since is certain, and what single files and directories
    /// were synced, which need not be of one moment.
    Logged,
    /// Only what was synced and not touched since is certain. A file that grows may be found
    /// longer, up to the end of a block.
    Synced,
}

/// Where an operation stands in the log of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Entries of the log when it began.
    pub begin: usize,
    /// Entries when it had returned with success.
    pub end: Option<usize>,
}

#[derive(Debug)]
struct Step {
    operation: Operation,
    pace: Pace,
    after: Tree,
    /// Files whose names or attributes it changed.
    touched: Vec<u64>,
}

/// A sequence of operations with what the filesystem held after each.
#[derive(Debug)]
pub struct History {
    initial: Tree,
    steps: Vec<Step>,
}

impl History {
    /// Begins with what is there.
    #[must_use]
    pub fn new(initial: Tree) -> Self {
        let steps = Vec::new();
        Self { initial, steps }
    }

    /// What the filesystem holds now.
    #[must_use]
    pub fn now(&self) -> &Tree {
        self.after(self.steps.len())
    }

    /// How many operations there were.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there was none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// How many of the operations were syncs.
    #[must_use]
    pub fn syncs(&self) -> usize {
        let syncs = self.steps.iter().filter(|step| step.operation.is_sync());
        syncs.count()
    }

    /// Adds an operation that was done, or refused, in `model` too.
    pub fn add(
        &mut self,
        operation: Operation,
        pace: Pace,
        is_done: bool,
        model: &Session<'_>,
    ) -> Result<()> {
        if is_done {
            return self.push(operation, pace, model);
        }
        self.repeat(operation, pace);
        Ok(())
    }

    /// Adds an operation that `model`, in which it was done too, shows the outcome of.
    pub fn push(&mut self, operation: Operation, pace: Pace, model: &Session<'_>) -> Result<()> {
        let before = self.now();
        let after = Tree::of_session(model, Some(before))?;
        let paths = operation.touched_paths();
        let files = paths
            .iter()
            .flat_map(|&path| [before, &after].map(|tree| tree.get(path).map(|entry| entry.file)));
        let touched = files.flatten().collect();
        self.steps.push(Step {
            operation,
            pace,
            after,
            touched,
        });
        Ok(())
    }

    /// Adds an operation after which everything is as it was.
    pub fn repeat(&mut self, operation: Operation, pace: Pace) {
        let after = self.now().clone();
        self.steps.push(Step {
            operation,
            pace,
            after,
            touched: Vec::new(),
        });
    }

    /// The operations, in order.
    pub fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.steps.iter().map(|step| &step.operation)
    }

    /// The operations as text, with the number of each.
    #[must_use]
    pub fn listing(&self) -> Vec<String> {
        let line = |(number, step): (usize, &Step)| {
            format!("{number}: {:?} {:?}", step.pace, step.operation)
        };
        self.steps.iter().enumerate().map(line).collect()
    }

    /// Holds what a power cut left against what it may leave, when `cut` entries of the log had
    /// begun. Returns what is wrong.
    #[must_use]
    pub fn judge(&self, cut: usize, left: &Tree, durability: Durability) -> Vec<String> {
        let begun = self.steps.iter().take_while(|step| step.pace.begin < cut);
        let begun = begun.count();
        let mut lines = match durability {
            Durability::Journaled => self.judge_whole(cut, begun, left),
            Durability::Synced => self.judge_synced(cut, begun, left),
            Durability::Logged => self.judge_logged(cut, begun, left),
        };
        lines.truncate(LINES_MAX);
        lines
    }

    /// What there was after `count` operations.
    pub(super) fn after(&self, count: usize) -> &Tree {
        match count.checked_sub(1) {
            Some(last) => &self.steps[last].after,
            None => &self.initial,
        }
    }

    /// The operations among the first `begun` that had returned, with their numbers, last first.
    fn returned(&self, cut: usize, begun: usize) -> impl Iterator<Item = (usize, &Step)> {
        let steps = self.steps[..begun].iter().enumerate().rev();
        steps.filter(move |(_, step)| step.pace.end.is_some_and(|end| end <= cut))
    }

    /// All names are those of one moment, no earlier than the syncs that returned say, and all
    /// contents are made of what the file held between its last sync and the cut.
    fn judge_whole(&self, cut: usize, begun: usize, left: &Tree) -> Vec<String> {
        let synced = self
            .returned(cut, begun)
            .map(|(number, step)| self.moment(number, step));
        let first = synced.max().unwrap_or(0);
        let first_of = |file| self.content_moment(cut, begun, file);
        self.judge_moments(first..=begun, left, first_of)
    }

    /// Holds what another thread found while operations ran, a snapshot perhaps, against what it may find: names of
    /// one of the `moments`, and contents that are made of what files held in these. Returns what is wrong.
    #[must_use]
    pub fn judge_between(&self, moments: RangeInclusive<usize>, left: &Tree) -> Vec<String> {
        let first = *moments.start();
        let mut lines = self.judge_moments(moments, left, |_| first);
        lines.truncate(LINES_MAX);
        lines
    }

    /// All names are those of one of the moments, and contents are made of what files held from their first moments on.
    fn judge_moments(
        &self,
        moments: RangeInclusive<usize>,
        left: &Tree,
        first_of: impl Fn(u64) -> usize,
    ) -> Vec<String> {
        let (first, begun) = (*moments.start(), *moments.end());
        let mut nearest: Option<(usize, Vec<String>)> = None;
        let mut contents = None;
        for moment in moments.rev() {
            let lines = left.name_differences(self.after(moment));
            if lines.is_empty() {
                // After an exchange of two files the names are the same.
                let lines = self.judge_contents(begun, self.after(moment), left, &first_of);
                if lines.is_empty() {
                    return Vec::new();
                }
                contents.get_or_insert(lines);
            }
            if nearest
                .as_ref()
                .is_none_or(|(_, least)| lines.len() < least.len())
            {
                nearest = Some((moment, lines));
            }
        }
        if let Some(lines) = contents {
            return lines;
        }
        let (moment, lines) = nearest.unwrap_or_default();
        let head = format!(
            "names are of no moment from {first} to {begun}; the nearest is {moment}, but:"
        );
        std::iter::once(head).chain(lines).collect()
    }

    /// The earliest moment whose names a sync that has returned allows.
    fn moment(&self, number: usize, step: &Step) -> usize {
        if step.operation == Operation::Sync {
            return number;
        }
        let Operation::Fsync(path, data_only) = &step.operation else {
            return 0;
        };
        let Some(file) = self.after(number).get(path).map(|entry| entry.file) else {
            return 0;
        };
        let touches = |step: &Step| {
            let counts = !data_only || matches!(step.operation, Operation::Create(..));
            counts && step.touched.contains(&file)
        };
        let last = self.steps[..number].iter().rposition(touches);
        last.map_or(0, |last| last + 1)
    }

    /// The earliest moment whose contents of a file the syncs that have returned allow.
    fn content_moment(&self, cut: usize, begun: usize, file: u64) -> usize {
        let mut returned = self.returned(cut, begun);
        let is_of_file = |number: usize, path: &str| {
            let entry = self.after(number).get(path);
            entry.is_some_and(|entry| entry.file == file)
        };
        let guarantee = returned.find(|(number, step)| {
            step.operation == Operation::Sync
                || matches!(&step.operation, Operation::Fsync(path, _) if is_of_file(*number, path))
        });
        guarantee.map_or(0, |(number, _)| number)
    }

    /// `names` are those of the moment that `left` shows.
    fn judge_contents(
        &self,
        begun: usize,
        names: &Tree,
        left: &Tree,
        first_of: impl Fn(u64) -> usize,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, entry) in left.files() {
            let Some(known) = names.entries.get(path) else {
                continue;
            };
            let first = first_of(known.file);
            lines.extend(self.judge_content(path, entry, known.file, first..=begun, 1));
        }
        lines
    }

    /// Whether what is left of a file is made of what it held in `moments`.
    fn judge_content(
        &self,
        path: &str,
        left: &Entry,
        file: u64,
        moments: RangeInclusive<usize>,
        size_unit: usize,
    ) -> Option<String> {
        let mut versions: Vec<&Arc<[u8]>> = Vec::new();
        let (first, last) = (*moments.start(), *moments.end());
        for moment in moments {
            let Some(content) = self.after(moment).content(file) else {
                continue;
            };
            if versions.last().is_none_or(|known| *known != content) {
                versions.push(content);
            }
        }
        let content = left.content.as_deref().unwrap_or_default();
        let sizes = || versions.iter().map(|version| version.len());
        let mut grows = sizes().zip(sizes().skip(1));
        let between = |(one, other): (usize, usize)| {
            (one.min(other)..=one.max(other).next_multiple_of(size_unit)).contains(&content.len())
        };
        if !sizes().any(|size| size == content.len()) && !grows.any(between) {
            let sizes: Vec<_> = sizes().collect();
            let len = content.len();
            return Some(format!(
                "/{path} has {len} bytes; from {first} to {last} it had {sizes:?}"
            ));
        }
        for (at, sector) in (0..)
            .step_by(SECTOR_BYTES)
            .zip(content.chunks(SECTOR_BYTES))
        {
            let is_made_of = |version: &&Arc<[u8]>| {
                let end = (at + sector.len()).min(version.len());
                let held = version.get(at..end).unwrap_or_default();
                let (same, beyond) = sector.split_at(held.len());
                same == held && beyond.iter().all(|&byte| byte == 0)
            };
            if !versions.iter().any(is_made_of) {
                let versions = versions.len();
                let begins = &sector[..sector.len().min(8)];
                return Some(format!(
                    "/{path}: the sector at {at}, {begins:02x?}.., is of none of {versions} \
                     versions from {first} to {last}"
                ));
            }
        }
        None
    }

    /// Checks that what the last sync found is still there, unless it was changed since.
    fn judge_synced(&self, cut: usize, begun: usize, left: &Tree) -> Vec<String> {
        let mut lines = Vec::new();
        let syncs = self.returned(cut, begun);
        let mut syncs = syncs.filter(|(_, step)| step.operation.is_sync());
        let whole = syncs.find(|(_, step)| step.operation == Operation::Sync);
        let Some((number, _)) = whole else {
            return lines;
        };
        for (path, entry) in &self.after(number).entries {
            let is_same = |moment: usize| self.is_untouched(path, entry, moment);
            if path.is_empty() || !(number..=begun).all(is_same) {
                continue;
            }
            let Some(found) = left.entries.get(path) else {
                lines.push(format!("/{path} was synced by {number} and is gone"));
                continue;
            };
            let mut expected = entry.clone();
            expected.file = found.file;
            expected.content.clone_from(&found.content);
            // A rename is two changes, between which a check counts the names that there are.
            let moved =
                (number..=begun).any(|moment| self.is_named_otherwise(entry, number, moment));
            if entry.kind == FileKind::Directory || moved {
                expected.links = found.links;
            }
            if *found != expected {
                lines.push(format!(
                    "/{path} was synced by {number} and is another: {found:?}"
                ));
                continue;
            }
            if found.content.is_some() {
                lines.extend(self.judge_content(
                    path,
                    found,
                    entry.file,
                    number..=begun,
                    BLOCK_BYTES_MAX,
                ));
            }
        }
        lines
    }

    /// What the last sync of everything found is there, unless it was changed since, and what later syncs of
    /// single files found.
    fn judge_logged(&self, cut: usize, begun: usize, left: &Tree) -> Vec<String> {
        let mut lines = self.judge_synced(cut, begun, left);
        let base = self.base(cut, begun);
        for (number, step) in self.returned(cut, begun) {
            let Operation::Fsync(path, _) = &step.operation else {
                continue;
            };
            let Some(entry) = self.after(number).entries.get(path) else {
                continue;
            };
            if number < base || !self.has_firm_path(path, base, number) {
                continue;
            }
            lines.extend(self.judge_logged_file(path, entry, number..=begun, left));
            if entry.kind == FileKind::Directory {
                lines.extend(self.judge_logged_names(path, number..=begun, left));
            }
        }
        lines.extend(self.judge_made_of_versions(base..=begun, left));
        lines
    }

    /// The moment of the last sync of everything that had returned.
    fn base(&self, cut: usize, begun: usize) -> usize {
        let mut returned = self.returned(cut, begun);
        let whole = returned.find(|(_, step)| step.operation == Operation::Sync);
        whole.map_or(0, |(number, _)| number)
    }

    /// Whether the directories above a path had their paths for as long as they were there since a moment: the
    /// names of others are not synced with what is in them.
    fn has_firm_path(&self, path: &str, base: usize, number: usize) -> bool {
        let above = path.char_indices().filter(|(_, char)| *char == '/');
        above.map(|(at, _)| &path[..at]).all(|dir| {
            let Some(file) = self.after(number).entries.get(dir).map(|it| it.file) else {
                return false;
            };
            (base..=number).all(|moment| {
                let mut entries = self.after(moment).entries.iter();
                entries.all(|(path, entry)| entry.file != file || path == dir)
            })
        })
    }

    /// A file that was synced, unless it was changed since but for its contents.
    fn judge_logged_file(
        &self,
        path: &str,
        entry: &Entry,
        moments: RangeInclusive<usize>,
        left: &Tree,
    ) -> Option<String> {
        let number = *moments.start();
        let is_same = |moment: usize| self.is_untouched(path, entry, moment);
        if path.is_empty() || !moments.clone().all(is_same) {
            return None;
        }
        let Some(found) = left.entries.get(path) else {
            return Some(format!("/{path} was synced by {number} and is gone"));
        };
        let mut expected = entry.clone();
        expected.file = found.file;
        expected.content.clone_from(&found.content);
        let moved = moments
            .clone()
            .any(|moment| self.is_named_otherwise(entry, number, moment));
        if entry.kind == FileKind::Directory || moved {
            expected.links = found.links;
        }
        if *found != expected {
            return Some(format!(
                "/{path} was synced by {number} and is another: {found:?}"
            ));
        }
        found.content.as_ref()?;
        self.judge_content(path, found, entry.file, moments, 1)
    }

    /// The names of a directory that was synced, unless they were changed since.
    fn judge_logged_names(
        &self,
        dir: &str,
        moments: RangeInclusive<usize>,
        left: &Tree,
    ) -> Vec<String> {
        let number = *moments.start();
        let is_in = |path: &str| parent_of(path) == dir && !path.is_empty();
        let there = |moment: usize, path: &str| {
            let found = self.after(moment).entries.get(path);
            found.map(|entry| entry.file)
        };
        let mut lines = Vec::new();
        // It may be elsewhere by now.
        let file = there(number, dir);
        if !moments.clone().all(|moment| there(moment, dir) == file) {
            return lines;
        }
        for (path, entry) in &self.after(number).entries {
            let stays = |moment| there(moment, path) == Some(entry.file);
            if !is_in(path) || !moments.clone().all(stays) {
                continue;
            }
            if left.entries.get(path).map(|it| it.kind) != Some(entry.kind) {
                lines.push(format!("/{path} was in a directory synced by {number}"));
            }
        }
        for path in left.entries.keys().filter(|path| is_in(path)) {
            if moments.clone().all(|moment| there(moment, path).is_none()) {
                lines.push(format!("/{path} was gone from what {number} synced"));
            }
        }
        lines
    }

    /// What is left of each file is made of what some file had under its path.
    fn judge_made_of_versions(&self, moments: RangeInclusive<usize>, left: &Tree) -> Vec<String> {
        let judge = |(path, entry): (&str, &Entry)| {
            let named = moments.clone().filter_map(|moment| {
                let known = self.after(moment).entries.get(path)?;
                (known.kind == FileKind::Regular).then_some(known.file)
            });
            let files: std::collections::BTreeSet<u64> = named.collect();
            let wrong = files
                .iter()
                .map(|file| self.judge_content(path, entry, *file, moments.clone(), 1));
            let wrong: Vec<_> = wrong.collect();
            let is_one = wrong.iter().any(Option::is_none);
            wrong.into_iter().flatten().next().filter(|_| !is_one)
        };
        left.files().filter_map(judge).collect()
    }

    /// Whether a file had other names at `moment` than at `number`.
    fn is_named_otherwise(&self, entry: &Entry, number: usize, moment: usize) -> bool {
        let names = |moment: usize| {
            let entries = self.after(moment).entries.iter();
            entries
                .filter(|(_, other)| other.file == entry.file)
                .map(|(path, _)| path)
        };
        entry.links > 1 && !names(number).eq(names(moment))
    }

    /// Whether a path led to the same file with the same attributes at `moment`.
    fn is_untouched(&self, path: &str, entry: &Entry, moment: usize) -> bool {
        let tree = self.after(moment);
        tree.entries.get(path).is_some_and(|now| {
            let mut now = now.clone();
            now.content.clone_from(&entry.content);
            if entry.kind == FileKind::Directory {
                now.links = entry.links;
            }
            now == *entry
        })
    }
}
