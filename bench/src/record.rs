//! Keeps what was measured, with the machine it was measured on: what counts in `bench/results/`,
//! and what was only tried among the built files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::measure::{Machine, Quiet};

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Extent {
    /// So little that only counts mean anything.
    Quick,
    /// Enough for times.
    Full,
}

/// Something measured, and where.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record<T> {
    pub(crate) command: String,
    /// The source that was measured.
    pub(crate) commit: String,
    pub(crate) machine: Machine,
    /// What else ran, before and after.
    pub(crate) quiet: [Quiet; 2],
    pub(crate) result: T,
}

impl<T> Record<T> {
    /// Measures, between two looks at the machine.
    pub(crate) fn of(command: String, measure: impl FnOnce() -> Result<T>) -> Result<Self> {
        let before = look("before")?;
        let result = measure()?;
        let after = look("after")?;
        Ok(Self {
            command,
            commit: commit(),
            machine: Machine::this()?,
            quiet: [before, after],
            result,
        })
    }
}

impl<T: Serialize> Record<T> {
    /// Writes it as `NAME.json` to where such results go.
    pub(crate) fn keep(&self, name: &str, extent: Extent) -> Result<()> {
        let dir = dir(extent);
        fs::create_dir_all(&dir)?;
        let path = dir.join(format!("{name}.json"));
        let mut text = String::new();
        // One sample a line, so that what changes is seen where it changed.
        for piece in serde_json::to_string(self)?.split_inclusive("},{\"side\"") {
            match piece.strip_suffix("{\"side\"") {
                Some(before) => text.extend([before, "\n{\"side\""]),
                None => text.push_str(piece),
            }
        }
        text.push('\n');
        fs::write(&path, text)?;
        println!("raw runs: {}", path.display());
        Ok(())
    }
}

impl<T: DeserializeOwned> Record<T> {
    /// What was kept, if anything was.
    pub(crate) fn load(name: &str, extent: Extent) -> Result<Option<Self>> {
        let path = dir(extent).join(format!("{name}.json"));
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path)?;
        let record = serde_json::from_str(&text);
        Ok(Some(record.with_context(|| path.display().to_string())?))
    }
}

/// Where results go.
pub(crate) fn dir(extent: Extent) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    match extent {
        Extent::Full => package.join("results"),
        Extent::Quick => tried(),
    }
}

/// Where everything of a quick run goes.
pub(crate) fn tried() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| root().join("target"));
    target.join("bench")
}

/// Removes what a quick run before left, which may be of another form.
pub(crate) fn forget_tried() -> Result<()> {
    match fs::remove_dir_all(tried()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// The root of the source tree.
pub(crate) fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

fn look(when: &str) -> Result<Quiet> {
    let quiet = Quiet::look()?;
    if !quiet.is_quiet() {
        let busy = quiet.busy_share * 100.0;
        println!(
            "the machine is not quiet {when} measuring ({busy:.0} % busy): counts hold, times do not"
        );
    }
    Ok(quiet)
}

/// The commit that is measured; what a run itself writes makes no other source of it.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let mut git = testkit::tool::command("git");
        testkit::tool::succeed(git.current_dir(root()).args(arguments))
    };
    let written = [":(exclude)bench/results", ":(exclude)docs"];
    let compared = [&["diff", "--quiet", "HEAD", "--", "."][..], &written].concat();
    match git(&["describe", "--always", "--abbrev=12"]) {
        Ok(finished) => {
            let name = String::from_utf8_lossy(&finished.stdout);
            let is_other = git(&compared).is_err();
            let suffix = if is_other { "-dirty" } else { "" };
            format!("{}{suffix}", name.trim_end())
        }
        // A source tree without its history is as good.
        Err(_) => "unknown".to_owned(),
    }
}

/// Whether the result of a single benchmark is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// In `bench/results/NAME.json`.
    Yes,
    /// It is only shown.
    No,
}

/// Keeps `result` if it is to be kept.
pub(crate) fn keep<T: Serialize>(keep: Keep, name: &str, result: &T) -> Result<()> {
    if keep == Keep::No {
        return Ok(());
    }
    let record = Record {
        command: format!("cargo xtask bench {name} --keep"),
        commit: commit(),
        machine: Machine::this()?,
        quiet: [Quiet::look()?; 2],
        result,
    };
    record.keep(name, Extent::Full)
}
