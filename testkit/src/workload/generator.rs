//! Operations that fit what a filesystem holds, drawn from a seed.

use std::collections::VecDeque;
use std::ops::Range;

use platter_vfs::{CreateKind, FallocateMode, FileKind, RenameMode};

use super::operation::{Fill, Operation, Span, open_path, parent_of};
use super::script;
use super::tree::{Entry, Tree, join};
use crate::prng::Prng;

/// The longest file that is made.
const FILE_BYTES_MAX: u64 = 96 << 10;
/// Paths that are kept; beyond them more is removed than made.
const PATHS_MAX: usize = 40;
/// How deep directories are made.
const DEPTH_MAX: usize = 4;
/// Attributes that files get.
const XATTRS: [&str; 3] = ["user.first", "user.second", "trusted.third"];
/// Different values that an attribute of one length gets, so that files have equal ones too.
const XATTR_VALUES: u64 = 3;
/// Files that are kept open.
const OPEN_MAX: usize = 3;

/// What a filesystem supports beyond the operations of every POSIX filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is independent of the others"
)]
pub struct Abilities {
    /// The contents of files are moved by whole blocks of this size (`FALLOC_FL_COLLAPSE_RANGE` and
    /// `FALLOC_FL_INSERT_RANGE`); 0 for none.
    pub shift_bytes: u64,
    /// Space is allocated for files, and holes are made in them.
    pub fallocate: bool,
    /// Bytes are copied by `copy_file_range`.
    pub copies: bool,
    /// Files share blocks (`FICLONERANGE` and `FIDEDUPERANGE`).
    pub clones: bool,
    /// Contents of files are exchanged (`XFS_IOC_EXCHANGE_RANGE`).
    pub exchanges: bool,
    /// Subvolumes and snapshots are created and deleted.
    pub subvolumes: bool,
}

/// Which kinds of operations are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// One of so many operations is a sync; 0 for none.
    pub one_sync_in: u64,
    /// One of so many syncs is of everything.
    pub one_whole_sync_in: u64,
    /// One of so many operations is one that must fail; 0 for none.
    pub one_refused_in: u64,
    /// What the filesystem supports.
    pub abilities: Abilities,
    /// Whether names are made, moved and removed, and files kept open without them.
    pub names: bool,
}

/// What is shared is whole blocks of this size: a multiple of every block.
const CLONE_BYTES: u64 = 4096;
/// Subvolumes that are kept.
const SUBVOLUMES_MAX: usize = 3;

/// A file that is kept open.
#[derive(Debug)]
struct OpenFile {
    number: u32,
    /// The subvolume it is in; empty for the one that bases are in.
    volume: String,
    /// Whether it never had a name, and may get one.
    is_unnamed: bool,
}

/// Draws operations.
#[derive(Debug)]
pub struct Generator {
    prng: Prng,
    mix: Mix,
    /// Directories that are never removed, where names are made.
    bases: Vec<String>,
    /// What every name begins with, so that two generators can share a directory.
    prefix: &'static str,
    names: u64,
    open: Vec<OpenFile>,
    opened: u32,
    /// What comes next, whatever is drawn.
    script: VecDeque<Operation>,
    /// Paths of subvolumes, which lie in bases.
    subvolumes: Vec<String>,
}

impl Generator {
    /// Names are made in and below `bases`, and begin with `prefix` there.
    #[must_use]
    pub fn new(seed: u64, mix: Mix, bases: &[&str], prefix: &'static str) -> Self {
        Self {
            prng: Prng::new(seed),
            mix,
            bases: bases.iter().map(|&base| base.to_owned()).collect(),
            prefix,
            names: 0,
            open: Vec::new(),
            opened: 0,
            script: VecDeque::new(),
            subvolumes: Vec::new(),
        }
    }

    /// Closes what is still open.
    pub fn close_all(&mut self) -> Vec<Operation> {
        self.script.clear();
        let open = std::mem::take(&mut self.open);
        open.iter()
            .map(|file| Operation::Close(file.number))
            .collect()
    }

    /// Deletes the subvolumes that are left, in which no file is open.
    pub fn delete_subvolumes(&mut self) -> Vec<Operation> {
        let paths = std::mem::take(&mut self.subvolumes);
        paths.into_iter().map(Operation::DeleteSubvolume).collect()
    }

    /// The next operation on a filesystem that holds `now`.
    pub fn next(&mut self, now: &Tree) -> Operation {
        let mix = self.mix;
        if let Some(operation) = self.script.pop_front() {
            return operation;
        }
        loop {
            let drawn = if self.is_one_in(mix.one_sync_in) {
                self.sync(now)
            } else if self.is_one_in(mix.one_refused_in) {
                self.refused(now)
            } else {
                self.change(now)
            };
            if let Some(operation) = drawn {
                return operation;
            }
        }
    }

    fn is_one_in(&mut self, count: u64) -> bool {
        count != 0 && self.prng.below(count) == 0
    }

    /// A change; `None` if what was drawn does not fit.
    fn change(&mut self, now: &Tree) -> Option<Operation> {
        let mine = self.mine(now).count();
        if self.mix.names && self.is_one_in(12) {
            return self.open_or_close(now);
        }
        if self.mix.names && mine < PATHS_MAX && self.is_one_in(60) {
            let base = self.base();
            self.names += 1;
            let name = join(&base, &format!("{}{}", self.prefix, self.names));
            self.script = script::exchange_of_roles(&name, self.prng.next_u64());
            return self.script.pop_front();
        }
        let abilities = self.mix.abilities;
        if abilities.subvolumes && self.mix.names && self.is_one_in(25) {
            return self.change_subvolumes(now);
        }
        let has_ranges = abilities.copies || abilities.clones || abilities.exchanges;
        if has_ranges && self.is_one_in(10) {
            return self.change_ranges(now);
        }
        let roll = self.prng.below(100);
        let is_of_name = matches!(roll, 0..24 | 62..88);
        if is_of_name && !self.mix.names {
            return None;
        }
        Some(match roll {
            0..12 if mine < PATHS_MAX => self.create(now)?,
            12..16 if mine < PATHS_MAX => {
                Operation::Create(self.new_path(now)?, CreateKind::Directory, 0o755)
            }
            16..20 if mine < PATHS_MAX => {
                let len = [5, 59, 60, 200][self.below(4)];
                let target = self.letters(len);
                Operation::Create(self.new_path(now)?, CreateKind::Symlink(target), 0o777)
            }
            20..24 if mine < PATHS_MAX => {
                let file = self.any(now, |kind| kind != FileKind::Directory)?;
                let path = self.new_path(now)?;
                if self.volume_of(&file) != self.volume_of(&path) {
                    return None;
                }
                Operation::Link(file, path)
            }
            24..48 => {
                let path = self.any_file(now)?;
                Operation::Write(path.clone(), self.fill(now, &path))
            }
            48..56 => {
                let path = self.any_file(now)?;
                let size = self.prng.below(FILE_BYTES_MAX);
                Operation::Truncate(path, if self.is_one_in(4) { 0 } else { size })
            }
            56..62 if self.mix.abilities.fallocate => self.fallocate(now)?,
            62..72 => self.rename(now)?,
            72..84 => Operation::Unlink(self.any(now, |kind| kind != FileKind::Directory)?),
            84..88 => Operation::RemoveDir(self.empty_directory(now)?),
            88..92 => {
                let name = self.below(3);
                let lens = [0, 3, 40, if name == 0 { 400 } else { 200 }];
                let fill = Fill {
                    offset: 0,
                    len: lens[self.below(4)],
                    seed: self.prng.below(XATTR_VALUES),
                };
                // Only files and directories take attributes of users.
                let takes = |kind| matches!(kind, FileKind::Regular | FileKind::Directory);
                Operation::SetXattr(self.any(now, takes)?, XATTRS[name], fill)
            }
            92..94 => {
                let has_any = |(path, entry): (&String, &Entry)| {
                    (self.is_mine(path) && !entry.xattrs.is_empty()).then(|| path.clone())
                };
                let fitting: Vec<String> = now.entries.iter().filter_map(has_any).collect();
                let path = self.one_of(fitting)?;
                let entry = now.entries.get(&path)?;
                let mut names = XATTRS.iter();
                let name = names.find(|name| entry.xattrs.contains_key(name.as_bytes()))?;
                Operation::RemoveXattr(path, name)
            }
            94..97 => {
                let bits = u32::try_from(self.prng.below(0o1000)).unwrap_or(0);
                let path = self.any(now, |kind| kind != FileKind::Symlink)?;
                Operation::SetPermissions(path, bits)
            }
            97..100 => {
                let mut id = || u32::try_from(self.prng.below(90_000)).unwrap_or(0);
                let (uid, gid) = (id(), id());
                Operation::SetOwner(self.any(now, |_| true)?, uid, gid)
            }
            _ => return None,
        })
    }

    fn create(&mut self, now: &Tree) -> Option<Operation> {
        let kind = match self.below(12) {
            0 => CreateKind::Fifo,
            1 => CreateKind::Socket,
            _ => CreateKind::Regular,
        };
        Some(Operation::Create(self.new_path(now)?, kind, 0o644))
    }

    /// Opens, closes and names files; a file that loses its last name while it is open goes on
    /// being written to.
    fn open_or_close(&mut self, now: &Tree) -> Option<Operation> {
        if self.open.len() >= OPEN_MAX || (!self.open.is_empty() && self.is_one_in(3)) {
            let which = self.below(self.open.len());
            let file = self.open.remove(which);
            return Some(Operation::Close(file.number));
        }
        if let Some(at) = self.open.iter().position(|file| file.is_unnamed)
            && self.is_one_in(2)
        {
            let to = self.new_path(now)?;
            if self.open[at].volume != self.volume_of(&to) {
                return None;
            }
            self.open[at].is_unnamed = false;
            return Some(Operation::Link(open_path(self.open[at].number), to));
        }
        let is_unnamed = self.is_one_in(3);
        let path = if is_unnamed {
            self.base()
        } else {
            self.any(now, |kind| kind == FileKind::Regular)?
        };
        let number = self.opened;
        self.opened += 1;
        let volume = self.volume_of(&path).to_owned();
        self.open.push(OpenFile {
            number,
            volume,
            is_unnamed,
        });
        if is_unnamed {
            return Some(Operation::CreateUnnamed(path, number));
        }
        if self.is_one_in(2) {
            let fill = self.fill(now, &path);
            self.script.push_back(Operation::Unlink(path.clone()));
            self.script
                .push_back(Operation::Write(open_path(number), fill));
        }
        Some(Operation::Open(path, number))
    }

    fn base(&mut self) -> String {
        let which = self.below(self.bases.len());
        self.bases[which].clone()
    }

    /// A regular file, by a name or as it is open.
    fn any_file(&mut self, now: &Tree) -> Option<String> {
        if !self.open.is_empty() && self.is_one_in(4) {
            let which = self.below(self.open.len());
            return Some(open_path(self.open[which].number));
        }
        self.any(now, |kind| kind == FileKind::Regular)
    }

    /// Bytes somewhere in a file: in its middle, at its end, or some way past that.
    fn fill(&mut self, now: &Tree, path: &str) -> Fill {
        let size = size_of(now, path);
        let offset = match self.below(8) {
            0 | 1 => size,
            2 => size + self.prng.below(16 << 10),
            3 => self.prng.below(size + 1) & !4095,
            _ => self.prng.below(size + 1),
        };
        let bound = [100, 1000, 5000, 30_000][self.below(4)];
        let len = self.below(bound) + 1;
        let left = usize::try_from(FILE_BYTES_MAX.saturating_sub(offset)).unwrap_or(0);
        Fill {
            offset: offset.min(FILE_BYTES_MAX - 1),
            len: len.min(left.max(1)),
            seed: self.prng.next_u64(),
        }
    }

    fn fallocate(&mut self, now: &Tree) -> Option<Operation> {
        let path = self.any_file(now)?;
        let size = size_of(now, &path);
        let start = self.prng.below(size.max(1) + 8192).min(FILE_BYTES_MAX - 1);
        let end = (start + 1 + self.prng.below(20_000)).min(FILE_BYTES_MAX);
        let keep_size = self.is_one_in(2);
        let shift = self.mix.abilities.shift_bytes;
        let (range, mode) = match self.below(5) {
            0 => (start..end, FallocateMode::Allocate { keep_size }),
            1 => (start..end, FallocateMode::PunchHole),
            2 => (start..end, FallocateMode::ZeroRange { keep_size }),
            3 if shift != 0 => (self.blocks(size)?, FallocateMode::CollapseRange),
            4 if shift != 0 && size < FILE_BYTES_MAX / 2 => {
                (self.blocks(size)?, FallocateMode::InsertRange)
            }
            _ => return None,
        };
        Some(Operation::Fallocate(path, range, mode))
    }

    /// Whole blocks inside a file, and not up to its end.
    fn blocks(&mut self, size: u64) -> Option<Range<u64>> {
        let unit = self.mix.abilities.shift_bytes;
        let count = size.saturating_sub(1) / unit;
        let first = self.prng.below(count.max(1));
        let end = first
            + 1
            + self
                .prng
                .below(count.checked_sub(first).filter(|&left| left > 0)?);
        (end * unit < size).then_some(first * unit..end * unit)
    }

    fn rename(&mut self, now: &Tree) -> Option<Operation> {
        let from = self.any(now, |_| true)?;
        let is_directory = |path: &str| now.entries[path].kind == FileKind::Directory;
        let to = if self.is_one_in(2) {
            self.new_path(now)?
        } else {
            self.any(now, |_| true)?
        };
        let below = |path: &str, dir: &str| {
            path.strip_prefix(dir)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        let is_subvolume = |path: &String| self.subvolumes.contains(path);
        let crosses = self.volume_of(&from) != self.volume_of(&to);
        if crosses || is_subvolume(&from) || is_subvolume(&to) {
            return None;
        }
        if below(&to, &from) || below(&from, &to) || from == to {
            return None;
        }
        let Some(target) = now.entries.get(&to) else {
            let modes = [
                RenameMode::Replace,
                RenameMode::NoReplace,
                RenameMode::Whiteout,
            ];
            let mode = modes[self.below(3)];
            return Some(Operation::Rename(from, to, mode));
        };
        if self.is_one_in(3) {
            return Some(Operation::Rename(from, to, RenameMode::Exchange));
        }
        // Two names of one file stay both.
        let is_same = target.file == now.entries[&from].file;
        let is_empty = !now.entries.keys().any(|path| below(path, &to));
        let fits = is_directory(&from) == is_directory(&to) && is_empty && !is_same;
        fits.then_some(Operation::Rename(from, to, RenameMode::Replace))
    }

    fn sync(&mut self, now: &Tree) -> Option<Operation> {
        let data_only = self.is_one_in(3);
        let roll = self.prng.below(self.mix.one_whole_sync_in.max(1));
        Some(if roll == 0 {
            Operation::Sync
        } else if roll % 4 == 1 {
            Operation::Fsync(self.any(now, |kind| kind == FileKind::Directory)?, false)
        } else {
            Operation::Fsync(self.any_file(now)?, data_only)
        })
    }

    /// What every filesystem refuses, or takes without a change.
    fn refused(&mut self, now: &Tree) -> Option<Operation> {
        let any = self.any(now, |_| true)?;
        let directory = self.any(now, |kind| kind == FileKind::Directory)?;
        let absent = self.new_path(now)?;
        let volumes = [&any, &directory, &absent].map(|path| self.volume_of(path));
        let has_root = self.subvolumes.contains(&any) || self.subvolumes.contains(&directory);
        // Which error comes first, if names lie in several subvolumes, is not the model's.
        if has_root || volumes.iter().any(|volume| *volume != volumes[0]) {
            return None;
        }
        Some(match self.below(10) {
            0 => Operation::Create(any, CreateKind::Regular, 0o600),
            8 => {
                let other = self.any(now, |_| true)?;
                let is_apart = self.volume_of(&any) != self.volume_of(&other);
                if is_apart || self.subvolumes.contains(&other) {
                    return None;
                }
                Operation::Rename(any, other, RenameMode::NoReplace)
            }
            9 => Operation::CreateUnnamed(self.any_file(now)?, u32::MAX),
            1 => Operation::Create(join(&absent, "below"), CreateKind::Regular, 0o600),
            2 => Operation::Unlink(absent),
            3 => Operation::Unlink(directory),
            4 => Operation::RemoveDir(any),
            5 => {
                let below = join(&directory, "own");
                Operation::Rename(directory, below, RenameMode::Replace)
            }
            6 => Operation::Rename(absent, any, RenameMode::Exchange),
            _ => Operation::Link(directory, absent),
        })
        .filter(
            |operation| !matches!(operation, Operation::RemoveDir(path) if is_removable(now, path)),
        )
    }

    /// Paths that this generator made.
    fn mine<'a>(&'a self, now: &'a Tree) -> impl Iterator<Item = &'a str> {
        let paths = now.entries.keys().map(|path| &**path);
        paths.filter(|path| self.is_mine(path))
    }

    /// Whether the path goes on below a base with a name of this generator.
    fn is_mine(&self, path: &str) -> bool {
        let is_base = self.bases.iter().any(|base| base == path);
        let is_below = |base: &String| {
            let rest = path.strip_prefix(&**base).unwrap_or_default();
            let rest = if base.is_empty() {
                Some(path)
            } else {
                rest.strip_prefix('/')
            };
            rest.is_some_and(|rest| !rest.is_empty() && rest.starts_with(self.prefix))
        };
        !is_base && self.bases.iter().any(is_below)
    }

    fn any(&mut self, now: &Tree, fits: impl Fn(FileKind) -> bool) -> Option<String> {
        let fitting = self.mine(now).filter(|&path| fits(now.entries[path].kind));
        let fitting = fitting.map(str::to_owned).collect();
        self.one_of(fitting)
    }

    fn one_of(&mut self, fitting: Vec<String>) -> Option<String> {
        let which = self.below(fitting.len().max(1));
        fitting.into_iter().nth(which)
    }

    fn empty_directory(&mut self, now: &Tree) -> Option<String> {
        let path = self.any(now, |kind| kind == FileKind::Directory)?;
        (is_removable(now, &path) && !self.subvolumes.contains(&path)).then_some(path)
    }

    /// The subvolume that a path is in; empty for the one that bases are in.
    fn volume_of(&self, path: &str) -> &str {
        let is_in = |volume: &&String| {
            path.strip_prefix(&***volume)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.subvolumes
            .iter()
            .find(is_in)
            .map_or("", String::as_str)
    }

    /// Copies, shares or exchanges contents of files.
    fn change_ranges(&mut self, now: &Tree) -> Option<Operation> {
        let (from, to) = (self.any_file(now)?, self.any_file(now)?);
        let (from_size, to_size) = (size_of(now, &from), size_of(now, &to));
        let abilities = self.mix.abilities;
        match self.below(4) {
            0 | 1 if abilities.clones && from_size > 0 => {
                let span = self.blocks_to_share(now, from, to)?;
                Some(Operation::CloneRange(span))
            }
            2 if abilities.clones && from_size.min(to_size) >= CLONE_BYTES => {
                let range = 0..CLONE_BYTES;
                let offset = CLONE_BYTES * self.prng.below(to_size / CLONE_BYTES);
                let is_same = now.get(&from)?.file == now.get(&to)?.file;
                let span = Span {
                    from,
                    range,
                    to,
                    offset,
                };
                (!is_same || offset > 0).then_some(Operation::DedupeRange(span))
            }
            3 if abilities.exchanges => {
                let is_same = now.get(&from)?.file == now.get(&to)?.file;
                (!is_same).then_some(Operation::Exchange(from, to))
            }
            _ if abilities.copies => {
                let start = self.prng.below(from_size + 1);
                let len = self.prng.below(30_000) + 1;
                let offset = self.prng.below(to_size + 5000);
                let end = (start + len).min(from_size.max(start));
                let is_same = now.get(&from)?.file == now.get(&to)?.file;
                let overlaps = is_same && start < offset + (end - start) && offset < end;
                let fits = offset + (end - start) <= FILE_BYTES_MAX && start < end && !overlaps;
                let span = Span {
                    from,
                    range: start..end,
                    to,
                    offset,
                };
                fits.then_some(Operation::CopyRange(span))
            }
            _ => None,
        }
    }

    /// Whole blocks of one file, or all up to its end, and a place for them in another.
    fn blocks_to_share(&mut self, now: &Tree, from: String, to: String) -> Option<Span> {
        let (from_size, to_size) = (size_of(now, &from), size_of(now, &to));
        let start = CLONE_BYTES * self.prng.below(from_size.div_ceil(CLONE_BYTES));
        let blocks = (from_size - start) / CLONE_BYTES;
        let end = if blocks == 0 || self.is_one_in(3) {
            from_size
        } else {
            start + CLONE_BYTES * (1 + self.prng.below(blocks))
        };
        let offset = CLONE_BYTES * self.prng.below(to_size / CLONE_BYTES + 2);
        let new_end = offset + (end - start);
        let is_whole = end.is_multiple_of(CLONE_BYTES) || new_end >= to_size;
        let is_same = now.get(&from)?.file == now.get(&to)?.file;
        let overlaps = is_same && start < new_end.next_multiple_of(CLONE_BYTES) && offset < end;
        let fits = is_whole && !overlaps && new_end <= FILE_BYTES_MAX;
        fits.then_some(Span {
            from,
            range: start..end,
            to,
            offset,
        })
    }

    /// Creates a subvolume or a snapshot, or deletes one.
    fn change_subvolumes(&mut self, now: &Tree) -> Option<Operation> {
        let in_use = |volume: &String| self.open.iter().any(|file| file.volume == *volume);
        if self.subvolumes.len() >= SUBVOLUMES_MAX {
            let which = self.subvolumes.iter().position(|volume| !in_use(volume))?;
            return Some(Operation::DeleteSubvolume(self.subvolumes.remove(which)));
        }
        self.names += 1;
        let path = join(&self.base(), &format!("{}{}", self.prefix, self.names));
        if now.entries.contains_key(&path) {
            return None;
        }
        let which = self.below(self.subvolumes.len() + 1);
        let source = self.subvolumes.get(which).cloned();
        self.subvolumes.push(path.clone());
        Some(match source {
            Some(source) => Operation::Snapshot(source, path),
            None => Operation::CreateSubvolume(path),
        })
    }

    /// A path that is not there, in a directory that is.
    fn new_path(&mut self, now: &Tree) -> Option<String> {
        let own = self.mine(now).filter(|&path| {
            let depth = path.matches('/').count();
            now.entries[path].kind == FileKind::Directory && depth < DEPTH_MAX
        });
        let mut directories = self.bases.clone();
        directories.extend(own.map(str::to_owned));
        let directory = &directories[self.below(directories.len())];
        self.names += 1;
        let mut name = format!("{}{}", self.prefix, self.names);
        if self.is_one_in(8) {
            name.push_str(&"-".repeat(self.below(200)));
        }
        let path = join(directory, &name);
        (!now.entries.contains_key(&path)).then_some(path)
    }

    fn letters(&mut self, len: usize) -> Vec<u8> {
        let letter = |byte: u8| b'a' + byte % 26;
        self.prng.bytes(len).into_iter().map(letter).collect()
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.prng.below(bound as u64)).unwrap_or(0)
    }
}

fn size_of(now: &Tree, path: &str) -> u64 {
    let content = now.get(path).and_then(|entry| entry.content.as_ref());
    content.map_or(0, |content| content.len() as u64)
}

/// Whether `rmdir` removes what the path names.
fn is_removable(now: &Tree, path: &str) -> bool {
    let is_directory = now.entries[path].kind == FileKind::Directory;
    is_directory
        && !now
            .entries
            .keys()
            .any(|other| parent_of(other) == path && other != path)
}
