//! `platter stat`: all that is known of a file.

use std::ffi::OsString;
use std::io::{self, Write};

use platter::escape::unescape;
use platter::vfs::{Attr, FileKind};
use platter::{Accounts, Escaped, File};
use serde::Serialize;

use super::operands::Volumes;
use crate::args::ImageOptions;
use crate::console::{self, Console};
use crate::output::attributes::Attributes;
use crate::output::flags;
use crate::output::json::{JsonArray, NameField, XattrObject};
use crate::output::kind::{kind_text, mode_text};
use crate::output::time::TimeFormat;

/// Show all attributes of files
#[derive(Debug, clap::Args)]
pub(crate) struct Stat {
    /// The files, as IMAGE[@PARTITION]:PATH
    #[arg(required = true, value_name = "IMAGE:PATH")]
    files: Vec<OsString>,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
}

#[derive(Serialize)]
struct Object<'a> {
    #[serde(flatten)]
    image: NameField<'a>,
    #[serde(flatten)]
    path: NameField<'a>,
    #[serde(flatten)]
    attributes: Attributes<'a>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    target: Option<NameField<'a>>,
    xattrs: Vec<XattrObject<'a>>,
}

impl Stat {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let mut volumes = Volumes::new(options);
        let mut console = Console::new();
        let mut array = JsonArray::default();
        let times = TimeFormat::local(true);
        for operand in &self.files {
            let found = volumes
                .file(operand, self.dereference)
                .and_then(|(_, file)| {
                    let seen = Seen::read(&file)?;
                    Ok((file, seen))
                });
            match found {
                Ok((file, seen)) if console::is_json() => {
                    let image = unescape(file.volume().name());
                    array.push(&mut console.out, &seen.object(&image, &file))?;
                }
                Ok((file, seen)) => seen.write(&mut console.out, &file, &times)?,
                Err(error) => console.trouble(1, error)?,
            }
        }
        if console::is_json() {
            array.end(&mut console.out)?;
        }
        Ok(console.finish()?)
    }
}

/// What there is to show of a file.
struct Seen {
    attr: Attr,
    accounts: Accounts,
    target: Option<Vec<u8>>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Seen {
    fn read(file: &File) -> platter::Result<Self> {
        let attr = file.attr()?;
        let is_link = attr.kind == FileKind::Symlink;
        Ok(Self {
            accounts: Accounts::read(file.volume()),
            target: if is_link {
                Some(file.read_link()?)
            } else {
                None
            },
            xattrs: file.xattrs()?,
            attr,
        })
    }

    fn object<'a>(&'a self, image: &'a [u8], file: &'a File) -> Object<'a> {
        let field = |key, bytes| NameField { key, bytes };
        Object {
            image: field("image", image),
            path: field("path", file.path()),
            attributes: Attributes::new(&self.attr, &self.accounts),
            target: self.target.as_deref().map(|target| field("target", target)),
            xattrs: self.xattrs.iter().map(XattrObject::new).collect(),
        }
    }

    fn write(&self, out: &mut dyn Write, file: &File, times: &TimeFormat) -> io::Result<()> {
        let attr = &self.attr;
        write!(out, "  File: {}", Escaped(file.path()))?;
        if let Some(target) = &self.target {
            write!(out, " -> {}", Escaped(target))?;
        }
        let (size, sectors, unit) = (attr.size_bytes, attr.sectors, attr.io_block_bytes);
        let kind = kind_text(attr);
        writeln!(
            out,
            "\n  Size: {size:<10}\tBlocks: {sectors:<10} IO Block: {unit:<6} {kind}"
        )?;
        let (inode, links, image) = (attr.inode, attr.links, file.volume().name());
        write!(out, "Device: {image}\tInode: {inode:<10}  Links: {links}")?;
        if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            write!(
                out,
                "     Device type: {},{}",
                attr.device.major, attr.device.minor
            )?;
        }
        let named = |id: u32, name: Option<&str>| match name {
            Some(name) => format!("{id:5}/{name:>8}"),
            None => id.to_string(),
        };
        writeln!(
            out,
            "\nAccess: ({:04o}/{})  Uid: ({})   Gid: ({})",
            attr.permissions,
            mode_text(attr),
            named(attr.uid, self.accounts.user(attr.uid)),
            named(attr.gid, self.accounts.group(attr.gid)),
        )?;
        writeln!(out, "Access: {}", times.show(attr.accessed))?;
        writeln!(out, "Modify: {}", times.show(attr.modified))?;
        writeln!(out, "Change: {}", times.show(attr.changed))?;
        let created = attr
            .created
            .map_or("-".to_owned(), |created| times.show(created));
        writeln!(out, " Birth: {created}")?;
        let flags = flags::letters(attr.flags);
        if !flags.is_empty() {
            writeln!(out, " Flags: {flags}")?;
        }
        if attr.project != 0 {
            writeln!(out, "Project: {}", attr.project)?;
        }
        for (name, value) in &self.xattrs {
            writeln!(out, " Xattr: {} ({} bytes)", Escaped(name), value.len())?;
        }
        Ok(())
    }
}
