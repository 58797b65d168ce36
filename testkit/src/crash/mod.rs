//! Random operations on devices that lose power or fail, and a judgement of what is left.
//!
//! For every state that a cut can leave the filesystem is mounted, compared with the history of
//! the operations, unmounted and checked; the checker of Linux and the kernel judge samples, or all. The same
//! for a device that fails one write, or all from one on; two threads against a model, and snapshots of what they
//! write; and a filesystem without space.

mod record;
mod image;
mod judge;
mod matrix;
mod faults;
mod threads;
mod snapshots;
mod full;
mod cost;

pub use cost::{Cost, costs};
pub use faults::{FaultCounts, Faults};
pub use full::{Full, FullCounts};
pub(crate) use image::ImageFiles;
pub use matrix::{Counts, Matrix};
pub use record::{Breakage, Recorded, record};
pub(crate) use record::{is_same, model};
pub use snapshots::{SnapshotCounts, Snapshots};
pub use threads::{Threads, run_threads};
