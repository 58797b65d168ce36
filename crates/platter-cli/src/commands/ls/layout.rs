//! Records as lines: one name each, columns, or long.

use std::io::{self, Write};

use platter::Accounts;
use platter::vfs::{Attr, FileKind};

use super::record::{Detail, Known, Mark, Record};
use crate::output::columns;
use crate::output::kind::mode_text;
use crate::output::quoting::Quoting;
use crate::output::size::human;
use crate::output::time::TimeFormat;

/// How records are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// One name on each line.
    Single,
    /// Names in columns, on lines of this width.
    Columns(usize),
    /// One line with all that is known.
    Long,
}

/// Writes records.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) shape: Shape,
    pub(super) quoting: Quoting,
    pub(super) inode: bool,
    pub(super) numeric: bool,
    pub(super) human: bool,
    pub(super) times: TimeFormat,
}

impl Layout {
    pub(super) fn write(
        &self,
        out: &mut dyn Write,
        records: &[Record],
        accounts: &Accounts,
    ) -> io::Result<()> {
        match self.shape {
            Shape::Long => self.write_long(out, records, accounts),
            Shape::Single => self.write_columns(out, records, 0),
            Shape::Columns(width) => self.write_columns(out, records, width),
        }
    }

    /// The sum of what the files take, as the first line of a long listing.
    pub(super) fn write_total(&self, out: &mut dyn Write, records: &[Record]) -> io::Result<()> {
        if self.shape != Shape::Long {
            return Ok(());
        }
        let sectors = records
            .iter()
            .filter_map(Record::known)
            .map(|known| known.attr.sectors);
        let sectors = sectors.fold(0_u64, u64::saturating_add);
        if self.human {
            return writeln!(out, "total {}", human(sectors.saturating_mul(512)));
        }
        writeln!(out, "total {}", sectors.div_ceil(2))
    }

    /// Names in columns as wide as `line_width` allows; 0 for one on each line.
    fn write_columns(
        &self,
        out: &mut dyn Write,
        records: &[Record],
        line_width: usize,
    ) -> io::Result<()> {
        let digits = if self.inode { inode_digits(records) } else { 0 };
        if line_width == 0 {
            for record in records {
                self.write_name(out, record, digits)?;
                writeln!(out)?;
            }
            return Ok(());
        }
        let prefix = if self.inode { digits + 1 } else { 0 };
        let width = |record: &Record| prefix + self.quoting.width(&record.name);
        let widths: Vec<usize> = records.iter().map(width).collect();
        for line in columns::lines(&widths, line_width) {
            for (index, gap) in line {
                self.write_name(out, &records[index], digits)?;
                write!(out, "{:gap$}", "")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn write_name(&self, out: &mut dyn Write, record: &Record, digits: usize) -> io::Result<()> {
        if self.inode {
            write!(out, "{:>digits$} ", record.inode)?;
        }
        self.quoting.write(out, &record.name)
    }

    fn write_long(
        &self,
        out: &mut dyn Write,
        records: &[Record],
        accounts: &Accounts,
    ) -> io::Result<()> {
        let rows: Vec<Row> = records
            .iter()
            .map(|record| self.row(record, accounts))
            .collect();
        let width = |cell: fn(&Row) -> &str| {
            rows.iter()
                .map(|row| cell(row).chars().count())
                .max()
                .unwrap_or(0)
        };
        let links = width(|row| &row.links);
        let owner = width(|row| &row.owner);
        let group = width(|row| &row.group);
        let size = width(|row| &row.size);
        let time = width(|row| &row.time);
        let mode = width(|row| &row.mode);
        let digits = if self.inode { inode_digits(records) } else { 0 };
        for (row, record) in rows.iter().zip(records) {
            if self.inode {
                write!(out, "{:>digits$} ", record.inode)?;
            }
            write!(out, "{:mode$} {:>links$} ", row.mode, row.links)?;
            write!(out, "{:owner$} {:group$} ", row.owner, row.group)?;
            write!(out, "{:>size$} {:>time$} ", row.size, row.time)?;
            self.quoting.write(out, &record.name)?;
            if let Some(target) = record.known().and_then(|known| known.target.as_deref()) {
                out.write_all(b" -> ")?;
                self.quoting.write(out, target)?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn row(&self, record: &Record, accounts: &Accounts) -> Row {
        let Detail::Known(known) = &record.detail else {
            return Row::unknown();
        };
        let Known { attr, mark, .. } = &**known;
        let mark = match mark {
            Mark::None => "",
            Mark::Label => ".",
            Mark::Acl => "+",
        };
        let named = |name: Option<&str>, id: u32| match name {
            Some(name) if !self.numeric => name.to_owned(),
            _ => id.to_string(),
        };
        Row {
            mode: mode_text(attr) + mark,
            links: attr.links.to_string(),
            owner: named(accounts.user(attr.uid), attr.uid),
            group: named(accounts.group(attr.gid), attr.gid),
            size: self.size(attr),
            time: self.times.show(attr.modified),
        }
    }

    /// The size, or of a device its numbers.
    fn size(&self, attr: &Attr) -> String {
        if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            return format!("{}, {}", attr.device.major, attr.device.minor);
        }
        if self.human {
            return human(attr.size_bytes);
        }
        attr.size_bytes.to_string()
    }
}

fn inode_digits(records: &[Record]) -> usize {
    let largest = records.iter().map(|record| record.inode).max();
    largest.unwrap_or(0).to_string().len()
}

/// The cells of a long line.
struct Row {
    mode: String,
    links: String,
    owner: String,
    group: String,
    size: String,
    time: String,
}

impl Row {
    fn unknown() -> Self {
        let unknown = || "?".to_owned();
        Self {
            mode: "?????????".into(),
            links: unknown(),
            owner: unknown(),
            group: unknown(),
            size: unknown(),
            time: unknown(),
        }
    }
}
