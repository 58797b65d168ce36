//! The attributes of a file as JSON.

use platter::Accounts;
use platter::vfs::{Attr, FileKind, Timestamp};
use serde::Serialize;

use super::flags;
use super::kind::kind_word;

/// The unit of `st_blocks`.
const SECTOR_BYTES: u64 = 512;

/// What `stat` and `ls` print as JSON. Times are seconds since 1970 rounded down, and nanoseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Attributes<'a> {
    inode: u64,
    r#type: &'static str,
    /// The permission bits.
    mode: u32,
    /// The same as people read them.
    mode_octal: String,
    links: u32,
    uid: u32,
    gid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    project: u32,
    size_bytes: u64,
    allocated_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<Device>,
    accessed: Time,
    modified: Time,
    changed: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<Time>,
    flags: u32,
    flag_names: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct Device {
    major: u32,
    minor: u32,
}

#[derive(Debug, Serialize)]
struct Time {
    seconds: i64,
    nanoseconds: u32,
}

impl<'a> Attributes<'a> {
    pub(crate) fn new(attr: &Attr, accounts: &'a Accounts) -> Self {
        let is_device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
        Self {
            inode: attr.inode,
            r#type: kind_word(attr.kind),
            mode: attr.permissions,
            mode_octal: format!("{:04o}", attr.permissions),
            links: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            user: accounts.user(attr.uid),
            group: accounts.group(attr.gid),
            project: attr.project,
            size_bytes: attr.size_bytes,
            allocated_bytes: attr.sectors.saturating_mul(SECTOR_BYTES),
            device: is_device.then_some(Device {
                major: attr.device.major,
                minor: attr.device.minor,
            }),
            accessed: attr.accessed.into(),
            modified: attr.modified.into(),
            changed: attr.changed.into(),
            created: attr.created.map(Time::from),
            flags: attr.flags,
            flag_names: flags::names(attr.flags),
        }
    }
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self {
            seconds: time.seconds,
            nanoseconds: time.nanoseconds,
        }
    }
}
