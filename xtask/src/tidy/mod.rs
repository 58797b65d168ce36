//! Rules of the source tree that neither compiler nor clippy checks. Each rule is one file here and
//! returns findings; any finding fails the run.

mod source;
mod files;
mod modules;
mod order;
mod edges;
pub(crate) mod locks;
mod licences;
mod spec;
mod rules;
mod words;
mod formats;
mod impls;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::workspace::Workspace;
use source::Source;

/// A broken rule, and where.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    file: PathBuf,
    line: Option<usize>,
    message: String,
}

impl Finding {
    fn new(file: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self {
            file: file.as_ref().to_owned(),
            line: None,
            message: message.into(),
        }
    }

    fn at(file: impl AsRef<Path>, line: usize, message: impl Into<String>) -> Self {
        Self {
            line: Some(line),
            ..Self::new(file, message)
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(out, ":{line}")?;
        }
        write!(out, ": {}", self.message)
    }
}

/// The pages and scripts among the files, with their text; generated ones consist of literals of sources.
fn pages(workspace: &Workspace, files: &[PathBuf]) -> Result<Vec<(PathBuf, String)>> {
    let is_page = |path: &&PathBuf| {
        let extension = path.extension();
        extension.is_some_and(|extension| extension == "md" || extension == "sh")
    };
    let mut pages = Vec::new();
    for path in files.iter().filter(is_page) {
        let text = workspace.read(path)?;
        if !text.starts_with("<!-- Made by ") {
            pages.push((path.clone(), text));
        }
    }
    Ok(pages)
}

/// Checks every rule and fails when one is broken.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let files = workspace.files()?;
    let sources = Source::read_all(workspace, &files)?;
    let members = workspace.members()?;
    let mut findings = Vec::new();
    findings.extend(files::check(workspace, &files, &sources)?);
    findings.extend(modules::check(workspace, &members, &sources));
    findings.extend(order::check(workspace, &members, &sources));
    let architecture = workspace.read("ARCHITECTURE.md")?;
    findings.extend(edges::check(&architecture, &members));
    findings.extend(locks::check(&architecture, &sources));
    findings.extend(licences::check(
        &workspace.read("deny.toml")?,
        &workspace.all_packages()?,
    ));
    findings.extend(spec::check(&workspace.read(spec::SOURCES)?, &sources));
    findings.extend(rules::check(&sources));
    findings.extend(words::check(&sources, &pages(workspace, &files)?));
    findings.extend(formats::check(&sources));
    findings.extend(impls::check(&sources));
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", files.len(), findings.len());
    if !findings.is_empty() {
        bail!("the source tree is not tidy");
    }
    Ok(())
}
