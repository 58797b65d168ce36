//! Sequences of operations that chance alone seldom puts together.

use std::collections::VecDeque;

use platter_vfs::CreateKind;

use super::operation::{Fill, Operation};
use super::tree::join;
use crate::prng::Prng;

/// Names that make a directory of several blocks, of whatever size.
const NAMES: usize = 14;
/// The length of each.
const NAME_BYTES: usize = 240;

/// Has blocks change between data and metadata while the log that may be replayed knows both: a
/// directory of several blocks is written and removed, a file takes its place and is written twice,
/// is truncated in turn, and another directory comes. What a replay brings back of the first
/// directory's blocks would be found in the file, and what was data in the second directory.
///
/// Everything is at `base` and below it, and nothing of it is left.
pub(super) fn exchange_of_roles(base: &str, seed: u64) -> VecDeque<Operation> {
    let mut prng = Prng::new(seed);
    let mut script = VecDeque::new();
    let file = format!("{base}f");
    let mut write = |script: &mut VecDeque<Operation>, offset| {
        let len = 12 << 10;
        let seed = prng.next_u64();
        script.push_back(Operation::Write(file.clone(), Fill { offset, len, seed }));
    };
    add_directory(&mut script, base);
    script.push_back(Operation::Fsync(base.to_owned(), false));
    remove_directory(&mut script, base);
    script.push_back(Operation::Create(file.clone(), CreateKind::Regular, 0o644));
    script.push_back(Operation::Sync);
    // Scattered, so that a map of many extents takes a block of its own.
    for piece in 0..6 {
        write(&mut script, piece * (16 << 10));
    }
    script.push_back(Operation::Fsync(file.clone(), false));
    write(&mut script, 0);
    script.push_back(Operation::Fsync(file.clone(), true));
    script.push_back(Operation::Truncate(file.clone(), 100));
    script.push_back(Operation::Fsync(file.clone(), false));
    add_directory(&mut script, base);
    script.push_back(Operation::Sync);
    write(&mut script, 50);
    script.push_back(Operation::Fsync(file.clone(), false));
    remove_directory(&mut script, base);
    script.push_back(Operation::Unlink(file));
    script
}

fn names(directory: &str) -> impl Iterator<Item = String> {
    let name = |number| format!("{number:-<NAME_BYTES$}");
    (0..NAMES).map(move |number| join(directory, &name(number)))
}

/// A directory in which one file has all names.
fn add_directory(script: &mut VecDeque<Operation>, path: &str) {
    script.push_back(Operation::Create(
        path.to_owned(),
        CreateKind::Directory,
        0o755,
    ));
    let mut names = names(path);
    let first = names.next().unwrap_or_default();
    script.push_back(Operation::Create(first.clone(), CreateKind::Fifo, 0o600));
    script.extend(names.map(|name| Operation::Link(first.clone(), name)));
}

fn remove_directory(script: &mut VecDeque<Operation>, path: &str) {
    script.extend(names(path).map(Operation::Unlink));
    script.push_back(Operation::RemoveDir(path.to_owned()));
}
