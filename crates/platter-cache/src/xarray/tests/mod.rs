//! The array against a `BTreeMap` model, its invariants, and its counts.

mod bugs;
mod costs;
mod model;
mod stress;
mod structure;
