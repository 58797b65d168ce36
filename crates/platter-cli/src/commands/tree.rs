//! `platter tree`: everything below a directory, drawn as a tree.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::iter::Peekable;
use std::num::NonZeroUsize;

use platter::escape::unescape;
use platter::vfs::tree_walk::second_name;
use platter::vfs::{FileKind, InodeId, WalkOrder};
use platter::{Error, File, LoadedEntry};
use serde_json::{Map, json};

use super::operands::Volumes;
use crate::args::ImageOptions;
use crate::console::{self, Console};
use crate::output::json::{JsonArray, put_name};
use crate::output::kind::kind_word;
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
    level: Option<NonZeroUsize>,
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
        if console::is_json() {
            return self.list(&mut volumes, console);
        }
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
                && self
                    .level
                    .is_none_or(|deepest| levels.len() < deepest.get())
            {
                levels.push(self.entries(&dir));
                margin.push(if is_last { "    " } else { "│   " });
            }
        }
        Ok(())
    }

    /// Writes what would be drawn as one array, in the same order.
    fn list(&self, volumes: &mut Volumes<'_>, mut console: Console) -> anyhow::Result<u8> {
        let mut array = JsonArray::default();
        let mut totals = Totals::default();
        write!(console.out, "{{\"entries\": ")?;
        for operand in &self.operands {
            match volumes.file(operand, true) {
                Ok((_, file)) => self.list_below(&file, &mut totals, &mut array, &mut console)?,
                Err(error) => console.trouble(STATUS, error)?,
            }
        }
        array.end(&mut console.out)?;
        let Totals { directories, files } = totals;
        let counts = format!("\"directories\": {directories}, \"files\": {files}");
        writeln!(console.out, ", {counts}}}")?;
        Ok(console.finish()?)
    }

    fn list_below(
        &self,
        top: &File,
        totals: &mut Totals,
        array: &mut JsonArray,
        console: &mut Console,
    ) -> io::Result<()> {
        let image = unescape(top.volume().name());
        let mut seen = HashSet::from([top.inode().id()]);
        let mut levels = vec![(top.path().to_vec(), self.entries(top))];
        while let Some((path, entries)) = levels.last_mut() {
            let entry = match entries.next() {
                None => {
                    levels.pop();
                    continue;
                }
                Some(Ok(entry)) => entry,
                Some(Err(error)) => {
                    console.trouble(STATUS, error)?;
                    continue;
                }
            };
            let mut object = Map::new();
            let below = [path.strip_suffix(b"/").unwrap_or(path), b"/", &entry.name].concat();
            put_name(&mut object, "image", &image);
            put_name(&mut object, "path", &below);
            put_name(&mut object, "name", &entry.name);
            object.insert("depth".into(), json!(levels.len()));
            object.insert(
                "inode".into(),
                json!(top.volume().filesystem().shown_number(entry.id)),
            );
            let Looked {
                kind,
                target,
                directory,
                problem,
            } = look(entry, &mut seen, totals);
            object.insert("type".into(), json!(kind.map(kind_word)));
            if let Some(target) = target {
                put_name(&mut object, "target", &target);
            }
            array.push(&mut console.out, &object)?;
            if let Some(problem) = problem {
                console.trouble(STATUS, problem)?;
            }
            if let Some(dir) = directory
                && self
                    .level
                    .is_none_or(|deepest| levels.len() < deepest.get())
            {
                let entries = self.entries(&dir);
                levels.push((below, entries));
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
    let looked = look(entry, seen, totals);
    if let Some(target) = looked.target {
        console.out.write_all(b" -> ")?;
        quoting.write(&mut console.out, &target)?;
    }
    writeln!(console.out)?;
    if let Some(problem) = looked.problem {
        console.trouble(STATUS, problem)?;
    }
    Ok(looked.directory)
}

/// What there is to show of an entry besides its name.
struct Looked {
    kind: Option<FileKind>,
    target: Option<Vec<u8>>,
    /// What is to be shown below it.
    directory: Option<File>,
    problem: Option<Error>,
}

/// Looks at an entry and counts it.
fn look(entry: LoadedEntry, seen: &mut HashSet<InodeId>, totals: &mut Totals) -> Looked {
    let mut looked = Looked {
        kind: entry.kind,
        target: None,
        directory: None,
        problem: None,
    };
    match entry.file {
        Ok((file, attr)) => {
            looked.kind = Some(attr.kind);
            if attr.kind == FileKind::Symlink {
                match file.read_link() {
                    Ok(target) => looked.target = Some(target),
                    Err(error) => looked.problem = Some(error),
                }
            }
            if attr.kind == FileKind::Directory {
                totals.directories += 1;
                if seen.insert(entry.id) {
                    looked.directory = Some(file);
                } else {
                    looked.problem = Some(file.error(second_name(entry.id)));
                }
            } else {
                totals.files += 1;
            }
        }
        Err(error) => looked.problem = Some(error),
    }
    looked
}
