//! What a run came to.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// An image that failed: a panic, a hang, a crash, or too much memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Its number.
    pub number: u64,
    /// What happened.
    pub what: String,
}

/// The sums of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tallies {
    /// Images tried.
    pub images: u64,
    /// Of these, with checksums put right.
    pub sealed: u64,
    /// Images that opened.
    pub opened: u64,
    /// Images that were refused.
    pub refused: u64,
    /// Images whose check found nothing, though they were changed.
    pub checked_clean: u64,
    /// Findings of the check.
    pub findings: u64,
    /// Operations done.
    pub operations: u64,
    /// Files visited.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Errors by kind.
    pub errors: BTreeMap<String, u64>,
    /// The longest time an image took, in microseconds, and its number.
    pub slowest: (u64, u64),
    /// The most memory an image took in addition to the caches, in bytes, and its number.
    pub largest: (u64, u64),
    /// Images that failed.
    pub failures: Vec<Failure>,
}

impl Tallies {
    /// Adds what another worker counted.
    pub fn add(&mut self, other: Self) {
        self.images += other.images;
        self.sealed += other.sealed;
        self.opened += other.opened;
        self.refused += other.refused;
        self.checked_clean += other.checked_clean;
        self.findings += other.findings;
        self.operations += other.operations;
        self.files += other.files;
        self.bytes += other.bytes;
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
        self.slowest = self.slowest.max(other.slowest);
        self.largest = self.largest.max(other.largest);
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for Tallies {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (images, sealed) = (self.images, self.sealed);
        write!(out, "{images} images, {sealed} with checksums put right: ")?;
        if self.operations > 0 {
            writeln!(out, "{} operations", self.operations)?;
        } else {
            writeln!(out, "{} opened, {} refused", self.opened, self.refused)?;
            writeln!(
                out,
                "{} files visited, {} bytes read",
                self.files, self.bytes
            )?;
            writeln!(
                out,
                "checks: {} findings; {} opened images clean",
                self.findings, self.checked_clean
            )?;
        }
        let (micros, number) = self.slowest;
        writeln!(out, "slowest: {} ms (image {number})", micros / 1000)?;
        let (bytes, number) = self.largest;
        writeln!(out, "most memory: {} KiB (image {number})", bytes / 1024)?;
        writeln!(out, "errors by kind:")?;
        for (kind, count) in &self.errors {
            writeln!(out, "{count:>10}  {kind}")?;
        }
        writeln!(out, "{} failures", self.failures.len())?;
        for failure in &self.failures {
            writeln!(out, "  image {}: {}", failure.number, failure.what)?;
        }
        Ok(())
    }
}
