//! Inode times: 32 bits of seconds, and with larger inodes 2 bits of epoch and 30 of nanoseconds.
//! Spec: `ext4/inodes`, "Inode Timestamps".

use platter_vfs::Timestamp;

/// A time from its two words; without the second one it is a signed 32-bit number of seconds.
pub(super) fn decode(seconds: u32, extra: Option<u32>) -> Timestamp {
    const NANOSECONDS_MAX: u32 = 999_999_999;
    let low = i64::from(seconds.cast_signed());
    let Some(extra) = extra else {
        return Timestamp {
            seconds: low,
            nanoseconds: 0,
        };
    };
    let epoch = i64::from(extra & 3) << 32;
    Timestamp {
        seconds: low.saturating_add(epoch),
        nanoseconds: (extra >> 2).min(NANOSECONDS_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_bits_extend_the_seconds_as_documented() {
        let seconds = |low, extra| decode(low, Some(extra)).seconds;
        assert_eq!(seconds(0xffff_ffff, 0), -1);
        assert_eq!(seconds(0x8000_0000, 0), -0x8000_0000);
        assert_eq!(seconds(0x7fff_ffff, 0), 0x7fff_ffff);
        assert_eq!(seconds(0x8000_0000, 1), 0x8000_0000);
        assert_eq!(seconds(0xffff_ffff, 1), 0xffff_ffff);
        assert_eq!(seconds(0, 1), 0x1_0000_0000);
        assert_eq!(seconds(0x7fff_ffff, 3), 0x3_7fff_ffff);
        assert_eq!(decode(0xffff_ffff, None).seconds, -1);
        assert_eq!(decode(0, Some(999_999_999 << 2)).nanoseconds, 999_999_999);
        assert_eq!(decode(0, Some(u32::MAX)).nanoseconds, 999_999_999);
    }
}
