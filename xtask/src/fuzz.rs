//! Mutated whole images, with overflow checks and debug assertions on.

use anyhow::Result;

use crate::command;
use crate::workspace::Workspace;

/// What a test run examines of each format: images that are read, and images that are worked on.
const OF_TEST: [(&str, &str, &str); 3] = [
    ("ext4", "100000", "1000"),
    ("btrfs", "10000", "100"),
    ("xfs", "10000", "100"),
];
const SEED_OF_TEST: &str = "1";

/// Passes `arguments` to the mutation runner.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    command::run(
        command::cargo(&workspace.root)
            .args([
                "run",
                "--quiet",
                "--locked",
                "--package",
                "platter-fuzz",
                "--",
            ])
            .args(arguments),
    )
}

/// The runs that are part of every test.
pub(crate) fn of_test(workspace: &Workspace) -> Result<()> {
    for (format, images, operations) in OF_TEST {
        let arguments = [
            ["--format", format],
            ["--images", images],
            ["--operations", operations],
            ["--seed", SEED_OF_TEST],
        ];
        let mut fuzz = workspace.program_of_tests("platter-fuzz")?;
        command::run(fuzz.args(arguments.as_flattened()))?;
    }
    Ok(())
}
