//! Contents of files: what backs each range, and reading it.

mod contents;
mod runs;

pub use contents::Contents;
pub use runs::{Backing, FileRun, FileRunsRule, Runs};
