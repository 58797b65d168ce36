//! All pages with their pictures, as files of one directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::links::{resolve, targets};
use super::page::{MARK, PAGES, PICTURES, Page, SUMMARY};

/// What is to be in a directory: texts by path.
#[derive(Debug)]
pub(super) struct Pages(BTreeMap<String, String>);

impl Pages {
    pub(super) fn new(pages: impl IntoIterator<Item = Page>) -> Self {
        Self(pages.into_iter().flat_map(Page::into_files).collect())
    }

    /// Writes all, and removes what an earlier report has left.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        for path in self.stale(dir)? {
            fs::remove_file(dir.join(path))?;
        }
        fs::create_dir_all(dir.join(PICTURES))?;
        for (path, text) in &self.0 {
            fs::write(dir.join(path), text)?;
        }
        println!("report: {}", dir.join(SUMMARY).display());
        Ok(())
    }

    /// What is there and should not be, or not as it should be.
    pub(super) fn differences(&self, dir: &Path) -> Result<Vec<String>> {
        let stale = self.stale(dir)?.into_iter();
        let stale = stale.map(|path| format!("{path} is of no report"));
        let is_as_made = |path: &str, text: &str| {
            fs::read_to_string(dir.join(path)).is_ok_and(|found| found == text)
        };
        let other = self.0.iter().filter(|(path, text)| !is_as_made(path, text));
        let other = other.map(|(path, _)| format!("{path} is not what the raw runs say"));
        Ok(stale.chain(other).collect())
    }

    /// Links and pictures that lead to no file, of the report or next to it.
    pub(super) fn broken_links(&self, dir: &Path) -> Vec<String> {
        let mut broken = Vec::new();
        let pages = self.0.iter().filter(|(path, _)| is_page(path));
        for (path, text) in pages {
            let parent = dir.join(path);
            let parent = parent.parent().unwrap_or(dir);
            for target in targets(text) {
                let is_made = resolve(path, target).is_some_and(|file| self.0.contains_key(&file));
                if !is_made && !parent.join(target).exists() {
                    broken.push(format!("{path} links to {target}, which is not there"));
                }
            }
        }
        broken
    }

    /// Generated files in the directory that are not of this report.
    fn stale(&self, dir: &Path) -> Result<Vec<String>> {
        let mut found: Vec<String> = files(dir, PICTURES)?.into_iter().collect();
        found.retain(|path| has_extension(path, "svg"));
        for path in files(dir, PAGES)? {
            if is_page(&path) && fs::read_to_string(dir.join(&path))?.starts_with(MARK) {
                found.push(path);
            }
        }
        found.retain(|path| !self.0.contains_key(path));
        Ok(found)
    }
}

fn is_page(path: &str) -> bool {
    has_extension(path, "md")
}

fn has_extension(path: &str, wanted: &str) -> bool {
    let extension = Path::new(path).extension();
    extension.is_some_and(|extension| extension == wanted)
}

/// The files of a directory below `dir`, by their paths from there.
fn files(dir: &Path, below: &str) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    if !dir.join(below).exists() {
        return Ok(found);
    }
    for entry in fs::read_dir(dir.join(below))? {
        let entry = entry?;
        if let (true, Some(name)) = (entry.path().is_file(), entry.file_name().to_str()) {
            found.insert(format!("{below}/{name}"));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(names: &[&str]) -> Pages {
        let page = |name: &&str| {
            let mut page = Page::new(&format!("{name}.md"), name);
            page.picture(name, "A picture", format!("<svg>{name}</svg>"));
            page
        };
        let method = Page::new("method.md", "Method");
        Pages::new(names.iter().map(page).chain([Page::summary(), method]))
    }

    #[test]
    fn a_check_finds_changed_missing_and_stale_files() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        pages(&["a", "b"]).write(dir).unwrap();
        assert_eq!(
            pages(&["a", "b"]).differences(dir).unwrap(),
            Vec::<String>::new()
        );
        fs::write(dir.join("performance/a.md"), "other").unwrap();
        fs::remove_file(dir.join("performance/pictures/a.svg")).unwrap();
        assert_eq!(
            pages(&["a"]).differences(dir).unwrap(),
            [
                "performance/pictures/b.svg is of no report",
                "performance/b.md is of no report",
                "performance/a.md is not what the raw runs say",
                "performance/pictures/a.svg is not what the raw runs say",
            ]
        );
    }

    #[test]
    fn stale_pages_are_removed_and_pages_of_hands_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        pages(&["a", "b"]).write(dir).unwrap();
        fs::write(dir.join("performance/notes.md"), "# Notes\n").unwrap();
        pages(&["a"]).write(dir).unwrap();
        assert!(dir.join("performance/notes.md").exists());
        assert!(!dir.join("performance/b.md").exists());
        assert!(!dir.join("performance/pictures/b.svg").exists());
    }

    #[test]
    fn links_to_missing_files_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let mut page = Page::new("a.md", "A");
        page.paragraph("[b](b.md), [notes](notes/c.md), [summary](../PERFORMANCE.md)");
        let method = Page::new("method.md", "Method");
        let pages = Pages::new([page, method, Page::summary()]);
        assert_eq!(
            pages.broken_links(dir.path()),
            [
                "performance/a.md links to b.md, which is not there",
                "performance/a.md links to notes/c.md, which is not there",
            ]
        );
        fs::create_dir_all(dir.path().join("performance/notes")).unwrap();
        fs::write(dir.path().join("performance/notes/c.md"), "").unwrap();
        assert_eq!(pages.broken_links(dir.path()).len(), 1);
    }
}
