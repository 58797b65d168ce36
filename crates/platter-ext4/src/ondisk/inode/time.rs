//! Inode times: 32 bits of seconds, and with larger inodes 2 bits of epoch and 30 of nanoseconds.
//! Spec: `ext4/inodes`, "Inode Timestamps".

use platter_vfs::Timestamp;

/// Decodes a time from its two words; without the second one it is a signed 32-bit number of
/// seconds.
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

/// Encodes a time in two words; without the second one, as a signed 32-bit number of seconds. Times
/// out of range are clamped.
pub(super) fn encode(time: Timestamp, has_extra: bool) -> (u32, u32) {
    let Timestamp {
        seconds,
        nanoseconds,
    } = storable(time, has_extra);
    let [b0, b1, b2, b3, ..] = seconds.to_le_bytes();
    let low = u32::from_le_bytes([b0, b1, b2, b3]);
    let epoch = seconds.saturating_sub(i64::from(low.cast_signed())) >> 32;
    let epoch = u32::try_from(epoch & 3).unwrap_or_default();
    (low, epoch | nanoseconds << 2)
}

/// Returns the nearest time that can be stored.
pub(super) fn storable(time: Timestamp, has_extra: bool) -> Timestamp {
    const EARLIEST: i64 = i32::MIN as i64;
    const LATEST: i64 = i32::MAX as i64;
    const LATEST_WITH_EXTRA: i64 = LATEST.saturating_add(3 << 32);
    let latest = if has_extra { LATEST_WITH_EXTRA } else { LATEST };
    let seconds = time.seconds.clamp(EARLIEST, latest);
    let is_held = has_extra && seconds == time.seconds;
    Timestamp {
        seconds,
        nanoseconds: if is_held { time.nanoseconds } else { 0 },
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

    #[test]
    fn encoded_times_decode_equal() {
        for seconds in [
            i64::from(i32::MIN),
            -1,
            0,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            0x1_0000_0000,
            0x3_7fff_ffff,
        ] {
            let time = Timestamp {
                seconds,
                nanoseconds: 999_999_999,
            };
            let (low, extra) = encode(time, true);
            assert_eq!(decode(low, Some(extra)), time);
        }
    }

    #[test]
    fn times_out_of_range_are_clamped() {
        let at = |seconds, nanoseconds| Timestamp {
            seconds,
            nanoseconds,
        };
        let far = at(i64::MAX, 5);
        assert_eq!(storable(far, true), at(0x3_7fff_ffff, 0));
        assert_eq!(storable(far, false), at(0x7fff_ffff, 0));
        assert_eq!(storable(at(i64::MIN, 5), true), at(-0x8000_0000, 0));
        assert_eq!(storable(at(7, 5), false), at(7, 0));
        let (low, _) = encode(far, false);
        assert_eq!(decode(low, None), at(0x7fff_ffff, 0));
    }
}
