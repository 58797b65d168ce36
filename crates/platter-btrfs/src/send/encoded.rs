//! Encoded data of a stream, decoded by its receiver.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result};

use super::unsupported;
use crate::compress::Decompressor;
use crate::ondisk::file_extent::{COMPRESSED_BYTES_MAX, Compression};
use crate::ondisk::send_stream::{EncodedData, EncodedForm};

/// Returns what is written of encoded data, and the form that it came in.
///
/// # Errors
/// `Unsupported` for forms that are not known; `Corrupt` where the data is not of its form.
pub fn decode(encoded: &EncodedData<'_>) -> Result<(EncodedForm, Vec<u8>)> {
    if encoded.encryption != 0 {
        return Err(unsupported("encrypted data in a send stream".to_owned()));
    }
    let name = || format!("compression {} in a send stream", encoded.compression);
    let form = EncodedForm::from_number(encoded.compression);
    let form = form.ok_or_else(|| unsupported(name()))?;
    if encoded.ram_bytes > COMPRESSED_BYTES_MAX {
        return Err(Condition::InvalidArgument.into());
    }
    let mut bytes = whole(encoded, form)?;
    let part = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    let (start, end) = (
        encoded.offset,
        encoded.offset.saturating_add(encoded.file_bytes),
    );
    // The command was refused where the part is not within all data, but that may be less than it says.
    if part(end) > bytes.len() {
        return Err(Condition::InvalidArgument.into());
    }
    bytes.truncate(part(end));
    bytes.drain(..part(start));
    Ok((form, bytes))
}

/// All data of an encoded write.
fn whole(encoded: &EncodedData<'_>, form: EncodedForm) -> Result<Vec<u8>> {
    if form.compression == Compression::None {
        return Ok(encoded.data.to_vec());
    }
    let len = usize::try_from(encoded.ram_bytes).unwrap_or_default();
    let mut bytes = vec![0; len];
    let sector = usize::try_from(form.sector_bytes).unwrap_or_default();
    let decompressor = Decompressor::default();
    decompressor
        .decompress(form.compression, encoded.data, &mut bytes, sector)
        .map_err(|rule| Corrupt::new(Locus::UNKNOWN, rule))?;
    Ok(bytes)
}
