//! The `platter` program, as built from the tree that is tested.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result};

use crate::tool::{self, SOURCE_DATE_EPOCH};

/// The uid of a user without privileges.
pub const ORDINARY_USER: &str = "65534";

/// Returns a command that runs platter as the current user.
pub fn platter() -> Result<Command> {
    Ok(tool::command(path()?))
}

/// A command that runs platter as an ordinary user. The program is copied into `dir`, which
/// that user can reach wherever the tree lies.
pub fn platter_as_user(dir: &Path) -> Result<Command> {
    let copy = dir.join("platter");
    if !copy.exists() {
        std::fs::copy(path()?, &copy)?;
    }
    let mut command = tool::command("setpriv");
    command.args(["--reuid", ORDINARY_USER, "--regid", ORDINARY_USER]);
    command.args(["--clear-groups", "--"]).arg(copy);
    Ok(command)
}

/// Names a program to test instead of the one of this tree.
const PROGRAM: &str = "PLATTER_PROGRAM";

/// Where the program is, built now if it is out of date.
fn path() -> Result<&'static Path> {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    if let Some(path) = PATH.get() {
        return Ok(path);
    }
    if let Some(path) = std::env::var_os(PROGRAM) {
        return Ok(PATH.get_or_init(|| path.into()));
    }
    let mut cargo = tool::command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The value of the surrounding build: C libraries are compiled anew where the time of the sources changes.
    match std::env::var_os(SOURCE_DATE_EPOCH) {
        Some(time) => cargo.env(SOURCE_DATE_EPOCH, time),
        None => cargo.env_remove(SOURCE_DATE_EPOCH),
    };
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args([
        "build",
        "--quiet",
        "--locked",
        "--package",
        "platter-cli",
    ]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    tool::succeed(&mut cargo)?;
    // Programs lie in target/debug, tests in target/debug/deps.
    let this = std::env::current_exe()?;
    let mut dir = this.parent().context("a program lies in no directory")?;
    if dir.ends_with("deps") {
        dir = dir.parent().context("a test lies in no directory")?;
    }
    let path = dir.join("platter");
    Ok(PATH.get_or_init(|| path))
}
