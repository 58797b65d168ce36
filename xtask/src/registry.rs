//! What a registry takes: every published crate packed, in the order of its dependencies, with all that belongs to it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::command;
use crate::workspace::{Package, Workspace};

/// The licence texts that each crate brings.
const LICENCES: &[&str] = &["LICENSE-MIT", "LICENSE-APACHE"];

/// What a registry takes of each list in a manifest.
const ENTRIES_MAX: usize = 5;

/// Packs the crates and builds none of them, or with `--verify` each from what was packed.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let is_verified = match arguments {
        [] => false,
        [argument] if argument == "--verify" => true,
        _ => bail!("usage: cargo xtask registry [--verify]"),
    };
    let members = workspace.members()?;
    let own = members.own();
    let published: BTreeSet<&str> = own
        .values()
        .filter(|package| package.is_published())
        .map(|package| package.name.as_str())
        .collect();
    let mut findings = Vec::new();
    for package in own.values().filter(|package| package.is_published()) {
        findings.extend(faults(package, &published));
        for file in LICENCES {
            let text = std::fs::read(package.dir().join(file)).ok();
            if text != std::fs::read(workspace.root.join(file)).ok() {
                findings.push(format!("{} lacks {file}", package.name));
            }
        }
    }
    if !findings.is_empty() {
        bail!("{}", findings.join("\n"));
    }
    let mut pack = command::cargo(&workspace.root);
    pack.args(["package", "--workspace", "--locked", "--offline"]);
    // What is not committed yet is packed, too: this shows that it can be, and sends nothing.
    pack.arg("--allow-dirty");
    for name in own.keys().filter(|name| !published.contains(*name)) {
        pack.args(["--exclude", name]);
    }
    if !is_verified {
        pack.arg("--no-verify");
    }
    command::run(&mut pack)
}

/// What a registry, or a reader of its page, would miss in a manifest.
fn faults(package: &Package, published: &BTreeSet<&str>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut find = |what: String| faults.push(format!("{} {what}", package.name));
    for (field, text) in [
        ("description", &package.description),
        ("license", &package.license),
    ] {
        if text.as_ref().is_none_or(String::is_empty) {
            find(format!("has no {field}"));
        }
    }
    let readme = package.readme.as_ref();
    if !readme.is_some_and(|readme| package.dir().join(readme).is_file()) {
        find("has no readme".to_owned());
    }
    for (list, entries) in [
        ("keywords", &package.keywords),
        ("categories", &package.categories),
    ] {
        if entries.is_empty() || entries.len() > ENTRIES_MAX {
            find(format!("has {} {list}", entries.len()));
        }
    }
    let on_docs = package.metadata.as_ref().and_then(|all| all.get("docs"));
    if on_docs.and_then(|docs| docs.get("rs")).is_none() {
        find("does not say what its documentation is built for".to_owned());
    }
    for dependency in package
        .dependencies
        .iter()
        .filter(|found| found.path.is_some())
    {
        let is_for_tests = dependency.kind.as_deref() == Some("dev");
        if !is_for_tests && !published.contains(dependency.name.as_str()) {
            find(format!(
                "depends on {}, which is not published",
                dependency.name
            ));
        }
    }
    faults
}

impl Package {
    /// Whether its manifest lets a registry have it.
    fn is_published(&self) -> bool {
        self.publish
            .as_ref()
            .is_none_or(|registries| !registries.is_empty())
    }

    /// Where its manifest is.
    fn dir(&self) -> PathBuf {
        let dir = self.manifest_path.parent();
        dir.map(PathBuf::from).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(manifest: serde_json::Value) -> Package {
        serde_json::from_value(manifest).unwrap()
    }

    #[test]
    fn manifest_without_metadata_is_found() {
        let found = package(serde_json::json!({
            "name": "bare", "version": "1.0.0", "id": "bare", "license": null, "source": null,
            "targets": [], "publish": null, "manifest_path": "/nowhere/Cargo.toml", "description": "",
            "readme": "README.md", "keywords": [], "categories": ["a", "b", "c", "d", "e", "f"],
            "metadata": null,
            "dependencies": [{ "name": "hidden", "path": "/nowhere/hidden", "kind": null }],
        }));
        assert!(found.is_published());
        let expected = [
            "bare has no description",
            "bare has no license",
            "bare has no readme",
            "bare has 0 keywords",
            "bare has 6 categories",
            "bare does not say what its documentation is built for",
            "bare depends on hidden, which is not published",
        ];
        assert_eq!(faults(&found, &BTreeSet::new()), expected);
    }
}
