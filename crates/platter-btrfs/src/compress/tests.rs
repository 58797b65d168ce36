//! Data compressed here and by hand, and streams that are none.

use std::io::Write;

use super::*;

fn text(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| b"abcabcde"[at % 7] ^ u8::try_from(at / 300 % 256).unwrap_or_default())
        .collect()
}

fn zlib_of(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(3));
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// Segments of one sector, each of literals only.
fn lzo_of(data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    for sector in data.chunks(4096) {
        let mut segment = Vec::new();
        // A first run of literals as long as the sector, then the end.
        let extra = sector.len() - 3 - 15;
        segment.push(0);
        segment.extend(std::iter::repeat_n(0, extra.div_ceil(255) - 1));
        segment.push(u8::try_from(extra - (extra.div_ceil(255) - 1) * 255).unwrap());
        segment.extend_from_slice(sector);
        segment.extend_from_slice(&[0x11, 0, 0]);
        let left = 4096 - bytes.len() % 4096;
        if left < 4 {
            bytes.extend(std::iter::repeat_n(0, left));
        }
        bytes.extend_from_slice(&u32::try_from(segment.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(&segment);
    }
    let total = u32::try_from(bytes.len()).unwrap();
    bytes[..4].copy_from_slice(&total.to_le_bytes());
    bytes
}

fn compressed(compression: Compression, data: &[u8]) -> Vec<u8> {
    match compression {
        Compression::None => data.to_vec(),
        Compression::Zlib => zlib_of(data),
        Compression::Lzo => lzo_of(data),
        Compression::Zstd => zstd::bulk::compress(data, 3).unwrap(),
    }
}

const KINDS: [Compression; 3] = [Compression::Zlib, Compression::Lzo, Compression::Zstd];

fn decompress(
    compression: Compression,
    input: &[u8],
    len: usize,
) -> Result<Vec<u8>, CompressedDataRule> {
    let mut output = vec![0xaa; len];
    Decompressor::default().decompress(compression, input, &mut output, 4096)?;
    Ok(output)
}

#[test]
fn data_survives_compression() {
    for kind in KINDS {
        for len in [4096, 8192, 131_072] {
            let data = text(len);
            let mut input = compressed(kind, &data);
            assert_eq!(decompress(kind, &input, len), Ok(data.clone()), "{kind:?}");
            // The rest of the last sector is anything.
            input.extend_from_slice(&[0; 100]);
            assert_eq!(decompress(kind, &input, len), Ok(data), "{kind:?}");
        }
    }
}

#[test]
fn data_that_ends_early_is_followed_by_zeros() {
    for kind in KINDS {
        let data = text(4096);
        let output = decompress(kind, &compressed(kind, &data), 8192).unwrap();
        assert_eq!(output, [&data[..], &[0; 4096]].concat(), "{kind:?}");
    }
}

#[test]
fn data_that_goes_on_is_left() {
    for kind in [Compression::Zlib, Compression::Zstd] {
        let data = text(8192);
        let output = decompress(kind, &compressed(kind, &data), 4096);
        assert_eq!(output.unwrap(), data[..4096], "{kind:?}");
    }
}

/// A frame of zstd with a window of so many bits, and without its length.
fn zstd_with_window(data: &[u8], window_log: u32) -> Vec<u8> {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
    encoder.window_log(window_log).unwrap();
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn bombs_fill_no_more_than_the_extent() {
    let data = vec![7; 64 << 20];
    for (kind, bomb) in [
        (Compression::Zlib, zlib_of(&data)),
        (
            Compression::Zstd,
            zstd_with_window(&data, ZSTD_WINDOW_LOG_MAX),
        ),
    ] {
        assert!(bomb.len() < 128 << 10, "{kind:?}: {}", bomb.len());
        for len in [1, 4096, 128 << 10] {
            assert_eq!(
                decompress(kind, &bomb, len).unwrap(),
                data[..len],
                "{kind:?}"
            );
        }
    }
}

#[test]
fn zstd_that_asks_for_more_memory_is_refused() {
    let data = vec![7; 64 << 20];
    let window = zstd_with_window(&data, ZSTD_WINDOW_LOG_MAX + 1);
    let one_segment = zstd::bulk::compress(&data, 3).unwrap();
    for bomb in [window, one_segment] {
        let refused = decompress(Compression::Zstd, &bomb, 4096);
        assert_eq!(refused, Err(CompressedDataRule::Stream));
    }
}

#[test]
fn segments_of_lzo_that_exceed_a_sector_are_refused() {
    // One literal, repeated by a match of any length at distance 1, then the end.
    let mut segment = vec![18, b'a', 0x20];
    segment.extend([0; 3000]);
    segment.extend([1, 0, 0, 0x11, 0, 0]);
    let mut bomb = Vec::new();
    bomb.extend(u32::try_from(8 + segment.len()).unwrap().to_le_bytes());
    bomb.extend(u32::try_from(segment.len()).unwrap().to_le_bytes());
    bomb.extend_from_slice(&segment);
    let mut whole = vec![0; 1 << 20];
    let count = lzokay::decompress::decompress(&segment, &mut whole).unwrap();
    assert!(
        count > 700_000 && whole[..count].iter().all(|byte| *byte == b'a'),
        "{count}"
    );
    for len in [1, 4096, 128 << 10] {
        let refused = decompress(Compression::Lzo, &bomb, len);
        assert_eq!(refused, Err(CompressedDataRule::LzoSegment), "{len}");
    }
    // Many segments, each of a sector, end with the extent.
    let many = lzo_of(&[5].repeat(128 << 10));
    assert_eq!(
        decompress(Compression::Lzo, &many, 4096).unwrap(),
        [5; 4096]
    );
}

#[test]
fn broken_streams_are_refused() {
    for kind in [Compression::Zlib, Compression::Zstd] {
        let input = compressed(kind, &text(4096));
        let half = decompress(kind, &input[..input.len() / 2], 4096);
        assert_eq!(half, Err(CompressedDataRule::Stream), "{kind:?}");
        let other = decompress(kind, &[0xff; 100], 4096);
        assert_eq!(other, Err(CompressedDataRule::Stream), "{kind:?}");
    }
    let none = decompress(Compression::None, &[], 0);
    assert_eq!(none, Err(CompressedDataRule::Kind));
}

#[test]
fn header_of_zlib_is_checked_and_its_checksum_is_not() {
    let data = text(8192);
    let input = zlib_of(&data);
    let decompressor = Decompressor::default();
    let decompress = |input: &[u8]| {
        let mut output = vec![0xaa; data.len()];
        let done = decompressor.decompress(Compression::Zlib, input, &mut output, 4096);
        done.map(|()| output)
    };
    let with = |at: usize, byte: u8| {
        let mut other = input.clone();
        other[at] = byte;
        other
    };
    // A window of 64 KiB, another method, a preset dictionary, a wrong check.
    for header in [[0x88, 0x1c], [0x79, 0x18], [0x78, 0x20], [0x78, 0x9d]] {
        let mut other = input.clone();
        other[..2].copy_from_slice(&header);
        assert_eq!(decompress(&other), Err(CompressedDataRule::Stream));
    }
    assert_eq!(
        decompress(&input[..1]).unwrap_err(),
        CompressedDataRule::Stream
    );
    // A decoder that failed is used again.
    assert!(decompress(&with(2, 0xff)).is_err());
    let checksum = input.len() - 1;
    let other = with(checksum, !input[checksum]);
    assert_eq!(decompress(&other), Ok(data.clone()));
}

#[test]
fn broken_lzo_is_refused() {
    let input = compressed(Compression::Lzo, &text(4096));
    let lzo = |bytes: &[u8]| decompress(Compression::Lzo, bytes, 4096).unwrap_err();
    assert_eq!(lzo(&input[..3]), CompressedDataRule::LzoLength);
    assert_eq!(lzo(&input[..100]), CompressedDataRule::LzoLength);
    let mut long = input.clone();
    long[4..8].fill(0xff);
    assert_eq!(lzo(&long), CompressedDataRule::LzoSegment);
    let mut broken = input;
    broken[8..12].fill(0xff);
    assert_eq!(lzo(&broken), CompressedDataRule::LzoSegment);
}
