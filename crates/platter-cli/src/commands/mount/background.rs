//! Leaving the terminal without forking: the program starts itself again, in a session of its own,
//! and waits until the new process says over a pipe that the mount is there.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// What the process in the background writes once it serves.
const MOUNTED: u8 = b'm';

/// The hidden flag of the process in the background.
const FLAG: &str = "--detached";

/// Starts the program again in the background and returns the exit status of the mount. Errors
/// until then are reported by the new process, which shares our standard error.
pub(super) fn respawn() -> anyhow::Result<u8> {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let end = arguments.iter().position(|argument| argument == "--");
    arguments.insert(end.unwrap_or(arguments.len()), FLAG.into());
    let program = std::env::current_exe().context("finding the program itself")?;
    let mut child = Command::new(program)
        .arg0(&arguments[0])
        .args(&arguments[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting in the background")?;
    let mut word = [0];
    let mut pipe = child.stdout.take().context("no pipe to the background")?;
    let count = pipe.read(&mut word).context("waiting for the background")?;
    if count == 1 {
        return Ok(0);
    }
    let status = child.wait().context("waiting for the background")?;
    match status.code() {
        Some(code) => Ok(u8::try_from(code).unwrap_or(1)),
        None => bail!("the process in the background ended: {status}"),
    }
}

/// Leaves the terminal's session, so that its end does not end the mount.
pub(super) fn leave_session() {
    // Fails only for the leader of a process group, which a new process is not.
    let _ = rustix::process::setsid();
}

/// Lets the waiting process exit, and releases everything that belongs to the terminal.
pub(super) fn report_mounted() -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(&[MOUNTED])?;
    out.flush()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}
