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
        action: |_| {
            packages::require()?;
            // Tests of the benchmarks run them.
            packages::require_for_bench()
        },
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

pub(crate) const USAGE: &str = "\
usage: cargo xtask test [--from STEP]

  --from STEP  begin with that step, where those before it have passed: packages, format, tidy, clippy,
               tests, registry, mutations, requests, benchmarks, documentation";

/// The steps that a command line asks for; `None` if it asks for help.
fn steps(arguments: &[String]) -> Result<Option<&'static [Step]>> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let first = match words[..] {
        [] => Some(0),
        ["--help" | "-h"] => return Ok(None),
        ["--from", name] => STEPS.iter().position(|step| step.title == name),
        _ => None,
    };
    match first {
        Some(first) => Ok(Some(&STEPS[first..])),
        None => bail!("what is {}?\n{USAGE}", words.join(" ")),
    }
}

/// Runs every step, or those from one on, and stops at the first that fails.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let Some(steps) = steps(arguments)? else {
        println!("{USAGE}");
        return Ok(());
    };
    println!(
        "This takes half an hour on two processors the first time, 15 GiB below {}, and root: tests \
         compare\nwith kernel mounts over loop devices, and what is missing of Debian's packages is \
         installed.",
        workspace.target().display()
    );
    refuse_ordinary_user()?;
    let mut times = Vec::new();
    for step in steps {
        println!("\n== {}", step.title);
        let start = clock::now();
        (step.action)(workspace).with_context(|| format!("step '{}'", step.title))?;
        times.push((step.title, start.elapsed()));
    }
    if steps.len() == STEPS.len() {
        println!("\n== all steps passed");
    } else {
        println!("\n== these steps passed");
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_begin_with_the_one_that_is_named() {
        let parse =
            |words: &[&str]| steps(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(parse(&[]).unwrap().unwrap().len(), STEPS.len());
        for step in STEPS {
            let from = parse(&["--from", step.title]).unwrap().unwrap();
            assert_eq!(from[0].title, step.title);
            assert!(USAGE.contains(step.title), "{}", step.title);
        }
        assert!(parse(&["--help"]).unwrap().is_none());
        for words in [&["--from"][..], &["--from", "test"], &["tests"]] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
