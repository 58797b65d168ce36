//! Contents of files: what backs each range, and reading it.

pub mod change;
mod runs;
mod contents;

pub use contents::Contents;
#[cfg(test)]
pub(crate) use contents::tests::with_contents;
pub use runs::{Backing, FileRun, FileRunsRule, Runs};
