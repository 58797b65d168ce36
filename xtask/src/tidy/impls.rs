//! The `impl` blocks of a type stand together: those that implement no trait are in two files at most. A type that
//! needs more is several types.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Finding;
use super::source::Source;

/// Files that hold the inherent `impl` blocks of a type.
const FILES_MAX: usize = 2;

/// Checks every type of every package. Types of one name share what is allowed to each of them.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut files: BTreeMap<(&Path, &str), BTreeSet<&Path>> = BTreeMap::new();
    let mut definitions: BTreeMap<(&Path, &str), usize> = BTreeMap::new();
    for source in sources {
        let package = package(&source.path);
        for name in headers(&source.code).filter_map(implemented) {
            files
                .entry((package, name))
                .or_default()
                .insert(&source.path);
        }
        for name in source.code.lines().filter_map(defined) {
            *definitions.entry((package, name)).or_default() += 1;
        }
    }
    let mut findings = Vec::new();
    for ((package, name), files) in files {
        let count = definitions.get(&(package, name)).copied().unwrap_or(1);
        if files.len() > FILES_MAX * count {
            let message = format!("`impl {name}` is in {} files", files.len());
            findings.push(Finding::new(package, message));
        }
    }
    findings
}

/// The directory of the package that a source belongs to.
fn package(path: &Path) -> &Path {
    let is_root = |path: &&Path| path.ends_with("src") || path.ends_with("tests");
    let root = path.ancestors().filter(is_root).last();
    root.and_then(Path::parent).unwrap_or(path)
}

/// What `impl` blocks outside of others have before their brace.
fn headers(code: &str) -> impl Iterator<Item = &str> {
    let starts = code.match_indices("impl").map(|(at, _)| at);
    let starts = starts.filter(|&at| at == 0 || code[..at].ends_with('\n'));
    starts
        .filter_map(|at| code[at..].split_once('{'))
        .map(|(header, _)| header)
}

/// The type that an `impl` block with this header is of, if it implements no trait.
fn implemented(header: &str) -> Option<&str> {
    let rest = header.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(generics) => after_generics(generics)?,
        None => rest,
    };
    let name = path(rest.strip_prefix(' ')?)?;
    let is_of_trait = rest.split_whitespace().any(|word| word == "for");
    (!is_of_trait).then_some(name)
}

/// What follows the end of generics.
fn after_generics(text: &str) -> Option<&str> {
    let mut depth = 1;
    for (at, character) in text.char_indices() {
        match character {
            '<' => depth += 1,
            // The arrow of a function's type ends nothing.
            '>' if !text[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&text[at + 1..]);
        }
    }
    None
}

/// The last part of the path at the start of `text`.
fn path(text: &str) -> Option<&str> {
    let end = text.find(|character: char| !is_word(character) && character != ':');
    let path = &text[..end.unwrap_or(text.len())];
    path.rsplit("::").next().filter(|name| !name.is_empty())
}

/// The type that is defined on this line.
fn defined(line: &str) -> Option<&str> {
    let words = line.split_whitespace().skip_while(|word| {
        let is_part_of_visibility =
            word.ends_with(')') || *word == "in" || word.starts_with("pub(");
        *word == "pub" || is_part_of_visibility
    });
    let mut words = words;
    if !matches!(words.next()?, "struct" | "enum" | "union") {
        return None;
    }
    path(words.next()?)
}

fn is_word(character: char) -> bool {
    character == '_' || character.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files
            .iter()
            .map(|(path, text)| Source::new(path, (*text).to_owned()))
            .collect();
        check(&sources).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_type_is_implemented_in_two_files() {
        let two = [
            (
                "crates/a/src/lib.rs",
                "pub(crate) struct Type<T>(T);\nimpl<T: Fn() -> u8> Type<T> {}",
            ),
            ("crates/a/src/b.rs", "impl super::Type<u8> {}"),
            (
                "crates/a/src/c.rs",
                "impl Trait for Type<u8> {}\nimpl<T> Other\n    for Type<T>\nwhere\n    T: Copy,\n{\n}",
            ),
            ("crates/b/src/lib.rs", "impl Type {}"),
        ];
        assert_eq!(findings(&two), Vec::<String>::new());
        let mut three = two.to_vec();
        three.push(("crates/a/tests/d.rs", "impl Type<u8> {"));
        assert_eq!(findings(&three), ["crates/a: `impl Type` is in 3 files"]);
        three.push(("crates/a/src/e.rs", "    struct Type;"));
        assert_eq!(findings(&three), Vec::<String>::new());
    }
}
