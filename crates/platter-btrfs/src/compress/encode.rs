//! Compression of extents on their way to the devices, and what is worth it. Spec: `btrfs/file_extent`.

use flate2::{Compress, FlushCompress, Status};
use platter_block::lock::Mutex;
use zstd::bulk;
use zstd::zstd_safe::CParameter;

use super::{LZO_LEN_BYTES, ZSTD_WINDOW_LOG_MAX};
use crate::ondisk::file_extent::Compression;

/// Encoders kept for the next extent.
const ENCODERS_MAX: usize = 4;
/// The levels that are used where none is named.
const LEVEL_DEFAULT: i32 = 3;

/// How to compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Method {
    /// The form, not `None`.
    pub compression: Compression,
    /// The level, where the form has levels.
    pub level: i32,
}

impl Method {
    /// That which Linux has where none is named.
    pub const DEFAULT: Self = Self {
        compression: Compression::Zlib,
        level: LEVEL_DEFAULT,
    };

    /// What a mount option or a property names: `zlib`, `lzo` or `zstd`, the level after a colon. A level that is
    /// out of range is the nearest one, as in Linux.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level.parse::<i32>().ok()?)),
            None => (text, None),
        };
        let (compression, levels) = match name {
            "zlib" => (Compression::Zlib, 1..=9),
            "lzo" => (Compression::Lzo, 1..=1),
            "zstd" => (Compression::Zstd, -15..=15),
            _ => return None,
        };
        let level = level.filter(|level| *level != 0).unwrap_or(LEVEL_DEFAULT);
        Some(Self {
            compression,
            level: level.clamp(*levels.start(), *levels.end()),
        })
    }

    /// That of extents in a form, of which the level is not known; `None` where they are not compressed.
    #[must_use]
    pub fn of(compression: Compression) -> Option<Self> {
        (compression != Compression::None).then_some(Self {
            compression,
            level: LEVEL_DEFAULT,
        })
    }

    /// The name of the form.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.compression {
            Compression::Lzo => "lzo",
            Compression::Zstd => "zstd",
            Compression::Zlib | Compression::None => "zlib",
        }
    }
}

/// Compresses extents; keeps what is dear to set up.
#[derive(Default)]
pub struct Compressor {
    /// Encoders for reuse, with their levels.
    zstd: Mutex<Vec<(i32, bulk::Compressor<'static>)>>,
    /// Dictionaries for reuse.
    lzo: Mutex<Vec<Box<lzokay::compress::Dict>>>,
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Compressor").finish_non_exhaustive()
    }
}

impl Compressor {
    /// Compresses `input` to at most `most` bytes; `None` if it takes more.
    #[must_use]
    pub fn compress(
        &self,
        method: Method,
        input: &[u8],
        most: usize,
        sector_bytes: usize,
    ) -> Option<Vec<u8>> {
        match method.compression {
            Compression::None => None,
            Compression::Zlib => zlib(input, method.level, most),
            Compression::Lzo => self.lzo(input, most, sector_bytes),
            Compression::Zstd => self.zstd(input, method.level, most),
        }
    }

    fn zstd(&self, input: &[u8], level: i32, most: usize) -> Option<Vec<u8>> {
        let kept = {
            let mut kept = self.zstd.lock();
            let at = kept.iter().position(|(of, _)| *of == level);
            at.map(|at| kept.swap_remove(at).1)
        };
        let mut encoder = match kept {
            Some(encoder) => encoder,
            None => new_encoder(level)?,
        };
        let mut output = vec![0; most];
        let count = encoder.compress_to_buffer(input, &mut output[..]);
        let mut kept = self.zstd.lock();
        if kept.len() < ENCODERS_MAX {
            kept.push((level, encoder));
        }
        drop(kept);
        output.truncate(count.ok()?);
        Some(output)
    }

    /// See [`lzo`](super::lzo).
    fn lzo(&self, input: &[u8], most: usize, sector_bytes: usize) -> Option<Vec<u8>> {
        let kept = self.lzo.lock().pop();
        let mut dictionary = kept.unwrap_or_else(lzokay::compress::Dict::new);
        let mut output = vec![0; LZO_LEN_BYTES];
        let mut is_small = true;
        for segment in input.chunks(sector_bytes) {
            let Ok(bytes) = lzokay::compress::compress_with_dict(segment, &mut dictionary) else {
                is_small = false;
                break;
            };
            let left_of_sector = sector_bytes - output.len() % sector_bytes;
            if left_of_sector < LZO_LEN_BYTES {
                output.resize(output.len() + left_of_sector, 0);
            }
            output.extend(u32::try_from(bytes.len()).ok()?.to_le_bytes());
            output.extend_from_slice(&bytes);
            if output.len() > most {
                is_small = false;
                break;
            }
        }
        let mut kept = self.lzo.lock();
        if kept.len() < ENCODERS_MAX {
            kept.push(dictionary);
        }
        drop(kept);
        let total = u32::try_from(output.len()).ok()?;
        output[..LZO_LEN_BYTES].copy_from_slice(&total.to_le_bytes());
        is_small.then_some(output)
    }
}

fn new_encoder(level: i32) -> Option<bulk::Compressor<'static>> {
    let mut encoder = bulk::Compressor::new(level).ok()?;
    let window = CParameter::WindowLog(ZSTD_WINDOW_LOG_MAX);
    encoder.set_parameter(window).ok()?;
    Some(encoder)
}

fn zlib(input: &[u8], level: i32, most: usize) -> Option<Vec<u8>> {
    let level = flate2::Compression::new(u32::try_from(level).unwrap_or(1));
    let mut stream = Compress::new(level, true);
    let mut output = vec![0; most];
    let status = stream.compress(input, &mut output, FlushCompress::Finish);
    if !matches!(status, Ok(Status::StreamEnd)) {
        return None;
    }
    output.truncate(usize::try_from(stream.total_out()).ok()?);
    Some(output)
}

/// A sample is so many bytes, once in every [`SAMPLE_EVERY`].
const SAMPLE_BYTES: usize = 16;
const SAMPLE_EVERY: usize = 256;
/// With fewer different bytes, data compresses.
const FEW_BYTES: usize = 64;
/// With so many bytes in nine tenths of it, it does not.
const MANY_BYTES: usize = 200;
/// Entropy, in parts of the largest, up to which compressing is worth the time.
const ENTROPY_MAX: f64 = 0.80;

/// Whether a sample of data looks as if it compressed, by the measures that Linux takes.
#[must_use]
pub fn looks_compressible(data: &[u8]) -> bool {
    let mut sample: Vec<u8> =
        Vec::with_capacity(data.len() / SAMPLE_EVERY * SAMPLE_BYTES + SAMPLE_BYTES);
    for part in data.chunks(SAMPLE_EVERY) {
        sample.extend(part.iter().take(SAMPLE_BYTES));
    }
    let (first, second) = sample.split_at(sample.len() / 2);
    if first == second {
        return true;
    }
    let mut counts = [0_usize; 256];
    for byte in &sample {
        counts[usize::from(*byte)] += 1;
    }
    if counts.iter().filter(|count| **count > 0).count() < FEW_BYTES {
        return true;
    }
    counts.sort_unstable_by(|left, right| right.cmp(left));
    let most = sample.len() * 9 / 10;
    let mut sum = 0;
    let core = counts.iter().take_while(|count| {
        let is_in = sum < most;
        sum += **count;
        is_in
    });
    let core = core.count();
    if core <= FEW_BYTES {
        return true;
    }
    core < MANY_BYTES && entropy(&counts, sample.len()) < ENTROPY_MAX
}

/// Shannon's entropy of bytes, in parts of eight bits.
#[expect(clippy::cast_precision_loss, reason = "counts of a sample are small")]
fn entropy(counts: &[usize], total: usize) -> f64 {
    let used = counts.iter().filter(|count| **count > 0);
    let bits: f64 = used
        .map(|count| {
            let part = *count as f64 / total as f64;
            -part * part.log2()
        })
        .sum();
    bits / 8.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::Decompressor;

    const SECTOR: usize = 4096;

    fn text(len: usize) -> Vec<u8> {
        let words = (0_u64..).flat_map(|number| format!("line {} ", number * number).into_bytes());
        words.take(len).collect()
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let bytes = std::iter::repeat_with(|| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        });
        bytes.take(len).collect()
    }

    #[test]
    fn what_is_compressed_is_read_back() {
        let (compressor, decompressor) = (Compressor::default(), Decompressor::default());
        for name in ["zlib", "zlib:9", "lzo", "zstd", "zstd:-5", "zstd:15"] {
            let method = Method::parse(name).unwrap();
            for len in [100, SECTOR, 3 * SECTOR + 1, 32 * SECTOR] {
                let input = text(len);
                let output = compressor.compress(method, &input, len, SECTOR).unwrap();
                assert!(output.len() < len, "{name} {len}");
                let mut back = vec![0; len];
                decompressor
                    .decompress(method.compression, &output, &mut back, SECTOR)
                    .unwrap();
                assert!(back == input, "{name} {len}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_left_as_it_is() {
        let compressor = Compressor::default();
        let input = noise(32 * SECTOR);
        for name in ["zlib", "lzo", "zstd"] {
            let method = Method::parse(name).unwrap();
            let most = input.len() - SECTOR;
            assert_eq!(compressor.compress(method, &input, most, SECTOR), None);
            let output = compressor.compress(method, &text(9000), 9000, SECTOR);
            assert!(output.is_some(), "{name} goes on after that");
        }
    }

    #[test]
    fn samples_of_text_and_noise_differ() {
        assert!(looks_compressible(&text(32 * SECTOR)));
        assert!(looks_compressible(&vec![0; 32 * SECTOR]));
        assert!(looks_compressible(&noise(SECTOR).repeat(32)));
        assert!(!looks_compressible(&noise(32 * SECTOR)));
    }

    #[test]
    fn levels_are_those_of_mount_options() {
        let level = |text| Method::parse(text).map(|method| method.level);
        assert_eq!(level("zlib:12"), Some(9));
        assert_eq!(level("zstd:-20"), Some(-15));
        assert_eq!(level("zstd"), Some(3));
        for text in ["", "gzip", "zstd:x", "zlib:"] {
            assert_eq!(level(text), None);
        }
    }
}
