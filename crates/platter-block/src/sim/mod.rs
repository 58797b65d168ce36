//! Devices that go wrong on purpose, repeatably: recorded writes, power cuts, I/O errors.
//!
//! [`FaultDevice`] fails requests or swallows them. All chance comes from a seed.

mod dice;
mod fault;

pub use fault::{Effect, Fault, FaultDevice, When};
