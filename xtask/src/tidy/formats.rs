//! What serves all drivers names none of them: crates below and next to the drivers, and the facade outside
//! its table of drivers and its table of signatures.

use std::path::Path;

use super::Finding;
use super::source::Source;

/// Words of one driver, in small letters.
const WORDS: [&str; 2] = ["ext4", "jbd"];
/// Where they must not stand.
const SHARED: [&str; 9] = [
    "crates/platter-ondisk",
    "crates/platter-block",
    "crates/platter-cache",
    "crates/platter-vfs",
    "crates/platter-memfs",
    "crates/platter-fuse",
    "crates/platter/src",
    "crates/platter/tests",
    "crates/platter/examples",
];
/// Where they may, below those.
const TABLES: [&str; 2] = [
    "crates/platter/src/driver",
    "crates/platter/src/signature/table.rs",
];

/// Finds words of a driver in what serves all of them.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| is_shared(&source.path)) {
        for (line, text) in source.text_lines() {
            let text = text.to_lowercase();
            for word in WORDS.iter().filter(|word| text.contains(**word)) {
                let message = format!("`{word}` in what serves all drivers");
                findings.push(Finding::at(&source.path, line, message));
            }
        }
    }
    findings
}

fn is_shared(path: &Path) -> bool {
    let is_below = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
    is_below(&SHARED) && !is_below(&TABLES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_driver_are_found_in_shared_code_only() {
        let text = "// Not code.\nuse platter_ext4::mount;\n";
        let sources = [
            "crates/platter-vfs/src/inode.rs",
            "crates/platter-fuse/tests/it/main.rs",
            "crates/platter/src/driver/ext4/mod.rs",
            "crates/platter/src/signature/table.rs",
            "crates/platter/tests/it/main.rs",
            "crates/platter-ext4/src/lib.rs",
        ];
        let sources = sources.map(|path| Source::new(path, text.to_owned()));
        let found = check(&sources);
        let places: Vec<_> = found
            .iter()
            .map(|finding| (finding.file.as_path(), finding.line))
            .collect();
        let expected = [&sources[0], &sources[1], &sources[4]];
        assert_eq!(
            places,
            expected.map(|source| (source.path.as_path(), Some(2)))
        );
    }
}
