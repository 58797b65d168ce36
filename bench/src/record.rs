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
    /// Whether the run goes on, or was killed: what comes later in it is not there.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_partial: bool,
    /// What went wrong as a whole, and so is not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) failures: Vec<String>,
    pub(crate) result: T,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "fields to leave out are passed so"
)]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl<T> Record<T> {
    /// A record of this machine and source.
    pub(crate) fn of(command: String, quiet: [Quiet; 2], result: T) -> Result<Self> {
        Ok(Self {
            command,
            commit: commit(),
            machine: Machine::this()?,
            quiet,
            is_partial: false,
            failures: Vec::new(),
            result,
        })
    }
}

impl<T: Serialize> Record<T> {
    /// Writes it as `NAME.json` to `dir`, as a whole or not at all.
    pub(crate) fn keep(&self, name: &str, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir)?;
        let path = dir.join(format!("{name}.json"));
        let unfinished = dir.join(format!("{name}.json.new"));
        let mut text = String::new();
        // One sample a line, so that what changes is seen where it changed.
        for piece in serde_json::to_string(self)?.split_inclusive("},{\"side\"") {
            match piece.strip_suffix("{\"side\"") {
                Some(before) => text.extend([before, "\n{\"side\""]),
                None => text.push_str(piece),
            }
        }
        text.push('\n');
        fs::write(&unfinished, text)?;
        fs::rename(&unfinished, &path)?;
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

/// The part of a record that has to do with its source, and whether it is whole.
#[derive(Debug, Deserialize)]
struct Head {
    commit: String,
    #[serde(default)]
    is_partial: bool,
    #[serde(default)]
    failures: Vec<String>,
}

/// Whether what counts has all of `NAME.json`, of the source that is measured now.
pub(crate) fn is_measured(name: &str) -> Result<bool> {
    is_whole_in(
        &dir(Extent::Full).join(format!("{name}.json")),
        is_this_source,
    )
}

fn is_whole_in(path: &Path, is_this: impl Fn(&str) -> bool) -> Result<bool> {
    if !path.exists() {
        return Ok(false);
    }
    let head: Head = serde_json::from_str(&fs::read_to_string(path)?)
        .with_context(|| path.display().to_string())?;
    Ok(!head.is_partial && head.failures.is_empty() && is_this(&head.commit))
}

/// What this program was called by.
pub(crate) fn command() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    format!("cargo xtask bench {}", words.join(" "))
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

/// Looks at the machine, as long as it takes for what is measured.
pub(crate) fn look(when: &str, extent: Extent) -> Result<Quiet> {
    let quiet = Quiet::look(extent)?;
    if !quiet.is_quiet() {
        let busy = quiet.busy_share * 100.0;
        println!(
            "the machine is not quiet {when} measuring ({busy:.0} % busy): counts hold, times do not"
        );
    }
    Ok(quiet)
}

/// What a run itself writes, which makes no other source.
const WRITTEN: [&str; 2] = [":(exclude)bench/results", ":(exclude)docs"];

fn git(arguments: &[&str]) -> Result<Vec<u8>> {
    let mut git = testkit::tool::command("git");
    let finished = testkit::tool::succeed(git.current_dir(root()).args(arguments))?;
    Ok(finished.stdout)
}

/// Whether the working tree has the source of a commit.
fn is_this_source(commit: &str) -> bool {
    let compared = [&["diff", "--quiet", commit, "--", "."][..], &WRITTEN].concat();
    git(&compared).is_ok()
}

/// The commit that is measured.
fn commit() -> String {
    match git(&["describe", "--always", "--abbrev=12"]) {
        Ok(name) => {
            let name = String::from_utf8_lossy(&name);
            let suffix = if is_this_source("HEAD") { "" } else { "-dirty" };
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
    let command = format!("cargo xtask bench {name} --keep");
    let quiet = [Quiet::look(Extent::Full)?; 2];
    Record::of(command, quiet, result)?.keep(name, &dir(Extent::Full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_records_of_this_source_need_no_other_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs.json");
        let is_whole = || is_whole_in(&path, |commit| commit == "this").unwrap();
        assert!(!is_whole());
        for (text, expected) in [
            (r#"{"commit":"this","result":[1]}"#, true),
            (r#"{"commit":"other","result":[1]}"#, false),
            (r#"{"commit":"this","is_partial":true,"result":[1]}"#, false),
            (
                r#"{"commit":"this","failures":["no disk"],"result":[1]}"#,
                false,
            ),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(is_whole(), expected, "{text}");
        }
    }
}
