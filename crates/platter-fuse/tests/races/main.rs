//! Model checking of the readers of the device: their own sources, over primitives that try many schedules.
//!
//! The modules below are those of the crate; they take their locks from `crate::sync`, which here is the model
//! checker's. `cargo test -p platter-fuse --test races [NAME]` runs all models or those whose name contains NAME;
//! `RACES=N` multiplies the schedules by N.
#![allow(dead_code, reason = "the crate's modules are used in part")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program")]

mod sync;
#[path = "../../src/transport/device/callers.rs"]
mod callers;
#[path = "../../src/transport/device/readers.rs"]
mod readers;
mod device;
mod models;

use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// One set of threads and what must hold of them.
struct Model {
    name: &'static str,
    run: fn(),
}

/// Schedules of each kind tried for a model.
const SCHEDULES: usize = 2_000;
/// Changes of thread that the priority scheduler makes.
const PRIORITY_CHANGES: usize = 3;
const SEED: u64 = 0x706c_6174_7465_7200;

fn main() {
    let filter = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let factor = std::env::var("RACES").map_or(1, |factor| factor.parse().unwrap());
    let wanted = |model: &&Model| filter.as_ref().is_none_or(|name| model.name.contains(name));
    for model in models::MODELS.iter().filter(wanted) {
        let mut config = Config::new();
        config.max_time = Some(Duration::from_mins(10));
        let schedules = SCHEDULES * factor;
        let random = RandomScheduler::new_from_seed(SEED, schedules);
        Runner::new(random, config.clone()).run(model.run);
        let priorities = PctScheduler::new_from_seed(SEED, PRIORITY_CHANGES, schedules);
        Runner::new(priorities, config).run(model.run);
        println!("model {} ... ok, {} schedules", model.name, 2 * schedules);
    }
}
