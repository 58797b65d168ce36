//! Random sequences of operations on a filesystem, and what must be true of it afterwards.
//!
//! A [`Generator`] draws [`Operation`]s that fit what is there, [`Tree`] is what a filesystem
//! holds at one moment, and a [`History`] remembers every such moment with what each sync
//! guaranteed, so that whatever a power cut left can be held against it.

mod operation;
mod session;
mod subvolumes;
mod tree;
mod script;
mod generator;
mod host;
mod history;

pub use generator::{Abilities, Generator, Mix};
pub use history::{Durability, History, Pace};
pub use operation::{Fill, Operation, Span};
pub use session::Session;
pub(crate) use tree::LOST_AND_FOUND;
pub use tree::{Entry, Tree};

#[cfg(test)]
mod tests;
