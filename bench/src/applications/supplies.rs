//! What programs are given to work with, made once: the same for the same amounts.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use testkit::prng::Prng;
use testkit::tool;

use super::suites::{OF_PACKAGE, printed};
use crate::archive::Tree;
use crate::reading::words;

const FILES_PER_DIR: u64 = 20;
const FILE_BYTES_BELOW: u64 = 8000;
/// Of the files of the tree, what is unpacked on an overlay.
const SMALL: u64 = 5;
/// One in so many files differs between the branches of the repository.
const CHANGED: usize = 3;
const FUNCTIONS_PER_SOURCE: u64 = 20;

/// How much there is of everything.
#[derive(Debug, Clone, Copy)]
pub(super) struct Amounts {
    pub(super) files: u64,
    pub(super) transactions: u64,
    pub(super) sources: u64,
}

impl Amounts {
    pub(super) const QUICK: Self = Self {
        files: 200,
        transactions: 20,
        sources: 4,
    };
    pub(super) const FULL: Self = Self {
        files: 10_000,
        transactions: 1000,
        sources: 100,
    };
}

/// A directory with all of it.
#[derive(Debug)]
pub(super) struct Supplies {
    dir: PathBuf,
    word: String,
}

impl Supplies {
    pub(super) fn make(dir: &Path, amounts: Amounts) -> Result<Self> {
        let words = words(&mut Prng::new(1));
        let word = words.get(words.len() / 2).context("a word")?;
        let supplies = Self {
            dir: dir.to_owned(),
            word: String::from_utf8(word.clone())?,
        };
        supplies.make_archives(amounts.files)?;
        supplies.make_package()?;
        supplies.make_repository()?;
        supplies.make_sources(amounts.sources)?;
        for mode in ["WAL", "DELETE"] {
            fs::write(supplies.script(mode), script(mode, amounts.transactions)?)?;
        }
        Ok(supplies)
    }

    /// An archive of the tree.
    pub(super) fn archive(&self) -> PathBuf {
        self.dir.join("tree.tar")
    }

    /// An archive of the first files of the tree, with other contents.
    pub(super) fn small_archive(&self) -> PathBuf {
        self.dir.join("small.tar")
    }

    /// The tree itself, alone in its directory.
    pub(super) fn tree(&self) -> PathBuf {
        self.dir.join("unpacked").join(Tree::ROOT)
    }

    /// A Debian package of the tree.
    pub(super) fn package(&self) -> PathBuf {
        self.dir.join("example.deb")
    }

    /// A repository of git with the tree in two branches.
    pub(super) fn repository(&self) -> PathBuf {
        self.dir.join("repository")
    }

    /// Sources in C with a Makefile.
    pub(super) fn sources(&self) -> PathBuf {
        self.dir.join("sources")
    }

    /// A script for `sqlite3`.
    pub(super) fn script(&self, mode: &str) -> PathBuf {
        self.dir.join(format!("{mode}.sql"))
    }

    /// A word of the texts.
    pub(super) fn word(&self) -> &str {
        &self.word
    }

    fn make_archives(&self, files: u64) -> Result<()> {
        let tree = Tree {
            files,
            files_per_dir: FILES_PER_DIR,
            file_bytes_below: FILE_BYTES_BELOW,
        };
        let small = Tree {
            files: files / SMALL,
            file_bytes_below: FILE_BYTES_BELOW / 2,
            ..tree
        };
        for (tree, path) in [(tree, self.archive()), (small, self.small_archive())] {
            tree.write(&mut std::io::BufWriter::new(fs::File::create(path)?))?;
        }
        self.unpack_in(&self.dir.join("unpacked"))
    }

    fn unpack_in(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir)?;
        let mut tar = tool::command("tar");
        tar.arg("--extract").arg("--file").arg(self.archive());
        printed(tar.arg("--directory").arg(dir)).map(drop)
    }

    fn make_package(&self) -> Result<()> {
        let dir = self.dir.join("package");
        self.unpack_in(&dir.join(OF_PACKAGE))?;
        fs::create_dir(dir.join("DEBIAN"))?;
        let control = "Package: example\nVersion: 1\nArchitecture: all\n\
                       Maintainer: None <none@example.org>\nDescription: many small files\n";
        fs::write(dir.join("DEBIAN/control"), control)?;
        let mut deb = tool::command("dpkg-deb");
        deb.args(["--root-owner-group", "-Znone", "--build"]);
        printed(deb.arg(&dir).arg(self.package())).map(drop)
    }

    fn make_repository(&self) -> Result<()> {
        let dir = self.repository();
        self.unpack_in(&dir)?;
        let git = |words: &[&str]| printed(git(&dir).args(words)).map(drop);
        git(&["init", "-q", "-b", "main"])?;
        let commit = || {
            git(&["add", "--all"])?;
            git(&["commit", "-q", "-m", "files"])
        };
        commit()?;
        git(&["checkout", "-q", "-b", "other"])?;
        let mut files = Vec::new();
        collect_files(&dir.join(Tree::ROOT), &mut files)?;
        files.sort();
        for path in files.iter().step_by(CHANGED) {
            let mut text = fs::read(path)?;
            text.extend_from_slice(b"\nand one line more\n");
            fs::write(path, text)?;
        }
        commit()?;
        git(&["checkout", "-q", "main"])
    }

    fn make_sources(&self, count: u64) -> Result<()> {
        let dir = self.sources();
        fs::create_dir(&dir)?;
        fs::write(
            dir.join("Makefile"),
            "objects := $(patsubst %.c,%.o,$(wildcard *.c))\n\
             program: $(objects)\n\tcc -o $@ $(objects)\n\
             %.o: %.c shared.h\n\tcc -O1 -c -o $@ $<\n",
        )?;
        let mut shared = "struct item { int key; int values[8]; };\n".to_owned();
        let mut main = "#include <stdio.h>\n#include \"shared.h\"\n\
                        int main(void) {\n    int sum = 0;\n"
            .to_owned();
        for number in 0..count {
            writeln!(shared, "int work{number}_0(int limit);")?;
            writeln!(main, "    sum ^= work{number}_0({number});")?;
            fs::write(dir.join(format!("part{number}.c")), source(number)?)?;
        }
        main.push_str("    printf(\"%d\\n\", sum);\n    return 0;\n}\n");
        fs::write(dir.join("shared.h"), shared)?;
        Ok(fs::write(dir.join("main.c"), main)?)
    }
}

/// Functions that call each other.
fn source(number: u64) -> Result<String> {
    let mut text = "#include \"shared.h\"\n".to_owned();
    for function in (0..FUNCTIONS_PER_SOURCE).rev() {
        let next = match function + 1 {
            FUNCTIONS_PER_SOURCE => "limit".to_owned(),
            next => format!("work{number}_{next}(limit + 1)"),
        };
        writeln!(
            text,
            "int work{number}_{function}(int limit) {{\n    struct item item = {{ limit, {{ 0 }} }};\n    \
             for (int at = 0; at < limit; at++)\n        item.values[at % 8] += at * {function} + item.key;\n    \
             return item.values[limit & 7] + {next};\n}}"
        )?;
    }
    Ok(text)
}

/// So many transactions that each add a row and change one, in a mode of the journal.
fn script(mode: &str, transactions: u64) -> Result<String> {
    let mut script = format!(
        "PRAGMA journal_mode={mode};\n\
         CREATE TABLE entries(number INTEGER PRIMARY KEY, name TEXT, value BLOB);\n\
         CREATE INDEX names ON entries(name);\n"
    );
    for number in 0..transactions {
        writeln!(
            script,
            "BEGIN; INSERT INTO entries VALUES({number}, 'name{}', zeroblob(200)); \
             UPDATE entries SET value=zeroblob(300) WHERE number={}; COMMIT;",
            number * 7919 % 1000,
            number / 2
        )?;
    }
    script.push_str("SELECT count(*), sum(length(value)) FROM entries;\n");
    Ok(script)
}

/// git in a directory, whatever the host's configuration.
pub(super) fn git(dir: &Path) -> Command {
    let mut git = tool::command("git");
    git.current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1");
    git.args(["-c", "user.name=none", "-c", "user.email=none@example.org"]);
    // What runs after a command would be measured with the next.
    git.args(["-c", "gc.auto=0"]);
    git
}

fn collect_files(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect_files(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}
