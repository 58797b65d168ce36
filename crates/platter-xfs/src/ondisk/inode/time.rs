//! Times of an inode: seconds and nanoseconds in 32 bits each, or nanoseconds since 1901 in 64.
//! Spec: `xfs/ondisk_inode`; large times: `xfs-headers/xfs_format.h`.

use platter_ondisk::endian::Be64;
use platter_vfs::Timestamp;

const NANOSECONDS: u64 = 1_000_000_000;
/// 1901-12-13T20:45:52Z, where large times begin.
const EPOCH: i64 = -(1 << 31);
/// The last second of large times.
const LARGE_MAX: i64 = 16_299_260_424;

/// Decodes a time.
#[must_use]
pub fn decode(stored: Be64, is_large: bool) -> Timestamp {
    let value = stored.get();
    if is_large {
        let seconds = value.checked_div(NANOSECONDS).unwrap_or_default();
        let nanoseconds = value.checked_rem(NANOSECONDS).unwrap_or_default();
        return Timestamp {
            seconds: i64::try_from(seconds)
                .unwrap_or_default()
                .saturating_add(EPOCH),
            nanoseconds: u32::try_from(nanoseconds).unwrap_or_default(),
        };
    }
    let [s0, s1, s2, s3, n0, n1, n2, n3] = stored.to_bytes();
    Timestamp {
        seconds: i32::from_be_bytes([s0, s1, s2, s3]).into(),
        nanoseconds: u32::from_be_bytes([n0, n1, n2, n3]),
    }
}

/// Encodes a time; one that the format cannot hold becomes the nearest.
#[must_use]
pub fn encode(time: Timestamp, is_large: bool) -> Be64 {
    let (first, last) = if is_large {
        (EPOCH, LARGE_MAX)
    } else {
        (i32::MIN.into(), i32::MAX.into())
    };
    let (seconds, nanoseconds) = match time.seconds {
        seconds if seconds < first => (first, 0),
        seconds if seconds > last => (last, 0),
        seconds => (seconds, time.nanoseconds),
    };
    if is_large {
        let seconds = u64::try_from(seconds.saturating_sub(EPOCH)).unwrap_or_default();
        let value = seconds
            .saturating_mul(NANOSECONDS)
            .saturating_add(nanoseconds.into());
        return value.into();
    }
    let [s0, s1, s2, s3] = i32::try_from(seconds).unwrap_or_default().to_be_bytes();
    let [n0, n1, n2, n3] = nanoseconds.to_be_bytes();
    Be64::from_bytes([s0, s1, s2, s3, n0, n1, n2, n3])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp {
            seconds,
            nanoseconds,
        }
    }

    #[test]
    fn times_survive_encoding_within_their_range() {
        for time in [at(0, 0), at(-1, 999_999_999), at(i32::MAX.into(), 5)] {
            assert_eq!(decode(encode(time, false), false), time);
            assert_eq!(decode(encode(time, true), true), time);
        }
        let late = at(4_000_000_000, 7);
        assert_eq!(decode(encode(late, true), true), late);
        assert_eq!(decode(encode(late, false), false), at(i32::MAX.into(), 0));
        assert_eq!(decode(encode(at(EPOCH - 9, 1), true), true), at(EPOCH, 0));
        assert_eq!(encode(at(EPOCH, 0), true).get(), 0);
    }
}
