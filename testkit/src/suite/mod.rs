//! One suite of tests for every filesystem: the one in memory, which is the model of the others, and each
//! driver on devices. What it demands is written in it, or comes from a model in the test itself.
//!
//! Each case takes a [`Candidate`], and fails with what went wrong.

mod candidate;
mod model;
mod contents;
mod renames;
mod writeback;
mod syncs;
mod freezes;
mod acls;

pub use acls::acls_are_set_in_any_mode;
pub use candidate::Candidate;
pub use contents::{contents_equal_a_model, truncated_bytes_come_back_as_zeros};
pub use freezes::frozen_filesystem_is_clean_and_stays;
pub use model::operations_equal_a_model;
pub use renames::renames_follow_the_rules;
pub use syncs::failed_writes_are_reported;
pub use writeback::written_data_survives_writeback;
