//! Benchmarks, built as they are released, and the counts of them that are part of every test.

use anyhow::{Result, bail};

use crate::workspace::Workspace;
use crate::{command, packages};

/// Benchmarks that mount what platter is compared with.
const MOUNTING: &[&str] = &[
    "peers",
    "mechanisms",
    "scale",
    "reading",
    "checks",
    "applications",
    "all",
];

/// Passes `arguments` to the benchmarks; without any they list themselves.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let mut cargo = command::cargo(&workspace.root);
    cargo
        .args(["run", "--quiet", "--locked", "--release"])
        .args(["--package", "platter-bench", "--"])
        .args(arguments);
    let is_mounting = |name: &String| MOUNTING.contains(&name.as_str());
    if !arguments.first().is_some_and(is_mounting) {
        return command::run(&mut cargo);
    }
    prepare()?;
    command::run(&mut command::in_mount_namespace(&cargo))
}

/// The counts that are part of every test; they need no release build to be exact.
pub(crate) fn count_requests(workspace: &Workspace) -> Result<()> {
    command::run(workspace.program_of_tests("platter-bench")?.arg("requests"))
}

/// Every benchmark on very little: it fails where one breaks down, or a count is more than it may
/// be. And the pages about the last real runs have to be what their raw runs say.
pub(crate) fn smoke(workspace: &Workspace) -> Result<()> {
    prepare()?;
    for arguments in [["all", "--quick"], ["report", "--check"]] {
        let mut bench = workspace.program_of_tests("platter-bench")?;
        bench.args(arguments);
        command::run(&mut command::in_mount_namespace(&bench))?;
    }
    Ok(())
}

fn prepare() -> Result<()> {
    if !packages::is_root()? {
        bail!("benchmarks mount what platter is compared with, which takes root");
    }
    packages::require_for_bench()
}
