//! Random operations, with the answers of the model.

use anyhow::{Context, Result, ensure};
use platter_vfs::Filesystem;

use super::Candidate;
use crate::crash::{is_same, model};
use crate::workload::{Generator, Mix, Session, Tree};

/// Mounts of one run.
const ROUNDS: usize = 2;

/// Applies random operations to a filesystem and to the model, and compares answers and trees.
///
/// The model of the filesystem in memory is another one of the same kind: there, this shows that its answers
/// do not depend on what is in its page cache.
pub fn operations_equal_a_model(candidate: Candidate, seed: u64, count: usize) -> Result<()> {
    run(candidate, seed, count).with_context(|| format!("{} seed {seed}", candidate.name()))
}

fn run(candidate: Candidate, seed: u64, count: usize) -> Result<()> {
    let mut mounted = candidate.mount(seed)?;
    let reference = model();
    let mix = Mix {
        one_sync_in: 20,
        one_whole_sync_in: 2,
        one_refused_in: 10,
        abilities: candidate.abilities(),
        names: true,
    };
    let mut generator = Generator::new(seed, mix, &[""], "n");
    let mut now = Tree::read(&reference, None)?;
    for round in 0..ROUNDS {
        let (mut ours, mut theirs) = (Session::new(mounted.fs()), Session::new(&reference));
        let mut last = Vec::new();
        for number in 0.. {
            if number == count {
                last = generator.close_all();
                last.reverse();
            }
            let operation = if number < count {
                generator.next(&now)
            } else {
                match last.pop() {
                    Some(operation) => operation,
                    None => break,
                }
            };
            let (done, expected) = (ours.apply(&operation), theirs.apply(&operation));
            ensure!(
                is_same(&done, &expected),
                "{round}.{number}: {operation:?}: {done:?}, and the model {expected:?}"
            );
            now = Tree::of_session(&theirs, Some(&now))?;
        }
        demand_equal(mounted.fs(), &now).context("mounted")?;
        drop((ours, theirs));
        mounted.remount()?;
        demand_equal(mounted.fs(), &now).context("mounted anew")?;
    }
    mounted.finish()
}

fn demand_equal(fs: &dyn Filesystem, expected: &Tree) -> Result<()> {
    let lines = Tree::read(fs, None)?.differences(expected);
    ensure!(lines.is_empty(), "{}", lines.join("\n"));
    Ok(())
}
