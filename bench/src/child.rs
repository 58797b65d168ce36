//! This program again, as a process that gives what it measured.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Nothing takes as long; after it, something hangs.
const LIMIT: Duration = Duration::from_mins(20);

/// Milliseconds after which the allocator gives back what is free. It takes a second by itself, and a
/// run that mounts again within it would have the memory of two mounts.
const PURGE_DELAY: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "100");

/// `part` of this program, with `orders` as its input.
pub(crate) fn command(part: &str, orders: &impl Serialize) -> Result<Command> {
    command_of(None, part, orders)
}

fn command_of(program: Option<&Path>, part: &str, orders: &impl Serialize) -> Result<Command> {
    let (option, value) = PURGE_DELAY;
    let program = program.map_or_else(std::env::current_exe, |path| Ok(path.to_owned()))?;
    let mut command = Command::new(program);
    command.arg(part).arg(serde_json::to_string(orders)?);
    command.env(option, value);
    Ok(command)
}

/// Runs `part` of this program with `orders`, and returns what it prints.
pub(crate) fn run<T: DeserializeOwned>(part: &str, orders: &impl Serialize) -> Result<T> {
    run_by(None, part, orders)
}

/// The same of a program that was built of this one in another way, if one is named.
pub(crate) fn run_by<T: DeserializeOwned>(
    program: Option<&Path>,
    part: &str,
    orders: &impl Serialize,
) -> Result<T> {
    let mut child = command_of(program, part, orders)?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = child.stdout.take().context("a pipe")?;
    // It says all it has to say at once, at its end.
    let limit = Timespec {
        tv_sec: i64::try_from(LIMIT.as_secs())?,
        tv_nsec: 0,
    };
    let mut waited = [PollFd::new(&output, PollFlags::IN)];
    if poll(&mut waited, Some(&limit))? == 0 {
        child.kill()?;
        child.wait()?;
        bail!("took more than {} minutes", LIMIT.as_secs() / 60);
    }
    let mut text = String::new();
    output.read_to_string(&mut text)?;
    let status = child.wait()?;
    ensure!(status.success(), "it ended: {status}");
    Ok(serde_json::from_str(&text)?)
}
