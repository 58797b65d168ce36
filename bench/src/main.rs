//! Benchmarks: `platter-bench NAME [--keep]`, each printing what it measured and, when told to,
//! keeping it in `bench/results/`.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "this is a program for a terminal")]

mod abba;
mod record;
mod m3;
mod m4;
mod forest;
mod requests;
mod tar;

use anyhow::{Result, bail};
use record::Keep;

/// A benchmark by name.
struct Benchmark {
    name: &'static str,
    about: &'static str,
    run: fn(Keep) -> Result<()>,
}

const BENCHMARKS: &[Benchmark] = &[
    Benchmark {
        name: "m3",
        about: "page cache insertion in three walks, in one, and batched: walks, nodes, time",
        run: m3::run,
    },
    Benchmark {
        name: "m4",
        about: "attributes set with shared blocks and without: sets, blocks, what the cache did",
        run: m4::run,
    },
    Benchmark {
        name: "requests",
        about: "requests that reading and changing files issue to the device",
        run: requests::run,
    },
    Benchmark {
        name: "tar",
        about: "a cold image of 50,000 files as tar, beside a kernel loop mount with tar",
        run: tar::run,
    },
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, keep) = match arguments.as_slice() {
        [name] => (name, Keep::No),
        [name, flag] if flag == "--keep" => (name, Keep::Yes),
        _ => return list(),
    };
    match BENCHMARKS.iter().find(|benchmark| benchmark.name == name) {
        Some(benchmark) => (benchmark.run)(keep),
        None => bail!("no benchmark is called {name}"),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "a list is one of main's ways out")]
fn list() -> Result<()> {
    for benchmark in BENCHMARKS {
        println!("{:<12}{}", benchmark.name, benchmark.about);
    }
    Ok(())
}
