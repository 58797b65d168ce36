//! Devices that fail on purpose, reproducibly: recorded writes, power failures, I/O errors.
//!
//! [`RecordingDevice`] logs the requests of a workload, [`CrashStates`] enumerates the states that
//! a power failure can leave, and [`FaultDevice`] fails or drops requests. All randomness comes
//! from a seed.

mod crash;
mod dice;
mod fault;
mod recording;

pub use crash::{CrashOptions, CrashState, CrashStates, Loss};
pub use fault::{Effect, Fault, FaultDevice, When};
pub use recording::{Event, Recording, RecordingDevice, Request};
