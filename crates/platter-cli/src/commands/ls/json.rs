//! Listings for programs: one object for each file.

use std::collections::HashSet;
use std::io;

use platter::escape::unescape;
use platter::vfs::tree_walk::{ListingOrder, second_name};
use platter::vfs::{FileKind, WalkOrder};
use platter::{Accounts, Error, File};
use serde::Serialize;

use super::list::{Operand, STATUS_MINOR};
use super::record::{Known, Mark, Record};
use super::{Ls, STATUS_SERIOUS};
use crate::console::Console;
use crate::output::attributes::Attributes;
use crate::output::json::{JsonArray, NameField};

#[derive(Serialize)]
struct Object<'a> {
    #[serde(flatten)]
    image: NameField<'a>,
    #[serde(flatten)]
    name: NameField<'a>,
    #[serde(flatten)]
    path: NameField<'a>,
    #[serde(flatten)]
    attributes: Attributes<'a>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    target: Option<NameField<'a>>,
    acl: bool,
}

/// Writes an array of all files, directories before what is in them. What cannot be read is reported
/// on standard error and left out.
pub(super) fn list(ls: &Ls, operands: Vec<Operand>, console: &mut Console) -> io::Result<()> {
    let mut writer = Writer {
        ls,
        array: JsonArray::default(),
        console,
    };
    for Operand { file, .. } in operands {
        let accounts = Accounts::read(file.volume());
        match file.attr() {
            Ok(attr) if attr.kind == FileKind::Directory && !ls.directory => {
                writer.list_tree(file, &accounts)?;
            }
            Ok(attr) => {
                let name = file.path().rsplit(|&byte| byte == b'/').next();
                let name = name.unwrap_or_default().to_vec();
                let (record, problem) = Record::of_file(name, &file, attr);
                writer.report(problem)?;
                let image = unescape(file.volume().name());
                writer.push(&record, &image, file.path(), &accounts)?;
            }
            Err(error) => writer.console.trouble(STATUS_SERIOUS, error)?,
        }
    }
    writer.array.end(&mut writer.console.out)
}

struct Writer<'a> {
    ls: &'a Ls,
    array: JsonArray,
    console: &'a mut Console,
}

impl Writer<'_> {
    fn list_tree(&mut self, top: File, accounts: &Accounts) -> io::Result<()> {
        let image = unescape(top.volume().name());
        let mut seen = HashSet::from([top.inode().id()]);
        // The directory that comes last is entered first.
        let order = ListingOrder {
            order: Some(WalkOrder::Driver),
            is_reversed: true,
            is_listed: self.ls.is_listed(),
        };
        let read_ahead = self.ls.read_ahead(&top, order);
        let mut pending = vec![top];
        while let Some(dir) = pending.pop() {
            if let Some(read_ahead) = &read_ahead {
                read_ahead.enter(dir.inode().id());
            }
            let first = pending.len();
            for entry in self.ls.records(&dir) {
                let record = match entry {
                    Ok((record, problem)) => {
                        self.report(problem)?;
                        record
                    }
                    Err(error) => {
                        self.report(Some(error))?;
                        continue;
                    }
                };
                let path = dir.path_of_entry(&record.name);
                self.push(&record, &image, &path, accounts)?;
                let is_below = !matches!(&record.name[..], b"." | b"..");
                if self.ls.recursive && is_below && record.kind == Some(FileKind::Directory) {
                    match dir.open_entry(&record.name, record.id) {
                        Ok(file) if seen.insert(record.id) => pending.push(file),
                        Ok(file) => self.report(Some(file.error(second_name(record.id))))?,
                        Err(error) => self.report(Some(error))?,
                    }
                }
            }
            if let Some(read_ahead) = &read_ahead {
                let below = pending.iter().skip(first).rev();
                read_ahead.announce(below.map(|dir| dir.inode().id()));
            }
        }
        Ok(())
    }

    fn push(
        &mut self,
        record: &Record,
        image: &[u8],
        path: &[u8],
        accounts: &Accounts,
    ) -> io::Result<()> {
        let Some(Known { attr, target, mark }) = record.known() else {
            return Ok(());
        };
        let field = |key, bytes| NameField { key, bytes };
        let object = Object {
            image: field("image", image),
            name: field("name", &record.name),
            path: field("path", path),
            attributes: Attributes::new(attr, accounts),
            target: target.as_deref().map(|target| field("target", target)),
            acl: *mark == Mark::Acl,
        };
        self.array.push(&mut self.console.out, &object)
    }

    fn report(&mut self, problem: Option<Error>) -> io::Result<()> {
        match problem {
            Some(problem) => self.console.trouble(STATUS_MINOR, problem),
            None => Ok(()),
        }
    }
}
