//! `platter subvolume`: the subvolumes and snapshots of a btrfs.

mod change;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use platter::escape::unescape;
use platter::vfs::subvolumes::{Subvolume as Listed, Transfer};
use platter::vfs::{Condition, Timestamp};
use platter::{Error, Escaped};
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use super::mounted::{self, is_mount};
use super::operands::{Volumes, parse_image};
use crate::args::ImageOptions;
use crate::console::{self, Console};
use crate::output::error::misuse;
use crate::output::json::{JsonArray, put_name, write_object};
use crate::output::time::TimeFormat;

/// List, show, make and delete the subvolumes and snapshots of a btrfs
///
/// Files in them are named by their paths from the root that is opened, which is the default
/// subvolume. Another one becomes the root with --option subvol=PATH or --option subvolid=ID.
/// While it is mounted by platter, subvolumes are named by the paths of their directories in the mount. The
/// user that mounted it may do all of this; other users create subvolumes where they may create directories, and
/// make snapshots of their own ones.
#[derive(Debug, clap::Args)]
pub(crate) struct Subvolume {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List all subvolumes
    List {
        /// The filesystem, as IMAGE[@PARTITION], or a directory of a mount
        #[arg(value_name = "IMAGE")]
        image: OsString,
    },
    /// Show all attributes of a subvolume
    Show {
        /// The filesystem, as IMAGE[@PARTITION], or a directory of a mount
        #[arg(value_name = "IMAGE")]
        image: OsString,
        /// Its path from the top-level subvolume; the directory of a mount may be the subvolume itself
        #[arg(value_name = "PATH")]
        path: Option<OsString>,
        /// Its number, instead of a path
        #[arg(long, value_name = "ID", conflicts_with = "path")]
        id: Option<u64>,
    },
    #[command(flatten)]
    Change(change::Change),
}

impl Subvolume {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let image = match &self.action {
            Action::List { image } | Action::Show { image, .. } => image,
            Action::Change(change) => return change.run(options),
        };
        let listing = if is_mount(image, options)? {
            Listing::of_mount(Path::new(image))?
        } else {
            Listing::of_image(image, options)?
        };
        let mut console = Console::new();
        match &self.action {
            Action::List { .. } => list(&mut console, &listing)?,
            Action::Show { path, id, .. } => {
                let path = path.as_ref().map(|path| path.as_encoded_bytes());
                show(&mut console, &listing, listing.find(path, *id)?)?;
            }
            Action::Change(_) => {}
        }
        if let Some(error) = listing.trouble {
            console.trouble(1, error)?;
        }
        Ok(console.finish()?)
    }
}

/// The subvolumes of a filesystem.
struct Listing {
    /// The image, or the directory of a mount, already escaped.
    name: Arc<str>,
    all: BTreeMap<u64, Listed>,
    default: u64,
    /// The subvolume that was named as a directory of a mount.
    named: Option<u64>,
    /// Why some are missing.
    trouble: Option<Error>,
}

impl Listing {
    fn of_image(image: &OsStr, options: &ImageOptions) -> anyhow::Result<Self> {
        parse_image(image)?;
        let mut volumes = Volumes::new(options);
        let (_, volume) = volumes.find(image)?;
        let Some(subvolumes) = volume.filesystem().subvolumes() else {
            let kind = volume.describe().kind;
            misuse!("{}: {kind} has no subvolumes", volume.name());
        };
        let listed = |error| Error::new(volume.name(), error);
        let mut all = BTreeMap::new();
        let complete = subvolumes.list(&mut |subvolume| {
            all.insert(subvolume.id, subvolume);
            ControlFlow::Continue(())
        });
        Ok(Self {
            name: Arc::clone(volume.name()),
            all,
            default: subvolumes.default_id().map_err(listed)?,
            named: None,
            trouble: complete.map_err(listed).err(),
        })
    }

    fn of_mount(dir: &Path) -> platter::Result<Self> {
        let control = mounted::open(dir)?;
        let mut listing = Self {
            name: Escaped(dir.as_os_str().as_bytes()).to_string().into(),
            all: BTreeMap::new(),
            default: 0,
            // A directory that is in one names none.
            named: control.subvolume_id().ok(),
            trouble: None,
        };
        let mut from = 0;
        while let Some((subvolume, is_default)) = control
            .next_subvolume(from)
            .map_err(|error| mounted::named(dir, &error))?
        {
            if is_default {
                listing.default = subvolume.id;
            }
            let next = subvolume.id.checked_add(1).filter(|_| subvolume.id >= from);
            let next = next.ok_or_else(|| mounted::named(dir, &Errno::PROTO.into()))?;
            listing.all.insert(subvolume.id, subvolume);
            from = next;
        }
        Ok(listing)
    }

    /// The subvolume with this path or number.
    fn find(&self, path: Option<&[u8]>, id: Option<u64>) -> anyhow::Result<&Listed> {
        let id = id.or(self.named);
        if path.is_none() && id.is_none() {
            misuse!("{}: name a subvolume by its path or --id", self.name);
        }
        let is_it = |it: &&Listed| match path {
            Some(path) => it.path == trimmed(path),
            None => Some(it.id) == id,
        };
        let none = platter::vfs::Error::from(Condition::NotFound);
        let found = self.all.values().find(is_it);
        Ok(found.ok_or_else(|| match path {
            Some(path) => Error::at_path(&self.name, path, none),
            None => Error::new(&self.name, none),
        })?)
    }
}

/// A path without slashes around it.
fn trimmed(path: &[u8]) -> &[u8] {
    let start = path.iter().take_while(|&&byte| byte == b'/').count();
    let path = path.get(start..).unwrap_or_default();
    let end = path.iter().rev().take_while(|&&byte| byte == b'/').count();
    path.get(..path.len() - end).unwrap_or_default()
}

fn list(console: &mut Console, listing: &Listing) -> anyhow::Result<()> {
    let Listing { all, default, .. } = listing;
    if console::is_json() {
        let mut array = JsonArray::default();
        for subvolume in all.values() {
            let mut object = object_of(subvolume);
            object.insert("default".into(), json!(subvolume.id == *default));
            array.push(&mut console.out, &Value::Object(object))?;
        }
        array.end(&mut console.out)?;
        return Ok(());
    }
    let times = TimeFormat::local(false);
    for subvolume in all.values() {
        let Listed { id, generation, .. } = subvolume;
        let parent = subvolume.parent.map_or("-".into(), |id| id.to_string());
        let read_only = if subvolume.read_only { "ro" } else { "rw" };
        let created = times.show(subvolume.created);
        let path = Escaped(shown_path(subvolume)).to_string();
        let mark = if id == default { " (default)" } else { "" };
        writeln!(
            console.out,
            "ID {id} gen {generation} parent {parent} {read_only} {created} path {path}{mark}"
        )?;
    }
    Ok(())
}

/// The path; the top-level subvolume has a name for people.
fn shown_path(subvolume: &Listed) -> &[u8] {
    if subvolume.path.is_empty() {
        b"/"
    } else {
        &subvolume.path
    }
}

/// The snapshots of a subvolume.
fn snapshots<'a>(
    of: &'a Listed,
    all: &'a BTreeMap<u64, Listed>,
) -> impl Iterator<Item = &'a Listed> {
    let is_snapshot = |it: &&Listed| !of.uuid.is_nil() && it.parent_uuid == Some(of.uuid);
    all.values().filter(is_snapshot)
}

fn show(console: &mut Console, listing: &Listing, subvolume: &Listed) -> anyhow::Result<()> {
    let all = &listing.all;
    if console::is_json() {
        let mut object = Map::new();
        put_name(&mut object, "image", &unescape(&listing.name));
        object.extend(object_of(subvolume));
        let snapshots = snapshots(subvolume, all).map(|it| json!(it.id));
        object.insert("snapshots".into(), snapshots.collect());
        write_object(&mut console.out, &object)?;
        return Ok(());
    }
    let times = TimeFormat::local(true);
    write_shown(&mut console.out, subvolume, all, &times)?;
    Ok(())
}

/// Writes the lines of `btrfs subvolume show`.
fn write_shown(
    out: &mut dyn Write,
    subvolume: &Listed,
    all: &BTreeMap<u64, Listed>,
    times: &TimeFormat,
) -> io::Result<()> {
    let mut line = |name: &str, value: String| writeln!(out, "\t{name:<23} {value}");
    let uuid = |uuid: Option<_>| uuid.map_or("-".to_owned(), |uuid| format!("{uuid}"));
    let number = |number: Option<u64>| number.map_or("-".to_owned(), |it| it.to_string());
    let name = subvolume.path.rsplit(|&byte| byte == b'/').next();
    let name = name.filter(|name| !name.is_empty()).unwrap_or(b"<FS_TREE>");
    line("Path:", Escaped(shown_path(subvolume)).to_string())?;
    line("Name:", Escaped(name).to_string())?;
    line("UUID:", subvolume.uuid.to_string())?;
    line("Parent UUID:", uuid(subvolume.parent_uuid))?;
    line("Received UUID:", uuid(subvolume.received_uuid))?;
    line("Creation time:", times.show(subvolume.created))?;
    line("Subvolume ID:", subvolume.id.to_string())?;
    line("Generation:", subvolume.generation.to_string())?;
    line("Gen at creation:", subvolume.created_generation.to_string())?;
    line("Parent ID:", number(subvolume.parent))?;
    let flags = if subvolume.read_only { "readonly" } else { "-" };
    line("Flags:", flags.to_owned())?;
    for (word, transfer) in [("Send", subvolume.sent), ("Receive", subvolume.received)] {
        let generation = number(transfer.map(|it| it.generation));
        let time = transfer.map_or("-".to_owned(), |it| times.show(it.time));
        line(&format!("{word} transid:"), generation)?;
        line(&format!("{word} time:"), time)?;
    }
    line("Snapshot(s):", String::new())?;
    for snapshot in snapshots(subvolume, all) {
        writeln!(out, "\t\t\t\t{}", Escaped(&snapshot.path))?;
    }
    Ok(())
}

fn object_of(subvolume: &Listed) -> Map<String, Value> {
    let mut object = Map::new();
    put_name(&mut object, "path", &subvolume.path);
    let uuid = |uuid: Option<_>| uuid.map(|uuid| format!("{uuid}"));
    for (key, value) in [
        ("id", json!(subvolume.id)),
        ("parent", json!(subvolume.parent)),
        ("uuid", json!(uuid(Some(subvolume.uuid)))),
        ("parent_uuid", json!(uuid(subvolume.parent_uuid))),
        ("received_uuid", json!(uuid(subvolume.received_uuid))),
        ("generation", json!(subvolume.generation)),
        ("created_generation", json!(subvolume.created_generation)),
        ("created", time_object(subvolume.created)),
        ("read_only", json!(subvolume.read_only)),
        ("sent", transfer_object(subvolume.sent)),
        ("received", transfer_object(subvolume.received)),
    ] {
        object.insert(key.into(), value);
    }
    object
}

fn time_object(time: Timestamp) -> Value {
    json!({"seconds": time.seconds, "nanoseconds": time.nanoseconds})
}

fn transfer_object(transfer: Option<Transfer>) -> Value {
    transfer.map_or(
        Value::Null,
        |transfer| json!({"generation": transfer.generation, "time": time_object(transfer.time)}),
    )
}
