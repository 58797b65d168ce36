//! Licences, bans and sources of everything the workspace is built from, as `deny.toml` says.
//!
//! `cargo deny` reads the same file; it is not installed where the tests run, because building
//! it takes longer than they do.

use std::collections::BTreeSet;

use super::Finding;
use crate::workspace::{Metadata, Package};

const FILE: &str = "deny.toml";

/// Checks every package that is not the workspace's own against the lists of `deny.toml`.
pub(super) fn check(deny: &str, packages: &Metadata) -> Vec<Finding> {
    let allowed: BTreeSet<String> = list(deny, "[licenses]", "allow").into_iter().collect();
    let banned: BTreeSet<String> = list(deny, "[bans]", "deny").into_iter().collect();
    if allowed.is_empty() || banned.is_empty() {
        return vec![Finding::new(FILE, "has no list of licences or bans")];
    }
    packages
        .packages
        .iter()
        .flat_map(|package| check_package(package, &allowed, &banned))
        .collect()
}

fn check_package(
    package: &Package,
    allowed: &BTreeSet<String>,
    banned: &BTreeSet<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |what: String| {
        let message = format!("{} {} {what}", package.name, package.version);
        findings.push(Finding::new(FILE, message));
    };
    let licence = package.license.as_deref().unwrap_or_default();
    if !is_allowed(licence, allowed) {
        find(format!("has the licence '{licence}'"));
    }
    if banned.contains(&package.name) {
        find("is banned".to_owned());
    }
    let is_foreign = |source: &String| !source.starts_with("registry+");
    if package.source.as_ref().is_some_and(is_foreign) {
        find("comes from no registry".to_owned());
    }
    findings
}

/// The strings of the list `key = [ ... ]` in a section of a TOML file; of a table in the list,
/// the first string.
fn list(toml: &str, section: &str, key: &str) -> Vec<String> {
    let Some(start) = toml.find(section) else {
        return Vec::new();
    };
    let section = &toml[start + section.len()..];
    let section = &section[..section.find("\n[").unwrap_or(section.len())];
    let Some(start) = section.find(&format!("\n{key} = [")) else {
        return Vec::new();
    };
    let items = &section[start..];
    let items = &items[..items.find(']').unwrap_or(items.len())];
    items
        .split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Whether an SPDX expression can be satisfied with the allowed licences alone.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any_of(&mut rest, allowed) && rest.is_empty()
}

fn any_of(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut satisfied = all_of(words, allowed);
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        satisfied |= all_of(words, allowed);
    }
    satisfied
}

fn all_of(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut satisfied = one(words, allowed);
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        satisfied &= one(words, allowed);
    }
    satisfied
}

fn one(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let satisfied = any_of(words, allowed);
            let [")", rest @ ..] = *words else {
                return false;
            };
            *words = rest;
            satisfied
        }
        [licence, "WITH", exception, rest @ ..] => {
            *words = rest;
            allowed.contains(&format!("{licence} WITH {exception}"))
        }
        [licence, rest @ ..] => {
            *words = rest;
            allowed.contains(*licence)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_follow_spdx() {
        let allowed: BTreeSet<String> = ["MIT", "Apache-2.0", "Unicode-3.0"]
            .map(String::from)
            .into();
        for expression in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-2.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
        ] {
            assert!(is_allowed(expression, &allowed), "{expression}");
        }
        for expression in [
            "",
            "GPL-2.0-only",
            "MIT AND GPL-2.0",
            "(MIT OR Apache-2.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(!is_allowed(expression, &allowed), "{expression}");
        }
    }

    #[test]
    fn lists_end_with_their_section() {
        let toml = "[licenses]\nallow = [\"MIT\", \"ISC\"]\n\n[bans]\ndeny = [{ crate = \"x\" }, { crate = \"y\" }]\n";
        assert_eq!(list(toml, "[licenses]", "allow"), ["MIT", "ISC"]);
        assert_eq!(list(toml, "[bans]", "deny"), ["x", "y"]);
        assert!(list(toml, "[licenses]", "deny").is_empty());
    }
}
