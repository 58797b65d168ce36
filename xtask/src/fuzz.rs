//! Mutated whole images, with overflow checks and debug assertions on.

use anyhow::Result;

use crate::command;
use crate::workspace::Workspace;

/// What a test run examines.
const IMAGES_OF_TEST: &str = "100000";
const OPERATIONS_OF_TEST: &str = "1000";
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

/// The run that is part of every test.
pub(crate) fn of_test(workspace: &Workspace) -> Result<()> {
    let arguments = [
        ["--images", IMAGES_OF_TEST],
        ["--operations", OPERATIONS_OF_TEST],
        ["--seed", SEED_OF_TEST],
    ];
    run(
        workspace,
        &arguments
            .concat()
            .iter()
            .map(|&word| word.to_owned())
            .collect::<Vec<_>>(),
    )
}
