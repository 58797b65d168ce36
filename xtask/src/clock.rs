//! The time that a step or a run takes.

use std::time::Instant;

/// The start of something that is timed.
#[expect(
    clippy::disallowed_methods,
    reason = "the time a step takes is shown, not stored"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
