//! Everything that must hold before a change lands, in the order that fails soonest.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use crate::{bench, clock, command, fuzz, packages, registry, tidy};

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
        title: "registry",
        action: |workspace| registry::run(workspace, &[]),
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
    println!(
        "This takes half an hour on two processors the first time, 15 GiB below {}, and root: tests \
         compare\nwith kernel mounts over loop devices, and what is missing of Debian's packages is \
         installed.",
        workspace.target().display()
    );
    refuse_ordinary_user()?;
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

/// Says before anything is built what only root can run.
fn refuse_ordinary_user() -> Result<()> {
    if packages::is_root()? {
        return Ok(());
    }
    bail!(
        "this is not root; these tests need no more than an ordinary user: cargo test -p platterfs \
         -p platter-ext4 -p platter-vfs -p platter-cache -p platter-block -p platter-ondisk"
    )
}

/// The tests of the workspace. Those of the testkit attach loop devices and mount them, so the
/// whole run has a mount namespace of its own: whatever a killed test leaves goes with it.
fn tests(workspace: &Workspace) -> Result<()> {
    let cargo = command::cargo(&workspace.root);
    let mut namespace = command::in_mount_namespace(&cargo);
    command::run(namespace.args(["test", "--locked", "--workspace", "--no-fail-fast"]))
}
