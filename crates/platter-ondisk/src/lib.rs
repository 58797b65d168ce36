//! What every on-disk format needs before it has a format: integers that know their byte
//! order, seeded checksums, UUIDs, and the report that is given when bytes break a rule.
#![forbid(unsafe_code)]
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

pub mod endian;
pub mod checksum;
pub mod corruption;
pub mod verify;

pub use corruption::{Corrupt, Corruption, Locus, LocusParts, Rule, TreeKey};
pub use uuid::Uuid;
pub use verify::{VerifierKey, Verify};
