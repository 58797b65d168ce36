//! A filesystem as `xfs_db` prints it: directories, fields of inodes, times and attributes among them, and the places of
//! contents, which are read from the image. It is compared with what platter reads where no kernel here mounts the image.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use platter::vfs::{Filesystem, Inode, Name, Timestamp};
use testkit::tool;

/// Offsets in a directory at which its leaves and its free indexes begin.
const LEAVES_AT: u64 = 32 << 30;
const FREE_INDEX_AT: u64 = 64 << 30;
/// The header of a part of a link's target in version 5.
const LINK_HEADER: usize = 56;
/// How the line ends that has the magic number of a leaf of attributes: of version 4, and of version 5.
const ATTR_LEAVES: [&str; 2] = [".magic = 0xfbee", ".magic = 0x3bee"];
const DIRECTORY: u32 = 0o4;
const REGULAR: u32 = 0o10;
const LINK: u32 = 0o12;

/// Asks `xfs_db`, which may change the image with the option for it.
pub(super) fn ask(image: &Path, commands: &[String]) -> Result<String> {
    let mut xfs_db = tool::command("xfs_db");
    // It prints local time.
    xfs_db.env("TZ", "UTC0").arg("-x");
    for command in commands {
        xfs_db.args(["-c", command]);
    }
    Ok(tool::succeed(xfs_db.arg(image))?.text())
}

pub(super) fn find(filesystem: &dyn Filesystem, path: &[&str]) -> Result<Arc<dyn Inode>> {
    let mut inode = filesystem.root()?;
    for name in path {
        inode = inode.lookup(Name::new(name.as_bytes())?)?;
    }
    Ok(inode)
}

pub(super) fn read(inode: &dyn Inode) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(inode.attr()?.size_bytes)?];
    let count = inode.read_at(0, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Blocks of a file that follow each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// First block within the file.
    pub(super) offset: u64,
    /// First block as in pointers.
    pub(super) start: u64,
    pub(super) group: u64,
    pub(super) group_block: u64,
    pub(super) count: u64,
    is_unwritten: bool,
}

/// An inode as printed.
#[derive(Debug, Default)]
pub(super) struct PrintedInode {
    fields: BTreeMap<String, String>,
    pub(super) extents: Vec<Extent>,
}

impl PrintedInode {
    /// A field of the core.
    fn field(&self, name: &str) -> Result<&str> {
        let value = self.fields.get(&format!("core.{name}"));
        Ok(value.with_context(|| format!("no {name}: {self:?}"))?)
    }

    fn number(&self, name: &str) -> Result<u64> {
        Ok(self.field(name)?.parse()?)
    }

    fn mode(&self) -> Result<u32> {
        Ok(u32::from_str_radix(self.field("mode")?, 8)?)
    }

    /// `local`, `extents` or `btree`.
    fn format(&self) -> Result<&str> {
        let value = self.field("format")?;
        let (_, name) = value.split_once('(').context("a format")?;
        Ok(name.trim_end_matches(')'))
    }

    /// A time: `a`, `m` or `c`.
    fn time(&self, kind: char) -> Result<Timestamp> {
        let date = self.field(&format!("{kind}time.sec"))?;
        let seconds = seconds_of(date).with_context(|| date.to_owned())?;
        let nanoseconds = self.field(&format!("{kind}time.nsec"))?.parse()?;
        Ok(Timestamp {
            seconds,
            nanoseconds,
        })
    }
}

const DAY: i64 = 86_400;
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The seconds since 1970 of a time as `ctime(3)` prints it.
fn seconds_of(date: &str) -> Option<i64> {
    let words: Vec<&str> = date.split_whitespace().collect();
    let [_, month, day, time, year] = words[..] else {
        return None;
    };
    let year: i64 = year.parse().ok()?;
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let year_days = |year: i64| if is_leap(year) { 366 } else { 365 };
    let since: i64 = (1970..year).map(year_days).sum();
    let until: i64 = (year..1970).map(year_days).sum();
    let month = MONTHS.iter().position(|name| *name == month)?;
    let month_days = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before: i64 = month_days[..month].iter().sum();
    let leap_day = i64::from(month > 1 && is_leap(year));
    let day = day.parse::<i64>().ok()? - 1;
    let parts: Vec<i64> = time
        .split(':')
        .filter_map(|part| part.parse().ok())
        .collect();
    let [hours, minutes, seconds] = parts[..] else {
        return None;
    };
    let days = since - until + before + leap_day + day;
    Some(days * DAY + hours * 3600 + minutes * 60 + seconds)
}

#[test]
fn printed_times_are_seconds_since_1970() {
    for (date, expected) in [
        ("Thu Jan  1 00:00:00 1970", Some(0)),
        ("Wed Dec 31 23:59:59 1969", Some(-1)),
        ("Tue Feb 29 12:00:00 2000", Some(951_825_600)),
        ("Fri Dec 13 20:45:52 1901", Some(-2_147_483_648)),
        ("Tue Jan 19 03:14:07 2038", Some(2_147_483_647)),
        ("Tue Jan 19 2038", None),
    ] {
        assert_eq!(seconds_of(date), expected, "{date}");
    }
}

/// An attribute as printed: of a value in blocks of its own the length alone.
#[derive(Debug, Default, PartialEq, Eq)]
struct PrintedAttribute {
    len: usize,
    value: Option<Vec<u8>>,
}

type PrintedAttributes = BTreeMap<Vec<u8>, PrintedAttribute>;

/// Adds the attributes of one inode or leaf, whose fields have this prefix: `name[index].field = value`, and of leaves
/// a list of entries, `index:[hash,at,incomplete,root,secure,local]`.
fn add_attributes(printed: &str, prefix: &str, attributes: &mut PrintedAttributes) -> Result<()> {
    let mut fields: BTreeMap<u32, BTreeMap<&str, &str>> = BTreeMap::new();
    let mut is_list = false;
    for line in printed.lines() {
        if let Some((index, field)) = line
            .strip_prefix(prefix)
            .and_then(|rest| rest.split_once("]."))
        {
            let (name, value) = field.split_once(" = ").context("a field")?;
            fields
                .entry(index.parse()?)
                .or_default()
                .insert(name, value);
        } else if line.starts_with("entries[") {
            is_list = true;
        } else if let Some((index, entry)) = line.split_once(":[").filter(|_| is_list) {
            let words: Vec<&str> = entry.trim_end_matches([']', ' ']).split(',').collect();
            let [_, _, incomplete, root, secure, _] = words[..] else {
                continue;
            };
            ensure!(incomplete == "0", "{line}");
            let fields = fields.entry(index.parse()?).or_default();
            fields.extend([("root", root), ("secure", secure)]);
        }
    }
    for fields in fields.values() {
        let field = |name: &str| {
            fields
                .get(name)
                .with_context(|| format!("{name}: {fields:?}"))
        };
        let namespace = match (*field("root")?, *field("secure")?) {
            ("1", "0") => "trusted.",
            ("0", "1") => "security.",
            ("0", "0") => "user.",
            other => bail!("attribute in several namespaces: {other:?}"),
        };
        let text = |name: &str| fields.get(name).map(|text| text.trim_matches('"'));
        let name = text("name").context("a name")?;
        let attribute = PrintedAttribute {
            len: field("valuelen")?.parse()?,
            value: text("value").map(|value| value.as_bytes().to_vec()),
        };
        let name = format!("{namespace}{name}").into_bytes();
        ensure!(attributes.insert(name, attribute).is_none(), "{fields:?}");
    }
    Ok(())
}

/// An image that is printed.
pub(super) struct Printed<'a> {
    image: &'a Path,
    realtime: Option<&'a Path>,
    pub(super) root: u64,
    pub(super) block_bytes: u64,
    group_blocks: u64,
    /// The bits of a block in its group, and of an inode in its block.
    group_block_bits: u64,
    inode_bits: u64,
    inode_bytes: u64,
}

/// What was compared: files, bytes of their contents, attributes, and the forms of directories and of forks.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub(super) inodes: usize,
    pub(super) bytes: u64,
    pub(super) attributes: usize,
    pub(super) forms: BTreeSet<String>,
}

impl<'a> Printed<'a> {
    pub(super) fn of(image: &'a Path, realtime: Option<&'a Path>) -> Result<Self> {
        let text = ask(image, &["sb 0".to_owned(), "print".to_owned()])?;
        let field = |name: &str| -> Result<u64> {
            let prefix = format!("{name} = ");
            let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
            Ok(line
                .with_context(|| format!("no {name}: {text}"))?
                .parse()?)
        };
        Ok(Self {
            image,
            realtime,
            root: field("rootino")?,
            block_bytes: field("blocksize")?,
            group_blocks: field("agblocks")?,
            group_block_bits: field("agblklog")?,
            inode_bits: field("inopblog")?,
            inode_bytes: field("inodesize")?,
        })
    }

    /// These inodes.
    pub(super) fn inodes(&self, numbers: &[u64]) -> Result<Vec<PrintedInode>> {
        let commands: Vec<String> = numbers
            .iter()
            .flat_map(|number| [format!("inode {number}"), "print".into(), "bmap".into()])
            .collect();
        let mut inodes: Vec<PrintedInode> = Vec::new();
        for line in ask(self.image, &commands)?.lines() {
            if line.starts_with("core.magic = ") {
                inodes.push(PrintedInode::default());
            }
            let Some(inode) = inodes.last_mut() else {
                continue;
            };
            if let Some(extent) = extent(line, "data") {
                inode.extents.push(extent);
            } else if let Some((name, value)) = line.split_once(" = ") {
                inode.fields.insert(name.to_owned(), value.to_owned());
            }
        }
        ensure!(inodes.len() == numbers.len(), "{} inodes", inodes.len());
        Ok(inodes)
    }

    /// The attributes of an inode.
    fn attributes(&self, number: u64, inode: &PrintedInode) -> Result<PrintedAttributes> {
        let mut attributes = PrintedAttributes::new();
        let command = format!("inode {number}");
        if inode.field("aformat")?.ends_with("(local)") {
            let text = ask(self.image, &[command, "print a".to_owned()])?;
            add_attributes(&text, "a.sfattr.list[", &mut attributes)?;
            return Ok(attributes);
        }
        if inode.number("naextents")? == 0 {
            return Ok(attributes);
        }
        let blocks = ask(self.image, &[command.clone(), "bmap -a".to_owned()])?;
        for extent in blocks.lines().filter_map(|line| extent(line, "attr")) {
            for block in extent.offset..extent.offset + extent.count {
                let commands = [
                    command.clone(),
                    format!("ablock {block}"),
                    "print".to_owned(),
                ];
                let text = ask(self.image, &commands)?;
                if text
                    .lines()
                    .any(|line| ATTR_LEAVES.iter().any(|leaf| line.ends_with(leaf)))
                {
                    add_attributes(&text, "nvlist[", &mut attributes)?;
                }
            }
        }
        Ok(attributes)
    }

    /// Compares the attributes of an inode. Returns how many it has.
    fn compare_attributes(
        &self,
        number: u64,
        ours: &dyn Inode,
        inode: &PrintedInode,
    ) -> Result<usize> {
        let theirs = self.attributes(number, inode)?;
        let names: BTreeSet<Vec<u8>> = ours.list_xattrs()?.into_iter().collect();
        let printed: BTreeSet<Vec<u8>> = theirs.keys().cloned().collect();
        ensure!(names == printed, "{names:?} and {printed:?}");
        for (name, printed) in &theirs {
            let value = ours.get_xattr(name)?;
            let is_same = printed
                .value
                .as_ref()
                .is_none_or(|printed| *printed == value);
            ensure!(value.len() == printed.len && is_same, "{printed:?}");
        }
        Ok(theirs.len())
    }

    /// Names and inode numbers of a directory, without `.` and `..`.
    pub(super) fn list(&self, directory: u64) -> Result<BTreeMap<String, u64>> {
        let text = ask(self.image, &[format!("inode {directory}"), "ls".into()])?;
        let mut names = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let number = words.nth(1).and_then(|word| word.parse().ok());
            let Some((number, length)) = number.zip(words.nth(2)) else {
                continue;
            };
            // The name follows its length.
            let (_, rest) = line.split_once("0x").context("a hash")?;
            let rest = rest[8..].trim_start().strip_prefix(length);
            let rest = rest.and_then(|rest| rest.strip_prefix(' '));
            let (name, mark) = rest.context("a name")?.split_at(length.parse()?);
            ensure!(mark == " (good)", "{line}");
            if name != "." && name != ".." {
                ensure!(names.insert(name.to_owned(), number).is_none(), "{line}");
            }
        }
        Ok(names)
    }

    /// Where an extent begins in the image.
    pub(super) fn byte_of(&self, extent: &Extent) -> u64 {
        (extent.group * self.group_blocks + extent.group_block) * self.block_bytes
    }

    /// Where an inode begins in the image.
    pub(super) fn byte_of_inode(&self, number: u64) -> u64 {
        let group = number >> (self.group_block_bits + self.inode_bits);
        let block = (number >> self.inode_bits) & ((1 << self.group_block_bits) - 1);
        let nth = number & ((1 << self.inode_bits) - 1);
        (group * self.group_blocks + block) * self.block_bytes + nth * self.inode_bytes
    }

    /// The contents of a file, from where they lie.
    pub(super) fn contents(&self, inode: &PrintedInode) -> Result<Vec<u8>> {
        let is_realtime = inode.field("realtime")? == "1";
        let device = match (is_realtime, self.realtime) {
            (true, device) => device.context("a realtime device")?,
            (false, _) => self.image,
        };
        let device = File::open(device)?;
        let size = inode.number("size")?;
        let mut bytes = vec![0; usize::try_from(size)?];
        for extent in inode.extents.iter().filter(|extent| !extent.is_unwritten) {
            let first = extent.offset * self.block_bytes;
            let end = (first + extent.count * self.block_bytes).min(size);
            if first >= end {
                continue;
            }
            let at = if is_realtime {
                extent.start * self.block_bytes
            } else {
                self.byte_of(extent)
            };
            let range = usize::try_from(first)?..usize::try_from(end)?;
            device.read_exact_at(&mut bytes[range], at)?;
        }
        Ok(bytes)
    }

    /// The target of a link.
    fn target(&self, inode: &PrintedInode) -> Result<Vec<u8>> {
        let local = ["u.symlink", "u3.symlink"]
            .iter()
            .find_map(|name| inode.fields.get(*name));
        if let Some(text) = local {
            return Ok(text.trim_matches('"').as_bytes().to_vec());
        }
        let extent = inode.extents.first().context("the target of a link")?;
        let mut bytes = vec![0; usize::try_from(extent.count * self.block_bytes)?];
        File::open(self.image)?.read_exact_at(&mut bytes, self.byte_of(extent))?;
        let start = if bytes.starts_with(b"XSLM") {
            LINK_HEADER
        } else {
            0
        };
        let len = usize::try_from(inode.number("size")?)?;
        Ok(bytes[start..start + len].to_vec())
    }

    /// Compares the whole tree, root included: names, inodes, contents and targets.
    pub(super) fn compare(&self, filesystem: &dyn Filesystem) -> Result<Compared> {
        let mut compared = Compared::default();
        let mut level = vec![(String::new(), self.root, filesystem.root()?)];
        while !level.is_empty() {
            let numbers: Vec<u64> = level.iter().map(|(_, number, _)| *number).collect();
            let printed = self.inodes(&numbers)?;
            let mut below = Vec::new();
            for ((path, number, ours), printed) in level.iter().zip(&printed) {
                ensure!(ours.id().number == *number, "{path}: number");
                let bytes = self.compare_inode(&**ours, printed, &mut compared.forms);
                compared.bytes += bytes.with_context(|| path.clone())?;
                let attributes = self.compare_attributes(*number, &**ours, printed);
                compared.attributes += attributes.with_context(|| path.clone())?;
                compared.inodes += 1;
                if printed.mode()? >> 12 == DIRECTORY {
                    let entries = self.list(*number)?;
                    let names = platter::vfs::inode::read_dir_all(&**ours)?;
                    let names: BTreeMap<String, u64> = names
                        .iter()
                        .map(|entry| {
                            (
                                String::from_utf8_lossy(entry.name.as_name().as_bytes())
                                    .into_owned(),
                                entry.id.number,
                            )
                        })
                        .collect();
                    ensure!(names == entries, "{path}: {names:?} and {entries:?}");
                    for (name, number) in entries {
                        let inode = ours.lookup(Name::new(name.as_bytes())?)?;
                        below.push((format!("{path}/{name}"), number, inode));
                    }
                }
            }
            level = below;
        }
        Ok(compared)
    }

    /// Returns the length of the contents.
    fn compare_inode(
        &self,
        ours: &dyn Inode,
        printed: &PrintedInode,
        forms: &mut BTreeSet<String>,
    ) -> Result<u64> {
        let attr = ours.attr()?;
        let links = match printed.number("version")? {
            1 => printed.number("onlink")?,
            _ => printed.number("nlinkv2")?,
        };
        let block_sectors = self.block_bytes / 512;
        let theirs = [
            u64::from(printed.mode()?),
            printed.number("size")?,
            printed.number("nblocks")? * block_sectors,
            links,
            printed.number("uid")?,
            printed.number("gid")?,
        ];
        let ours_are = [
            u64::from(attr.mode()),
            attr.size_bytes,
            attr.sectors,
            u64::from(attr.links),
            u64::from(attr.uid),
            u64::from(attr.gid),
        ];
        ensure!(ours_are == theirs, "{ours_are:?} and {theirs:?}");
        let times = [attr.accessed, attr.modified, attr.changed];
        let theirs = ['a', 'm', 'c'].map(|kind| printed.time(kind));
        for (ours, theirs) in times.into_iter().zip(theirs) {
            let theirs = theirs?;
            ensure!(ours == theirs, "{ours:?} and {theirs:?}");
        }
        let format = printed.format()?;
        match printed.mode()? >> 12 {
            REGULAR => {
                forms.insert(format!("file, {format}"));
                ensure!(read(ours)? == self.contents(printed)?, "contents");
                return Ok(attr.size_bytes);
            }
            LINK => {
                forms.insert(format!("link, {format}"));
                ensure!(ours.read_link()? == self.target(printed)?, "target");
            }
            DIRECTORY => {
                let end = printed.extents.iter().map(|extent| extent.offset).max();
                let form = match end.map(|offset| offset * self.block_bytes) {
                    None => "local",
                    Some(..LEAVES_AT) => "block",
                    Some(LEAVES_AT..FREE_INDEX_AT) => "leaf",
                    Some(FREE_INDEX_AT..) => "node",
                };
                forms.insert(format!("directory, {form}"));
                forms.insert(format!("directory, {format}"));
            }
            _ => {}
        }
        Ok(0)
    }
}

/// A line of `bmap`, of this fork.
fn extent(line: &str, fork: &str) -> Option<Extent> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [
        of_fork,
        "offset",
        offset,
        "startblock",
        start,
        place,
        "count",
        count,
        "flag",
        flag,
    ] = words[..]
    else {
        return None;
    };
    if of_fork != fork {
        return None;
    }
    let place = place.strip_prefix('(')?.strip_suffix(')')?;
    let (group, group_block) = place.split_once('/')?;
    Some(Extent {
        offset: offset.parse().ok()?,
        start: start.parse().ok()?,
        group: group.parse().ok()?,
        group_block: group_block.parse().ok()?,
        count: count.parse().ok()?,
        is_unwritten: flag == "1",
    })
}
