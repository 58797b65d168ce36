//! Errors as objects for programs.

use std::fmt;
use std::io;

use platter::vfs::{Corruption, Locus};
use platter::{Cause, Effect, Problem};
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use super::json::{put_name, word};
use crate::console::in_one_line;

/// The command line asks for what there is not, or for what does not go together.
#[derive(Debug)]
pub(crate) struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error of the command line itself.
pub(crate) fn usage(message: impl fmt::Display) -> anyhow::Error {
    anyhow::Error::new(Usage(message.to_string()))
}

/// Returns an error of the command line itself, as `bail!` does others.
macro_rules! misuse {
    ($($message:tt)*) => {
        return Err($crate::output::error::usage(format_args!($($message)*)))
    };
}
pub(crate) use misuse;

/// Whether the command line itself is wrong.
pub(crate) fn is_usage(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Usage>().is_some()
}

/// What is known of an error.
pub(crate) fn error_object(error: &anyhow::Error) -> Value {
    let mut object = Map::new();
    object.insert("message".into(), json!(in_one_line(error)));
    let found = error
        .chain()
        .find_map(|error| error.downcast_ref::<platter::Error>());
    if let Some(found) = found {
        put_error(&mut object, found);
        return Value::Object(object);
    }
    let of_filesystem = error.chain().find_map(|error| {
        let unsupported = error.downcast_ref::<platter::vfs::Unsupported>();
        let unsupported = unsupported.map(|error| platter::vfs::Error::from(error.clone()));
        unsupported.or_else(|| error.downcast_ref().cloned())
    });
    if let Some(found) = of_filesystem {
        put_error(&mut object, &platter::Error::new(&"".into(), found));
        return Value::Object(object);
    }
    let io = error
        .chain()
        .find_map(|error| error.downcast_ref::<io::Error>());
    let errno = io.map(|io| Errno::from_io_error(io).unwrap_or(Errno::IO));
    let (code, errno) = match errno {
        Some(errno) => (platter::vfs::error::code_of_errno(errno), Some(errno)),
        None if is_usage(error) => ("usage", Some(Errno::INVAL)),
        None => ("failed", None),
    };
    object.insert("code".into(), json!(code));
    if let Some(errno) = errno {
        object.insert("errno".into(), json!(errno.raw_os_error()));
    }
    Value::Object(object)
}

/// A line that the command could not be made of.
pub(crate) fn usage_object(message: &str) -> Value {
    let errno = Errno::INVAL.raw_os_error();
    json!({"code": "usage", "errno": errno, "message": message})
}

/// What came out of an image other than it should.
pub(crate) fn problem_object(problem: &Problem) -> Value {
    let mut object = Map::new();
    let (effect, bytes) = match problem.effect {
        Effect::Omitted => ("omitted", None),
        Effect::EntriesLost => ("entries_lost", None),
        Effect::ZeroFilled { bytes } => ("zero_filled", Some(bytes)),
        Effect::AttributesLost => ("attributes_lost", None),
        Effect::SocketIgnored => ("socket_ignored", None),
        _ => ("other", None),
    };
    match &problem.cause {
        Some(cause) => put_error(
            &mut object,
            &platter::Error::at_path(&problem.image, &problem.path, cause.clone()),
        ),
        None => put_place(&mut object, &problem.image, Some(&problem.path)),
    }
    object.insert("message".into(), json!(problem.to_string()));
    object.insert("effect".into(), json!(effect));
    if let Some(bytes) = bytes {
        object.insert("zero_filled_bytes".into(), json!(bytes));
    }
    Value::Object(object)
}

/// The structure, the rule and the place of a corruption.
pub(crate) fn put_corruption(object: &mut Map<String, Value>, corruption: &Corruption) {
    object.insert("structure".into(), json!(word(corruption.structure)));
    object.insert("rule".into(), json!(corruption.rule));
    object.insert("place".into(), place(corruption.locus));
}

fn place(locus: Locus) -> Value {
    let locus = locus.parts();
    let mut place = Map::new();
    for (name, value) in [
        ("device", locus.member),
        ("copy", locus.copy.map(u64::from)),
        ("tree", locus.tree),
        ("group", locus.group),
        ("inode", locus.inode),
        ("block", locus.block),
        ("byte", locus.offset),
    ] {
        if let Some(value) = value {
            place.insert(name.into(), json!(value));
        }
    }
    if let Some(key) = locus.key {
        place.insert("key".into(), json!([key.object, key.kind, key.offset]));
    }
    Value::Object(place)
}

fn put_place(object: &mut Map<String, Value>, image: &str, path: Option<&[u8]>) {
    if !image.is_empty() {
        put_name(object, "image", &platter::escape::unescape(image));
    }
    if let Some(path) = path {
        put_name(object, "path", path);
    }
}

fn put_error(object: &mut Map<String, Value>, error: &platter::Error) {
    object.insert("code".into(), json!(error.code()));
    object.insert("errno".into(), json!(error.raw_os_error()));
    put_place(object, &error.image, error.path.as_deref());
    let (Cause::Filesystem(error) | Cause::SuperblockCorrupt { error, .. }) = &error.cause else {
        return;
    };
    match error {
        platter::vfs::Error::Corrupt(corruption) => put_corruption(object, corruption),
        platter::vfs::Error::Io(io) => {
            object.insert("operation".into(), json!(word(&io.operation.to_string())));
            if io.length > 0 {
                let place = json!({"device_byte": io.offset, "length_bytes": io.length});
                object.insert("place".into(), place);
            }
        }
        platter::vfs::Error::Unsupported(unsupported) => {
            object.insert("filesystem".into(), json!(unsupported.filesystem));
            object.insert("feature".into(), json!(unsupported.feature));
        }
        platter::vfs::Error::Condition(_) | platter::vfs::Error::Refused(_) => {}
    }
}
