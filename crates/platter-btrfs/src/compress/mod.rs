//! Compression and decompression of extents: zlib, LZO in segments, zstd. Spec: `btrfs/file_extent`.

mod encode;

use flate2::{Decompress, FlushDecompress};
use platter_block::lock::Mutex;
use platter_ondisk::rules;
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::DParameter;

use crate::ondisk::file_extent::Compression;

pub use encode::{Compressor, Method, looks_compressible};

rules! {
    /// The rules of compressed data.
    pub enum CompressedDataRule of "compressed extent" {
        /// zlib or zstd accept it.
        Stream => "decompression failed",
        /// The length of LZO data is within the extent.
        LzoLength => "invalid lzo header",
        /// A segment of LZO data is within that length, and LZO accepts it.
        LzoSegment => "invalid lzo segment",
        /// It is compressed.
        Kind => "unknown compression",
    }
}

/// The largest window of zstd data, as in the kernel: 128 KiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 17;
/// Decoders kept for the next extent.
const DECODERS_MAX: usize = 4;
/// Bytes of a length in LZO data.
const LZO_LEN_BYTES: usize = 4;

/// Bytes of the header of zlib data.
const ZLIB_HEADER_BYTES: usize = 2;

/// Decompresses extents; keeps what is dear to set up.
#[derive(Default)]
pub struct Decompressor {
    zlib: Kept<Decompress>,
    zstd: Kept<Decoder<'static>>,
}

/// Decoders of one kind.
struct Kept<D> {
    /// Decoders for reuse, at most `DECODERS_MAX`.
    decoders: Mutex<Vec<D>>,
}

impl<D> Default for Kept<D> {
    fn default() -> Self {
        Self {
            decoders: Mutex::default(),
        }
    }
}

impl<D> Kept<D> {
    fn take(&self) -> Option<D> {
        self.decoders.lock().pop()
    }

    fn keep(&self, decoder: D) {
        let mut kept = self.decoders.lock();
        if kept.len() < DECODERS_MAX {
            kept.push(decoder);
        }
    }
}

impl Decompressor {
    /// Fills `output` with decompressed data. As in the kernel, data that ends early is followed by
    /// zeros, and data that goes on is left.
    pub fn decompress(
        &self,
        compression: Compression,
        input: &[u8],
        output: &mut [u8],
        sector_bytes: usize,
    ) -> Result<(), CompressedDataRule> {
        let count = match compression {
            Compression::None => return Err(CompressedDataRule::Kind),
            Compression::Zlib => self.zlib(input, output)?,
            Compression::Lzo => lzo(input, output, sector_bytes)?,
            Compression::Zstd => self.zstd(input, output)?,
        };
        if let Some(rest) = output.get_mut(count..) {
            rest.fill(0);
        }
        Ok(())
    }

    /// As in the kernel, the adler32 at the end is not compared: data checksums cover it, or for inline extents the
    /// checksum of the leaf; with `nodatasum` nothing does.
    fn zlib(&self, input: &[u8], output: &mut [u8]) -> Result<usize, CompressedDataRule> {
        let deflated = match input.split_at_checked(ZLIB_HEADER_BYTES) {
            Some((header, deflated)) if is_zlib_header(header) => deflated,
            _ => return Err(CompressedDataRule::Stream),
        };
        let mut decoder = self.zlib.take().unwrap_or_else(|| Decompress::new(false));
        let result = inflate(&mut decoder, deflated, output);
        decoder.reset(false);
        self.zlib.keep(decoder);
        result
    }

    fn zstd(&self, input: &[u8], output: &mut [u8]) -> Result<usize, CompressedDataRule> {
        let mut decoder = match self.zstd.take() {
            Some(decoder) => decoder,
            None => new_decoder().ok_or(CompressedDataRule::Stream)?,
        };
        let result = zstd_stream(&mut decoder, input, output);
        if decoder.reinit().is_ok() {
            self.zstd.keep(decoder);
        }
        result
    }
}

impl std::fmt::Debug for Decompressor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Decompressor").finish_non_exhaustive()
    }
}

fn new_decoder() -> Option<Decoder<'static>> {
    let mut decoder = Decoder::new().ok()?;
    let limit = DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX);
    decoder.set_parameter(limit).ok()?;
    Some(decoder)
}

fn zstd_stream(
    decoder: &mut Decoder<'static>,
    input: &[u8],
    output: &mut [u8],
) -> Result<usize, CompressedDataRule> {
    let mut from = InBuffer::around(input);
    let mut to = OutBuffer::around(output);
    loop {
        let before = (from.pos(), to.pos());
        let left = decoder.run(&mut from, &mut to);
        let left = left.map_err(|_| CompressedDataRule::Stream)?;
        if left == 0 || to.pos() == to.capacity() {
            return Ok(to.pos());
        }
        if (from.pos(), to.pos()) == before {
            return Err(CompressedDataRule::Stream);
        }
    }
}

/// Whether zlib data begins with this header and without a preset dictionary, which extents never have.
fn is_zlib_header(header: &[u8]) -> bool {
    const DEFLATE: u8 = 8;
    const WINDOW_BITS_MAX: u8 = 7;
    const PRESET_DICTIONARY: u8 = 1 << 5;
    let &[method, flags] = header else {
        return false;
    };
    method & 0xf == DEFLATE
        && method >> 4 <= WINDOW_BITS_MAX
        && flags & PRESET_DICTIONARY == 0
        && u16::from_be_bytes([method, flags]).is_multiple_of(31)
}

fn inflate(
    decoder: &mut Decompress,
    input: &[u8],
    output: &mut [u8],
) -> Result<usize, CompressedDataRule> {
    let status = decoder.decompress(input, output, FlushDecompress::Finish);
    let count = usize::try_from(decoder.total_out()).unwrap_or(usize::MAX);
    match status {
        Ok(flate2::Status::StreamEnd) => Ok(count),
        Ok(flate2::Status::Ok | flate2::Status::BufError) if count >= output.len() => Ok(count),
        Ok(_) | Err(_) => Err(CompressedDataRule::Stream),
    }
}

/// LZO data is a length in all, then segments, each with its length and of one sector when it is
/// decompressed. The length of a segment does not cross a sector of the input.
fn lzo(input: &[u8], output: &mut [u8], sector_bytes: usize) -> Result<usize, CompressedDataRule> {
    let total = length_at(input, 0).ok_or(CompressedDataRule::LzoLength)?;
    let input = input.get(..total).ok_or(CompressedDataRule::LzoLength)?;
    let mut at = LZO_LEN_BYTES;
    let mut done = 0;
    while at < input.len() && done < output.len() {
        let left_of_sector = sector_bytes - at % sector_bytes;
        if left_of_sector < LZO_LEN_BYTES {
            at += left_of_sector;
            continue;
        }
        let segment = length_at(input, at).and_then(|len| {
            at += LZO_LEN_BYTES;
            input.get(at..)?.get(..len)
        });
        let segment = segment.ok_or(CompressedDataRule::LzoSegment)?;
        at += segment.len();
        let space = sector_bytes.min(output.len() - done);
        let target = &mut output[done..done + space];
        let count = lzokay::decompress::decompress(segment, target);
        done += count.map_err(|_| CompressedDataRule::LzoSegment)?;
    }
    Ok(done)
}

fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let length = bytes.get(at..)?.first_chunk::<LZO_LEN_BYTES>()?;
    usize::try_from(u32::from_le_bytes(*length)).ok()
}

#[cfg(test)]
mod tests;
