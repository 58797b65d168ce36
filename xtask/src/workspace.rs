//! The workspace: its root, its tracked files, and what `cargo metadata` says of its packages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::command;

/// The source tree this program was built from.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Its root directory.
    pub(crate) root: PathBuf,
}

/// What `cargo metadata` prints, as far as it is used here.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    /// Packages of the workspace and, unless left out, everything they depend on.
    pub(crate) packages: Vec<Package>,
    /// Ids of the workspace's own packages.
    pub(crate) workspace_members: Vec<String>,
}

/// One package.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// Its id.
    pub(crate) id: String,
    /// Its licence expression.
    pub(crate) license: Option<String>,
    /// The registry it comes from; `None` for the workspace's own.
    pub(crate) source: Option<String>,
    /// Packages it names in its manifest.
    pub(crate) dependencies: Vec<Dependency>,
    /// Its libraries, programs and test binaries.
    pub(crate) targets: Vec<Target>,
    /// The registries that may have it; `None` for all.
    pub(crate) publish: Option<Vec<String>>,
    /// Its manifest.
    pub(crate) manifest_path: PathBuf,
    /// What it is, in a line.
    pub(crate) description: Option<String>,
    /// The text of its page, relative to its manifest.
    pub(crate) readme: Option<PathBuf>,
    /// Words it is found by.
    pub(crate) keywords: Vec<String>,
    /// Where a registry lists it.
    pub(crate) categories: Vec<String>,
    /// What tools other than cargo read of its manifest.
    pub(crate) metadata: Option<serde_json::Value>,
}

/// A dependency as a manifest names it.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    /// The package's name.
    pub(crate) name: String,
    /// The directory of a dependency within the workspace.
    pub(crate) path: Option<PathBuf>,
    /// `dev` or `build`; `None` for what it is built with.
    pub(crate) kind: Option<String>,
}

/// Something cargo builds.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    /// The file the build starts from.
    pub(crate) src_path: PathBuf,
}

impl Workspace {
    /// The workspace that holds this program's package.
    pub(crate) fn find() -> Result<Self> {
        let package = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = package.parent().context("xtask lies in no directory")?;
        Ok(Self {
            root: root.to_owned(),
        })
    }

    /// Where cargo puts what it builds.
    pub(crate) fn target(&self) -> PathBuf {
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.root.join("target"), PathBuf::from)
    }

    /// A program of the workspace, built with the features of dependencies that the tests have, so that what
    /// those compiled is used again.
    pub(crate) fn program_of_tests(&self, program: &str) -> Result<Command> {
        let mut build = command::cargo(&self.root);
        build.args(["build", "--quiet", "--locked", "--workspace"]);
        command::run(build.args(["--bins", "--tests"]))?;
        let path = self.root.join(self.target()).join("debug").join(program);
        let mut built = command::command(path);
        built.current_dir(&self.root);
        Ok(built)
    }

    /// Packages of the workspace alone.
    pub(crate) fn members(&self) -> Result<Metadata> {
        self.metadata(&["--no-deps"])
    }

    /// Packages of the workspace and everything they are built from.
    pub(crate) fn all_packages(&self) -> Result<Metadata> {
        self.metadata(&["--filter-platform", "x86_64-unknown-linux-gnu"])
    }

    fn metadata(&self, arguments: &[&str]) -> Result<Metadata> {
        let mut cargo = command::cargo(&self.root);
        cargo
            .args(["metadata", "--format-version", "1", "--locked"])
            .args(arguments);
        serde_json::from_slice(&command::output(&mut cargo)?).context("cargo metadata's answer")
    }

    /// Every file of the tree but what is built or kept by tools, relative to the root.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        let mut pending = vec![PathBuf::new()];
        while let Some(dir) = pending.pop() {
            for entry in std::fs::read_dir(self.root.join(&dir))? {
                let entry = entry?;
                let name = entry.file_name();
                let path = dir.join(&name);
                if entry.file_type()?.is_file() {
                    files.push(path);
                } else if entry.file_type()?.is_dir() && name != "target" && name != ".git" {
                    pending.push(path);
                }
            }
        }
        files.retain(|file| file.file_name().is_some_and(|name| name != ".git"));
        files.sort();
        Ok(files)
    }

    /// The text of a file given relative to the root.
    pub(crate) fn read(&self, file: impl AsRef<Path>) -> Result<String> {
        let path = self.root.join(file);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    }
}

impl Metadata {
    /// The workspace's own packages by name.
    pub(crate) fn own(&self) -> BTreeMap<&str, &Package> {
        self.packages
            .iter()
            .filter(|package| self.workspace_members.contains(&package.id))
            .map(|package| (package.name.as_str(), package))
            .collect()
    }
}
