//! Mutated whole images: `platter-fuzz --images N --seed N`, or `--only N` for one of them.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "this is a program for a terminal")]

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use platter_fuzz::mutation::mutate;
use platter_fuzz::runner::{self, Job, Limits, Part};
use platter_fuzz::seeds;

const USAGE: &str = "\
usage: platter-fuzz [--images N] [--operations N] [--seed N] [--processes N]
       platter-fuzz --only N [--write FILE]

Reads and checks as many mutated images as --images says, and edits, grows, mounts, archives and
copies as many as --operations says. Image number I of a run with seed S is number S * 2^32 + I;
--only makes that one image, does all that with it, and shows what was done to it. --write keeps
it.";

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, part, first, count, step, progress] = arguments.as_slice()
        && command == "worker"
    {
        let job = Job {
            part: Part::named(part).context("which part?")?,
            first: first.parse()?,
            count: count.parse()?,
            step: step.parse()?,
        };
        let tallies = runner::work(job, Limits::default(), Path::new(progress))?;
        println!("{}", serde_json::to_string(&tallies)?);
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options::parse(&arguments)?;
    match options.only {
        Some(number) => only(number, options.write.as_deref()),
        None => all(&options),
    }
}

struct Options {
    images: u64,
    operations: u64,
    seed: u64,
    processes: u64,
    only: Option<u64>,
    write: Option<String>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self {
            images: 1000,
            operations: 100,
            seed: 1,
            processes: std::thread::available_parallelism()?.get() as u64,
            only: None,
            write: None,
        };
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            let mut value = || {
                rest.next()
                    .with_context(|| format!("{name} what?\n{USAGE}"))
            };
            match name.as_str() {
                "--images" => options.images = value()?.parse()?,
                "--operations" => options.operations = value()?.parse()?,
                "--seed" => options.seed = value()?.parse()?,
                "--processes" => options.processes = value()?.parse()?,
                "--only" => options.only = Some(value()?.parse()?),
                "--write" => options.write = Some(value()?.clone()),
                _ => bail!("{USAGE}"),
            }
        }
        Ok(options)
    }
}

fn all(options: &Options) -> Result<ExitCode> {
    // Seeds that are not there yet are built once, before two workers ask for them.
    let seeds = seeds::all()?.len();
    let mut is_good = true;
    for (part, count) in [
        (Part::Reading, options.images),
        (Part::Operations, options.operations),
    ] {
        let job = Job {
            part,
            first: options.seed << 32,
            count,
            step: 1,
        };
        if count == 0 {
            continue;
        }
        println!(
            "{}: {count} images from {seeds} seeds, numbers from {}",
            part.name(),
            job.first
        );
        let tallies = runner::run(job, options.processes)?;
        print!("{tallies}");
        for failure in &tallies.failures {
            println!("again: cargo xtask fuzz --only {}", failure.number);
        }
        is_good &= tallies.failures.is_empty() && tallies.images == count;
    }
    Ok(if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn only(number: u64, write: Option<&str>) -> Result<ExitCode> {
    let mutant = mutate(&seeds::all()?, number);
    println!(
        "from {}, checksums put right: {}",
        mutant.seed, mutant.is_sealed
    );
    for change in &mutant.changes {
        println!("  {change:?}");
    }
    if let Some(file) = write {
        std::fs::write(file, &mutant.image)?;
    }
    print!("{}", runner::examine(&mutant, Limits::default()));
    print!("{}", runner::perform_all(&mutant, Limits::default())?);
    Ok(ExitCode::SUCCESS)
}
