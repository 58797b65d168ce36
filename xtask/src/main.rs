//! The project's own commands: `cargo xtask {demo,test,ci,package,registry,soak,locks,tidy,bench,fuzz}`.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "these commands talk to a terminal")]
#![expect(clippy::print_stderr, reason = "these commands talk to a terminal")]

mod clock;
mod command;
mod workspace;
mod packages;
mod package;
mod registry;
mod tidy;
mod fuzz;
mod bench;
mod demo;
mod soak;
mod test;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  demo         open, list, copy out of, mount and change a real image with platter
  test         everything CI runs: format, lints, tidy, tests, mutations, documentation; with
               --from STEP, those from that step on
  ci           the same as test
  package      the program with its manual pages and completions, as a .tar.gz and a .deb
  registry     every published crate packed as for a registry; with --verify, built from that
  soak         the long runs: power failures, failing writes, and conformance suites; see its --help
  locks        write the table of locks in ARCHITECTURE.md from the code
  tidy         the rules of the source tree that no compiler checks
  bench        mechanisms, peers, growth: without a name, a list of the benchmarks
  fuzz         mutated images: --images N --seed N; see its --help";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<()> {
    let (name, rest) = match arguments.split_first() {
        Some((name, rest)) => (name.as_str(), rest),
        None => bail!("no command\n{USAGE}"),
    };
    let workspace = Workspace::find()?;
    match name {
        "test" | "ci" => test::run(&workspace, rest),
        "package" => package::run(&workspace),
        "registry" => registry::run(&workspace, rest),
        "demo" => demo::run(&workspace),
        "soak" => soak::run(&workspace, rest),
        soak::PORTION => soak::run_portion(&workspace, rest),
        "locks" => tidy::locks::write(&workspace),
        "tidy" => tidy::run(&workspace),
        "bench" => bench::run(&workspace, rest),
        "fuzz" => fuzz::run(&workspace, rest),
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("no command {name} {rest:?}\n{USAGE}"),
    }
}
