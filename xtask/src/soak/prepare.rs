//! The programs and the source tree of a commit, put where nothing changes them during a long run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::code::Code;
use super::portion::Places;
use super::whole::Tests;
use crate::command::{self, command};
use crate::workspace::Workspace;

/// Written last, so that a directory without it is made anew.
const READY: &str = "ready";

/// A line of what cargo says in JSON, as far as it is used here.
#[derive(Debug, Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

/// Builds the programs and copies them and the source tree into `dir`, if they are not there.
pub(super) fn prepare(workspace: &Workspace, code: &Code, dir: &Path) -> Result<Places> {
    const SCRIPT: &str = r#"git archive "$1" | tar -x -C "$2""#;
    let places = Places {
        programs: dir.join("programs"),
        source: dir.join("source"),
        target: workspace.target(),
        records: dir.to_owned(),
        root: workspace.root.clone(),
    };
    if places.programs.join(READY).exists() {
        return Ok(places);
    }
    for made in [&places.programs, &places.source] {
        if made.exists() {
            std::fs::remove_dir_all(made)?;
        }
        std::fs::create_dir_all(made)?;
    }
    let mut archive = command("sh");
    archive.current_dir(&workspace.root);
    archive.args(["-c", SCRIPT, "sh", &code.commit]);
    command::run(archive.arg(&places.source))?;
    let packages = ["platter-cli", "platter-fuzz", "testkit"];
    let mut build = command::cargo(&workspace.root);
    build.args(["build", "--locked", "--bins"]);
    for package in packages {
        build.args(["--package", package]);
    }
    command::run(&mut build)?;
    let built = workspace.target().join("debug");
    for program in ["platter", "platter-fuzz", "soak"] {
        std::fs::copy(built.join(program), places.programs.join(program))?;
    }
    for tests in [Tests::Oracle, Tests::Btrfs] {
        let built = built_tests(workspace, tests)?;
        std::fs::copy(built, places.programs.join(tests.program()))?;
    }
    std::fs::copy(std::env::current_exe()?, places.programs.join("xtask"))?;
    let now = Code::find(workspace)?;
    ensure!(now.key == code.key, "the code changed while it was built");
    std::fs::write(places.programs.join(READY), "")?;
    Ok(places)
}

/// Builds tests, and returns where they are.
fn built_tests(workspace: &Workspace, tests: Tests) -> Result<PathBuf> {
    let mut build = command::cargo(&workspace.root);
    build
        .args(["test", "--locked", "--no-run", "--message-format=json"])
        .arg("--package")
        .args(tests.target());
    let messages = command::text(&mut build)?;
    let mut executables = messages.lines().filter_map(|line| {
        let message: Message = serde_json::from_str(line).ok()?;
        message.executable
    });
    let begin = format!("{}-", tests.program());
    let are_meant = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&begin))
    };
    executables
        .rfind(are_meant)
        .with_context(|| format!("cargo built no {}", tests.program()))
}
