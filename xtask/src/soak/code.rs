//! The code that a run is of: results are kept for it, and hold for every commit that has it.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::command::{self, command};
use crate::workspace::Workspace;

/// Digits of a key.
const KEY_DIGITS: usize = 12;

/// What is committed and checked out.
#[derive(Debug, Clone)]
pub(super) struct Code {
    /// The same for all commits that differ in no more than documentation and results, and are built by the
    /// same compiler.
    pub(super) key: String,
    /// The commit, in short.
    pub(super) commit: String,
}

impl Code {
    /// The code of `HEAD`, from which the working tree must not differ.
    pub(super) fn find(workspace: &Workspace) -> Result<Self> {
        let status =
            command::text(git(workspace).args(["status", "--porcelain", "--untracked-files=all"]))?;
        let changed: Vec<&str> = changed(&status).collect();
        ensure!(
            changed.is_empty(),
            "a long run is of a commit; commit or stash first:\n{}",
            changed.join("\n")
        );
        let mut files =
            command::text(git(workspace).args(["ls-tree", "-r", "--full-tree", "HEAD"]))?;
        files = code_lines(&files).collect::<Vec<_>>().join("\n");
        files += &command::text(command("rustc").arg("-vV"))?;
        let mut key = hash(workspace, &files)?;
        key.truncate(KEY_DIGITS);
        let commit = command::text(git(workspace).args(["rev-parse", "--short=12", "HEAD"]))?;
        Ok(Self { key, commit })
    }
}

/// Returns the lines of `git status --porcelain` about code.
fn changed(status: &str) -> impl Iterator<Item = &str> {
    status.lines().filter(|line| {
        let paths = line.get(3..).unwrap_or_default();
        paths.split(" -> ").any(is_code)
    })
}

/// Returns the lines of `git ls-tree` about code.
fn code_lines(files: &str) -> impl Iterator<Item = &str> {
    files.lines().filter(|line| {
        let path = line.split_once('\t').map(|(_, path)| path);
        path.is_some_and(is_code)
    })
}

/// Whether a file may change what is built or run.
fn is_code(path: &str) -> bool {
    let is_text = path.strip_suffix(".md").is_some();
    let is_record = path.starts_with("docs/") || path.starts_with("bench/results/");
    !(is_text || is_record)
}

fn git(workspace: &Workspace) -> Command {
    let mut git = command("git");
    git.current_dir(&workspace.root);
    git
}

fn hash(workspace: &Workspace, text: &str) -> Result<String> {
    let mut git = git(workspace);
    git.args(["hash-object", "--stdin"]);
    let mut child = git.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("a pipe to git")?;
    stdin.write_all(text.as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "git hash-object failed");
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_and_results_are_no_code() {
        for path in [
            "docs/soak/btrfs.md",
            "docs/a.png",
            "README.md",
            "crates/a/README.md",
        ] {
            assert!(!is_code(path), "{path}");
        }
        for path in [
            "Cargo.lock",
            "crates/docs/src/a.rs",
            "crates/platter-btrfs/src/lib.rs",
            "bench/src/results/a.rs",
        ] {
            assert!(is_code(path), "{path}");
        }
        assert!(!is_code("bench/results/jobs.json"));
    }

    #[test]
    fn only_uncommitted_code_is_noticed() {
        let status =
            " M docs/soak/btrfs.md\n?? xtask/src/new.rs\nR  README.md -> src/a.rs\n M README.md";
        let lines: Vec<_> = changed(status).collect();
        assert_eq!(lines, ["?? xtask/src/new.rs", "R  README.md -> src/a.rs"]);
    }

    #[test]
    fn files_of_a_tree_are_classified_by_path() {
        let tree = "100644 blob 12\tREADME.md\n100644 blob 34\txtask/src/main.rs";
        let lines: Vec<_> = code_lines(tree).collect();
        assert_eq!(lines, ["100644 blob 34\txtask/src/main.rs"]);
    }
}
