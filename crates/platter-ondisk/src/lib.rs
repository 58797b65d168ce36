//! The common base of all on-disk formats: integers with a byte order, seeded checksums, UUIDs, and
//! the corruption report for bytes that break a rule.
#![forbid(unsafe_code)]
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

pub mod endian;
pub mod checksum;
pub mod corruption;
pub mod verify;

pub use corruption::{Corrupt, Corruption, Locus, LocusParts, Rule, TreeKey};
pub use uuid::Uuid;
pub use verify::{VerifierKey, Verify};
