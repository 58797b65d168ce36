//! `platter subvolume`: the subvolumes and snapshots of a btrfs.

mod change;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::ControlFlow;

use platter::escape::unescape;
use platter::vfs::subvolumes::{Subvolume as Listed, Transfer};
use platter::vfs::{Condition, Subvolumes, Timestamp};
use platter::{Error, Escaped, Volume};
use serde_json::{Map, Value, json};

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
#[derive(Debug, clap::Args)]
pub(crate) struct Subvolume {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List all subvolumes
    List {
        /// The filesystem, as IMAGE[@PARTITION]
        #[arg(value_name = "IMAGE")]
        image: OsString,
    },
    /// Show all attributes of a subvolume
    Show {
        /// The filesystem, as IMAGE[@PARTITION]
        #[arg(value_name = "IMAGE")]
        image: OsString,
        /// Its path from the top-level subvolume
        #[arg(value_name = "PATH", required_unless_present = "id")]
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
        let mut console = Console::new();
        match &self.action {
            Action::List { .. } => list(&mut console, &volume, subvolumes, &all)?,
            Action::Show { path, id, .. } => {
                let path = path.as_ref().map(|path| path.as_encoded_bytes());
                let is_it = |it: &&Listed| match (path, id) {
                    (Some(path), _) => it.path == trimmed(path),
                    (None, id) => Some(it.id) == *id,
                };
                let found = all.values().find(is_it);
                let none = platter::vfs::Error::from(Condition::NotFound);
                let found = found.ok_or_else(|| match path {
                    Some(path) => Error::at_path(volume.name(), path, none),
                    None => Error::new(volume.name(), none),
                })?;
                show(&mut console, &volume, found, &all)?;
            }
            Action::Change(_) => {}
        }
        if let Err(error) = complete {
            console.trouble(1, listed(error))?;
        }
        Ok(console.finish()?)
    }
}

/// A path without slashes around it.
fn trimmed(path: &[u8]) -> &[u8] {
    let start = path.iter().take_while(|&&byte| byte == b'/').count();
    let path = path.get(start..).unwrap_or_default();
    let end = path.iter().rev().take_while(|&&byte| byte == b'/').count();
    path.get(..path.len() - end).unwrap_or_default()
}

fn list(
    console: &mut Console,
    volume: &Volume,
    subvolumes: &dyn Subvolumes,
    all: &BTreeMap<u64, Listed>,
) -> anyhow::Result<()> {
    let default = subvolumes.default_id();
    let default = default.map_err(|error| Error::new(volume.name(), error))?;
    if console::is_json() {
        let mut array = JsonArray::default();
        for subvolume in all.values() {
            let mut object = object_of(subvolume);
            object.insert("default".into(), json!(subvolume.id == default));
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
        let mark = if *id == default { " (default)" } else { "" };
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

fn show(
    console: &mut Console,
    volume: &Volume,
    subvolume: &Listed,
    all: &BTreeMap<u64, Listed>,
) -> anyhow::Result<()> {
    if console::is_json() {
        let mut object = Map::new();
        put_name(&mut object, "image", &unescape(volume.name()));
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
