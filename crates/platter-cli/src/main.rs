//! The `platter` command.
#![forbid(unsafe_code)]

fn main() {}
