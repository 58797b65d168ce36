//! The suites that come from the crate registry, kept under cargo's target directory.

use std::path::PathBuf;

use anyhow::Result;

use crate::command;
use crate::workspace::Workspace;

/// Package and version.
const TOOLS: &[(&str, &str)] = &[("pjdfstest", "0.2.2"), ("fsx", "0.3.2")];

/// Builds what is missing.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    for (package, version) in TOOLS {
        if path(workspace, package).is_file() {
            continue;
        }
        let mut cargo = command::cargo(&workspace.root);
        cargo
            .args([
                "install",
                "--locked",
                package,
                "--version",
                version,
                "--root",
            ])
            .arg(dir(workspace));
        command::run(&mut cargo)?;
    }
    Ok(())
}

/// Where a tool lies.
pub(super) fn path(workspace: &Workspace, tool: &str) -> PathBuf {
    dir(workspace).join("bin").join(tool)
}

fn dir(workspace: &Workspace) -> PathBuf {
    workspace.target().join("tools")
}
