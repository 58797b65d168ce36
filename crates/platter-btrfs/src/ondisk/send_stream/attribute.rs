//! Attributes of a command: type, length, value.

use platter_ondisk::Uuid;
use platter_ondisk::endian::{Le16, Le32, Le64};
use platter_vfs::Timestamp;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::StreamRule;

/// The number of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attribute(pub(super) u16);

macro_rules! attributes {
    ($($name:ident = $number:literal,)+) => {
        impl Attribute {
            $(pub(super) const $name: Self = Self($number);)+
        }
    };
}

attributes! {
    UUID = 1,
    GENERATION = 2,
    INODE = 3,
    SIZE = 4,
    MODE = 5,
    UID = 6,
    GID = 7,
    DEVICE = 8,
    CHANGED = 9,
    MODIFIED = 10,
    ACCESSED = 11,
    CREATED = 12,
    XATTR_NAME = 13,
    XATTR_DATA = 14,
    PATH = 15,
    PATH_TO = 16,
    PATH_LINK = 17,
    FILE_OFFSET = 18,
    DATA = 19,
    CLONE_UUID = 20,
    CLONE_GENERATION = 21,
    CLONE_PATH = 22,
    CLONE_OFFSET = 23,
    CLONE_LEN = 24,
    FALLOCATE_MODE = 25,
    FILEATTR = 26,
    UNENCODED_FILE_LEN = 27,
    UNENCODED_LEN = 28,
    UNENCODED_OFFSET = 29,
    COMPRESSION = 30,
    ENCRYPTION = 31,
}

/// The largest number that is known.
const NUMBER_MAX: usize = 31;

/// What comes before a value.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct DiskAttribute {
    kind: Le16,
    len_bytes: Le16,
}

/// A time.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct DiskTime {
    seconds: Le64,
    nanoseconds: Le32,
}

const _: () = assert!(size_of::<DiskAttribute>() == 4);
const _: () = assert!(size_of::<DiskTime>() == 12);

/// The attributes of one command.
#[derive(Debug)]
pub(super) struct Attributes<'a> {
    values: [Option<&'a [u8]>; NUMBER_MAX + 1],
}

impl<'a> Attributes<'a> {
    /// The attributes in `bytes`. Those of unknown numbers are left out; of one that is there twice, the
    /// last counts.
    pub(super) fn decode(bytes: &'a [u8], version: u32) -> Result<Self, StreamRule> {
        let mut values = [None; NUMBER_MAX + 1];
        let mut rest = bytes;
        while !rest.is_empty() {
            let kind = Le16::ref_from_prefix(rest).map_err(|_| StreamRule::Attribute)?;
            let (kind, after) = (Attribute(kind.0.get()), kind.1);
            let value;
            if kind == Attribute::DATA && version >= 2 {
                // It is the last, and has no length.
                (value, rest) = (after, &[]);
            } else {
                let len = Le16::ref_from_prefix(after).map_err(|_| StreamRule::Attribute)?;
                let split = len.1.split_at_checked(len.0.get().into());
                (value, rest) = split.ok_or(StreamRule::Attribute)?;
            }
            if let Some(known) = values.get_mut(usize::from(kind.0)) {
                *known = Some(value);
            }
        }
        Ok(Self { values })
    }

    /// The value of an attribute, if it is there.
    pub(super) fn get(&self, attribute: Attribute) -> Option<&'a [u8]> {
        self.values.get(usize::from(attribute.0)).copied().flatten()
    }

    /// The value of an attribute.
    pub(super) fn bytes(&self, attribute: Attribute) -> Result<&'a [u8], StreamRule> {
        self.get(attribute).ok_or(StreamRule::MissingAttribute)
    }

    /// A number of 64 bits.
    pub(super) fn number(&self, attribute: Attribute) -> Result<u64, StreamRule> {
        let number = Le64::ref_from_bytes(self.bytes(attribute)?);
        Ok(number.map_err(|_| StreamRule::AttributeSize)?.get())
    }

    /// A number of 64 bits that fits into 32.
    pub(super) fn small(&self, attribute: Attribute) -> Result<u32, StreamRule> {
        u32::try_from(self.number(attribute)?).map_err(|_| StreamRule::Number)
    }

    /// A number of 32 bits.
    pub(super) fn number_32(&self, attribute: Attribute) -> Result<u32, StreamRule> {
        let number = Le32::ref_from_bytes(self.bytes(attribute)?);
        Ok(number.map_err(|_| StreamRule::AttributeSize)?.get())
    }

    /// A UUID.
    pub(super) fn uuid(&self, attribute: Attribute) -> Result<Uuid, StreamRule> {
        let bytes = <[u8; 16]>::try_from(self.bytes(attribute)?);
        Ok(Uuid::from_bytes(
            bytes.map_err(|_| StreamRule::AttributeSize)?,
        ))
    }

    /// A time.
    pub(super) fn time(&self, attribute: Attribute) -> Result<Timestamp, StreamRule> {
        let disk = DiskTime::ref_from_bytes(self.bytes(attribute)?);
        let disk = disk.map_err(|_| StreamRule::AttributeSize)?;
        let nanoseconds = disk.nanoseconds.get();
        if nanoseconds >= 1_000_000_000 {
            return Err(StreamRule::Time);
        }
        Ok(Timestamp {
            seconds: disk.seconds.get().cast_signed(),
            nanoseconds,
        })
    }
}

/// Appends attributes to the bytes of a command.
#[derive(Debug)]
pub(super) struct AttributeWriter<'b> {
    pub(super) bytes: &'b mut Vec<u8>,
    pub(super) version: u32,
    /// Whether all values fit so far.
    pub(super) fits: bool,
}

impl AttributeWriter<'_> {
    /// Appends a value.
    pub(super) fn put(&mut self, attribute: Attribute, value: &[u8]) -> &mut Self {
        let Ok(len) = u16::try_from(value.len()) else {
            self.fits = false;
            return self;
        };
        let disk = DiskAttribute {
            kind: attribute.0.into(),
            len_bytes: len.into(),
        };
        self.bytes.extend_from_slice(disk.as_bytes());
        self.bytes.extend_from_slice(value);
        self
    }

    /// Appends data, which is the last attribute.
    pub(super) fn put_data(&mut self, value: &[u8]) {
        if self.version < 2 {
            self.put(Attribute::DATA, value);
            return;
        }
        let kind = Attribute::DATA.0.to_le_bytes();
        self.bytes.extend_from_slice(&kind);
        self.bytes.extend_from_slice(value);
    }

    /// Appends a number of 64 bits.
    pub(super) fn put_number(&mut self, attribute: Attribute, value: impl Into<u64>) -> &mut Self {
        self.put(attribute, &value.into().to_le_bytes())
    }

    /// Appends a number of 32 bits.
    pub(super) fn put_number_32(&mut self, attribute: Attribute, value: u32) -> &mut Self {
        self.put(attribute, &value.to_le_bytes())
    }

    /// Appends a UUID.
    pub(super) fn put_uuid(&mut self, attribute: Attribute, value: Uuid) -> &mut Self {
        self.put(attribute, value.as_bytes())
    }

    /// Appends a time.
    pub(super) fn put_time(&mut self, attribute: Attribute, value: Timestamp) -> &mut Self {
        let disk = DiskTime {
            seconds: value.seconds.cast_unsigned().into(),
            nanoseconds: value.nanoseconds.into(),
        };
        self.put(attribute, disk.as_bytes())
    }
}
