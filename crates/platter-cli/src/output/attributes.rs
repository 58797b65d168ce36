//! The attributes of a file as JSON.

use platter::Accounts;
use platter::vfs::{Attr, FileKind, Timestamp};
use serde::Serialize;

use super::kind::kind_word;

/// What `stat` and `ls` tell programs. Times are seconds since 1970 rounded down, and nanoseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Attributes<'a> {
    inode: u64,
    r#type: &'static str,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    #[serde(skip_serializing_if = "is_zero")]
    project: u32,
    size: u64,
    /// In units of 512 bytes.
    sectors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<Device>,
    accessed: Time,
    modified: Time,
    changed: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<Time>,
    flags: u32,
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
            mode: format!("{:04o}", attr.permissions),
            links: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            user: accounts.user(attr.uid),
            group: accounts.group(attr.gid),
            project: attr.project,
            size: attr.size_bytes,
            sectors: attr.sectors,
            device: is_device.then_some(Device {
                major: attr.device.major,
                minor: attr.device.minor,
            }),
            accessed: attr.accessed.into(),
            modified: attr.modified.into(),
            changed: attr.changed.into(),
            created: attr.created.map(Time::from),
            flags: attr.flags,
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

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks for a reference"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
