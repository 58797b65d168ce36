//! Rules of single files: the header, marks of unfinished work, `unsafe`, words of one machine.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Finding;
use super::source::{Source, has_word};
use crate::workspace::Workspace;

/// Where `unsafe` may stand: a file, or a directory with all below it.
const UNSAFE_PLACES: &[&str] = &[
    "crates/platter-block/src/sys",
    "crates/platter-cli/src/startup.rs",
    "crates/platter-cache/src/xarray/raw.rs",
    "crates/platter-cache/src/frame",
    "crates/platter-fuse/src/ioctl/call.rs",
    "crates/platter-fuse/src/transport/clone.rs",
    "crates/platter-fuse/src/transport/ring/entry.rs",
    "crates/platter-fuse/tests/it/async_writer.rs",
];

/// Code that says it is not done. Split, so that this file does not find itself.
const UNFINISHED: &[&str] = &["todo!", "unimplemented!", "#[ignore"];

/// Text that depends on the machine it was written on. Split for the same reason.
const MACHINE_TEXT: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
];

/// The only place that a locked package may come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Checks every file of the tree.
pub(super) fn check(
    workspace: &Workspace,
    files: &[PathBuf],
    sources: &[Source],
) -> Result<Vec<Finding>> {
    let mut findings: Vec<Finding> = sources.iter().flat_map(check_source).collect();
    for file in files {
        let Ok(text) = String::from_utf8(std::fs::read(workspace.root.join(file))?) else {
            continue;
        };
        findings.extend(check_text(file, &text));
    }
    Ok(findings)
}

fn check_source(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !source.text.starts_with("//!") {
        findings.push(Finding::at(&source.path, 1, "does not begin with `//!`"));
    }
    let unsafe_allowed = UNSAFE_PLACES
        .iter()
        .any(|place| source.path.starts_with(place));
    for (line, code) in source.code_lines() {
        for mark in UNFINISHED.iter().filter(|mark| code.contains(*mark)) {
            findings.push(Finding::at(&source.path, line, format!("has `{mark}`")));
        }
        if !unsafe_allowed && has_word(code, "unsafe") {
            findings.push(Finding::at(
                &source.path,
                line,
                "`unsafe` has no place here",
            ));
        }
    }
    findings
}

fn check_text(file: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_lock = file == Path::new("Cargo.lock");
    for (number, line) in (1..).zip(text.lines()) {
        let mut find = |message: String| findings.push(Finding::at(file, number, message));
        if line.contains(concat!("FIX", "ME")) {
            find("has a mark of unfinished work".to_owned());
        }
        for words in MACHINE_TEXT.iter().filter(|words| line.contains(*words)) {
            find(format!("names a place on one machine: {words}"));
        }
        if is_lock && line.starts_with("source = ") && !line.contains(REGISTRY) {
            find(format!("locks a package from elsewhere: {line}"));
        }
        if file.starts_with(".cargo") && line.trim_start().starts_with("[source") {
            find("replaces the registry".to_owned());
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let source = Source::new(path, text.to_owned());
        let found = check_source(&source);
        found.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn file_without_header_is_found() {
        assert_eq!(messages("a.rs", "fn a() {}"), ["does not begin with `//!`"]);
        assert!(messages("a.rs", "//! A.\nfn a() {}").is_empty());
    }

    #[test]
    fn unsafe_is_found_outside_its_places() {
        let text = "//! A.\nfn a() { unsafe { b() } }";
        assert_eq!(messages("crates/platter-vfs/src/a.rs", text).len(), 1);
        assert!(messages("crates/platter-block/src/sys/a.rs", text).is_empty());
        assert!(messages("a.rs", "//! A.\n// not unsafe\n#![forbid(unsafe_code)]").is_empty());
    }

    #[test]
    fn unfinished_code_is_found() {
        assert_eq!(messages("a.rs", "//! A.\nfn a() { todo!() }").len(), 1);
        assert_eq!(messages("a.rs", "//! A.\n#[ignore]\nfn a() {}").len(), 1);
        assert!(messages("a.rs", "//! A.\nlet a = \"todo!\";").is_empty());
    }

    #[test]
    fn package_from_elsewhere_is_found() {
        let text = "source = \"git+https://example.org/x\"\n";
        assert_eq!(check_text(Path::new("Cargo.lock"), text).len(), 1);
        let text = format!("source = \"{REGISTRY}\"\n");
        assert!(check_text(Path::new("Cargo.lock"), &text).is_empty());
    }
}
