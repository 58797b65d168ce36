//! Runs many mutants and detects panics, hangs, crashes and excessive memory.
//!
//! Each worker is a process. The parent knows the number a worker is processing from a file that
//! the worker updates, so it can name the image that killed it.

mod limits;
mod memory;
mod tallies;
mod worker;
mod supervisor;

use testkit::fs_type::FsType;

pub use limits::Limits;
pub use supervisor::run;
pub use tallies::{Failure, Tallies};
pub use worker::{examine, perform_all, work};

/// What is done with each mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It is read and checked.
    Reading,
    /// Each of the [operations](crate::operations::OPERATIONS) has a copy of it.
    Operations,
}

impl Part {
    /// What to call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reading => "reading",
            Self::Operations => "operations",
        }
    }

    /// The part of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Reading, Self::Operations]
            .into_iter()
            .find(|part| part.name() == name)
    }
}

/// Which mutants to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// The format of the images.
    pub format: FsType,
    /// What is done with them.
    pub part: Part,
    /// The first number.
    pub first: u64,
    /// How many numbers.
    pub count: u64,
    /// From one number to the next.
    pub step: u64,
}

impl Job {
    /// The numbers, in order.
    pub fn numbers(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |index| self.first.wrapping_add(index.wrapping_mul(self.step)))
    }
}
