//! Standard output and standard error, and what went wrong on the way.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::os::fd::AsFd;

use platter::Cause;

/// Writes `platter: MESSAGE` to standard error.
pub(crate) fn complain(message: impl Display) {
    // Nothing is left to do where even this cannot be written.
    let _ = writeln!(io::stderr(), "platter: {message}");
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

/// Whether `error` says that nobody reads the output any more.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|error| {
        let io = match error
            .downcast_ref::<platter::Error>()
            .map(|error| &error.cause)
        {
            Some(Cause::Host(io)) => Some(&**io),
            _ => error.downcast_ref::<io::Error>(),
        };
        io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Standard output as a plain file, for contents and archives.
pub(crate) fn raw_stdout() -> io::Result<File> {
    let stdout = io::stdout();
    Ok(File::from(stdout.as_fd().try_clone_to_owned()?))
}

/// Buffered standard output of a command that goes on after errors.
pub(crate) struct Console {
    pub(crate) out: BufWriter<StdoutLock<'static>>,
    /// Whether people read standard output.
    pub(crate) is_terminal: bool,
    status: u8,
}

impl Console {
    pub(crate) fn new() -> Self {
        let stdout = io::stdout();
        Self {
            is_terminal: stdout.is_terminal(),
            out: BufWriter::with_capacity(64 << 10, stdout.lock()),
            status: 0,
        }
    }

    /// Tells an error, after what was written before it, and remembers the exit status for it; the
    /// greatest one counts.
    pub(crate) fn trouble(&mut self, status: u8, error: impl Display) -> io::Result<()> {
        self.out.flush()?;
        complain(error);
        self.status = self.status.max(status);
        Ok(())
    }

    /// Writes all out and gives the exit status.
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
    fn a_cause_is_told_once() {
        let error = Err::<(), _>(io::Error::from_raw_os_error(2)).context("target/x");
        let line = in_one_line(&error.unwrap_err());
        assert_eq!(line, "target/x: No such file or directory");
        let repeating = anyhow::anyhow!("inner").context("outer: inner");
        assert_eq!(in_one_line(&repeating), "outer: inner");
    }
}
