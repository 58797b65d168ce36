//! `platter tree`: everything below a directory, drawn as a tree.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::iter::Peekable;

use platter::vfs::tree_walk::second_name;
use platter::vfs::{FileKind, InodeId, WalkOrder};
use platter::{Error, File, LoadedEntry};

use super::operands::Volumes;
use crate::args::ImageOptions;
use crate::console::Console;
use crate::output::quoting::Quoting;

/// Something could not be listed.
const STATUS: u8 = 2;

/// Draw directories as a tree
#[derive(Debug, clap::Args)]
pub(crate) struct Tree {
    /// The directories, as IMAGE[@PARTITION][:PATH]
    #[arg(required = true, value_name = "IMAGE[:PATH]")]
    operands: Vec<OsString>,
    /// Show names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// Show directories only
    #[arg(short = 'd', long)]
    directories: bool,
    /// Go at most so many directories deep
    #[arg(short = 'L', long, value_name = "LEVELS")]
    level: Option<usize>,
}

/// What was shown.
#[derive(Default)]
struct Totals {
    directories: u64,
    files: u64,
}

type Entries = Peekable<Box<dyn Iterator<Item = Result<LoadedEntry, Error>>>>;

impl Tree {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let mut volumes = Volumes::new(options);
        let mut console = Console::new();
        let mut totals = Totals::default();
        for operand in &self.operands {
            match volumes.file(operand, true) {
                Ok((_, file)) => {
                    console.out.write_all(operand.as_encoded_bytes())?;
                    writeln!(console.out)?;
                    self.draw(&file, &mut totals, &mut console)?;
                }
                Err(error) => console.trouble(STATUS, error)?,
            }
        }
        let plural = |count: u64, one: &str, many: &str| {
            format!("{count} {}", if count == 1 { one } else { many })
        };
        let directories = plural(totals.directories, "directory", "directories");
        let files = plural(totals.files, "file", "files");
        if self.directories {
            writeln!(console.out, "\n{directories}")?;
        } else {
            writeln!(console.out, "\n{directories}, {files}")?;
        }
        Ok(console.finish()?)
    }

    fn draw(&self, top: &File, totals: &mut Totals, console: &mut Console) -> io::Result<()> {
        let quoting = Quoting::for_reader(console.is_terminal);
        let mut seen = HashSet::from([top.inode().id()]);
        let mut levels = vec![self.entries(top)];
        // One part of it for each level: a line going on, or nothing below the last entry.
        let mut margin: Vec<&str> = Vec::new();
        while let Some(entries) = levels.last_mut() {
            let Some(entry) = entries.next() else {
                levels.pop();
                margin.pop();
                continue;
            };
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    console.trouble(STATUS, error)?;
                    continue;
                }
            };
            let is_last = entries.peek().is_none();
            let branch = if is_last { "└── " } else { "├── " };
            write!(console.out, "{}{branch}", margin.concat())?;
            let dir = show(entry, quoting, &mut seen, totals, console)?;
            if let Some(dir) = dir
                && self.level.is_none_or(|deepest| levels.len() < deepest)
            {
                levels.push(self.entries(&dir));
                margin.push(if is_last { "    " } else { "│   " });
            }
        }
        Ok(())
    }

    fn entries(&self, dir: &File) -> Entries {
        let (all, only_directories) = (self.all, self.directories);
        let is_shown = move |entry: &Result<LoadedEntry, Error>| {
            entry.as_ref().map_or(true, |entry| {
                let is_directory = entry
                    .file
                    .as_ref()
                    .map_or(entry.kind == Some(FileKind::Directory), |(_, attr)| {
                        attr.kind == FileKind::Directory
                    });
                (all || !entry.name.starts_with(b".")) && (is_directory || !only_directories)
            })
        };
        let entries = dir.loaded_entries(WalkOrder::Name).filter(is_shown);
        let entries: Box<dyn Iterator<Item = _>> = Box::new(entries);
        entries.peekable()
    }
}

/// Writes the name of an entry; returns the directory that it is.
fn show(
    entry: LoadedEntry,
    quoting: Quoting,
    seen: &mut HashSet<InodeId>,
    totals: &mut Totals,
    console: &mut Console,
) -> io::Result<Option<File>> {
    quoting.write(&mut console.out, &entry.name)?;
    let mut problem = None;
    let mut dir = None;
    match entry.file {
        Ok((file, attr)) => {
            if attr.kind == FileKind::Symlink {
                match file.read_link() {
                    Ok(target) => {
                        console.out.write_all(b" -> ")?;
                        quoting.write(&mut console.out, &target)?;
                    }
                    Err(error) => problem = Some(error),
                }
            }
            if attr.kind == FileKind::Directory {
                totals.directories += 1;
                if seen.insert(entry.id) {
                    dir = Some(file);
                } else {
                    problem = Some(file.error(second_name(entry.id)));
                }
            } else {
                totals.files += 1;
            }
        }
        Err(error) => problem = Some(error),
    }
    writeln!(console.out)?;
    if let Some(problem) = problem {
        console.trouble(STATUS, problem)?;
    }
    Ok(dir)
}
