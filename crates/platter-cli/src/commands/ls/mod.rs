//! `platter ls`: what is in directories.

mod json;
mod layout;
mod list;
mod record;

use std::ffi::{OsStr, OsString};
use std::io::stdout;
use std::os::unix::ffi::OsStrExt;

use platter::{File, ImageSpec};

use self::layout::{Layout, Shape};
use self::list::{Lister, Operand};
use self::record::Order;
use super::operands::Volumes;
use crate::args::ImageOptions;
use crate::console::{self, Console};
use crate::output::quoting::Quoting;
use crate::output::time::TimeFormat;

/// An operand could not be listed at all.
const STATUS_SERIOUS: u8 = 2;

/// List files and directories
///
/// Owners have the names that the image's own /etc/passwd and /etc/group give them. A directory of
/// very many entries is sorted in stretches, so that its size does not matter.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Ls {
    /// What to list, as IMAGE[@PARTITION][:PATH]
    #[arg(required = true, value_name = "IMAGE[:PATH]")]
    operands: Vec<OsString>,
    /// One line for each file with mode, links, owner, group, size and time
    #[arg(short)]
    long: bool,
    /// List what is below directories, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// List names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// List names that begin with a dot, but not . and ..
    #[arg(short = 'A', long)]
    almost_all: bool,
    /// List directories themselves and not what is in them
    #[arg(short, long)]
    directory: bool,
    /// One name on each line
    #[arg(short = '1')]
    one: bool,
    /// Show inode numbers
    #[arg(short, long)]
    inode: bool,
    /// Show owners as numbers, and list long
    #[arg(short, long)]
    numeric_uid_gid: bool,
    /// Show sizes with units
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Show whole times with nanoseconds, and list long
    #[arg(long)]
    full_time: bool,
    /// Sort by size, largest first
    #[arg(short = 'S', group = "sort")]
    by_size: bool,
    /// Sort by modification time, newest first
    #[arg(short = 't', group = "sort")]
    by_time: bool,
    /// Do not sort
    #[arg(short = 'U', group = "sort")]
    unsorted: bool,
    /// Reverse the order
    #[arg(short, long)]
    reverse: bool,
    /// Escape what is not printable, as on a terminal
    #[arg(short = 'b', long, group = "quoting")]
    escape: bool,
    /// Write names as they are, as to a file
    #[arg(short = 'N', long, group = "quoting")]
    literal: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Ls {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let mut volumes = Volumes::new(options);
        let mut console = Console::new();
        let layout = self.layout(&console);
        let follow = layout.shape != Shape::Long && !self.directory;
        let mut opened = Vec::new();
        for operand in &self.operands {
            match volumes.file(operand, follow) {
                Ok((spec, file)) => opened.push(operand_of(operand, &spec, file)),
                Err(error) => console.trouble(STATUS_SERIOUS, error)?,
            }
        }
        if console::is_json() {
            json::list(self, opened, &mut console)?;
        } else {
            let mut lister = Lister {
                ls: self,
                layout,
                order: self.order(),
                headings: self.operands.len() > 1 || self.recursive,
                wrote: false,
                console: &mut console,
            };
            lister.list(opened)?;
        }
        Ok(console.finish()?)
    }

    /// Whether more than the names is needed of each entry.
    fn needs_inodes(&self) -> bool {
        let order = matches!(self.order(), Order::Size | Order::Time);
        console::is_json() || order || self.long || self.numeric_uid_gid || self.full_time
    }

    fn layout(&self, console: &Console) -> Layout {
        let shape = if self.long || self.numeric_uid_gid || self.full_time {
            Shape::Long
        } else if self.one || !console.is_terminal {
            Shape::Single
        } else {
            let size = rustix::termios::tcgetwinsize(stdout());
            let columns = size.map_or(0, |size| usize::from(size.ws_col));
            Shape::Columns(if columns == 0 { 80 } else { columns })
        };
        let quoting = match (self.escape, self.literal) {
            (true, _) => Quoting::Escape,
            (_, true) => Quoting::Literal,
            (false, false) => Quoting::for_reader(console.is_terminal),
        };
        Layout {
            shape,
            quoting,
            inode: self.inode,
            numeric: self.numeric_uid_gid,
            human: self.human_readable,
            times: TimeFormat::local(self.full_time),
        }
    }

    fn order(&self) -> Order {
        if self.by_size {
            Order::Size
        } else if self.by_time {
            Order::Time
        } else if self.unsorted {
            Order::Unsorted
        } else {
            Order::Name
        }
    }
}

/// An operand with what headings call it: as it was written, and what is in it below that.
fn operand_of(operand: &OsStr, spec: &ImageSpec, file: File) -> Operand {
    let heading = operand.as_bytes().to_vec();
    let mut prefix = heading.clone();
    if spec.path.is_none() {
        prefix.push(b':');
    }
    if spec.path.as_ref().is_none_or(|path| !path.ends_with(b"/")) {
        prefix.push(b'/');
    }
    Operand {
        heading,
        prefix,
        file,
    }
}
