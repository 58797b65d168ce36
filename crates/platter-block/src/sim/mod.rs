//! Devices that fail on purpose, reproducibly: recorded writes, power failures, I/O errors.
//!
//! [`Recorder`] logs the requests of a workload to the devices of a filesystem, [`CrashStates`]
//! enumerates the states that a power failure can leave, and [`FaultDevice`] fails or drops requests.
//! All randomness comes from a seed.

mod dice;
mod fault;
mod recording;
mod crash;
mod recorder;

pub use crash::{CrashOptions, CrashState, CrashStates, Loss};
pub use fault::{Effect, Fault, FaultDevice, When};
pub use recorder::{Recorder, RecordingDevice};
pub use recording::{Event, Recording, Request};
