//! Benchmarks, built as they are released.

use anyhow::Result;

use crate::command;
use crate::workspace::Workspace;

/// Passes `arguments` to the benchmarks; without any they list themselves.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    command::run(
        command::cargo(&workspace.root)
            .args(["run", "--quiet", "--locked", "--release"])
            .args(["--package", "platter-bench", "--"])
            .args(arguments),
    )
}

/// The counts that are part of every test; they need no release build to be exact.
pub(crate) fn count_requests(workspace: &Workspace) -> Result<()> {
    command::run(
        command::cargo(&workspace.root)
            .args(["run", "--quiet", "--locked", "--package", "platter-bench"])
            .args(["--", "requests"]),
    )
}
