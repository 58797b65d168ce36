//! `platter info`: what an image holds.

use std::ffi::OsString;
use std::io::{self, Write};

use platter::block::partition::{GptCopy, Scheme};
use platter::probe::ProbedTable;
use platter::vfs::{Description, FeatureClass, StatFs};
use platter::{Escaped, Image, Probe, Signature, Volume};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::operands::{parse_image, tell_requests};
use crate::args::ImageOptions;
use crate::console::{Console, in_one_line};
use crate::output::json::{JsonArray, NameField};
use crate::output::size::human;

/// Show partitions, and the filesystem with its features, space and journal
#[derive(Debug, clap::Args)]
pub(crate) struct Info {
    /// The images, as IMAGE[@PARTITION]
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<OsString>,
    /// Write an array of objects
    #[arg(long)]
    json: bool,
}

/// What was found.
struct Found {
    image: Image,
    probe: Probe,
    volume: Option<(Description, Option<StatFs>)>,
    /// Why a filesystem that is there cannot be opened.
    problems: Vec<platter::Error>,
}

impl Info {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let mut console = Console::new();
        let mut array = JsonArray::default();
        for (index, operand) in self.images.iter().enumerate() {
            let found = match parse_image(operand).and_then(|spec| {
                let image = options.open_options().open_image(&spec)?;
                Ok(Found::look(image, options)?)
            }) {
                Ok(found) => found,
                Err(error) => {
                    console.trouble(1, in_one_line(&error))?;
                    continue;
                }
            };
            if self.json {
                array.push(&mut console.out, &found.to_json())?;
            } else {
                if index > 0 {
                    writeln!(console.out)?;
                }
                found.write(&mut console.out)?;
            }
            for problem in found.problems {
                console.trouble(1, problem)?;
            }
        }
        if self.json {
            array.end(&mut console.out)?;
        }
        Ok(console.finish()?)
    }
}

impl Found {
    fn look(image: Image, options: &ImageOptions) -> platter::Result<Self> {
        let probe = image.probe()?;
        let mut problems = Vec::new();
        problems.extend(probe.table_problem.clone());
        let mut volume = None;
        let signature = probe.signature.as_ref();
        if signature.is_some_and(|signature| signature.supported) || options.superblock.is_some() {
            match options.open_options().mount(&image) {
                Ok(mounted) => volume = Some(describe(&mounted, &mut problems)),
                Err(error) => problems.push(error),
            }
        }
        Ok(Self {
            image,
            probe,
            volume,
            problems,
        })
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let (name, bytes) = (self.image.name(), self.probe.len_bytes);
        field(
            out,
            "Image",
            &format!("{name} ({}, {bytes} bytes)", human(bytes)),
        )?;
        if let Some(table) = &self.probe.table {
            write_table(out, name, table)?;
        }
        match (&self.volume, &self.probe.signature) {
            (Some((description, space)), _) => {
                write_description(out, description)?;
                space.iter().try_for_each(|space| write_space(out, space))
            }
            (None, Some(signature)) => write_signature(out, signature),
            (None, None) if self.probe.table.is_none() => field(
                out,
                "Contents",
                "no filesystem and no partition table was recognised",
            ),
            (None, None) => Ok(()),
        }
    }

    fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("image".into(), json!(&**self.image.name()));
        object.insert("bytes".into(), json!(self.probe.len_bytes));
        if let Some(table) = &self.probe.table {
            object.insert("partition_table".into(), table_json(table));
        }
        if let Some(signature) = &self.probe.signature {
            object.insert("contents".into(), signature_json(signature));
        }
        if let Some((description, space)) = &self.volume {
            let mut filesystem = description_json(description);
            if let (Value::Object(fields), Some(space)) = (&mut filesystem, space) {
                fields.insert("space".into(), space_json(space));
            }
            object.insert("filesystem".into(), filesystem);
        }
        Value::Object(object)
    }
}

fn describe(volume: &Volume, problems: &mut Vec<platter::Error>) -> (Description, Option<StatFs>) {
    let space = volume.stat_fs().map_err(|error| problems.push(error)).ok();
    tell_requests(volume);
    (volume.describe(), space)
}

fn field(out: &mut dyn Write, name: &str, value: &str) -> io::Result<()> {
    writeln!(out, "{:<22} {value}", format!("{name}:"))
}

fn write_table(out: &mut dyn Write, image: &str, table: &ProbedTable) -> io::Result<()> {
    let sector_bytes = table.table.sector_bytes;
    let scheme = match table.table.scheme {
        Scheme::Gpt { disk, copy } => {
            let copy = if copy == GptCopy::Backup {
                ", read from its backup"
            } else {
                ""
            };
            format!("GPT, disk {disk}{copy}")
        }
        Scheme::Mbr { disk_signature } => format!("MBR, disk {disk_signature:08x}"),
    };
    field(
        out,
        "Partition table",
        &format!("{scheme}, sectors of {sector_bytes} bytes"),
    )?;
    for damage in &table.table.damage {
        field(out, "Damaged", &damage.to_string())?;
    }
    for (partition, signature) in table.iter() {
        let range = &partition.range;
        let size = human(range.end.saturating_sub(range.start));
        let kind = partition.kind;
        let contents = signature.map_or("unknown", |signature| signature.kind);
        let number = partition.number;
        write!(
            out,
            "  {image}@{number:<3} {size:>6} at {:<12} {contents:<12} {kind}",
            range.start
        )?;
        if !partition.name.is_empty() {
            write!(out, ", {}", Escaped(&partition.name))?;
        }
        if let Some(label) = signature.and_then(|signature| signature.label.as_ref())
            && !label.is_empty()
        {
            write!(out, ", label {}", Escaped(label))?;
        }
        if let Some(fault) = partition.fault {
            write!(out, " ({fault})")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_signature(out: &mut dyn Write, signature: &Signature) -> io::Result<()> {
    let support = if signature.supported {
        ""
    } else {
        ", not supported"
    };
    field(out, "Contents", &format!("{}{support}", signature.kind))?;
    if let Some(advice) = signature.format.advice() {
        field(out, "Advice", advice)?;
    }
    if let Some(label) = &signature.label {
        field(out, "Label", &Escaped(label).to_string())?;
    }
    if let Some(uuid) = &signature.uuid {
        field(out, "UUID", &uuid.to_string())?;
    }
    Ok(())
}

fn write_description(out: &mut dyn Write, description: &Description) -> io::Result<()> {
    field(out, "Filesystem", description.kind)?;
    let label = Escaped(&description.label).to_string();
    field(
        out,
        "Label",
        if label.is_empty() { "(none)" } else { &label },
    )?;
    field(out, "UUID", &description.uuid.to_string())?;
    let features: Vec<&str> = description
        .features
        .iter()
        .map(|feature| feature.name)
        .collect();
    field(out, "Features", &features.join(" "))?;
    for (name, value) in &description.details {
        if !value.is_empty() {
            let value = Escaped(value.as_bytes()).to_string();
            field(out, &capitalised(name), &value)?;
        }
    }
    Ok(())
}

fn write_space(out: &mut dyn Write, space: &StatFs) -> io::Result<()> {
    let bytes = |blocks: u64| human(blocks.saturating_mul(u64::from(space.block_bytes)));
    let used = bytes(space.blocks.saturating_sub(space.blocks_free));
    let (size, available) = (bytes(space.blocks), bytes(space.blocks_available));
    field(
        out,
        "Space",
        &format!("{size}, {used} used, {available} available"),
    )?;
    let inodes_used = space.inodes.saturating_sub(space.inodes_free);
    field(out, "Inodes used", &inodes_used.to_string())
}

fn capitalised(name: &str) -> String {
    let mut letters = name.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn table_json(table: &ProbedTable) -> Value {
    let (scheme, id) = match table.table.scheme {
        Scheme::Gpt { disk, .. } => ("gpt", disk.to_string()),
        Scheme::Mbr { disk_signature } => ("mbr", format!("{disk_signature:08x}")),
    };
    let damage: Vec<String> = table.table.damage.iter().map(ToString::to_string).collect();
    let partitions: Vec<Value> = table
        .iter()
        .map(|(partition, signature)| {
            json!({
                "number": partition.number,
                "start": partition.range.start,
                "bytes": partition.range.end.saturating_sub(partition.range.start),
                "type": partition.kind.to_string(),
                "name": String::from_utf8_lossy(&partition.name),
                "uuid": partition.guid.map(|guid| guid.to_string()),
                "fault": partition.fault.map(|fault| fault.to_string()),
                "contents": signature.map(signature_json),
            })
        })
        .collect();
    json!({
        "scheme": scheme,
        "id": id,
        "sector_bytes": table.table.sector_bytes,
        "damage": damage,
        "partitions": partitions,
    })
}

fn signature_json(signature: &Signature) -> Value {
    json!({
        "kind": signature.kind,
        "supported": signature.supported,
        "label": signature.label.as_deref().map(String::from_utf8_lossy),
        "uuid": signature.uuid.map(|uuid| uuid.to_string()),
        "problem": signature.problem.as_ref().map(ToString::to_string),
    })
}

#[derive(Serialize)]
struct Filesystem<'a> {
    kind: &'a str,
    uuid: String,
    #[serde(flatten)]
    label: NameField<'a>,
    features: Vec<Value>,
    details: Map<String, Value>,
}

fn description_json(description: &Description) -> Value {
    let class = |class| match class {
        FeatureClass::Compatible => "compatible",
        FeatureClass::ReadOnlyCompatible => "read_only_compatible",
        FeatureClass::Incompatible => "incompatible",
    };
    let features = description.features.iter();
    let features =
        features.map(|feature| json!({"name": feature.name, "class": class(feature.class)}));
    let details = description.details.iter();
    let details = details.map(|(name, value)| ((*name).to_owned(), json!(value)));
    let filesystem = Filesystem {
        kind: description.kind,
        uuid: description.uuid.to_string(),
        label: NameField {
            key: "label",
            bytes: &description.label,
        },
        features: features.collect(),
        details: details.collect(),
    };
    serde_json::to_value(filesystem).unwrap_or_default()
}

fn space_json(space: &StatFs) -> Value {
    json!({
        "block_bytes": space.block_bytes,
        "blocks": space.blocks,
        "blocks_free": space.blocks_free,
        "blocks_available": space.blocks_available,
        "inodes": space.inodes,
        "inodes_free": space.inodes_free,
    })
}
