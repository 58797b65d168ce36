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

/// Layouts of the mount object of XFS, but that of the product: features of the benchmarks, which are built with each.
const LAYOUTS: &[&str] = &["packed", "separated"];

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
    if has_layouts(arguments) {
        build_layouts(workspace)?;
    }
    command::run(&mut command::in_mount_namespace(&cargo))
}

/// Whether layouts of the mount object of XFS are measured, each by a program of its own.
fn has_layouts(arguments: &[String]) -> bool {
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let options = arguments.iter().zip(arguments.iter().skip(1));
    let mut chosen = options.filter(|(option, _)| *option == "--only").peekable();
    let is_chosen =
        chosen.peek().is_none() || chosen.any(|(_, list)| list.split(',').any(|part| part == "m1"));
    (has("mechanisms") || has("all")) && !has("--quick") && is_chosen
}

/// Builds them next to the program that runs them.
fn build_layouts(workspace: &Workspace) -> Result<()> {
    for layout in LAYOUTS {
        let mut build = command::cargo(&workspace.root);
        build
            .args(["build", "--quiet", "--locked", "--release"])
            .args(["--package", "platter-bench", "--features", layout]);
        command::run(&mut build)?;
        let target = workspace.root.join(workspace.target());
        let built = target.join("release/platter-bench");
        std::fs::copy(
            &built,
            built.with_file_name(format!("platter-bench-{layout}")),
        )?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_built_where_they_are_measured() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            has_layouts(&words)
        };
        assert!(of("all") && of("mechanisms") && of("mechanisms --only m0,m1 --rounds 2"));
        assert!(of("mechanisms --only m0 --only m1"));
        assert!(!of("all --quick") && !of("mechanisms --only m0") && !of("peers"));
    }
}
