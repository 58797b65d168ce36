//! Every rule of a format is shown by a test: each variant of an `enum` called `Rule`, or that
//! ends so, is named with its enum in test code of its crate, or alone in a test of its own module.

use std::path::{Path, PathBuf};

use super::Finding;
use super::source::{Source, has_word};

/// A rule of a format, as the code declares it.
#[derive(Debug, PartialEq, Eq)]
struct Rule<'a> {
    line: usize,
    set: &'a str,
    variant: &'a str,
}

/// Finds rules that no test names.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let package = package(&source.path);
        let of_package: Vec<&Source> = sources
            .iter()
            .filter(|other| other.path.starts_with(&package))
            .collect();
        for rule in rules(source) {
            let full = format!("{}::{}", rule.set, rule.variant);
            let is_named = of_package.iter().any(|other| {
                let code = other.test_code();
                let is_near = other.path.parent() == source.path.parent();
                has_word(code, &full) || (is_near && has_word(code, rule.variant))
            });
            if !is_named {
                let message = format!("no test names the rule {full}");
                findings.push(Finding::at(&source.path, rule.line, message));
            }
        }
    }
    findings
}

/// The directory above `src` or `tests`.
fn package(path: &Path) -> PathBuf {
    path.iter()
        .take_while(|part| *part != "src" && *part != "tests")
        .collect()
}

/// The variants of each enum of rules outside test code.
fn rules(source: &Source) -> Vec<Rule<'_>> {
    let mut found = Vec::new();
    let product = &source.code[..source.code.len() - source.test_code().len()];
    for (start, keyword) in product.match_indices("enum ") {
        let set = word(&product[start + keyword.len()..]);
        if set.ends_with("Rule") {
            let line = 1 + product[..start].matches('\n').count();
            found.extend(variants(&product[start..]).map(|(below, variant)| Rule {
                line: line + below,
                set,
                variant,
            }));
        }
    }
    found
}

/// The variants of the enum that `code` begins with, and how many lines below they stand.
fn variants(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut depth = 0_usize;
    let mut expects_name = false;
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(character) = code[at..].chars().next() {
        match character {
            '{' | '(' | '[' => {
                depth += 1;
                expects_name |= depth == 1;
            }
            '}' | ')' | ']' if depth == 1 => break,
            '}' | ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 1 => expects_name = true,
            letter if expects_name && depth == 1 && letter.is_alphabetic() => {
                let name = word(&code[at..]);
                found.push((code[..at].matches('\n').count(), name));
                expects_name = false;
                at += name.len();
                continue;
            }
            _ => {}
        }
        at += character.len_utf8();
    }
    found.into_iter()
}

fn word(code: &str) -> &str {
    let end = code.find(|letter: char| letter != '_' && !letter.is_alphanumeric());
    &code[..end.unwrap_or(code.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_without_test_is_found() {
        let rules = "pub enum NodeRule {\n    #[error(\"x\")]\n    Magic { found: u16 },\n    Depth(u16, [u8; 2]),\n    Checksum,\n    Count,\n}\nenum Other { Unnamed }\n#[cfg(test)]\nmod tests { enum SampleRule { A } }";
        let sources = [
            Source::new("crates/a/src/node/mod.rs", rules.to_owned()),
            Source::new("crates/a/src/node/tests.rs", "Magic".to_owned()),
            Source::new("crates/a/src/x.rs", "fn f() { NodeRule::Depth }".to_owned()),
            Source::new("crates/a/tests/it/main.rs", "NodeRule::Count".to_owned()),
            Source::new("crates/b/src/tests.rs", "NodeRule::Checksum".to_owned()),
        ];
        let found = check(&sources);
        let messages: Vec<_> = found
            .iter()
            .map(|finding| finding.message.as_str())
            .collect();
        assert_eq!(
            messages,
            [
                "no test names the rule NodeRule::Depth",
                "no test names the rule NodeRule::Checksum",
            ]
        );
        assert_eq!(found[0].line, Some(4));
    }
}
