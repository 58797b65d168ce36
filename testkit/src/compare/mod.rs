//! The comparison walk: every path of a filesystem as platter sees it, compared with the same path as
//! the kernel shows it. All that a program can ask of a file is asked of both.

mod rules;
mod report;
mod host;
mod image;
mod content;
mod walk;

pub use report::Outcome;
pub use rules::Rules;
pub use walk::{compare, compare_below};

#[cfg(test)]
mod tests;
