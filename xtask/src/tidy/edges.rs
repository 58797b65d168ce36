//! The crate graph: the edge table of `ARCHITECTURE.md` against the manifests.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use crate::workspace::Metadata;

const FILE: &str = "ARCHITECTURE.md";
const TABLE_HEADER: &str = "| crate | may use |";

type Edges = BTreeMap<String, BTreeSet<String>>;

/// Compares the table with the packages' manifests. Dependencies of tests alone are in parentheses.
pub(super) fn check(architecture: &str, members: &Metadata) -> Vec<Finding> {
    let packages = members.own();
    let actual = packages
        .iter()
        .map(|(name, package)| {
            let own = package
                .dependencies
                .iter()
                .filter(|dependency| dependency.path.is_some())
                .map(|dependency| match dependency.kind.as_deref() {
                    Some("dev") => format!("({})", dependency.name),
                    Some(_) | None => dependency.name.clone(),
                })
                .collect();
            ((*name).to_owned(), own)
        })
        .collect();
    compare(&table(architecture), &actual)
}

fn compare(allowed: &Edges, actual: &Edges) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |message| findings.push(Finding::new(FILE, message));
    for name in allowed.keys().filter(|name| !actual.contains_key(*name)) {
        find(format!("the edge table has {name}, which is no crate here"));
    }
    for (name, used) in actual {
        let Some(allowed) = allowed.get(name) else {
            find(format!("the edge table lacks the crate {name}"));
            continue;
        };
        let unparenthesised = |target: &str| target.trim_matches(['(', ')']).to_owned();
        let is_new = |target: &&String| !allowed.contains(&unparenthesised(target));
        for target in used.difference(allowed).filter(is_new) {
            find(format!("the edge table does not allow {name} -> {target}"));
        }
    }
    findings
}

fn table(architecture: &str) -> Edges {
    architecture
        .lines()
        .skip_while(|line| *line != TABLE_HEADER)
        .skip(2)
        .map_while(|line| {
            let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
            let name = cells.next()?.to_owned();
            let targets = cells.next()?.split(',').map(str::trim);
            let targets = targets.filter(|target| !target.is_empty());
            Some((name, targets.map(str::to_owned).collect()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "text\n\n| crate | may use |\n|---|---|\n| a | (c) |\n| b | a |\n| c | a, b |\n\n| other | table |";

    fn edges(list: &[(&str, &[&str])]) -> Edges {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        list.iter()
            .map(|&(name, targets)| (name.to_owned(), owned(targets)))
            .collect()
    }

    #[test]
    fn table_ends_where_its_rows_end() {
        assert_eq!(
            table(TEXT),
            edges(&[("a", &["(c)"]), ("b", &["a"]), ("c", &["a", "b"])])
        );
    }

    #[test]
    fn edges_and_crates_off_the_table_are_found() {
        let allowed = table(TEXT);
        let same = edges(&[("a", &["(c)"]), ("b", &["a"]), ("c", &["(a)"])]);
        assert!(compare(&allowed, &same).is_empty());
        let wrong = edges(&[("a", &["b", "c"]), ("b", &["a"]), ("d", &[])]);
        let messages: Vec<_> = compare(&allowed, &wrong)
            .into_iter()
            .map(|finding| finding.message)
            .collect();
        assert_eq!(
            messages,
            [
                "the edge table has c, which is no crate here",
                "the edge table does not allow a -> b",
                "the edge table does not allow a -> c",
                "the edge table lacks the crate d",
            ]
        );
    }
}
