//! The caches' tests under sanitizers and miri, and with a defect that they have to notice.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::portion::{tests_passed, tests_ran};
use crate::command::{self, command};
use crate::workspace::Workspace;

/// The compiler that has sanitizers and miri.
const TOOLCHAIN: &str = "nightly";
const COMPONENTS: &[&str] = &["rust-src", "miri"];
/// With a target that is named, flags for the compiler are not for build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A way to build and run tests that looks at every access to memory.
pub(super) struct Build {
    /// Those of one group share a directory.
    pub(super) group: &'static str,
    /// About how long it takes, built from nothing.
    pub(super) seconds: f64,
    /// So many tests it runs at least: fewer are a filter that no longer fits.
    pub(super) tests: u64,
    /// Words for `cargo`.
    words: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

/// What is built so.
pub(super) struct Instrumented {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) build: Build,
    /// A defect, and what the tests have to say of it.
    defect: Option<(&'static Patch, &'static str)>,
}

/// A change of one place of a source file.
struct Patch {
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

/// Memory of the last reference is freed at once, though pinned readers may still look at its count.
const RECLAIMED_AT_ONCE: Patch = Patch {
    file: "crates/platter-cache/src/xarray/raw.rs",
    from: "        let dead = Dead(self.counted);
        // Readers that are pinned now may still look at the count.
        epoch::pin().defer(move || dead.free());
",
    to: "        let dead = Dead(self.counted);
        dead.free();
",
};

/// The tests of the caches under `AddressSanitizer`. Epochs leave garbage at the end of a program,
/// which is no leak of ours.
const ADDRESS: Build = Build {
    group: "asan",
    seconds: 300.0,
    tests: 150,
    words: &[
        "test",
        "--locked",
        "--package",
        "platter-cache",
        "--lib",
        "--target",
        TARGET,
    ],
    variables: &[
        ("RUSTFLAGS", "-Zsanitizer=address -Cdebuginfo=1"),
        ("ASAN_OPTIONS", "detect_leaks=0"),
    ],
};

/// The same under `ThreadSanitizer`. The standard library has to be instrumented, too.
const THREAD: Build = Build {
    group: "tsan",
    seconds: 400.0,
    tests: 150,
    words: &[
        "test",
        "--locked",
        "-Zbuild-std",
        "--package",
        "platter-cache",
        "--lib",
        "--target",
        TARGET,
    ],
    variables: &[("RUSTFLAGS", "-Zsanitizer=thread -Cdebuginfo=1")],
};

/// The tests of everything that has `unsafe` in it, under miri. The crate of the epochs keeps to tree
/// borrows only. Comparing with the model takes hours there; the sanitizers run it.
const MIRI: Build = Build {
    group: "miri",
    seconds: 500.0,
    tests: 35,
    words: &[
        "miri",
        "test",
        "--locked",
        "--package",
        "platter-cache",
        "--lib",
        "--",
        "frame",
        "xarray",
        "--skip",
        "model",
    ],
    variables: &[
        (
            "MIRIFLAGS",
            "-Zmiri-disable-isolation -Zmiri-tree-borrows -Zmiri-ignore-leaks",
        ),
        ("PROPTEST_CASES", "3"),
    ],
};

/// All of them.
pub(super) const INSTRUMENTED: &[Instrumented] = &[
    Instrumented {
        name: "miri",
        title: "tests of the caches' unsafe code under miri",
        build: MIRI,
        defect: None,
    },
    Instrumented {
        name: "tsan",
        title: "tests of the caches under ThreadSanitizer",
        build: THREAD,
        defect: None,
    },
    Instrumented {
        name: "asan",
        title: "tests of the caches under AddressSanitizer",
        build: ADDRESS,
        defect: None,
    },
    Instrumented {
        name: "reclamation",
        title: "a freed reference that readers still see, noticed by AddressSanitizer",
        build: ADDRESS,
        defect: Some((&RECLAIMED_AT_ONCE, "AddressSanitizer: heap-use-after-free")),
    },
];

/// Installs what the builds need, if it is missing.
pub(super) fn install() -> Result<()> {
    let list = command::output(command("rustup").args(["toolchain", "list"]))?;
    if !String::from_utf8_lossy(&list)
        .lines()
        .any(|line| line.starts_with(TOOLCHAIN))
    {
        let mut rustup = command("rustup");
        rustup.args(["toolchain", "install", TOOLCHAIN, "--profile", "minimal"]);
        command::run(&mut rustup)?;
    }
    let mut rustup = command("rustup");
    rustup.args(["component", "add", "--toolchain", TOOLCHAIN]);
    command::output(rustup.args(COMPONENTS)).map(|_| ())
}

impl Instrumented {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        INSTRUMENTED.iter().find(|build| build.name == name)
    }

    /// Builds and runs the tests, and demands that all pass, or that the defect is noticed. Returns
    /// how many passed.
    pub(super) fn run(&self, workspace: &Workspace) -> Result<u64> {
        let dir = workspace.target().join("soak");
        let Some((patch, report)) = self.defect else {
            let output = self.test(&workspace.root, &dir.join(self.build.group))?;
            ensure!(output.is_success, "{} failed", self.name);
            let passed = tests_passed(&output.text).context("no test passed")?;
            let least = self.build.tests;
            ensure!(passed >= least, "{passed} tests passed, and not {least}");
            return Ok(passed);
        };
        let scratch = dir.join(format!("{}-source", self.name));
        copy(&workspace.root, &scratch)?;
        patch.apply(&scratch)?;
        let output = self.test(&scratch, &dir.join(self.build.group))?;
        ensure!(!output.is_success, "the defect was not noticed");
        ensure!(tests_ran(&output.text), "the defect does not build");
        ensure!(
            output.text.contains(report),
            "tests fail without the words '{report}'"
        );
        Ok(1)
    }

    fn test(&self, root: &Path, target: &Path) -> Result<Output> {
        let mut cargo = command("rustup");
        cargo
            .current_dir(root)
            .args(["run", TOOLCHAIN, "cargo"])
            .args(self.build.words)
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("CARGO")
            .env_remove("RUSTFLAGS")
            .env("CARGO_TARGET_DIR", target)
            .envs(self.build.variables.iter().copied());
        run(&mut cargo)
    }
}

struct Output {
    is_success: bool,
    text: String,
}

/// Runs a program to its end, whatever it answers, and shows what it printed.
fn run(command: &mut Command) -> Result<Output> {
    println!("$ {command:?}");
    let output = command.stdin(Stdio::null()).output()?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    Ok(Output {
        is_success: output.status.success(),
        text,
    })
}

/// Makes a source tree anew.
fn copy(from: &Path, to: &Path) -> Result<()> {
    const SCRIPT: &str =
        r#"tar -C "$1" -cf - --exclude ./target --exclude ./.git . | tar -C "$2" -xf -"#;
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    std::fs::create_dir_all(to)?;
    let mut sh = command("sh");
    command::run(sh.args(["-c", SCRIPT, "sh"]).arg(from).arg(to))
}

impl Patch {
    /// Changes the file in a source tree, where it must read as expected.
    fn apply(&self, root: &Path) -> Result<()> {
        let path = root.join(self.file);
        let text = std::fs::read_to_string(&path)?;
        let changed = self.change(&text)?;
        Ok(std::fs::write(path, changed)?)
    }

    fn change(&self, text: &str) -> Result<String> {
        match text.matches(self.from).count() {
            1 => Ok(text.replacen(self.from, self.to, 1)),
            count => bail!(
                "{} has the text that the defect replaces {count} times:\n{}",
                self.file,
                self.from
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_defect_fits_the_source() {
        let workspace = Workspace::find().unwrap();
        let patches = INSTRUMENTED.iter().filter_map(|build| build.defect);
        for (patch, _) in patches {
            let text = workspace.read(patch.file).unwrap();
            assert_ne!(patch.change(&text).unwrap(), text);
        }
    }

    #[test]
    fn a_defect_of_another_text_is_refused() {
        let patch = &RECLAIMED_AT_ONCE;
        assert!(patch.change("fn drop() {}").is_err());
        assert!(patch.change(&patch.from.repeat(2)).is_err());
    }
}
