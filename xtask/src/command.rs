//! Running other programs: each is shown before it runs, and its failure is an error.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Where Debian keeps programs that an ordinary user's `PATH` leaves out.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// A command that finds the system's programs as well as the user's.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", search_path());
    command
}

/// The same `cargo` that runs this program.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut cargo = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    cargo
}

/// The same command in a mount namespace that ends with it: whatever a killed program leaves
/// mounted goes with it.
pub(crate) fn in_mount_namespace(inner: &Command) -> Command {
    let mut outer = command("unshare");
    outer
        .args(["--mount", "--propagation", "private", "--"])
        .arg(inner.get_program())
        .args(inner.get_args());
    if let Some(dir) = inner.get_current_dir() {
        outer.current_dir(dir);
    }
    outer
}

/// Shows the command, runs it with this program's output, and demands success.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", shown(command));
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("{} did not start", shown(command)))?;
    if !status.success() {
        bail!("{} failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs the command quietly and returns what it printed, demanding success.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{} did not start", shown(command)))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} failed: {}\n{}",
            shown(command),
            output.status,
            message.trim_end()
        );
    }
    Ok(output.stdout)
}

/// As [`output`], and what it printed as errors.
pub(crate) fn report(command: &mut Command) -> Result<String> {
    const SCRIPT: &str = r#"exec "$@" 2>&1"#;
    let mut both = self::command("sh");
    both.args(["-c", SCRIPT, "sh"])
        .arg(command.get_program())
        .args(command.get_args());
    let output = both.stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{} failed: {}\n{text}", shown(command), output.status);
    }
    Ok(text)
}

/// The path of a program, if it is installed.
pub(crate) fn find(program: &str) -> Option<std::path::PathBuf> {
    std::env::split_paths(&search_path())
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
}

fn search_path() -> std::ffi::OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":");
    path.push(SYSTEM_PATH);
    path
}

fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// What a program prints, without the end of its last line.
pub(crate) fn text(command: &mut Command) -> Result<String> {
    let output = String::from_utf8(output(command)?)?;
    Ok(output.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_program_is_an_error_with_its_message() {
        let error = output(command("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("broken") && message.contains('3'),
            "{message}"
        );
        assert!(output(&mut command("no-such-program-here")).is_err());
    }

    #[test]
    fn programs_are_found_outside_the_users_path() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-here").is_none());
    }
}
