//! Contents of files: what backs each range, and reading it.

pub mod change;
mod contents;
mod runs;

pub use contents::Contents;
pub use runs::{Backing, FileRun, FileRunsRule, Runs};
