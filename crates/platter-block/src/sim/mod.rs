//! Devices that go wrong on purpose, repeatably: recorded writes, power cuts, I/O errors.
//!
//! [`RecordingDevice`] logs what a workload does, [`CrashStates`] walks through what a power cut
//! can leave of it, and [`FaultDevice`] fails requests or swallows them. All chance comes from a
//! seed.

mod crash;
mod dice;
mod fault;
mod recording;

pub use crash::{CrashOptions, CrashState, CrashStates, Loss};
pub use fault::{Effect, Fault, FaultDevice, When};
pub use recording::{Event, Recording, RecordingDevice, Request};
