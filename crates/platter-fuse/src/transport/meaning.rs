//! Decodes numbers in requests into types of the VFS. See `stat(2)`, `rename(2)`, `fallocate(2)`,
//! `setxattr(2)` and `lseek(2)`.

use platter_vfs::{FallocateMode, RenameMode, SeekTarget, SetTime, Timestamp, XattrMode};
use rustix::io::Errno;

use super::protocol::{SetAttrFlags, SetAttrIn};
use crate::server::{Answer, Changes};

/// Decodes the changes of a `SETATTR`.
pub(super) fn changes(asked: &SetAttrIn) -> Changes {
    let valid = SetAttrFlags::from_bits_truncate(asked.valid);
    let time = |at: SetAttrFlags, now: SetAttrFlags, seconds: u64, nanoseconds| {
        if valid.contains(now) {
            return Some(SetTime::Now);
        }
        valid
            .contains(at)
            .then(|| SetTime::At(timestamp(seconds, nanoseconds)))
    };
    Changes {
        permissions: valid
            .contains(SetAttrFlags::MODE)
            .then_some(asked.mode & 0o7777),
        uid: valid.contains(SetAttrFlags::UID).then_some(asked.uid),
        gid: valid.contains(SetAttrFlags::GID).then_some(asked.gid),
        size_bytes: valid.contains(SetAttrFlags::SIZE).then_some(asked.size),
        accessed: time(
            SetAttrFlags::ATIME,
            SetAttrFlags::ATIME_NOW,
            asked.accessed,
            asked.accessed_ns,
        ),
        modified: time(
            SetAttrFlags::MTIME,
            SetAttrFlags::MTIME_NOW,
            asked.modified,
            asked.modified_ns,
        ),
        changed: valid
            .contains(SetAttrFlags::CTIME)
            .then(|| timestamp(asked.changed, asked.changed_ns)),
        ..Changes::default()
    }
}

fn timestamp(seconds: u64, nanoseconds: u32) -> Timestamp {
    Timestamp {
        seconds: seconds.cast_signed(),
        nanoseconds,
    }
}

/// Decodes the flags of `renameat2(2)`.
pub(super) fn rename_mode(flags: u32) -> Answer<RenameMode> {
    match flags {
        0 => Ok(RenameMode::Replace),
        1 => Ok(RenameMode::NoReplace),
        2 => Ok(RenameMode::Exchange),
        // The kernel has checked RENAME_NOREPLACE.
        4 | 5 => Ok(RenameMode::Whiteout),
        _ => Err(Errno::INVAL),
    }
}

/// Decodes the mode of `fallocate(2)`.
pub(super) fn fallocate_mode(mode: u32) -> Answer<FallocateMode> {
    Ok(match mode {
        0x00 => FallocateMode::Allocate { keep_size: false },
        0x01 => FallocateMode::Allocate { keep_size: true },
        0x03 => FallocateMode::PunchHole,
        0x08 => FallocateMode::CollapseRange,
        0x10 => FallocateMode::ZeroRange { keep_size: false },
        0x11 => FallocateMode::ZeroRange { keep_size: true },
        0x20 => FallocateMode::InsertRange,
        0x40 => FallocateMode::UnshareRange { keep_size: false },
        0x41 => FallocateMode::UnshareRange { keep_size: true },
        _ => return Err(Errno::OPNOTSUPP),
    })
}

/// Decodes `XATTR_CREATE` and `XATTR_REPLACE`.
pub(super) fn xattr_mode(flags: u32) -> Answer<XattrMode> {
    match flags {
        0 => Ok(XattrMode::Set),
        1 => Ok(XattrMode::Create),
        2 => Ok(XattrMode::Replace),
        _ => Err(Errno::INVAL),
    }
}

/// Decodes `SEEK_DATA` and `SEEK_HOLE`.
pub(super) fn seek_target(whence: u32) -> Answer<SeekTarget> {
    match whence {
        3 => Ok(SeekTarget::Data),
        4 => Ok(SeekTarget::Hole),
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicting_flags_are_refused() {
        assert!(rename_mode(3).is_err());
        assert!(fallocate_mode(0x28).is_err());
        assert!(xattr_mode(3).is_err());
    }
}
