//! Standard output and standard error, and what went wrong on the way.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use platter::error::{DEAD_MOUNT, is_of_dead_mount};
use platter::{Cause, Problem};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::output::error::{error_object, problem_object};
use crate::startup;

/// Whether programs read what is written.
static JSON: OnceLock<bool> = OnceLock::new();

/// Has all that is written be for programs, or for people.
pub(crate) fn write_json(json: bool) {
    JSON.get_or_init(|| json);
}

/// Whether results and errors are for programs.
pub(crate) fn is_json() -> bool {
    JSON.get().copied().unwrap_or_default()
}

/// Writes `platter: MESSAGE` to standard error. For what is no error; an error is
/// [reported](report).
pub(crate) fn complain(message: impl Display) {
    if is_json() {
        return write_line(&json!({"notice": {"message": message.to_string()}}));
    }
    write_whole(&format!("platter: {message}\n"));
}

/// Writes a line about what is being done to standard error.
pub(crate) fn narrate(line: impl Display) {
    if is_json() {
        return complain(line);
    }
    write_whole(&format!("{line}\n"));
}

/// Writes an error to standard error.
pub(crate) fn report(error: &anyhow::Error) {
    if is_json() {
        return write_line(&json!({"error": error_object(error)}));
    }
    complain(in_one_line(error));
}

/// Writes to standard error what came out of an image other than it should.
pub(crate) fn report_problem(problem: &Problem) {
    if is_json() {
        let key = if problem.is_corruption() {
            "error"
        } else {
            "notice"
        };
        return write_line(&json!({key: problem_object(problem)}));
    }
    complain(problem);
}

/// Writes an object on a line of its own to standard error.
pub(crate) fn write_line(object: &Value) {
    write_whole(&format!("{object}\n"));
}

/// Writes lines at once, so that those of a server and of a command do not mix.
fn write_whole(lines: &str) {
    // Nothing is left to do where even this cannot be written.
    let _ = io::stderr().write_all(lines.as_bytes());
}

/// An error and what led to it in one line, without what the error says of its cause already.
pub(crate) fn in_one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for part in error.chain() {
        let part = part.to_string();
        let number = part.rfind(" (os error ").unwrap_or(part.len());
        let part = &part[..number];
        if !line.contains(part) {
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(part);
        }
    }
    let is_of_dead_mount = error.chain().any(|error| {
        let io = error.downcast_ref::<io::Error>();
        io.is_some_and(is_of_dead_mount)
    });
    if is_of_dead_mount && !line.ends_with(DEAD_MOUNT) {
        line.push_str(": ");
        line.push_str(DEAD_MOUNT);
    }
    line
}

/// An error that names nothing is one of writing to standard output; all others name their place.
pub(crate) fn name_output(error: anyhow::Error) -> anyhow::Error {
    // The outermost only: what stands around an error names its place.
    let is_nameless = error.chain().next().is_some_and(|error| {
        let of_image = error.downcast_ref::<platter::Error>();
        of_image.is_some_and(|error| error.image.is_empty() && error.path.is_none())
            || error.is::<io::Error>()
    });
    if is_nameless {
        return error.context("standard output");
    }
    error
}

/// Whether `error` says that no process reads the output any more.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|error| {
        let io = match error
            .downcast_ref::<platter::Error>()
            .map(|error| &error.cause)
        {
            Some(Cause::Host(io)) => Some(&**io),
            // An error of the output of a send stream is one of a request, which shares its source.
            _ => error
                .downcast_ref::<io::Error>()
                .or_else(|| error.downcast_ref::<Arc<io::Error>>().map(Arc::as_ref)),
        };
        io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Standard output without a buffer. The standard library's takes it for written what a closed
/// descriptor refuses.
#[derive(Debug)]
pub(crate) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        refuse_closed_stdout()?;
        Ok(rustix::io::write(rustix::stdio::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Refuses what a descriptor refuses that the caller closed: something else has its number by now.
pub(crate) fn refuse_closed_stdout() -> io::Result<()> {
    if startup::stdout_was_closed() {
        return Err(Errno::BADF.into());
    }
    Ok(())
}

/// Standard output as a plain file, for contents and archives.
pub(crate) fn raw_stdout() -> io::Result<File> {
    refuse_closed_stdout()?;
    let stdout = io::stdout();
    Ok(File::from(stdout.as_fd().try_clone_to_owned()?))
}

/// Buffered standard output of a command that goes on after errors.
pub(crate) struct Console {
    pub(crate) out: BufWriter<Stdout>,
    /// Whether people read standard output.
    pub(crate) is_terminal: bool,
    status: u8,
}

impl Console {
    pub(crate) fn new() -> Self {
        let stdout = io::stdout();
        Self {
            is_terminal: stdout.is_terminal(),
            out: BufWriter::with_capacity(64 << 10, Stdout),
            status: 0,
        }
    }

    /// Reports an error, after what was written before it, and remembers the exit status for it; the
    /// greatest one counts.
    pub(crate) fn trouble(
        &mut self,
        status: u8,
        error: impl Into<anyhow::Error>,
    ) -> io::Result<()> {
        self.out.flush()?;
        report(&error.into());
        self.status = self.status.max(status);
        Ok(())
    }

    /// Writes all out and returns the exit status.
    pub(crate) fn finish(mut self) -> io::Result<u8> {
        self.out.flush()?;
        Ok(self.status)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_reported_once() {
        let error = Err::<(), _>(io::Error::from_raw_os_error(2)).context("target/x");
        let line = in_one_line(&error.unwrap_err());
        assert_eq!(line, "target/x: No such file or directory");
        let repeating = anyhow::anyhow!("inner").context("outer: inner");
        assert_eq!(in_one_line(&repeating), "outer: inner");
    }
}
