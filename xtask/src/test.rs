//! Everything that must hold before a change lands, in the order that fails soonest.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use crate::{bench, clock, command, fuzz, packages, tidy};

/// One thing that must succeed.
struct Step {
    title: &'static str,
    action: fn(&Workspace) -> Result<()>,
}

const STEPS: &[Step] = &[
    Step {
        title: "packages",
        action: |_| packages::require(),
    },
    Step {
        title: "format",
        action: |workspace| {
            command::run(command::cargo(&workspace.root).args(["fmt", "--all", "--check"]))
        },
    },
    Step {
        title: "tidy",
        action: tidy::run,
    },
    Step {
        title: "clippy",
        action: |workspace| {
            command::run(
                command::cargo(&workspace.root)
                    .args(["clippy", "--locked", "--workspace", "--all-targets"])
                    .args(["--", "-D", "warnings"]),
            )
        },
    },
    Step {
        title: "tests",
        action: tests,
    },
    Step {
        title: "mutations",
        action: fuzz::of_test,
    },
    Step {
        title: "requests",
        action: bench::count_requests,
    },
    Step {
        title: "benchmarks",
        action: bench::smoke,
    },
    Step {
        title: "documentation",
        action: |workspace| {
            command::run(
                command::cargo(&workspace.root)
                    .env("RUSTDOCFLAGS", "-D warnings")
                    .args(["doc", "--locked", "--workspace", "--no-deps"])
                    // The program's comments are its help texts, not documentation.
                    .args(["--exclude", "platter-cli"]),
            )
        },
    },
];

/// Runs every step, and stops at the first that fails.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut times = Vec::new();
    for step in STEPS {
        println!("\n== {}", step.title);
        let start = clock::now();
        (step.action)(workspace).with_context(|| format!("step '{}'", step.title))?;
        times.push((step.title, start.elapsed()));
    }
    println!("\n== all steps passed");
    for (title, time) in &times {
        println!("{:>7.1} s  {title}", time.as_secs_f64());
    }
    let total: Duration = times.iter().map(|(_, time)| *time).sum();
    println!("{:>7.1} s  in all", total.as_secs_f64());
    Ok(())
}

/// The tests of the workspace. Those of the testkit attach loop devices and mount them, so the
/// whole run has a mount namespace of its own: whatever a killed test leaves goes with it.
fn tests(workspace: &Workspace) -> Result<()> {
    if !packages::is_root()? {
        bail!(
            "the oracle tests compare with kernel mounts over loop devices, which takes root; \
             without it, run the other crates' tests: cargo test --workspace --exclude testkit"
        );
    }
    let cargo = command::cargo(&workspace.root);
    let mut namespace = command::in_mount_namespace(&cargo);
    command::run(namespace.args(["test", "--locked", "--workspace", "--no-fail-fast"]))
}
