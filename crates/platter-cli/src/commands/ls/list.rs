//! Going through operands and directories.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Arc;

use platter::vfs::tree_walk::{DirReadAhead, ListingOrder, second_name};
use platter::vfs::{FileKind, InodeId, Name, WalkOrder};
use platter::{Accounts, Error, File};

use super::layout::{Layout, Shape};
use super::record::{Order, Record};
use super::{Ls, STATUS_SERIOUS};
use crate::console::Console;

/// Something in a directory could not be listed.
pub(super) const STATUS_MINOR: u8 = 1;

/// So many entries of a directory are sorted and laid out together.
const STRETCH_ENTRIES: usize = 1 << 16;

/// A file to list, and how headings call it and what is in it.
pub(super) struct Operand {
    pub(super) heading: Vec<u8>,
    /// What stands before the names in it.
    pub(super) prefix: Vec<u8>,
    pub(super) file: File,
}

/// Entries as they come: each a record and perhaps what of it could not be had, or the error that
/// broke the listing off.
pub(super) type Records = Box<dyn Iterator<Item = Result<(Record, Option<Error>), Error>>>;

/// Lists operands as text.
pub(super) struct Lister<'a> {
    pub(super) ls: &'a Ls,
    pub(super) layout: Layout,
    pub(super) order: Order,
    pub(super) headings: bool,
    /// Something was written before, so that a blank line comes first.
    pub(super) wrote: bool,
    pub(super) console: &'a mut Console,
}

impl Lister<'_> {
    /// Lists files first, then each directory, as `ls` does.
    pub(super) fn list(&mut self, operands: Vec<Operand>) -> io::Result<()> {
        let mut files = Vec::new();
        let mut directories = Vec::new();
        for operand in operands {
            match operand.file.attr() {
                Ok(attr) if attr.kind == FileKind::Directory && !self.ls.directory => {
                    directories.push(operand);
                }
                Ok(attr) => {
                    let Operand { heading, file, .. } = operand;
                    let (record, problem) = Record::of_file(heading, &file, attr);
                    self.report(problem)?;
                    files.push((record, file));
                }
                Err(error) => self.console.trouble(STATUS_SERIOUS, error)?,
            }
        }
        if let Some((_, file)) = files.first() {
            let accounts = self.accounts(file);
            let mut records: Vec<Record> = files.into_iter().map(|(record, _)| record).collect();
            self.order.sort(&mut records, self.ls.reverse);
            self.layout
                .write(&mut self.console.out, &records, &accounts)?;
            self.wrote = true;
        }
        for directory in directories {
            self.list_tree(directory)?;
        }
        Ok(())
    }

    /// Lists a directory, and with `-R` all below it.
    fn list_tree(&mut self, top: Operand) -> io::Result<()> {
        let accounts = self.accounts(&top.file);
        let mut seen = HashSet::from([top.file.inode().id()]);
        let read_ahead = self.ls.read_ahead(&top.file, self.ls.listing_order());
        let mut pending = vec![top];
        while let Some(directory) = pending.pop() {
            if let Some(read_ahead) = &read_ahead {
                read_ahead.enter(directory.file.inode().id());
            }
            let below = self.list_directory(&directory, &accounts, &mut seen)?;
            if let Some(read_ahead) = &read_ahead {
                read_ahead.announce(below.iter().map(|it| it.file.inode().id()));
            }
            pending.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// Lists one directory and returns those in it that are to be listed next.
    fn list_directory(
        &mut self,
        directory: &Operand,
        accounts: &Accounts,
        seen: &mut HashSet<InodeId>,
    ) -> io::Result<Vec<Operand>> {
        self.write_heading(directory)?;
        let mut below = Vec::new();
        let mut entries = self.ls.records(&directory.file).peekable();
        let mut is_first = true;
        loop {
            let mut records = Vec::new();
            for entry in entries.by_ref().take(STRETCH_ENTRIES) {
                match entry {
                    Ok((record, problem)) => {
                        self.report(problem)?;
                        records.push(record);
                    }
                    Err(error) => self.report(Some(error))?,
                }
            }
            self.order.sort(&mut records, self.ls.reverse);
            let is_last = entries.peek().is_none();
            if is_first && is_last {
                self.layout.write_total(&mut self.console.out, &records)?;
            }
            self.layout
                .write(&mut self.console.out, &records, accounts)?;
            if self.ls.recursive {
                for record in records {
                    below.extend(self.enter(directory, &record, seen)?);
                }
            }
            if is_last {
                return Ok(below);
            }
            is_first = false;
        }
    }

    fn write_heading(&mut self, directory: &Operand) -> io::Result<()> {
        let out = &mut self.console.out;
        if self.headings {
            if self.wrote {
                writeln!(out)?;
            }
            self.layout.quoting.write(out, &directory.heading)?;
            writeln!(out, ":")?;
        }
        self.wrote = true;
        Ok(())
    }

    /// The directory that `record` names, unless it was listed before.
    fn enter(
        &mut self,
        parent: &Operand,
        record: &Record,
        seen: &mut HashSet<InodeId>,
    ) -> io::Result<Option<Operand>> {
        let name = &record.name;
        let is_dot = matches!(&name[..], b"." | b"..");
        // A name whose inode is lost was reported already.
        if is_dot || record.is_lost() || record.kind.is_some_and(|kind| kind != FileKind::Directory)
        {
            return Ok(None);
        }
        let opened = parent.file.open_entry(name, record.id).and_then(|file| {
            let kind = match record.kind {
                Some(kind) => kind,
                None => file.attr()?.kind,
            };
            Ok((file, kind))
        });
        match opened {
            Ok((_, kind)) if kind != FileKind::Directory => Ok(None),
            Ok((file, _)) if seen.insert(record.id) => {
                let heading = [&parent.prefix[..], name].concat();
                let prefix = [&heading[..], b"/"].concat();
                Ok(Some(Operand {
                    heading,
                    prefix,
                    file,
                }))
            }
            Ok((file, _)) => {
                self.report(Some(file.error(second_name(record.id))))?;
                Ok(None)
            }
            Err(error) => {
                self.report(Some(error))?;
                Ok(None)
            }
        }
    }

    fn accounts(&self, file: &File) -> Accounts {
        if self.layout.shape == Shape::Long && !self.ls.numeric_uid_gid {
            return Accounts::read(file.volume());
        }
        Accounts::default()
    }

    fn report(&mut self, problem: Option<Error>) -> io::Result<()> {
        match problem {
            Some(problem) => self.console.trouble(STATUS_MINOR, problem),
            None => Ok(()),
        }
    }
}

impl Ls {
    /// The order in which text has the directories in one.
    fn listing_order(&self) -> ListingOrder {
        let order = match self.order() {
            Order::Name => Some(WalkOrder::Name),
            Order::Unsorted => Some(WalkOrder::Driver),
            Order::Size | Order::Time => None,
        };
        ListingOrder {
            order,
            is_reversed: self.reverse,
            is_listed: self.is_listed(),
        }
    }

    /// Which names are listed.
    pub(super) fn is_listed(&self) -> fn(&[u8]) -> bool {
        if self.all || self.almost_all {
            |_| true
        } else {
            |name| !name.starts_with(b".")
        }
    }

    /// Readahead of the directories below one, where they are listed as well.
    pub(super) fn read_ahead(&self, top: &File, order: ListingOrder) -> Option<DirReadAhead> {
        let fs = top.volume().filesystem();
        self.recursive
            .then(|| DirReadAhead::new(Arc::clone(fs), order))
    }

    /// The entries of a directory that are to be listed.
    pub(super) fn records(&self, dir: &File) -> Records {
        let is_listed = self.is_listed();
        let dots = if self.all && !self.almost_all {
            dots(dir)
        } else {
            Vec::new()
        };
        let dots = dots.into_iter().map(Ok);
        let volume = dir.volume().clone();
        if !self.needs_inodes() {
            let entries = dir.entries(WalkOrder::Driver);
            return Box::new(dots.chain(entries.filter_map(move |entry| match entry {
                Ok(entry) if !is_listed(&entry.name) => None,
                Ok(entry) => Some(Ok((Record::of_entry(&entry, &volume), None))),
                Err(error) => Some(Err(error)),
            })));
        }
        let entries = dir.loaded_entries(WalkOrder::Driver);
        Box::new(dots.chain(entries.filter_map(move |entry| match entry {
            Ok(entry) if !is_listed(&entry.name) => None,
            Ok(entry) => Some(Ok(Record::of_loaded(entry, &volume))),
            Err(error) => Some(Err(error)),
        })))
    }
}

/// `.` and `..`, which the root has as well.
fn dots(dir: &File) -> Vec<(Record, Option<Error>)> {
    let mut records = Vec::new();
    for name in [&b"."[..], b".."] {
        let found = Name::new(name).and_then(|name| dir.inode().lookup(name));
        let opened = found.map(|inode| dir.open_entry(name, inode.id()));
        if let Ok(Ok(file)) = opened
            && let Ok(attr) = file.attr()
        {
            records.push(Record::of_file(name.to_vec(), &file, attr));
        }
    }
    records
}
