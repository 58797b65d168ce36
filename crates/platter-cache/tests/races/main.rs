//! Model checking of the caches: their own sources, over primitives that try many schedules.
//!
//! The modules below are those of the crate; they take their locks and atomics from `crate::sync`,
//! which here is the model checker's. `cargo test -p platter-cache --test races [NAME]` runs all
//! models or those whose name contains NAME; `RACES=N` multiplies the schedules by N.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "the crate's modules are used in part"
)]
#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::must_use_candidate,
    reason = "a test program"
)]

mod sync;
#[path = "../../src/layout.rs"]
mod layout;
#[path = "../../src/block_size.rs"]
mod block_size;
#[path = "../../src/frame/mod.rs"]
mod frame;
#[path = "../../src/budget/mod.rs"]
mod budget;
#[path = "../../src/buffer/mod.rs"]
mod buffer;
#[path = "../../src/hash.rs"]
mod hash;
#[path = "../../src/mbcache/mod.rs"]
mod mbcache;
#[path = "../../src/page/mod.rs"]
mod page;
#[path = "../../src/xarray/mod.rs"]
mod xarray;
mod array_models;
mod buffer_models;
mod mbcache_models;
mod page_models;

use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

pub(crate) use budget::MemoryBudget;

/// One set of threads and what must hold of them, under many schedules.
struct Model {
    name: &'static str,
    schedules: usize,
    run: fn(),
}

/// A thread's stack: structures whose fields lie on lines of their own are large when they are made.
const STACK_BYTES: usize = 256 << 10;
/// Changes of thread that the priority scheduler makes.
const PRIORITY_CHANGES: usize = 3;
const SEED: u64 = 0x706c_6174_7465_7200;

fn main() {
    let filter = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let factor = std::env::var("RACES").map_or(1, |factor| factor.parse().unwrap());
    let models = [
        array_models::MODELS,
        buffer_models::MODELS,
        mbcache_models::MODELS,
        page_models::MODELS,
    ];
    let models = models.into_iter().flatten();
    let wanted = |model: &&Model| filter.as_ref().is_none_or(|name| model.name.contains(name));
    for model in models.filter(wanted) {
        let schedules = model.schedules * factor;
        check(model.run, schedules);
        println!("model {} ... ok, {} schedules", model.name, 2 * schedules);
    }
}

fn check(run: fn(), schedules: usize) {
    let body = move || {
        sync::epoch::reset();
        run();
        assert_eq!(
            sync::epoch::garbage_len(),
            0,
            "everything deferred was freed"
        );
    };
    let mut config = Config::new();
    // Orderings weaker than SeqCst are argued where they are used.
    config.silence_warnings = true;
    config.stack_size = STACK_BYTES;
    config.max_time = Some(Duration::from_mins(10));
    let random = RandomScheduler::new_from_seed(SEED, schedules);
    Runner::new(random, config.clone()).run(body);
    let priorities = PctScheduler::new_from_seed(SEED, PRIORITY_CHANGES, schedules);
    Runner::new(priorities, config).run(body);
}
