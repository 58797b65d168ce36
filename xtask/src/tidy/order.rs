//! The order of modules: a module refers only to those declared above it, so that a crate is read from top to
//! bottom. A few files that refer to each other may stand in any order.
//!
//! What a module shares with its own submodules does not count. Names that a module imports are followed to
//! the module that declares them. Test code does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::Finding;
use super::source::Source;
use crate::workspace::{Metadata, Workspace};

/// Maximum number of files that refer to each other in a circle.
const CIRCLE_FILES_MAX: usize = 4;
/// Maximum number of imports that are followed from one name.
const IMPORTS_MAX: usize = 8;

/// The path of a module in its crate.
type Place = Vec<String>;

/// Finds references to modules declared further down, and circles.
pub(super) fn check(workspace: &Workspace, members: &Metadata, sources: &[Source]) -> Vec<Finding> {
    members
        .own()
        .values()
        .flat_map(|package| &package.targets)
        .filter_map(|target| target.src_path.strip_prefix(&workspace.root).ok())
        .filter(|path| path.ends_with("src/lib.rs"))
        .flat_map(|root| check_crate(root, sources))
        .collect()
}

fn check_crate(root: &Path, sources: &[Source]) -> Vec<Finding> {
    let modules = Modules::read(root, sources);
    let references = modules.references();
    let circles = circles(&modules, &references);
    let mut findings: Vec<Finding> = circles
        .iter()
        .filter(|circle| circle.len() > CIRCLE_FILES_MAX)
        .map(|circle| {
            let first = &modules.by_place[&circle[0]];
            let names: Vec<_> = circle.iter().map(|place| place.join("::")).collect();
            let message = format!(
                "these refer to each other in a circle: {}",
                names.join(", ")
            );
            Finding::new(&first.path, message)
        })
        .collect();
    for ((from, to), &line) in &references {
        let is_circle = |circle: &Vec<Place>| circle.contains(from) && circle.contains(to);
        if !circles.iter().any(is_circle) && modules.is_below(to, from) {
            let message = format!(
                "refers to {}, which is declared below {}",
                to.join("::"),
                from.join("::")
            );
            findings.push(Finding::at(&modules.by_place[from].path, line, message));
        }
    }
    findings
}

/// A module in a file of its own.
struct Module {
    path: PathBuf,
    /// Its submodules, in the order of their declarations.
    submodules: Vec<String>,
    /// The paths that its imports stand for, by the name that they have here.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths that start with `crate`, `self` or `super`, and their lines.
    paths: Vec<(usize, Vec<String>)>,
}

/// The modules of a crate, but for tests.
struct Modules {
    by_place: BTreeMap<Place, Module>,
}

impl Modules {
    fn read(root: &Path, sources: &[Source]) -> Self {
        let by_path: BTreeMap<&Path, &Source> = sources
            .iter()
            .map(|source| (source.path.as_path(), source))
            .collect();
        let mut by_place = BTreeMap::new();
        let mut pending = vec![(Place::new(), root.to_owned())];
        while let Some((place, path)) = pending.pop() {
            let Some(source) = by_path.get(path.as_path()) else {
                continue;
            };
            let module = Module::read(source);
            let dir = match path.file_stem() {
                Some(stem) if stem != "mod" && path != root => path.with_extension(""),
                _ => path.parent().unwrap_or(Path::new("")).to_owned(),
            };
            for name in &module.submodules {
                let below = [place.as_slice(), std::slice::from_ref(name)].concat();
                pending.push((below.clone(), dir.join(format!("{name}.rs"))));
                pending.push((below, dir.join(name).join("mod.rs")));
            }
            by_place.insert(place, module);
        }
        Self { by_place }
    }

    /// Which module refers to which, and the first line where it does. None refers to itself, to a module that
    /// it is in, or to one that is in it.
    fn references(&self) -> BTreeMap<(Place, Place), usize> {
        let mut found = BTreeMap::new();
        for (place, module) in &self.by_place {
            for (line, path) in &module.paths {
                let target = self.resolve(place, path, 0);
                if !target.starts_with(place) && !place.starts_with(&target) {
                    found.entry((place.clone(), target)).or_insert(*line);
                }
            }
        }
        found
    }

    /// The module that declares what `path` means in the module at `place`.
    fn resolve(&self, place: &[String], path: &[String], depth: usize) -> Place {
        let mut at = match path.first().map(String::as_str) {
            Some("crate") => Place::new(),
            _ => place.to_owned(),
        };
        for (nth, name) in path.iter().enumerate() {
            let Some(module) = self.by_place.get(&at) else {
                break;
            };
            match name.as_str() {
                "crate" | "self" => {}
                "super" => drop(at.pop()),
                name if module.submodules.iter().any(|below| below == name) => {
                    at.push(name.to_owned());
                }
                name => {
                    let Some(import) = module.imports.get(name) else {
                        break;
                    };
                    let is_own = |first: &String| {
                        matches!(first.as_str(), "crate" | "self" | "super")
                            || module.submodules.contains(first)
                    };
                    if depth < IMPORTS_MAX && import.first().is_some_and(is_own) {
                        let rest = path.get(nth + 1..).unwrap_or_default();
                        return self.resolve(&at, &[import, rest].concat(), depth + 1);
                    }
                    break;
                }
            }
        }
        at
    }

    /// Whether `one` is declared below `other`, where their paths part.
    fn is_below(&self, one: &Place, other: &Place) -> bool {
        let common = one.iter().zip(other).take_while(|(a, b)| a == b).count();
        let submodules = &self.by_place[&one[..common]].submodules;
        let index = |place: &Place| submodules.iter().position(|name| *name == place[common]);
        index(one) > index(other)
    }
}

impl Module {
    fn read(source: &Source) -> Self {
        let code = &source.code[..source.code.len() - source.test_code().len()];
        let mut module = Self {
            path: source.path.clone(),
            submodules: Vec::new(),
            imports: BTreeMap::new(),
            paths: Vec::new(),
        };
        let mut is_test = false;
        for line in code.lines() {
            let line = line.trim();
            if line.starts_with("#[cfg(") {
                is_test = line.contains("test");
            } else if let Some(name) = super::modules::module_name(line) {
                if !is_test {
                    module.submodules.push(name.to_owned());
                }
                is_test = false;
            } else if !line.starts_with("#[") && !line.is_empty() {
                is_test = false;
            }
        }
        for (at, _) in code.match_indices("use ") {
            let line = code[..at].rsplit('\n').next().unwrap_or("").trim();
            if line.is_empty() || line == "pub" || line.starts_with("pub(") {
                for (path, name) in expand(&code[at + "use ".len()..]) {
                    module.imports.insert(name, path);
                }
            }
        }
        for start in ["crate", "self", "super"] {
            for (at, _) in code.match_indices(start) {
                let after = code[at + start.len()..].trim_start();
                let before = code[..at].trim_end();
                let is_part = |letter: char| letter == '_' || letter.is_alphanumeric();
                let is_start = !code[..at].ends_with(is_part)
                    && !before.ends_with("::")
                    && !before.ends_with('$')
                    && !before.ends_with("(in");
                if is_start && after.starts_with("::") {
                    let line = 1 + code[..at].matches('\n').count();
                    let paths = expand(&code[at..]);
                    module.paths.extend(paths.map(|(path, _)| (line, path)));
                }
            }
        }
        module.paths.sort();
        module
    }
}

/// The paths that a path with braces stands for, each with the name that it imports.
fn expand(text: &str) -> impl Iterator<Item = (Vec<String>, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    expand_into(&mut rest, &[], &mut found);
    found.into_iter()
}

fn expand_into(rest: &mut &str, before: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let mut path = before.to_owned();
    loop {
        *rest = rest.trim_start();
        if let Some(inner) = rest.strip_prefix('{') {
            *rest = inner;
            loop {
                *rest = rest.trim_start();
                if let Some(after) = rest.strip_prefix(',') {
                    *rest = after;
                } else if let Some(after) = rest.strip_prefix('}') {
                    *rest = after;
                    return;
                } else if rest.is_empty() {
                    return;
                } else {
                    let len = rest.len();
                    expand_into(rest, &path, found);
                    if rest.len() == len {
                        return;
                    }
                }
            }
        }
        let Some(name) = take_word(rest) else {
            return;
        };
        path.push(name);
        match rest.trim_start().strip_prefix("::") {
            Some(after) if !after.trim_start().starts_with('<') => *rest = after,
            _ => break,
        }
    }
    let mut name = path.last().cloned().unwrap_or_default();
    if name == "self" && path.len() > 1 {
        path.pop();
        name = path.last().cloned().unwrap_or_default();
    }
    if let Some(mut after) = rest.trim_start().strip_prefix("as ") {
        name = take_word(&mut after).unwrap_or_default();
        *rest = after;
    }
    found.push((path, name));
}

/// Takes the word that `rest` begins with, or an asterisk.
fn take_word(rest: &mut &str) -> Option<String> {
    let is_part = |letter: char| letter == '_' || letter == '*' || letter.is_alphanumeric();
    let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after;
    (!word.is_empty()).then(|| word.to_owned())
}

/// The sets of modules that refer to each other, directly or over others.
fn circles(modules: &Modules, references: &BTreeMap<(Place, Place), usize>) -> Vec<Vec<Place>> {
    let mut targets: BTreeMap<&Place, Vec<&Place>> = BTreeMap::new();
    for (from, to) in references.keys() {
        targets.entry(from).or_default().push(to);
    }
    let reached = |start: &Place| {
        let mut reached: BTreeSet<&Place> = BTreeSet::new();
        let mut pending: Vec<&Place> = targets.get(start).cloned().unwrap_or_default();
        while let Some(place) = pending.pop() {
            if reached.insert(place) {
                pending.extend(targets.get(place).into_iter().flatten());
            }
        }
        reached
    };
    let from: BTreeMap<&Place, BTreeSet<&Place>> = modules
        .by_place
        .keys()
        .map(|place| (place, reached(place)))
        .collect();
    let mut found: Vec<Vec<Place>> = Vec::new();
    for (place, reached) in &from {
        let is_known = found.iter().any(|circle| circle.contains(place));
        if reached.contains(place) && !is_known {
            let others = reached.iter().filter(|other| from[**other].contains(place));
            found.push(others.map(|&other| other.clone()).collect());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source::new(path, (*text).to_owned()))
            .collect();
        let findings = check_crate(Path::new("src/lib.rs"), &sources);
        findings
            .into_iter()
            .map(|finding| finding.to_string())
            .collect()
    }

    #[test]
    fn reference_to_a_module_below_is_found() {
        let files = [
            (
                "src/lib.rs",
                "mod a;\npub mod b;\nmod c;\npub use c::d::Late;",
            ),
            ("src/a.rs", "use crate::b::{self, x as y};\n"),
            (
                "src/b.rs",
                "// crate::c\nuse crate::a;\nfn f(_: crate::Late) {}",
            ),
            ("src/c/mod.rs", "pub mod d;\nmod e;\nuse crate::a;"),
            ("src/c/d.rs", "use super::e::X;"),
            (
                "src/c/e.rs",
                "#[cfg(test)]\nmod tests { use super::super::d; }",
            ),
        ];
        // The first two are a circle.
        let expected = [
            "src/b.rs:3: refers to c::d, which is declared below b",
            "src/c/d.rs:1: refers to c::e, which is declared below c::d",
        ];
        assert_eq!(messages(&files), expected);
    }

    #[test]
    fn submodules_and_what_they_are_in_are_no_circle() {
        let files = [
            ("src/lib.rs", "mod a;"),
            ("src/a/mod.rs", "mod b;\nuse b::X;\nstruct Y;"),
            ("src/a/b.rs", "use super::Y;"),
        ];
        assert!(messages(&files).is_empty());
    }

    #[test]
    fn circle_of_many_files_is_found() {
        let names = ["a", "b", "c", "d", "e"];
        let circle = |count: usize| {
            let declared = names.map(|name| format!("mod {name};\n")).concat();
            let mut files = vec![("src/lib.rs".to_owned(), declared)];
            for nth in 0..count {
                let next = names[(nth + 1) % count];
                let path = format!("src/{}.rs", names[nth]);
                files.push((path, format!("use super::{next}::X;")));
            }
            files
        };
        for (count, expected) in [(CIRCLE_FILES_MAX, 0), (CIRCLE_FILES_MAX + 1, 1)] {
            let files = circle(count);
            let files: Vec<_> = files
                .iter()
                .map(|(path, text)| (path.as_str(), text.as_str()))
                .collect();
            assert_eq!(messages(&files).len(), expected, "{count}");
        }
    }

    #[test]
    fn paths_with_braces_are_expanded() {
        let found: Vec<_> = expand("a::{b::{self, c as d}, e::*, r};").collect();
        let path = |text: &str| text.split("::").map(str::to_owned).collect::<Vec<_>>();
        let expected = [
            ("a::b", "b"),
            ("a::b::c", "d"),
            ("a::e::*", "*"),
            ("a::r", "r"),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|&(full, name)| (path(full), name.to_owned()))
            .collect();
        assert_eq!(found, expected);
    }
}
