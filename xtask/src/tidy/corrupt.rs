//! Every rule a driver knows is shown by a test: each variant of an `enum Corrupt` is named in
//! test code of its crate.

use std::path::{Path, PathBuf};

use super::Finding;
use super::source::{Source, has_word};

const ENUM: &str = "enum Corrupt ";

/// Finds variants that no test names.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let package = package(&source.path);
        let tests: Vec<&str> = sources
            .iter()
            .filter(|other| other.path.starts_with(&package))
            .map(Source::test_code)
            .collect();
        for (line, variant) in variants(&source.code) {
            if !tests.iter().any(|code| has_word(code, variant)) {
                let message = format!("no test names the rule Corrupt::{variant}");
                findings.push(Finding::at(&source.path, line, message));
            }
        }
    }
    findings
}

/// The folder above `src` or `tests`.
fn package(path: &Path) -> PathBuf {
    path.iter()
        .take_while(|part| *part != "src" && *part != "tests")
        .collect()
}

/// The variants of each `enum Corrupt` in the code, with their lines.
fn variants(code: &str) -> Vec<(usize, &str)> {
    let mut variants = Vec::new();
    for (start, _) in code.match_indices(ENUM) {
        let mut depth = 0_usize;
        let mut expects_name = false;
        let mut at = start;
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
                    variants.push((1 + code[..at].matches('\n').count(), name));
                    expects_name = false;
                    at += name.len();
                    continue;
                }
                _ => {}
            }
            at += character.len_utf8();
        }
    }
    variants
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
        let rules = "pub enum Corrupt {\n    #[error(\"x\")]\n    Magic { found: u16 },\n    Depth(u16, [u8; 2]),\n    Checksum,\n}\nenum Other { Unnamed }";
        let sources = [
            Source::new("crates/a/src/rules.rs", rules.to_owned()),
            Source::new("crates/a/src/node/tests.rs", "Corrupt::Magic".to_owned()),
            Source::new("crates/a/src/x.rs", "fn f() { Corrupt::Depth }".to_owned()),
            Source::new("crates/b/src/tests.rs", "Corrupt::Checksum".to_owned()),
        ];
        let found = check(&sources);
        let messages: Vec<_> = found
            .iter()
            .map(|finding| finding.message.as_str())
            .collect();
        assert_eq!(
            messages,
            [
                "no test names the rule Corrupt::Depth",
                "no test names the rule Corrupt::Checksum",
            ]
        );
        assert_eq!(found[0].line, Some(4));
    }
}
