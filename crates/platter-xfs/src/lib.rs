//! XFS in one driver.
//!
//! Modules stand in the order of their dependencies: each uses only those above it.
#![forbid(unsafe_code)]

#[macro_use]
pub mod ondisk;
pub mod txn;
pub mod recovery;
