//! Mutated whole images: `platter-fuzz --images N --seed N`, or `--only N` for one of them.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "this is a program for a terminal")]

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use platter_fuzz::mutation::mutate;
use platter_fuzz::runner::{self, Job, Limits, Part};
use platter_fuzz::seeds;
use testkit::fs_type::FsType;

const USAGE: &str = "\
usage: platter-fuzz [--format F] [--images N] [--operations N] [--seed N] [--processes N]
       platter-fuzz --format F --only N [--write FILE]

Reads and checks as many mutated images of each format as --images says, and edits, grows, mounts,
archives and copies as many as --operations says. Formats are ext4, btrfs and xfs; all of them
unless --format names one. Image number I of a run with seed S is number S * 2^32 + I; --only makes
that one image, does all that with it, and shows what was done to it. --write keeps it, further
devices under the same name with .1, .2 and so on.";

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, format, part, first, count, step, progress] = arguments.as_slice()
        && command == "worker"
    {
        let job = Job {
            format: FsType::named(format).context("which format?")?,
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
        Some(number) => only(&options, number),
        None => all(&options),
    }
}

struct Options {
    format: Option<FsType>,
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
            format: None,
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
                "--format" => {
                    let named = FsType::named(value()?);
                    options.format = Some(named.with_context(|| USAGE.to_owned())?);
                }
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
    let mut is_good = true;
    for format in FsType::ALL {
        if options.format.is_none_or(|wanted| wanted == format) {
            is_good &= all_of(format, options)?;
        }
    }
    Ok(if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn all_of(format: FsType, options: &Options) -> Result<bool> {
    // Seeds that are not there yet are built once, before two workers ask for them.
    let seeds = seeds::of(&[format])?.len();
    let mut is_good = true;
    for (part, count) in [
        (Part::Reading, options.images),
        (Part::Operations, options.operations),
    ] {
        let job = Job {
            format,
            part,
            first: options.seed << 32,
            count,
            step: 1,
        };
        if count == 0 {
            continue;
        }
        let name = format.kernel_name();
        println!(
            "{name}, {}: {count} images from {seeds} seeds, numbers from {}",
            part.name(),
            job.first
        );
        let tallies = runner::run(job, options.processes)?;
        print!("{tallies}");
        for failure in &tallies.failures {
            let number = failure.number;
            println!("again: cargo xtask fuzz --format {name} --only {number}");
        }
        is_good &= tallies.failures.is_empty() && tallies.images == count;
    }
    Ok(is_good)
}

fn only(options: &Options, number: u64) -> Result<ExitCode> {
    let format = options.format.context("--only needs --format")?;
    let mutant = mutate(&seeds::of(&[format])?, number);
    println!(
        "from {}, checksums put right: {}",
        mutant.seed, mutant.is_sealed
    );
    for change in &mutant.changes {
        println!("  {change:?}");
    }
    if let Some(file) = &options.write {
        for (index, range) in mutant.devices.iter().enumerate() {
            let path = match index {
                0 => file.clone(),
                _ => format!("{file}.{index}"),
            };
            mutant.contents.write_file(range.clone(), path.as_ref())?;
        }
    }
    print!("{}", runner::examine(&mutant, Limits::default()));
    print!("{}", runner::perform_all(&mutant, Limits::default())?);
    Ok(ExitCode::SUCCESS)
}
