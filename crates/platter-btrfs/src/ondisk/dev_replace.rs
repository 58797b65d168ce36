//! A device replacement, in progress or the last one. Spec: `btrfs/dev_replace`.

use platter_ondisk::endian::Le64;
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::types::{DeviceAddr, DeviceId};

/// The item.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskDevReplace {
    /// `src_devid`.
    pub source: Le64,
    /// `cursor_left`, `cursor_right`.
    pub cursors: [Le64; 2],
    /// `cont_reading_from_srcdev_mode`.
    pub read_mode: Le64,
    /// `replace_state`.
    pub state: Le64,
    /// `time_started`, `time_stopped`.
    pub times: [Le64; 2],
    /// `num_write_errors`.
    pub write_errors: Le64,
    /// `num_uncorrectable_read_errors`.
    pub read_errors: Le64,
}

const _: () = assert!(size_of::<DiskDevReplace>() == 72);

rules! {
    /// The rules of a replacement.
    pub enum DevReplaceRule of "dev replace item" {
        /// It has at least the size of the structure, which may grow.
        Size => "invalid item size",
        /// The state is known.
        State => "invalid replace state",
    }
}

/// How far a replacement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplaceState {
    /// Never started.
    NeverStarted,
    /// In progress.
    Started,
    /// Finished.
    Finished,
    /// Cancelled.
    Canceled,
    /// Interrupted.
    Suspended,
}

/// A replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevReplace {
    /// The device that is replaced; the target has number 0 while that is in progress.
    pub source: DeviceId,
    /// Everything below it was copied.
    pub copied: DeviceAddr,
    /// How far it is.
    pub state: ReplaceState,
}

impl DevReplace {
    const STATES: [ReplaceState; 5] = [
        ReplaceState::NeverStarted,
        ReplaceState::Started,
        ReplaceState::Finished,
        ReplaceState::Canceled,
        ReplaceState::Suspended,
    ];

    /// Decodes the item.
    pub fn decode(bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<DevReplaceRule>> {
        let broken = |rule| Corrupt::new(locus, rule);
        let prefix = DiskDevReplace::ref_from_prefix(bytes);
        let (disk, _) = prefix.map_err(|_| broken(DevReplaceRule::Size))?;
        let index = usize::try_from(disk.state.get()).unwrap_or(usize::MAX);
        let state = Self::STATES.get(index).copied();
        Ok(Self {
            source: DeviceId(disk.source.get()),
            copied: DeviceAddr(disk.cursors[0].get()),
            state: state.ok_or(broken(DevReplaceRule::State))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacement_is_decoded() {
        let mut bytes = [0; 72];
        bytes[0] = 2;
        bytes[9] = 1;
        bytes[32] = 4;
        let replace = DevReplace::decode(&bytes, Locus::UNKNOWN).unwrap();
        assert_eq!(replace.source, DeviceId(2));
        assert_eq!(replace.copied, DeviceAddr(256));
        assert_eq!(replace.state, ReplaceState::Suspended);
        bytes[32] = 5;
        let rule = |bytes: &[u8]| DevReplace::decode(bytes, Locus::UNKNOWN).unwrap_err().rule;
        assert_eq!(rule(&bytes), DevReplaceRule::State);
        assert_eq!(rule(&bytes[1..]), DevReplaceRule::Size);
    }
}
