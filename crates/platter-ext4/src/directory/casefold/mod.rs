//! Names in casefolded directories: compared and hashed after canonical decomposition, full case
//! folding and removal of ignorable characters, by Unicode 12.1 (NFDICF). Spec: `ext4/super`
//! (`s_encoding`), UAX 15, UCD.

mod unicode_12_1;

use caseless::Caseless;
use unicode_12_1::{is_ignorable, is_unmapped};
use unicode_normalization::UnicodeNormalization;

/// A name that is not valid UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotUtf8;

/// Returns `name` in the form in which equal names are equal bytes. It may be empty.
pub fn fold(name: &[u8]) -> Result<Vec<u8>, NotUtf8> {
    if name.is_ascii() {
        return Ok(name.to_ascii_lowercase());
    }
    let mut rest = std::str::from_utf8(name).map_err(|_| NotUtf8)?;
    let mut folded = String::with_capacity(name.len());
    // Characters unassigned in Unicode 12.1 are kept, ignorable ones removed; no combining mark is
    // reordered across either.
    while let Some(at) = rest.find(|character| is_ignorable(character) || is_unmapped(character)) {
        let (text, tail) = rest.split_at(at);
        fold_mapped(text, &mut folded);
        let mut tail = tail.chars();
        folded.extend(tail.next().filter(|&character| !is_ignorable(character)));
        rest = tail.as_str();
    }
    fold_mapped(rest, &mut folded);
    Ok(folded.into_bytes())
}

/// Folds each character before marks are reordered: some fold to letters, across which nothing is
/// reordered.
fn fold_mapped(text: &str, folded: &mut String) {
    folded.extend(text.chars().default_case_fold().nfd());
}

#[cfg(test)]
mod tests;
