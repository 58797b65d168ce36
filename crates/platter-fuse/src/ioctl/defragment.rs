//! Ranges of files that are defragmented step by step: nothing interrupts a step, which takes a thread that serves.

use std::ops::Range;

use rustix::io::Errno;

/// Bytes of a file that one step defragments at most.
pub(crate) const DEFRAGMENTED_BYTES_MAX: u64 = 32 << 20;

/// Defragments a range by `step`, which returns how many bytes it wrote anew, as far as there is data: `data` returns
/// where that comes next, from a byte on. Returns how many bytes were written anew.
///
/// # Errors
/// Those of both, but for `ENXIO` of `data`, where none follows, and `ENOSPC` after something was written.
pub(crate) fn defragment_in_steps(
    range: &Range<u64>,
    mut step: impl FnMut(Range<u64>) -> Result<u64, Errno>,
    mut data: impl FnMut(u64) -> Result<u64, Errno>,
) -> Result<u64, Errno> {
    let mut start = range.start;
    let mut written_bytes = 0;
    loop {
        let end = start.saturating_add(DEFRAGMENTED_BYTES_MAX).min(range.end);
        match step(start..end) {
            Ok(bytes) => written_bytes += bytes,
            // As far as there is space, as of a whole file.
            Err(Errno::NOSPC) if written_bytes > 0 => return Ok(written_bytes),
            Err(errno) => return Err(errno),
        }
        if end >= range.end {
            return Ok(written_bytes);
        }
        start = match data(end) {
            Ok(next) if next < range.end => next.max(end),
            Ok(_) | Err(Errno::NXIO) => return Ok(written_bytes),
            Err(errno) => return Err(errno),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Defragments a range of a file with data of 64 MiB, a hole, and data from 1 TiB to 2 TiB, of which the steps from
    /// `failing` on fail. Returns the steps.
    fn steps(range: Range<u64>, failing: usize) -> (Vec<Range<u64>>, Result<u64, Errno>) {
        let mut steps = Vec::new();
        let done = defragment_in_steps(
            &range,
            |step| {
                steps.push(step);
                if steps.len() > failing {
                    return Err(Errno::NOSPC);
                }
                Ok(1)
            },
            |from| match from / MIB {
                0..64 | 0x10_0000..0x20_0000 => Ok(from),
                64..0x10_0000 => Ok(0x10_0000 * MIB),
                _ => Err(Errno::NXIO),
            },
        );
        (steps, done)
    }

    #[test]
    fn steps_cover_the_data_of_a_range() {
        let mib = |range: Range<u64>| range.start * MIB..range.end * MIB;
        let short = vec![mib(0..32), mib(32..64)];
        assert_eq!(steps(0..64 * MIB, 9), (short.clone(), Ok(2)));
        assert_eq!(steps(0..100 * MIB, 9), (short, Ok(2)));
        let odd = vec![1..32 * MIB + 1, 32 * MIB + 1..64 * MIB - 1];
        assert_eq!(steps(1..64 * MIB - 1, 9), (odd, Ok(2)));
        let (all, done) = steps(0..u64::MAX, usize::MAX);
        assert_eq!(all.len() as u64, 2 + 0x10_0000 / 32);
        assert_eq!(all[2], mib(0x10_0000..0x10_0020));
        assert_eq!(done, Ok(all.len() as u64));
    }

    #[test]
    fn lack_of_space_ends_what_was_begun() {
        assert_eq!(steps(0..u64::MAX, 0).1, Err(Errno::NOSPC));
        let (begun, done) = steps(0..u64::MAX, 2);
        assert_eq!((begun.len(), done), (3, Ok(2)));
    }
}
