//! A Rust source file whose code can be searched without finding comments and literals.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::workspace::Workspace;

/// The text of a `.rs` file, and the same text with comments and literals blanked out.
#[derive(Debug)]
pub(crate) struct Source {
    /// Relative to the workspace's root.
    pub(crate) path: PathBuf,
    /// The file as it is.
    pub(crate) text: String,
    /// As long as `text`, line for line; what is not code is spaces.
    pub(crate) code: String,
}

impl Source {
    /// Every `.rs` file among `files`.
    pub(crate) fn read_all(workspace: &Workspace, files: &[PathBuf]) -> Result<Vec<Self>> {
        files
            .iter()
            .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
            .map(|file| Ok(Self::new(file, workspace.read(file)?)))
            .collect()
    }

    /// Takes `text` as the file at `path`.
    pub(crate) fn new(path: impl AsRef<Path>, text: String) -> Self {
        let code = blank(&text);
        Self {
            path: path.as_ref().to_owned(),
            text,
            code,
        }
    }

    /// Lines of the code, counted from 1.
    pub(crate) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.code.lines())
    }

    /// Lines of the file as it is, counted from 1.
    pub(crate) fn text_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// The part of the code that is only built for tests: all of a test file, else what follows
    /// the first `#[cfg(test)]` that opens a module in place.
    pub(crate) fn test_code(&self) -> &str {
        let is_test_file = self.path.components().any(|part| {
            let part = part.as_os_str();
            part == "tests" || part == "tests.rs"
        });
        if is_test_file {
            return &self.code;
        }
        let start = self
            .code
            .match_indices("#[cfg(test)]")
            .find(|(at, attribute)| {
                let after = self.code[at + attribute.len()..].trim_start();
                let item = after.strip_prefix("pub(crate) ").unwrap_or(after);
                item.strip_prefix("mod ").is_some_and(|module| {
                    module.find('{').unwrap_or(usize::MAX) < module.find(';').unwrap_or(usize::MAX)
                })
            })
            .map_or(self.code.len(), |(at, _)| at);
        &self.code[start..]
    }
}

/// Whether `code` holds `word` not as a part of a longer word.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    let is_part = |character: char| character == '_' || character.is_alphanumeric();
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Replaces comments, strings and character literals by spaces, keeping line breaks.
fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let len = not_code_len(rest, out.chars().next_back());
        if len == 0 {
            out.push(character);
            rest = &rest[character.len_utf8()..];
            continue;
        }
        let (literal, after) = rest.split_at(len);
        out.extend(literal.bytes().map(|byte| match byte {
            b'\n' => '\n',
            _ => ' ',
        }));
        rest = after;
    }
    out
}

/// The length in bytes of the comment or literal that `rest` starts with, or 0.
fn not_code_len(rest: &str, before: Option<char>) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_len(rest);
    }
    let in_word = before.is_some_and(|character| character == '_' || character.is_alphanumeric());
    if !in_word {
        let prefix = ["br", "cr", "r"].iter().find(|&&prefix| {
            let after = rest.strip_prefix(prefix);
            after.is_some_and(|after| after.trim_start_matches('#').starts_with('"'))
        });
        if let Some(prefix) = prefix {
            return raw_string_len(rest, prefix.len());
        }
    }
    if rest.starts_with('"') {
        return quoted_len(rest, '"');
    }
    if let Some(after) = rest.strip_prefix('\'') {
        let mut characters = after.chars();
        let first = characters.next();
        if first == Some('\\') || characters.next() == Some('\'') {
            return quoted_len(rest, '\'');
        }
    }
    0
}

fn block_comment_len(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        let tail = &rest.as_bytes()[at..];
        if tail.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if tail.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn raw_string_len(rest: &str, prefix_len: usize) -> usize {
    let hashes = rest[prefix_len..]
        .bytes()
        .take_while(|&byte| byte == b'#')
        .count();
    let start = prefix_len + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    rest[start..]
        .find(&end)
        .map_or(rest.len(), |at| start + at + end.len())
}

fn quoted_len(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in rest.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_not_code() {
        let text = r##"let a = "unsafe \" // x"; // unsafe
/* unsafe /* nested */ unsafe */ fn f<'a>(x: &'a str) { g('"', '\'', b"un", r#"un"safe"#) }
let tail = keep;"##;
        let code = blank(text);
        assert_eq!(code.len(), text.len());
        assert_eq!(code.lines().count(), text.lines().count());
        assert!(!code.contains("unsafe") && !code.contains("un\""), "{code}");
        assert!(code.contains("fn f<'a>(x: &'a str) { g("), "{code}");
        assert!(code.contains("let tail = keep;"), "{code}");
    }

    #[test]
    fn unclosed_literals_end_with_the_file() {
        for text in ["\"abc", "/* abc", "r#\"abc\"", "'\\"] {
            assert_eq!(blank(text).trim(), "", "{text}");
        }
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("x unsafe {", "unsafe"));
        assert!(!has_word("forbid(unsafe_code) not_unsafe", "unsafe"));
    }

    #[test]
    fn test_code_is_the_test_module() {
        let text = "#[cfg(test)]\nmod outside;\nfn a() {}\n#[cfg(test)]\npub(crate) mod tests { fn b() {} }";
        let source = Source::new("src/lib.rs", text.to_owned());
        assert!(source.test_code().contains("fn b"));
        assert!(!source.test_code().contains("fn a"));
        let source = Source::new("src/foo/tests.rs", "fn a() {}".to_owned());
        assert!(source.test_code().contains("fn a"));
    }
}
