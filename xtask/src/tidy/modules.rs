//! No orphans: every `.rs` file is reached from a target through `mod` declarations.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::Finding;
use super::source::Source;
use crate::workspace::{Metadata, Workspace};

/// Finds files that nothing builds.
pub(super) fn check(workspace: &Workspace, members: &Metadata, sources: &[Source]) -> Vec<Finding> {
    let roots = members
        .own()
        .values()
        .flat_map(|package| &package.targets)
        .filter_map(|target| target.src_path.strip_prefix(&workspace.root).ok())
        .map(Path::to_owned)
        .collect();
    orphans(roots, sources)
}

fn orphans(roots: Vec<PathBuf>, sources: &[Source]) -> Vec<Finding> {
    let by_path: BTreeMap<&Path, &Source> = sources
        .iter()
        .map(|source| (source.path.as_path(), source))
        .collect();
    let mut reached: BTreeSet<PathBuf> = BTreeSet::new();
    let root_files: BTreeSet<PathBuf> = roots.iter().cloned().collect();
    let mut pending = roots;
    while let Some(path) = pending.pop() {
        let Some(source) = by_path.get(path.as_path()) else {
            continue;
        };
        if reached.insert(path.clone()) {
            let dir = module_dir(&path, root_files.contains(&path));
            pending.extend(declared(source, &dir));
        }
    }
    sources
        .iter()
        .filter(|source| !reached.contains(&source.path))
        .map(|source| Finding::new(&source.path, "no `mod` declaration leads here"))
        .collect()
}

/// The directory where the modules that a file declares are looked for.
fn module_dir(path: &Path, is_root: bool) -> PathBuf {
    let dir = path.parent().unwrap_or(Path::new(""));
    match path.file_stem() {
        Some(stem) if !is_root && stem != "mod" => dir.join(stem),
        _ => dir.to_owned(),
    }
}

/// The files that the declarations of `source` can mean.
fn declared(source: &Source, dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut path_attribute = None;
    for ((_, code), (_, text)) in source.code_lines().zip(source.text_lines()) {
        if code.trim_start().starts_with("#[path = ") {
            path_attribute = text.split('"').nth(1);
        }
        let Some(name) = module_name(code) else {
            continue;
        };
        if let Some(path) = path_attribute.take() {
            files.push(source.path.parent().unwrap_or(dir).join(path));
        } else {
            files.push(dir.join(format!("{name}.rs")));
            files.push(dir.join(name).join("mod.rs"));
        }
    }
    files
}

/// The name in a line such as `pub(crate) mod name;`.
pub(super) fn module_name(code: &str) -> Option<&str> {
    let declaration = code.trim().strip_suffix(';')?;
    let (before, name) = declaration.rsplit_once("mod ")?;
    let is_declaration = before.is_empty() || before.ends_with([' ', ']', ')']);
    let is_name = name
        .chars()
        .all(|letter| letter == '_' || letter.is_alphanumeric());
    (is_declaration && is_name).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_without_declaration_is_an_orphan() {
        let sources = [
            Source::new(
                "a/src/lib.rs",
                "pub mod b;\n#[path = \"odd.rs\"]\nmod c;\n// mod d;".into(),
            ),
            Source::new("a/src/b/mod.rs", "pub(crate) mod e;".into()),
            Source::new("a/src/b/e.rs", "#[cfg(test)] mod f;".into()),
            Source::new("a/src/b/e/f.rs", String::new()),
            Source::new("a/src/odd.rs", String::new()),
            Source::new("a/src/d.rs", String::new()),
        ];
        let found = orphans(vec!["a/src/lib.rs".into()], &sources);
        let files: Vec<_> = found.iter().map(|finding| finding.file.clone()).collect();
        assert_eq!(files, [Path::new("a/src/d.rs")]);
    }
}
