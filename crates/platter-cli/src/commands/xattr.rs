//! `platter xattr`: extended attributes in an image.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use clap::ValueEnum;
use platter::File;
use platter::escape::unescape;
use platter::vfs::xattr::XATTR_VALUE_BYTES_MAX;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::editing::{Targets, symlinks};
use super::operands::Volumes;
use crate::args::ImageOptions;
use crate::console::{self, Console};
use crate::output::base64;
use crate::output::error::usage;
use crate::output::json::{XattrObject, put_name, write_object};
use crate::output::quoting::Quoting;

/// Show and change extended attributes in an image
#[derive(Debug, clap::Args)]
pub(crate) struct Xattr {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the names of the attributes of a file
    List {
        /// The file, as IMAGE[@PARTITION]:PATH
        #[arg(value_name = "IMAGE:PATH")]
        file: OsString,
        /// Look at a symbolic link itself
        #[arg(long)]
        no_dereference: bool,
    },
    /// Write the value of an attribute
    Get {
        /// The full name, such as user.comment
        name: OsString,
        /// The file, as IMAGE[@PARTITION]:PATH
        #[arg(value_name = "IMAGE:PATH")]
        file: OsString,
        /// How; raw writes the bytes and nothing else
        #[arg(short, long, value_name = "HOW", default_value = "raw")]
        encoding: Encoding,
        /// Look at a symbolic link itself
        #[arg(long)]
        no_dereference: bool,
    },
    /// Set an attribute of files; of all of them, or of none
    Set {
        /// The full name, such as user.comment
        name: OsString,
        /// The value: text, or hexadecimal after 0x, or base64 after 0s
        value: OsString,
        /// The files, as IMAGE[@PARTITION]:PATH
        #[arg(required = true, value_name = "IMAGE:PATH")]
        files: Vec<OsString>,
        /// Take the value for text, whatever it begins with
        #[arg(long)]
        text: bool,
        /// Change symbolic links themselves
        #[arg(long)]
        no_dereference: bool,
    },
    /// Remove an attribute of files; of all of them, or of none
    Remove {
        /// The full name, such as user.comment
        name: OsString,
        /// The files, as IMAGE[@PARTITION]:PATH
        #[arg(required = true, value_name = "IMAGE:PATH")]
        files: Vec<OsString>,
        /// Change symbolic links themselves
        #[arg(long)]
        no_dereference: bool,
    },
}

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Encoding {
    /// As it is, without a newline
    Raw,
    /// Hexadecimal after 0x
    Hex,
    /// Base64 after 0s
    Base64,
}

impl Xattr {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        match &self.action {
            Action::List {
                file,
                no_dereference,
            } => list(options, file, !no_dereference),
            Action::Get {
                name,
                file,
                encoding,
                no_dereference,
            } => {
                let mut volumes = Volumes::new(options);
                let (_, file) = volumes.file(file, !no_dereference)?;
                let value = file.get_xattr(name.as_encoded_bytes())?;
                let mut console = Console::new();
                match encoding {
                    _ if console::is_json() => {
                        let xattr = (name.as_encoded_bytes().to_vec(), value);
                        write_xattr(&mut console.out, &file, &XattrObject::new(&xattr))?;
                    }
                    Encoding::Raw => console.out.write_all(&value)?,
                    Encoding::Hex => writeln!(console.out, "0x{}", hex(&value))?,
                    Encoding::Base64 => writeln!(console.out, "0s{}", base64::encode(&value))?,
                }
                Ok(console.finish()?)
            }
            Action::Set {
                name,
                value,
                files,
                text,
                no_dereference,
            } => {
                let value = if *text {
                    value.as_encoded_bytes().to_vec()
                } else {
                    decode(value)?
                };
                Targets::parse(files)?.edit_each(options, |edit, path| {
                    let symlinks = symlinks(*no_dereference);
                    edit.set_xattr(path, name.as_encoded_bytes(), &value, symlinks)
                })
            }
            Action::Remove {
                name,
                files,
                no_dereference,
            } => Targets::parse(files)?.edit_each(options, |edit, path| {
                edit.remove_xattr(path, name.as_encoded_bytes(), symlinks(*no_dereference))
            }),
        }
    }
}

fn list(options: &ImageOptions, operand: &OsStr, follow: bool) -> anyhow::Result<u8> {
    let mut volumes = Volumes::new(options);
    let (_, file) = volumes.file(operand, follow)?;
    let mut console = Console::new();
    if console::is_json() {
        let mut xattrs = file.xattrs()?;
        xattrs.sort_unstable();
        let xattrs: Vec<_> = xattrs.iter().map(XattrObject::new).collect();
        write_xattr(&mut console.out, &file, &json!({"xattrs": xattrs}))?;
        return Ok(console.finish()?);
    }
    let mut names = file.list_xattrs()?;
    names.sort_unstable();
    let quoting = Quoting::for_reader(console.is_terminal);
    for name in names {
        quoting.write(&mut console.out, &name)?;
        writeln!(console.out)?;
    }
    Ok(console.finish()?)
}

/// Writes the image and path of a file, and what is known of its attributes.
fn write_xattr(out: &mut dyn Write, file: &File, more: &impl Serialize) -> io::Result<()> {
    let mut object = Map::new();
    put_name(&mut object, "image", &unescape(file.volume().name()));
    put_name(&mut object, "path", file.path());
    if let Value::Object(more) = serde_json::to_value(more)? {
        object.extend(more);
    }
    write_object(out, &object)
}

/// A value as setfattr(1) takes it.
fn decode(value: &OsStr) -> anyhow::Result<Vec<u8>> {
    let bytes = value.as_encoded_bytes();
    let decoded = match bytes.get(..2) {
        Some(b"0x" | b"0X") => unhex(&bytes[2..]),
        Some(b"0s" | b"0S") => base64::decode(&bytes[2..]),
        _ => Some(bytes.to_vec()),
    };
    let decoded = decoded.ok_or_else(|| usage("the value is not what 0x and 0s stand for"))?;
    anyhow::ensure!(
        decoded.len() <= XATTR_VALUE_BYTES_MAX,
        "the value is longer than {XATTR_VALUE_BYTES_MAX} bytes"
    );
    Ok(decoded)
}

fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16);
    let digits = bytes.iter().flat_map(|&byte| [byte >> 4, byte & 15]);
    digits.filter_map(digit).collect()
}

fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    digits
        .chunks(2)
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_text_hexadecimal_or_base64() {
        let decoded = |text: &str| decode(OsStr::new(text)).ok();
        assert_eq!(decoded("text"), Some(b"text".to_vec()));
        assert_eq!(decoded(""), Some(Vec::new()));
        assert_eq!(decoded("0x00fF"), Some(vec![0, 255]));
        assert_eq!(decoded("0sAP8="), Some(vec![0, 255]));
        assert_eq!(decoded("0x0"), None);
        assert_eq!(decoded("0xgg"), None);
        assert_eq!(decoded("0s="), None);
        assert_eq!(hex(&[0, 255]), "00ff");
    }
}
