//! Specification keys: each that a comment names resolves in `SOURCES.md`.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::Source;

/// The list of documents and their sections.
pub(super) const SOURCES: &str = "docs/ondisk/SOURCES.md";

/// Instead of a key: a structure of the document that the file's header names.
const STRUCTURE: &str = "struct";

const DOCUMENTS_HEADER: &str = "| key | document | version | licence |";

/// Checks the list itself and every key that a comment names.
pub(super) fn check(list: &str, sources: &[Source]) -> Vec<Finding> {
    let documents = documents(list);
    let mut findings = Vec::new();
    for source in sources {
        let header_names_document = source
            .text_lines()
            .take_while(|(_, line)| line.starts_with("//!"))
            .any(|(_, line)| !keys_of_comment(line).is_empty());
        for (number, line) in source.text_lines() {
            let keys = keys_of_comment(line);
            if header_names_document && keys.first() == Some(&STRUCTURE) {
                continue;
            }
            for (position, key) in keys.into_iter().enumerate() {
                let (document, section) = key.split_once('/').unwrap_or((key, ""));
                let known = match documents.get(document) {
                    Some(known) => section.is_empty() || known.contains(section),
                    None => position > 0,
                };
                if !known {
                    let message = format!("the key {key} is not in {SOURCES}");
                    findings.push(Finding::at(&source.path, number, message));
                }
            }
        }
    }
    if documents.is_empty() {
        findings.push(Finding::new(SOURCES, "has no table of documents"));
    }
    findings
}

/// The keys after `Spec:` in a comment: the first word, and whatever else may be one.
fn keys_of_comment(line: &str) -> Vec<&str> {
    let Some((before, after)) = line.split_once("Spec: ") else {
        return Vec::new();
    };
    if !before.trim_start().starts_with("//") {
        return Vec::new();
    }
    let is_key_byte = |letter: char| letter.is_alphanumeric() || "/_.-".contains(letter);
    let mut words = after
        .split(|letter: char| !is_key_byte(letter))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| !word.is_empty());
    let first = words.next();
    let others = words.filter(|word| word.contains('/'));
    first.into_iter().chain(others).collect()
}

/// Sections by document: a document's sections are the first column of the table under the
/// heading that is its key.
fn documents(list: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut documents: BTreeMap<&str, BTreeSet<&str>> = list
        .lines()
        .skip_while(|line| *line != DOCUMENTS_HEADER)
        .skip(2)
        .map_while(first_cell)
        .map(|key| (key, BTreeSet::new()))
        .collect();
    let mut document = None;
    for line in list.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            document = Some(heading.trim_matches('`'));
        } else if let (Some(heading), Some(cell)) = (document, first_cell(line))
            && let Some(sections) = documents.get_mut(heading)
        {
            sections.insert(cell);
        }
    }
    documents
}

fn first_cell(line: &str) -> Option<&str> {
    let cell = line.strip_prefix("| ")?.split('|').next()?;
    Some(cell.trim().trim_matches('`'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
| key | document | version | licence |
|---|---|---|---|
| `ext4` | a book | 6.18 | CC |

## `ext4`
| section | what |
|---|---|
| `inode` | the inode |
";

    #[test]
    fn key_without_section_is_found() {
        let text = "//! Spec: `ext4/inode` (a form), `ext4/nothing`, and/or \"x\".\n// Spec: `ext4`.\nlet a = \"Spec: x\";\n// Spec: gone\n// Spec: `struct x`\n";
        let found = check(LIST, &[Source::new("a.rs", text.to_owned())]);
        let messages: Vec<_> = found
            .iter()
            .map(|finding| finding.message.as_str())
            .collect();
        assert_eq!(
            messages,
            [
                "the key ext4/nothing is not in docs/ondisk/SOURCES.md",
                "the key gone is not in docs/ondisk/SOURCES.md",
            ]
        );
        assert_eq!(found[1].line, Some(4));
    }
}
