//! `platter mkfs`: a new filesystem.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::anyhow;
use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser};
use platter::make::{self, NewFilesystem};
use platter::populate::{Content, ContentLayers, IdMap, IdRange, NewSubvolume};
use platter::vfs::lock::Mutex;
use platter::vfs::{Clock, Condition, FixedClock, SystemClock, Timestamp};
use platter::{FormatOptions, ImageSpec, MemoryBudget};

use super::info;
use super::operands::parse_image;
use crate::args::{ImageOptions, parse_size, source_date};
use crate::console::{self, Console};
use crate::interrupt;
use crate::output::error::misuse;
use crate::output::json::write_object;
use crate::output::progress::Progress;

/// Headers of an archive may take so many times the bytes that inodes and names do, and in any case
/// so many bytes.
const SPOOL_FACTOR: u64 = 16;
const SPOOL_BYTES: u64 = 64 << 20;

/// Make a filesystem in an image, a partition or a new file
///
/// Defaults are those of mke2fs(8), mkfs.xfs(8) or mkfs.btrfs(8) for the type and size. The same command makes the same bytes with
/// `SOURCE_DATE_EPOCH` in the environment, which all times are then, and with --seed.
#[derive(Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Mkfs {
    /// The type
    #[arg(value_name = "TYPE", value_parser = types())]
    kind: String,
    /// The image, as IMAGE[@PARTITION]
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// Make a new image file of this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Fill it with a directory or a tar archive, or - for an archive on standard input
    ///
    /// An archive may be compressed by gzip, zstd or xz; it is unpacked into a temporary file.
    ///
    /// oci:DIR[:TAG] is a container image in an OCI image layout, layer:FILE one layer: whiteouts in
    /// layers remove files of lower ones. Several sources are applied in order: a later file replaces an
    /// earlier one, and directories are merged.
    ///
    /// Without --size, the size of a new image file is chosen. An image that lies in the source directory
    /// is left out.
    #[arg(long, value_name = "DIR|TAR|oci:DIR[:TAG]|layer:FILE|-")]
    from: Vec<OsString>,
    /// Make the new image file as short as its content allows
    #[arg(
        long,
        requires = "from",
        conflicts_with = "size",
        visible_alias = "shrink"
    )]
    minimize: bool,
    /// Make a directory of the content a subvolume, of btrfs: PATH, or TYPE:PATH with rw, ro, default or
    /// default-ro; can be given several times
    ///
    /// A file that has names in several subvolumes becomes one in each, which share their contents.
    #[arg(short = 'u', long, requires = "from", value_name = "[TYPE:]PATH", value_parser = subvolume_parser())]
    subvol: Vec<NewSubvolume>,
    /// Store files with equal contents once, of btrfs and XFS
    ///
    /// They share extents, as cp --reflink has it. Files of the same size are read once more for that.
    #[arg(long, requires = "from")]
    dedupe: bool,
    /// Owner of everything, instead of those of the directory or archive
    #[arg(long, requires = "from", value_name = "UID:GID", value_parser = parse_owner)]
    owner: Option<(u32, u32)>,
    /// Have owners of the directory or archive become others: FROM:TO for one, FROM:TO:COUNT for more
    #[arg(
        long,
        requires = "from",
        value_name = "FROM:TO[:COUNT]",
        value_delimiter = ','
    )]
    #[arg(value_parser = parse_id_range, conflicts_with = "owner")]
    uid_map: Vec<IdRange>,
    /// The same for groups
    #[arg(
        long,
        requires = "from",
        value_name = "FROM:TO[:COUNT]",
        value_delimiter = ','
    )]
    #[arg(value_parser = parse_id_range, conflicts_with = "owner")]
    gid_map: Vec<IdRange>,
    /// Overwrite what is there
    #[arg(long)]
    force: bool,
    /// Size of a block in bytes
    #[arg(short, long, value_name = "BYTES")]
    block_size: Option<u32>,
    /// Size of a cluster in bytes, with bigalloc
    #[arg(short = 'C', long, value_name = "BYTES")]
    cluster_size: Option<u32>,
    /// Size of an inode in bytes
    #[arg(short = 'I', long, value_name = "BYTES")]
    inode_size: Option<u16>,
    /// Make one inode for so many bytes
    #[arg(short = 'i', long, value_name = "BYTES")]
    bytes_per_inode: Option<u32>,
    /// Make at least so many inodes
    #[arg(short = 'N', long, value_name = "N")]
    inodes: Option<u32>,
    /// Keep so many percent of the blocks for the superuser
    #[arg(short = 'm', long, value_name = "PERCENT", value_parser = parse_percent)]
    reserved: Option<u32>,
    /// Size of the journal
    #[arg(short = 'J', long, value_name = "SIZE", value_parser = parse_size)]
    journal_size: Option<u64>,
    /// Groups that share the place of their metadata
    #[arg(short = 'G', long, value_name = "N")]
    groups_per_flex: Option<u32>,
    /// The label
    #[arg(short = 'L', long, value_name = "LABEL")]
    label: Option<OsString>,
    /// The UUID; a random one by default
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<platter::make::Uuid>,
    /// What random numbers start from: the UUID, the seed of hashes, generations of inodes
    ///
    /// Without `SOURCE_DATE_EPOCH`, all times are 1970-01-01, so that the same command makes the same
    /// bytes.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Features to switch on, or with ^ off
    #[arg(short = 'O', long, value_name = "FEATURE", value_delimiter = ',')]
    features: Vec<String>,
    /// The same, as mkfs.btrfs names some of them
    #[arg(
        short = 'R',
        long,
        value_name = "FEATURE",
        value_delimiter = ',',
        hide = true
    )]
    runtime_features: Vec<String>,
    /// Write zeros to all inode tables, which the kernel does later otherwise
    #[arg(long)]
    no_lazy_init: bool,
    /// Blocks of a RAID array's stripe on one disk
    #[arg(long, value_name = "BLOCKS")]
    stride: Option<u16>,
    /// Blocks of data in a RAID array's stripe
    #[arg(long, value_name = "BLOCKS")]
    stripe_width: Option<u32>,
    /// Size of a sector in bytes, of XFS; of btrfs, 4096
    #[arg(long, value_name = "BYTES")]
    sector_size: Option<u32>,
    /// Size of a directory block in bytes, of XFS
    #[arg(long, value_name = "BYTES")]
    dir_block_size: Option<u32>,
    /// Number of allocation groups, of XFS
    #[arg(long, value_name = "N", conflicts_with = "ag_size")]
    ag_count: Option<u32>,
    /// Size of an allocation group, of XFS
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    ag_size: Option<u64>,
    /// Size of the log, of XFS
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    log_size: Option<u64>,
    /// Stripe unit of the log, of XFS
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    log_stripe_unit: Option<u64>,
    /// The most space for inodes in percent, of XFS
    #[arg(long, value_name = "PERCENT")]
    inode_percent: Option<u8>,
    /// Also make XFS below 300 MiB or of one allocation group, and logs below 64 MiB, which the format's own tools make for
    /// tests alone
    #[arg(long)]
    unsupported: bool,
    /// Size of a tree block in bytes, of btrfs
    #[arg(long, value_name = "BYTES")]
    node_size: Option<u32>,
    /// Profile of data, of btrfs: single, dup, raid0, raid1, raid1c3, raid1c4, raid10, raid5 or raid6
    #[arg(long, value_name = "PROFILE")]
    data: Option<String>,
    /// Profile of metadata, of btrfs
    #[arg(long, value_name = "PROFILE")]
    metadata: Option<String>,
    /// Share block groups between data and metadata, of btrfs
    #[arg(long)]
    mixed: bool,
    /// Checksums, of btrfs: crc32c, xxhash, sha256 or blake2
    #[arg(long, value_name = "TYPE")]
    csum: Option<String>,
    /// Compress contents, of btrfs: zlib, lzo or zstd, with :LEVEL
    #[arg(long, requires = "from", value_name = "METHOD[:LEVEL]")]
    compress: Option<String>,
    /// Owner of the root directory; of an empty filesystem, the caller by default
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    root_owner: Option<(u32, u32)>,
}

impl Mkfs {
    pub(crate) fn run(&self, image_options: &ImageOptions) -> anyhow::Result<u8> {
        let spec = self.spec()?;
        if image_options.offset.is_some() {
            misuse!("--offset is not for making a filesystem; name a partition");
        }
        image_options.refuse_others(&["device", "journal", "rtdev"], "making a filesystem")?;
        let there = std::fs::metadata(&spec.image).ok();
        let is_device = there.is_some_and(|file| file.file_type().is_block_device());
        let is_file = !is_device && spec.partition.is_none();
        if self.minimize && !is_file {
            let image = platter::Escaped(self.image.as_encoded_bytes());
            misuse!("{image}: --minimize makes a new file, no partition or device");
        }
        if self.minimize && image_options.devices().next().is_some() {
            misuse!("--minimize is for one file; give --size for several devices");
        }
        let new = self.new_filesystem()?;
        if self.dedupe && !new.shares_extents() {
            misuse!("--dedupe: files of this {} cannot share extents", self.kind);
        }
        if !self.subvol.is_empty() && !new.has_subvolumes() {
            misuse!("--subvol: {} has no subvolumes", self.kind);
        }
        let mut maker = FormatOptions::new(new)
            .overwrite(self.force)
            .clock(self.clock()?)
            .progress(interrupt::progress())
            .budget(Arc::new(MemoryBudget::new(image_options.cache)));
        for (role, path) in image_options.devices() {
            maker = maker.target(role, parse_image(path.as_os_str())?);
        }
        if self.has_content() {
            maker = maker.content(self.content(&spec.image)?);
        }
        if let Some(size) = self.size {
            maker = maker.size_bytes(size);
        } else if self.minimize {
            maker = maker.minimal_size();
        } else if self.has_content() && spec.partition.is_none() && !spec.image.exists() {
            maker = maker.size_of_content();
        }
        if is_file || image_options.devices().any(|(_, path)| !path.exists()) {
            interrupt::catch()?;
        }
        maker.make(&spec).map_err(|error| self.explain(error))?;
        if let Some((uid, gid)) = self.callers_root() {
            let image = platter::Escaped(self.image.as_encoded_bytes());
            console::complain(format_args!(
                "{image}: note: the root directory belongs to the caller, {uid}:{gid}; \
                 --root-owner 0:0 makes it root's"
            ));
        }
        if console::is_json() {
            let mut console = Console::new();
            let made = info::image_object(&spec, image_options)?;
            write_object(&mut console.out, &made)?;
            return Ok(console.finish()?);
        }
        Ok(0)
    }

    /// Says which option was wrong, where it was one.
    fn explain(&self, error: platter::Error) -> anyhow::Error {
        // The host may be full, too.
        let is_full = matches!(
            error.cause,
            platter::Cause::Filesystem(platter::vfs::Error::Condition(Condition::NoSpace))
        );
        let is_said = matches!(error.cause, platter::Cause::TooSmall { .. });
        match self.size {
            Some(size) if is_full && !is_said && self.has_content() => anyhow!(
                "{}: the content does not fit into {size} bytes; without --size, a size is chosen \
                 that is enough",
                platter::Escaped(self.image.as_encoded_bytes())
            ),
            _ => error.into(),
        }
    }

    /// What an archive may unpack to, so that a short one does not fill the disk: an image of the size
    /// that was asked for cannot hold more, whatever its headers take.
    fn spool_bytes_max(&self) -> u64 {
        let size = self.size.unwrap_or(u64::MAX);
        size.saturating_mul(SPOOL_FACTOR)
            .saturating_add(SPOOL_BYTES)
    }

    fn has_content(&self) -> bool {
        !self.from.is_empty()
    }

    fn content(&self, image: &Path) -> anyhow::Result<Content> {
        let sources: Vec<_> = self.from.iter().map(|from| Source::parse(from)).collect();
        let streams = sources.iter().filter(|source| **source == Source::Stream);
        if streams.count() > 1 {
            misuse!("--from - can be given once");
        }
        let mut layers = ContentLayers::new(self.spool_bytes_max());
        for source in &sources {
            match source {
                Source::Stream => layers.add_stream("standard input", std::io::stdin().lock())?,
                Source::Directory(path) => {
                    if path.join("oci-layout").is_file() {
                        let path = platter::Escaped(path.as_os_str().as_bytes());
                        console::complain(format_args!(
                            "{path}: note: the files of an OCI image layout are copied as they are; \
                             --from oci:{path} takes the image in it"
                        ));
                    }
                    layers.add_directory(path, Some(image))?;
                }
                Source::Archive(path) => layers.add_archive(path)?,
                Source::Layer(path) => layers.add_layer(path)?,
                Source::Image(layout, tag) => layers.add_image(layout, tag.as_deref())?,
            }
        }
        let mut content = layers.finish();
        content.make_subvolumes(&self.subvol)?;
        if self.dedupe {
            share_equal_files(&mut content)?;
        }
        if let Some((uid, gid)) = self.owner {
            content.owned_by(uid, gid);
        }
        let maps = [&self.uid_map, &self.gid_map];
        let [users, groups] = maps.map(|ranges| IdMap::new(ranges.clone()));
        content.map_owners(&users, &groups);
        Ok(content)
    }

    fn spec(&self) -> anyhow::Result<ImageSpec> {
        let spec = parse_image(&self.image)?;
        if self.size.is_some() && spec.partition.is_some() {
            misuse!("--size is not for a partition");
        }
        Ok(spec)
    }

    fn new_filesystem(&self) -> anyhow::Result<NewFilesystem> {
        let Some(mut new) = NewFilesystem::of_type(&self.kind) else {
            misuse!("{}: no such type of filesystem", self.kind);
        };
        let mixed = self.mixed.then(|| "mixed-bg".to_owned());
        let features = self.features.iter().chain(&self.runtime_features);
        for word in features.chain(&mixed) {
            match word.strip_prefix('^') {
                Some(name) => new.set_feature(name, false)?,
                None => new.set_feature(word, true)?,
            }
        }
        for (name, value) in [
            ("block-size", self.block_size.map(u64::from)),
            ("cluster-size", self.cluster_size.map(u64::from)),
            ("inode-size", self.inode_size.map(u64::from)),
            ("bytes-per-inode", self.bytes_per_inode.map(u64::from)),
            ("inodes", self.inodes.map(u64::from)),
            ("reserved", self.reserved.map(u64::from)),
            ("journal-size", self.journal_size),
            ("groups-per-flex", self.groups_per_flex.map(u64::from)),
            ("no-lazy-init", self.no_lazy_init.then_some(1)),
            ("stride", self.stride.map(u64::from)),
            ("stripe-width", self.stripe_width.map(u64::from)),
            ("sector-size", self.sector_size.map(u64::from)),
            ("dir-block-size", self.dir_block_size.map(u64::from)),
            ("ag-count", self.ag_count.map(u64::from)),
            ("ag-size", self.ag_size),
            ("log-size", self.log_size),
            ("log-stripe-unit", self.log_stripe_unit),
            ("inode-percent", self.inode_percent.map(u64::from)),
            ("unsupported", self.unsupported.then_some(1)),
            ("node-size", self.node_size.map(u64::from)),
        ] {
            let Some(value) = value else { continue };
            if let Err(error) = new.set_number(name, value) {
                misuse!("--{name} {error} for {}", self.kind);
            }
        }
        for (name, value) in [
            ("data", &self.data),
            ("metadata", &self.metadata),
            ("csum", &self.csum),
            ("compress", &self.compress),
        ] {
            let Some(value) = value else { continue };
            if let Err(error) = new.set_word(name, value) {
                misuse!("--{name} {error} for {}", self.kind);
            }
        }
        if let Some(idle) = new.idle_option() {
            misuse!("{idle}");
        }
        if let Some(uuid) = self.uuid {
            new.set_uuid(uuid);
        }
        if let Some((uid, gid)) = self.root_owner.or(self.callers_root()) {
            new.set_root_owner(uid, gid);
        }
        if let Some(label) = &self.label
            && let Err(error) = new.set_label(label.clone().into_vec())
        {
            misuse!("the label {error}");
        }
        Ok(new)
    }

    /// The ids of a caller that is an ordinary user and gives no owner of the root directory: with 0:0
    /// there, that user could not write to the new filesystem. `None` with `--from`, whose root
    /// directory gives the owner.
    fn callers_root(&self) -> Option<(u32, u32)> {
        if self.root_owner.is_some() || self.has_content() {
            return None;
        }
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        (!user.is_root()).then(|| (user.as_raw(), group.as_raw()))
    }

    /// The machine's clock, or one that makes the same bytes each time.
    fn clock(&self) -> anyhow::Result<Arc<dyn Clock>> {
        let now = source_date()?.or(self.seed.map(|_| Timestamp::default()));
        Ok(match now {
            Some(now) => Arc::new(FixedClock::new(now, self.seed.unwrap_or(0))),
            None => Arc::new(SystemClock::new()),
        })
    }
}

/// Has equal files share their contents, and shows how much was compared.
fn share_equal_files(content: &mut Content) -> platter::Result<()> {
    let shown = Arc::new(<Mutex<Progress>>::new(Progress::new(true)));
    let listener = Arc::clone(&shown);
    let compared_bytes = AtomicU64::new(0);
    let progress = platter::Progress::listening(move |advance| {
        let before = compared_bytes.fetch_add(advance.bytes, Ordering::Relaxed);
        let bytes = before.saturating_add(advance.bytes);
        listener.lock().update(bytes, None, "bytes compared");
    });
    let shared = content.share_equal_files(&progress);
    drop(progress);
    if let Some(shown) = Arc::into_inner(shown) {
        shown.into_inner().finish();
    }
    shared
}

/// The types that can be made.
fn types() -> PossibleValuesParser {
    PossibleValuesParser::new(make::types())
}

/// A percentage with up to two places, in hundredths.
fn parse_percent(text: &str) -> Result<u32, String> {
    let refused = || "a percentage is a number from 0 to 50, with at most two places".to_owned();
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let whole: u32 = whole.parse().map_err(|_| refused())?;
    if part.is_empty() || part.len() > 2 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(refused());
    }
    let part: u32 = format!("{part:0<2}").parse().map_err(|_| refused())?;
    let hundredths = whole.saturating_mul(100).saturating_add(part);
    if hundredths > 5000 {
        return Err(refused());
    }
    Ok(hundredths)
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let owner = text.split_once(':').and_then(|(uid, gid)| {
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        Some((uid, gid))
    });
    owner.ok_or_else(|| "an owner is two numbers, as in 1000:1000".into())
}

/// Reads `[TYPE:]PATH`. What is no type is part of the path.
fn subvolume_parser() -> impl TypedValueParser<Value = NewSubvolume> {
    OsStringValueParser::new().map(|text| subvolume(text.as_bytes()))
}

fn subvolume(text: &[u8]) -> NewSubvolume {
    let types = [
        (&b"rw:"[..], false, false),
        (b"ro:", true, false),
        (b"default:", false, true),
        (b"default-ro:", true, true),
    ];
    let found = types.iter().find_map(|(word, is_read_only, is_default)| {
        let path = text.strip_prefix(*word)?;
        Some((path, *is_read_only, *is_default))
    });
    let (path, is_read_only, is_default) = found.unwrap_or((text, false, false));
    NewSubvolume {
        path: path.to_vec(),
        is_read_only,
        is_default,
    }
}

fn parse_id_range(text: &str) -> Result<IdRange, String> {
    let mut parts = text.split(':').map(|part| part.parse().ok());
    let range = match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(Some(from)), Some(Some(to)), None, _) => Some((from, to, 1)),
        (Some(Some(from)), Some(Some(to)), Some(Some(count)), None) => Some((from, to, count)),
        _ => None,
    };
    let range = range.map(|(from, to, count)| IdRange { from, to, count });
    range.ok_or_else(|| "a range of ids is two or three numbers, as in 0:100000:65536".into())
}

/// What an operand of --from names.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    Stream,
    Directory(PathBuf),
    Archive(PathBuf),
    /// One layer of a container image.
    Layer(PathBuf),
    /// An image in an OCI image layout, and its tag.
    Image(PathBuf, Option<String>),
}

impl Source {
    /// A file whose name begins like a kind of source is `./oci:name`.
    fn parse(from: &OsStr) -> Self {
        let bytes = from.as_bytes();
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        if let Some(layer) = bytes.strip_prefix(b"layer:") {
            return Self::Layer(path(layer));
        }
        if let Some(layout) = bytes.strip_prefix(b"oci:") {
            let colon = layout.iter().rposition(|&byte| byte == b':');
            return match colon {
                Some(colon) if !path(layout).exists() => {
                    let tag = String::from_utf8_lossy(&layout[colon + 1..]).into_owned();
                    Self::Image(path(&layout[..colon]), Some(tag))
                }
                _ => Self::Image(path(layout), None),
            };
        }
        if from == "-" {
            return Self::Stream;
        }
        let path = path(bytes);
        if path.is_dir() {
            Self::Directory(path)
        } else {
            Self::Archive(path)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_counted_in_hundredths() {
        assert_eq!(parse_percent("5"), Ok(500));
        assert_eq!(parse_percent("0.5"), Ok(50));
        assert_eq!(parse_percent("1.25"), Ok(125));
        for text in ["51", "1.234", "-1", "x", "1."] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_of_ids_are_two_or_three_numbers() {
        let range = |from, to, count| Ok(IdRange { from, to, count });
        assert_eq!(parse_id_range("0:1000"), range(0, 1000, 1));
        assert_eq!(parse_id_range("0:100000:65536"), range(0, 100_000, 65536));
        for text in ["", "1", "1:2:3:4", "a:b", "1:2:x", "-1:2"] {
            assert!(parse_id_range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn subvolumes_have_types_before_their_paths() {
        let found = |text: &str| {
            let new = subvolume(text.as_bytes());
            (new.path, new.is_read_only, new.is_default)
        };
        assert_eq!(found("a/b"), (b"a/b".to_vec(), false, false));
        assert_eq!(found("rw:a"), (b"a".to_vec(), false, false));
        assert_eq!(found("ro:a"), (b"a".to_vec(), true, false));
        assert_eq!(found("default:a:b"), (b"a:b".to_vec(), false, true));
        assert_eq!(found("default-ro:a"), (b"a".to_vec(), true, true));
        assert_eq!(found("other:a"), (b"other:a".to_vec(), false, false));
    }

    #[test]
    fn owners_are_two_numbers() {
        assert_eq!(parse_owner("1000:100"), Ok((1000, 100)));
        assert!(parse_owner("root:root").is_err());
    }
}
