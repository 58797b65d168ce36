//! Fuzz targets, each a function of bytes that must return, and mutated whole images.
#![forbid(unsafe_code)]

pub mod contents;
pub mod layout;
pub mod open;
pub mod seeds;
pub mod mutation;
pub mod exercise;
pub mod operations;
pub mod targets;
pub mod runner;
