//! The arguments of ioctls, as they are in memory.

use std::ops::Range;

use platter_vfs::subvolumes::{Subvolume, Transfer};
use platter_vfs::{Timestamp, Uuid};
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes of the buffer of a label, `FSLABEL_MAX`.
pub(crate) const FSLABEL_BYTES: usize = 256;

/// `BTRFS_SUBVOL_RDONLY`.
pub(crate) const SUBVOL_RDONLY: u64 = 1 << 1;
/// `BTRFS_ROOT_SUBVOL_RDONLY`: of a root item, as `BTRFS_IOC_GET_SUBVOL_INFO` returns it.
const ROOT_SUBVOL_RDONLY: u64 = 1 << 0;
/// `BTRFS_FIRST_FREE_OBJECTID`, the root directory of any subvolume.
pub(crate) const ROOT_DIRECTORY: u64 = 256;
/// `BTRFS_SUBVOL_SPEC_BY_ID`.
pub(crate) const SUBVOL_SPEC_BY_ID: u64 = 1 << 4;

/// Of a command on devices: although something is on a new one; metadata may have fewer copies.
pub(crate) const FORCED: u32 = 1 << 0;
/// What is bad is rewritten.
pub(crate) const REPAIRS: u32 = 1 << 1;
/// It names a device.
pub(crate) const HAS_DEVICE: u32 = 1 << 2;
/// A length is what the filesystem is to be longer by.
pub(crate) const LARGER: u32 = 1 << 3;
/// A balance has filters of data.
pub(crate) const OF_DATA: u32 = 1 << 4;
/// Of metadata.
pub(crate) const OF_METADATA: u32 = 1 << 5;
/// Of the chunk tree.
pub(crate) const OF_SYSTEM: u32 = 1 << 6;
/// A command ended.
pub(crate) const ENDED: u32 = 1 << 7;
/// It was cancelled.
pub(crate) const CANCELLED: u32 = 1 << 8;

/// What a command on devices does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum DeviceAction {
    Scrub = 1,
    Balance,
    Add,
    Remove,
    Replace,
    Resize,
}

impl DeviceAction {
    pub(crate) fn decode(number: u32) -> Option<Self> {
        let all = [
            Self::Scrub,
            Self::Balance,
            Self::Add,
            Self::Remove,
            Self::Replace,
            Self::Resize,
        ];
        all.into_iter().find(|action| *action as u32 == number)
    }
}

/// Extents of a file that are listed at once.
pub(super) const EXTENTS_MAX: usize = 256;

/// Subvolumes that a send stream may clone from, besides its parent.
pub(super) const CLONE_SOURCES_MAX: usize = 1024;

/// Bytes of a piece of a send stream: with what comes before them, as many as the number of an ioctl can say.
pub(super) const SEND_PIECE_BYTES: usize = 16344;

/// Bytes of a part of a report.
const REPORT_PAGE_BYTES: usize = 8168;

/// Bytes of the longest path, `PATH_MAX`.
const PATH_BYTES: usize = 4096;

macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident[$bytes:literal] {
        $($(#[$field_meta:meta])* $field:ident: $kind:ty,)*
    })*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
            #[repr(C)]
            pub(crate) struct $name {
                $($(#[$field_meta])* pub(crate) $field: $kind,)*
            }

            const _: () = assert!(size_of::<$name>() == $bytes);
        )*
    };
}

structures! {
    /// `struct fstrim_range`, in bytes.
    TrimRange[24] {
        start: u64,
        /// The answer has how many were discarded.
        len: u64,
        minlen: u64,
    }
    /// `struct btrfs_ioctl_vol_args`.
    VolArgs[4096] {
        fd: i64,
        name: [u8; 4088],
    }
    /// `struct btrfs_ioctl_vol_args_v2`.
    VolArgsV2[4096] {
        fd: i64,
        generation: u64,
        flags: u64,
        unused: [u64; 4],
        /// With `BTRFS_SUBVOL_SPEC_BY_ID`, it begins with the number of a subvolume.
        name: [u8; 4040],
    }
    /// `struct btrfs_ioctl_ino_lookup_args`.
    InoLookup[4096] {
        tree: u64,
        inode: u64,
        name: [u8; 4080],
    }
    /// `struct btrfs_ioctl_timespec`.
    Time[16] {
        seconds: i64,
        nanoseconds: u32,
        unused: u32,
    }
    /// `struct btrfs_ioctl_get_subvol_info_args`. What there is none of is zero.
    SubvolumeInfo[504] {
        id: u64,
        name: [u8; 256],
        parent: u64,
        parent_dir: u64,
        generation: u64,
        flags: u64,
        uuid: [u8; 16],
        parent_uuid: [u8; 16],
        received_uuid: [u8; 16],
        changed_generation: u64,
        created_generation: u64,
        sent_generation: u64,
        received_generation: u64,
        changed: Time,
        created: Time,
        sent: Time,
        received: Time,
        unused: [u64; 8],
    }
    /// `struct btrfs_ioctl_received_subvol_args`.
    ReceivedSubvolume[200] {
        uuid: [u8; 16],
        sent_generation: u64,
        /// The answer has this, and when that was.
        received_generation: u64,
        sent: Time,
        received: Time,
        flags: u64,
        unused: [u64; 16],
    }
    /// A subvolume of a list: the request has the least number that it may have.
    NextSubvolume[4608] {
        info: SubvolumeInfo,
        is_default: u32,
        path_bytes: u32,
        path: [u8; PATH_BYTES],
    }
    /// A command on devices. The answer has the number of its job.
    DeviceCommand[4128] {
        /// A [`DeviceAction`].
        action: u32,
        /// [`FORCED`], [`REPAIRS`], [`HAS_DEVICE`], and which filters of a balance are there.
        flags: u32,
        device: u64,
        /// A length, or what it is to be longer by.
        len_bytes: u64,
        job: u64,
        /// The path of a device; filters of a balance, of data, metadata and the chunk tree. Each ends with a NUL.
        text: [u8; PATH_BYTES],
    }
    /// A count of a scrub.
    DeviceCounter[40] {
        name: [u8; 32],
        count: u64,
    }
    /// What became of a command on devices so far.
    DeviceStatus[5360] {
        /// The request has the number of the job.
        job: u64,
        /// [`ENDED`], [`CANCELLED`], [`REPAIRS`].
        flags: u32,
        /// Why it failed; 0 if it did not.
        errno: u32,
        done: u64,
        total: u64,
        considered: u64,
        moved: u64,
        removed: u64,
        before_bytes: u64,
        after_bytes: u64,
        device: u64,
        errors: u64,
        uncorrectable: u64,
        counters: u64,
        unused: u64,
        counter: [DeviceCounter; 16],
        /// What was found since it was asked last, a line each.
        found: [u8; PATH_BYTES],
        error: [u8; 512],
    }
    /// A send stream that is to be made of a subvolume.
    SendStart[8232] {
        /// The answer has the number of the stream.
        stream: u64,
        /// The version; 0 for the newest.
        version: u32,
        /// What is to be sent.
        flags: u32,
        /// The subvolume that the receiver has, if there is one.
        parent: u64,
        count: u64,
        unused: u64,
        /// Other subvolumes that it has, as many as the count says.
        clone_sources: [u64; CLONE_SOURCES_MAX],
    }
    /// The next piece of a send stream.
    SendPiece[16376] {
        /// The request has the number of the stream, and how many bytes of it were returned so far.
        stream: u64,
        offset: u64,
        /// Bytes of the piece, or of the message of an error; 0 where none are there yet.
        count: u32,
        /// [`ENDED`], where nothing follows.
        flags: u32,
        /// Why the stream cannot be made any further; 0 if it can.
        errno: u32,
        unused: u32,
        bytes: [u8; SEND_PIECE_BYTES],
    }
    /// A range of a file that is to share what is equal in another one.
    DedupeRange[48] {
        /// The number of the other file, of the same mount.
        source: u64,
        source_offset: u64,
        len_bytes: u64,
        offset: u64,
        /// Whether it is only to be found out if the range could be shared.
        dry_run: u64,
        /// The answer has whether it shares it now and did not before, or could.
        is_shared: u64,
    }
    /// `struct btrfs_ioctl_defrag_range_args`.
    DefragRange[48] {
        start: u64,
        len_bytes: u64,
        flags: u64,
        /// Extents that are as long stay; 0 for a default.
        extent_bytes: u32,
        /// A number; with a level, that and the level in the first two bytes.
        compression: [u8; 4],
        unused: [u32; 4],
    }
    /// A range of a file whose extents are to be written anew.
    DefragmentStep[64] {
        start: u64,
        end: u64,
        extent_bytes: u64,
        /// The answer has how many bytes were.
        written_bytes: u64,
        /// What to compress by, if anything, in the words of the format.
        compression: [u8; 32],
    }
    /// An extent of a file, as `struct fiemap_extent` has it.
    FileExtent[32] {
        start: u64,
        end: u64,
        /// Where it begins in the space that the filesystem allocates.
        physical: u64,
        member: u32,
        /// `FIEMAP_EXTENT_*`.
        flags: u32,
    }
    /// Extents of a file, from a byte on that the request names: as many as fit, or all there are.
    FileExtents[8208] {
        start: u64,
        count: u64,
        extents: [FileExtent; EXTENTS_MAX],
    }
    /// A part of a report, which begins at a byte that the request names.
    ReportPage[8192] {
        /// The number of the report; the request for the first part of one has none.
        number: u64,
        offset: u64,
        total_bytes: u64,
        bytes: [u8; REPORT_PAGE_BYTES],
    }
    /// `struct btrfs_ioctl_fs_info_args`.
    FsInfo[1024] {
        max_device: u64,
        devices: u64,
        uuid: [u8; 16],
        node_bytes: u32,
        sector_bytes: u32,
        clone_alignment_bytes: u32,
        checksum_kind: u16,
        checksum_bytes: u16,
        /// Which of the fields below were asked for, which the number of the ioctl keeps from the server.
        flags: u64,
        generation: u64,
        metadata_uuid: [u8; 16],
        unused: [u64; 118],
    }
}

/// The argument of an ioctl.
///
/// # Errors
/// `EINVAL` for one that is too short.
pub(crate) fn argument<T: FromBytes + Immutable>(input: &[u8]) -> Result<T, Errno> {
    let argument = T::read_from_prefix(input).map_err(|_| Errno::INVAL)?;
    Ok(argument.0)
}

/// The bytes before the NUL that ends a text.
///
/// # Errors
/// `ENAMETOOLONG` without one.
pub(crate) fn text(bytes: &[u8]) -> Result<&[u8], Errno> {
    let end = bytes.iter().position(|&byte| byte == 0);
    Ok(&bytes[..end.ok_or(Errno::NAMETOOLONG)?])
}

/// Puts a text and a NUL at the beginning of a buffer.
fn put_text(buffer: &mut [u8], text: &[u8]) -> Result<(), Errno> {
    let end = text.len().checked_add(1).filter(|&end| end <= buffer.len());
    let place = &mut buffer[..end.ok_or(Errno::NAMETOOLONG)?];
    place[..text.len()].copy_from_slice(text);
    place[text.len()] = 0;
    Ok(())
}

impl VolArgs {
    pub(crate) fn new(name: &[u8]) -> Result<Self, Errno> {
        let mut args = Self::new_zeroed();
        put_text(&mut args.name, name)?;
        Ok(args)
    }
}

impl VolArgsV2 {
    pub(crate) fn new(fd: i64, name: &[u8], flags: u64) -> Result<Self, Errno> {
        let mut args = Self::new_zeroed();
        (args.fd, args.flags) = (fd, flags);
        put_text(&mut args.name, name)?;
        Ok(args)
    }

    /// The number in the place of the name.
    pub(crate) fn subvolume(&self) -> u64 {
        u64::read_from_prefix(&self.name).map_or(0, |(id, _)| id)
    }
}

/// Puts as much of a text into a buffer as fits, and a NUL.
pub(crate) fn put_part(buffer: &mut [u8], text: &[u8]) {
    let len = text.len().min(buffer.len().saturating_sub(1));
    let _ = put_text(buffer, text.get(..len).unwrap_or_default());
}

impl DeviceCommand {
    /// A command with texts, each of which ends with a NUL.
    pub(crate) fn new(action: DeviceAction, flags: u32, texts: &[&[u8]]) -> Result<Self, Errno> {
        let mut command = Self::new_zeroed();
        (command.action, command.flags) = (action as u32, flags);
        let mut left = &mut command.text[..];
        for text in texts {
            put_text(left, text)?;
            left = &mut left[text.len() + 1..];
        }
        Ok(command)
    }

    /// Its texts, the first so many.
    pub(crate) fn texts<const COUNT: usize>(&self) -> Result<[&[u8]; COUNT], Errno> {
        let mut left = &self.text[..];
        let mut texts = [&self.text[..0]; COUNT];
        for place in &mut texts {
            *place = text(left)?;
            left = &left[place.len() + 1..];
        }
        Ok(texts)
    }
}

impl DefragmentStep {
    /// A request of which `compression` is a method, or nothing.
    pub(crate) fn new(
        range: &Range<u64>,
        extent_bytes: u64,
        compression: Option<&str>,
    ) -> Result<Self, Errno> {
        let mut request = Self {
            start: range.start,
            end: range.end,
            extent_bytes,
            ..Self::new_zeroed()
        };
        let method = compression.unwrap_or_default();
        put_text(&mut request.compression, method.as_bytes())?;
        Ok(request)
    }
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self {
            seconds: time.seconds,
            nanoseconds: time.nanoseconds,
            unused: 0,
        }
    }
}

impl From<Time> for Timestamp {
    fn from(time: Time) -> Self {
        Self {
            seconds: time.seconds,
            nanoseconds: time.nanoseconds,
        }
    }
}

impl SubvolumeInfo {
    pub(crate) fn encode(subvolume: &Subvolume) -> Self {
        let uuid = |uuid: Option<Uuid>| uuid.unwrap_or_default().into_bytes();
        let generation = |it: Option<Transfer>| it.map_or(0, |it| it.generation);
        let time = |it: Option<Transfer>| it.map_or(Timestamp::default(), |it| it.time).into();
        let mut name = [0; 256];
        let last = subvolume.path.rsplit(|&byte| byte == b'/').next();
        // A name that is too long is none of a file.
        let _ = put_text(&mut name, last.unwrap_or_default());
        Self {
            id: subvolume.id,
            name,
            parent: subvolume.parent.unwrap_or_default(),
            parent_dir: subvolume.parent_dir.unwrap_or_default(),
            generation: subvolume.generation,
            flags: if subvolume.read_only {
                ROOT_SUBVOL_RDONLY
            } else {
                0
            },
            uuid: subvolume.uuid.into_bytes(),
            parent_uuid: uuid(subvolume.parent_uuid),
            received_uuid: uuid(subvolume.received_uuid),
            changed_generation: subvolume.changed_generation,
            created_generation: subvolume.created_generation,
            sent_generation: generation(subvolume.sent),
            received_generation: generation(subvolume.received),
            changed: subvolume.changed.into(),
            created: subvolume.created.into(),
            sent: time(subvolume.sent),
            received: time(subvolume.received),
            unused: [0; 8],
        }
    }

    /// What it says of a subvolume, whose path it does not have.
    pub(crate) fn decode(&self, path: &[u8]) -> Subvolume {
        let present = |bytes| Some(Uuid::from_bytes(bytes)).filter(|uuid| !uuid.is_nil());
        let number = |number: u64| Some(number).filter(|&number| number > 0);
        let transfer = |generation, time: Time| {
            number(generation).map(|generation| Transfer {
                generation,
                time: time.into(),
            })
        };
        Subvolume {
            id: self.id,
            parent: number(self.parent),
            parent_dir: number(self.parent_dir),
            path: path.to_vec(),
            uuid: Uuid::from_bytes(self.uuid),
            parent_uuid: present(self.parent_uuid),
            received_uuid: present(self.received_uuid),
            generation: self.generation,
            changed_generation: self.changed_generation,
            changed: self.changed.into(),
            created_generation: self.created_generation,
            created: self.created.into(),
            read_only: self.flags & ROOT_SUBVOL_RDONLY != 0,
            sent: transfer(self.sent_generation, self.sent),
            received: transfer(self.received_generation, self.received),
        }
    }
}

impl NextSubvolume {
    /// A request for the subvolume with the least number that is `id` or greater.
    pub(crate) fn request(id: u64) -> Self {
        let mut request = Self::new_zeroed();
        request.info.id = id;
        request
    }

    pub(crate) fn encode(subvolume: &Subvolume, is_default: bool) -> Result<Self, Errno> {
        let mut answer = Self::new_zeroed();
        answer.info = SubvolumeInfo::encode(subvolume);
        answer.is_default = is_default.into();
        let path = &subvolume.path;
        let place = answer.path.get_mut(..path.len());
        place.ok_or(Errno::NAMETOOLONG)?.copy_from_slice(path);
        answer.path_bytes = u32::try_from(path.len()).map_err(|_| Errno::NAMETOOLONG)?;
        Ok(answer)
    }

    /// The subvolume, and whether it is the default one.
    pub(crate) fn decode(&self) -> Result<(Subvolume, bool), Errno> {
        let path = self.path.get(..self.path_bytes as usize);
        let subvolume = self.info.decode(path.ok_or(Errno::PROTO)?);
        Ok((subvolume, self.is_default != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subvolume() -> Subvolume {
        let time = |seconds| Timestamp {
            seconds,
            nanoseconds: 7,
        };
        Subvolume {
            id: 300,
            parent: Some(5),
            parent_dir: Some(257),
            path: b"dir/sub".to_vec(),
            uuid: Uuid::from_u128(1),
            parent_uuid: Some(Uuid::from_u128(2)),
            received_uuid: None,
            generation: 12,
            changed_generation: 11,
            changed: time(-1),
            created_generation: 10,
            created: time(1 << 33),
            read_only: true,
            sent: Some(Transfer {
                generation: 9,
                time: time(3),
            }),
            received: None,
        }
    }

    #[test]
    fn subvolumes_are_where_linux_looks_for_them() {
        let info = SubvolumeInfo::encode(&subvolume());
        let bytes = info.as_bytes();
        assert_eq!(bytes[8..12], *b"sub\0");
        let word = |at: usize| u64::read_from_bytes(&bytes[at..][..8]).unwrap();
        assert_eq!([0, 264, 272, 280, 288].map(word), [300, 5, 257, 12, 1]);
        assert_eq!(bytes[296..312], 1_u128.to_be_bytes());
        assert_eq!([344, 352, 360, 368].map(word), [11, 10, 9, 0]);
        assert_eq!([376, 384, 392].map(word), [u64::MAX, 7, 1 << 33]);
    }

    #[test]
    fn subvolumes_of_a_list_are_what_they_were() {
        for is_default in [false, true] {
            let encoded = NextSubvolume::encode(&subvolume(), is_default).unwrap();
            assert_eq!(encoded.decode(), Ok((subvolume(), is_default)));
        }
        let long = Subvolume {
            path: vec![b'x'; PATH_BYTES + 1],
            ..subvolume()
        };
        let refused = NextSubvolume::encode(&long, false);
        assert_eq!(refused.map(|_| ()), Err(Errno::NAMETOOLONG));
        let mut forged = NextSubvolume::request(256);
        forged.path_bytes = u32::MAX;
        assert_eq!(forged.decode(), Err(Errno::PROTO));
    }

    #[test]
    fn names_end_with_a_nul() {
        assert_eq!(text(b"name\0rest"), Ok(&b"name"[..]));
        assert_eq!(text(b"name"), Err(Errno::NAMETOOLONG));
        assert!(VolArgs::new(&[b'x'; 4087]).is_ok());
        assert!(VolArgs::new(&[b'x'; 4088]).is_err());
        let mut args = VolArgsV2::new(-1, b"name", SUBVOL_SPEC_BY_ID).unwrap();
        args.name[..8].copy_from_slice(77_u64.as_bytes());
        assert_eq!(args.subvolume(), 77);
    }
}
