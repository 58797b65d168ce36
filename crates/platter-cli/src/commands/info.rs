//! `platter info`: what an image holds.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use platter::block::Partition;
use platter::block::partition::{Fault, GptCopy, PartitionType, Scheme};
use platter::devices::{Member, Members};
use platter::escape::unescape;
use platter::probe::ProbedTable;
use platter::vfs::{Description, StatFs};
use platter::{Escaped, Image, ImageSpec, Probe, Signature, Volume};
use platter_fuse::MountReport;
use serde_json::{Map, Value, json};

use super::mounted::{self, is_mount};
use super::operands::{parse_image, report_requests};
use crate::args::ImageOptions;
use crate::console::{self, Console};
use crate::output::error::error_object;
use crate::output::filesystem::filesystem_object;
use crate::output::json::{JsonArray, put_name, word};
use crate::output::size::human;

/// Show partitions, and the filesystem with its features, space and journal
///
/// Of a filesystem that is mounted by platter, which a directory of the mount names, what it counted since then is shown,
/// too: commits, and what they took.
#[derive(Debug, clap::Args)]
pub(crate) struct Info {
    /// The images, as IMAGE[@PARTITION], or directories of mounts
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<OsString>,
}

/// The JSON object that describes an image.
pub(super) fn image_object(spec: &ImageSpec, options: &ImageOptions) -> anyhow::Result<Value> {
    let image = options.open_options().open_image(spec)?;
    let found = Found::look(image, options)?;
    match found.problems.first() {
        Some(problem) => Err(problem.clone().into()),
        None => Ok(found.to_json()),
    }
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
            let found = match Shown::look(operand, options) {
                Ok(found) => found,
                Err(error) => {
                    console.trouble(1, error)?;
                    continue;
                }
            };
            if console::is_json() {
                array.push(&mut console.out, &found.to_json())?;
            } else {
                if index > 0 {
                    writeln!(console.out)?;
                }
                found.write(&mut console.out)?;
            }
            for problem in found.problems() {
                console.trouble(1, problem.clone())?;
            }
        }
        if console::is_json() {
            array.end(&mut console.out)?;
        }
        Ok(console.finish()?)
    }
}

/// What an operand names.
enum Shown {
    Image(Box<Found>),
    Mount(Box<FoundMount>),
}

impl Shown {
    fn look(operand: &OsStr, options: &ImageOptions) -> anyhow::Result<Self> {
        if is_mount(operand, options)? {
            return Ok(Self::Mount(Box::new(FoundMount::look(Path::new(operand))?)));
        }
        let image = options.open_options().open_image(&parse_image(operand)?)?;
        Ok(Self::Image(Box::new(Found::look(image, options)?)))
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Image(found) => found.write(out),
            Self::Mount(found) => found.write(out),
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Image(found) => found.to_json(),
            Self::Mount(found) => found.to_json(),
        }
    }

    fn problems(&self) -> &[platter::Error] {
        match self {
            Self::Image(found) => &found.problems,
            Self::Mount(_) => &[],
        }
    }
}

/// What a mount reported.
struct FoundMount {
    dir: PathBuf,
    source: Vec<u8>,
    report: MountReport,
    space: StatFs,
}

impl FoundMount {
    fn look(dir: &Path) -> anyhow::Result<Self> {
        let named = |error: io::Error| mounted::named(dir, &error);
        let report = mounted::open(dir)?.report().map_err(named)?;
        let space = rustix::fs::statvfs(dir).map_err(|errno| named(errno.into()))?;
        Ok(Self {
            dir: dir.to_owned(),
            source: mounted::source(dir).unwrap_or_default(),
            report,
            space: StatFs {
                block_bytes: u32::try_from(space.f_frsize).unwrap_or(u32::MAX),
                blocks: space.f_blocks,
                blocks_free: space.f_bfree,
                blocks_available: space.f_bavail,
                inodes: space.f_files,
                inodes_free: space.f_ffree,
                name_len_max: u32::try_from(space.f_namemax).unwrap_or(u32::MAX),
                id: space.f_fsid,
                magic: 0,
            },
        })
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let (dir, source) = (
            Escaped(self.dir.as_os_str().as_bytes()),
            Escaped(&self.source),
        );
        field(out, "Mount", &format!("{dir} of {source}"))?;
        write_description(out, &self.report.description)?;
        write_space(out, &self.space)?;
        let counters = &self.report.counters;
        if !counters.is_empty() {
            writeln!(out, "Since it was mounted:")?;
        }
        for (name, count) in counters {
            let name = Escaped(name.as_bytes()).to_string();
            writeln!(out, "  {name:<24} {count}")?;
        }
        Ok(())
    }

    fn to_json(&self) -> Value {
        let mut object = Map::new();
        put_name(&mut object, "image", self.dir.as_os_str().as_bytes());
        put_name(&mut object, "source", &self.source);
        let filesystem = filesystem_object(&self.report.description, Some(&self.space));
        object.insert("filesystem".into(), filesystem);
        let counters = self.report.counters.iter();
        let counters: Map<_, _> = counters
            .map(|(name, count)| (name.to_string(), json!(count)))
            .collect();
        object.insert("counters".into(), counters.into());
        Value::Object(object)
    }
}

impl Found {
    fn look(image: Image, options: &ImageOptions) -> platter::Result<Self> {
        let probe = options.open_options().probe(&image)?;
        let mut problems = Vec::new();
        problems.extend(probe.table_problem.clone());
        let mut volume = None;
        let can_open = |signature: &Signature| {
            let members = signature.members.as_ref();
            // With options it may open although members are missing.
            let is_incomplete = members.is_some_and(Members::is_incomplete);
            signature.supported && (!is_incomplete || !options.fs_options.is_empty())
        };
        if probe.signature.as_ref().is_some_and(can_open) || options.superblock.is_some() {
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
        let signature = self.probe.signature.as_ref();
        let members = signature.and_then(|signature| signature.members.as_ref());
        match (&self.volume, signature) {
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
        }?;
        members.map_or(Ok(()), |members| write_members(out, members))
    }

    fn to_json(&self) -> Value {
        let mut object = Map::new();
        put_name(&mut object, "image", &unescape(self.image.name()));
        object.insert("size_bytes".into(), json!(self.probe.len_bytes));
        if let Some(table) = &self.probe.table {
            object.insert("partition_table".into(), table_json(table));
        }
        if let Some(signature) = &self.probe.signature {
            object.insert("contents".into(), signature_json(signature));
        }
        if let Some((description, space)) = &self.volume {
            let filesystem = filesystem_object(description, space.as_ref());
            object.insert("filesystem".into(), filesystem);
        }
        Value::Object(object)
    }
}

fn describe(volume: &Volume, problems: &mut Vec<platter::Error>) -> (Description, Option<StatFs>) {
    let space = volume.stat_fs().map_err(|error| problems.push(error)).ok();
    report_requests(volume);
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
    for corruption in &table.table.corruption {
        field(out, "Corrupt", &corruption.to_string())?;
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

fn write_members(out: &mut dyn Write, members: &Members) -> io::Result<()> {
    let (given, count) = (members.present.len(), members.count);
    field(out, "Devices", &format!("{given} of {count}"))?;
    let all = [("", &members.present), (", missing", &members.missing)];
    for (state, members) in all {
        for Member { role, id, uuid } in members {
            write!(out, "  {role} device")?;
            if let Some(id) = id {
                write!(out, " {id}")?;
            }
            if let Some(uuid) = uuid {
                write!(out, ", UUID {uuid}")?;
            }
            writeln!(out, "{state}")?;
        }
    }
    Ok(())
}

fn members_json(members: &Members) -> Value {
    let list = |members: &[Member]| -> Vec<Value> {
        let object = |member: &Member| {
            json!({
                "role": member.role.to_string(),
                "id": member.id,
                "uuid": member.uuid.map(|uuid| uuid.to_string()),
            })
        };
        members.iter().map(object).collect()
    };
    json!({
        "count": members.count,
        "present": list(&members.present),
        "missing": list(&members.missing),
    })
}

fn write_description(out: &mut dyn Write, description: &Description) -> io::Result<()> {
    // The server of a mount may be anyone's.
    let shown = |text: &str| Escaped(text.as_bytes()).to_string();
    field(out, "Filesystem", &shown(&description.kind))?;
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
        .map(|feature| &*feature.name)
        .collect();
    field(out, "Features", &shown(&features.join(" ")))?;
    for detail in &description.details {
        let value = detail.value.to_string();
        if !value.is_empty() {
            field(out, &shown(&capitalised(&detail.label)), &shown(&value))?;
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
    let found = &table.table;
    let partitions: Vec<Value> = table
        .iter()
        .map(|(partition, contents)| partition_json(partition, contents))
        .collect();
    let corruption: Vec<Value> = found
        .corruption
        .iter()
        .map(|corruption| {
            json!({
                "structure": word(&corruption.structure.to_string()),
                "device_byte": corruption.offset,
                "rule": corruption.rule.to_string(),
            })
        })
        .collect();
    let mut object = json!({
        "sector_bytes": found.sector_bytes,
        "corruption": corruption,
        "partitions": partitions,
    });
    let (scheme, id, copy) = match found.scheme {
        Scheme::Gpt { disk, copy } => ("gpt", json!(disk.to_string()), Some(copy)),
        Scheme::Mbr { disk_signature } => ("mbr", json!(disk_signature), None),
    };
    let copy = copy.map(|copy| match copy {
        GptCopy::Primary => "primary",
        GptCopy::Backup => "backup",
    });
    object["scheme"] = json!(scheme);
    let id_key = if copy.is_some() {
        "disk_uuid"
    } else {
        "disk_signature"
    };
    object[id_key] = id;
    if let Some(copy) = copy {
        object["copy"] = json!(copy);
    }
    object
}

fn partition_json(partition: &Partition, contents: Option<&Signature>) -> Value {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.into(), value);
    put("number", json!(partition.number));
    put("start_byte", json!(partition.range.start));
    let size = partition.range.end.saturating_sub(partition.range.start);
    put("size_bytes", json!(size));
    put(
        "type",
        match partition.kind {
            PartitionType::Guid(guid) => json!(guid.to_string()),
            PartitionType::Byte(byte) => json!(format!("{byte:#04x}")),
        },
    );
    put("type_name", json!(partition.kind.name()));
    put("uuid", json!(partition.guid.map(|guid| guid.to_string())));
    let fault = partition.fault.map(|fault| match fault {
        Fault::Backwards => json!({"code": "backwards"}),
        Fault::BeyondEnd => json!({"code": "beyond_end"}),
        Fault::Overlaps(number) => json!({"code": "overlaps", "partition": number}),
    });
    put("fault", json!(fault));
    put("contents", json!(contents.map(signature_json)));
    put_name(&mut object, "name", &partition.name);
    Value::Object(object)
}

fn signature_json(signature: &Signature) -> Value {
    let mut object = Map::new();
    object.insert("type".into(), json!(signature.kind));
    object.insert("supported".into(), json!(signature.supported));
    object.insert(
        "uuid".into(),
        json!(signature.uuid.map(|uuid| uuid.to_string())),
    );
    if let Some(label) = &signature.label {
        put_name(&mut object, "label", label);
    }
    if let Some(members) = &signature.members {
        object.insert("devices".into(), members_json(members));
    }
    if let Some(problem) = &signature.problem {
        let problem = anyhow::Error::from(problem.clone());
        object.insert("error".into(), error_object(&problem));
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use platter::vfs::{Detail, DetailValue, Feature, FeatureClass, Uuid};

    use super::*;

    #[test]
    fn what_a_mount_says_of_itself_is_escaped() {
        let evil = "\u{1b}[31m";
        let value = DetailValue::Absent(evil.into());
        let description = Description {
            kind: evil.into(),
            uuid: Uuid::from_u128(1),
            label: evil.into(),
            features: vec![Feature {
                name: evil.into(),
                class: FeatureClass::Compatible,
            }],
            details: vec![Detail::new("key", evil, value)],
        };
        let mut out = Vec::new();
        write_description(&mut out, &description).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert_eq!(text.matches("\\033[31m").count(), 5, "{text:?}");
    }
}
