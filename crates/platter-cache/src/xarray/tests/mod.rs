//! The array compared with a `BTreeMap`, its invariants, and its costs.

mod bugs;
mod costs;
mod model;
mod stress;
mod structure;
