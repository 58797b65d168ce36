//! Running external tools: missing tools, failures and success are distinguished.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

/// Where Debian keeps programs that an ordinary user's `PATH` leaves out.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// The time that tools see, so that their results are reproducible.
pub const FAKE_TIME: &str = "1700000000";

/// The variable of that time, for programs other than those of e2fsprogs.
pub(crate) const SOURCE_DATE_EPOCH: &str = "SOURCE_DATE_EPOCH";

/// What a program that ran to its end left.
#[derive(Debug, Clone)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it complained of.
    pub stderr: Vec<u8>,
}

impl Finished {
    /// The exit code; dying of a signal is an error.
    pub fn code(&self) -> Result<i32> {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => Ok(code),
            (None, signal) => bail!("died of signal {signal:?}"),
        }
    }

    /// Both outputs as text, for messages.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::from_utf8_lossy(&self.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&self.stderr));
        text
    }
}

/// A program with a fixed time, the C locale, and the system's directories in its path.
#[must_use]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":");
    path.push(SYSTEM_PATH);
    // Started by its full path, a program does not cost a copy of this process.
    let program = program.as_ref();
    let places = std::env::split_paths(&path).map(|dir| dir.join(program));
    let found = places.into_iter().find(|place| place.is_file());
    let mut command = match found {
        Some(found) if Path::new(program).components().count() == 1 => Command::new(found),
        _ => Command::new(program),
    };
    command
        .env("PATH", path)
        .env("LC_ALL", "C")
        .env("E2FSPROGS_FAKE_TIME", FAKE_TIME)
        .env(SOURCE_DATE_EPOCH, FAKE_TIME)
        .stdin(Stdio::null());
    command
}

/// Runs the program to its end, whatever it answers. That it cannot be started is an error.
pub fn finish(command: &mut Command) -> Result<Finished> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("{program} cannot be run; is its package installed?"))?;
    Ok(Finished {
        status: output.status,
        stdout: output.stdout,
        stderr: output.stderr,
    })
}

/// Runs the program and demands success.
pub fn succeed(command: &mut Command) -> Result<Finished> {
    let finished = finish(command)?;
    if !finished.status.success() {
        let words: Vec<_> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(OsStr::to_string_lossy)
            .collect();
        let (words, status) = (words.join(" "), finished.status);
        bail!("{words}: {status}\n{}", finished.text());
    }
    Ok(finished)
}

/// A recorded run: the exit code in the first line, the outputs after it.
#[cfg(test)]
pub(crate) fn finished(report: &str) -> Finished {
    let (code, text) = report.split_once('\n').unwrap();
    let code: i32 = code.strip_prefix("exit ").unwrap().parse().unwrap();
    Finished {
        status: ExitStatus::from_raw(code << 8),
        stdout: text.as_bytes().to_vec(),
        stderr: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_failed_and_killed_programs_are_errors() {
        assert!(finish(&mut command("no-such-program-here")).is_err());
        assert!(succeed(command("sh").args(["-c", "exit 3"])).is_err());
        let failed = finish(command("sh").args(["-c", "exit 3"])).unwrap();
        assert_eq!(failed.code().unwrap(), 3);
        let killed = finish(command("sh").args(["-c", "kill -9 $$"])).unwrap();
        assert!(killed.code().is_err());
    }
}
