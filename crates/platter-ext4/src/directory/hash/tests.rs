//! Vectors from `debugfs -R "dx_hash -h VERSION -s SEED NAME"`, version 1.47.0.

use super::*;

/// UUID 00112233-4455-6677-8899-aabbccddeeff as the superblock stores it.
const SEED: HashSeed = HashSeed([0x3322_1100, 0x7766_5544, 0xbbaa_9988, 0xffee_ddcc]);

fn assert_hashes(seed: HashSeed, name: &[u8], expected: [(u32, u32); 6]) {
    for (number, (major, minor)) in (0..).zip(expected) {
        let version = HashVersion::of_superblock(number, false).unwrap();
        let hash = version.hash(seed, name);
        assert_eq!(
            hash,
            NameHash { major, minor },
            "version {number} of {name:?}"
        );
    }
}

#[test]
fn seeded_hashes_match_debugfs() {
    let both =
        |three: [(u32, u32); 3]| [three[0], three[1], three[2], three[0], three[1], three[2]];
    assert_hashes(
        SEED,
        b"a",
        both([
            (0xe74b_53e2, 0),
            (0x9375_2ee6, 0x578c_30ba),
            (0xf9b9_0e84, 0x2117_95e4),
        ]),
    );
    assert_hashes(
        SEED,
        b"hello",
        both([
            (0x3225_2546, 0),
            (0x344c_a36e, 0x2ef1_6de2),
            (0x9e01_9d48, 0xb0a9_9d55),
        ]),
    );
    assert_hashes(
        SEED,
        b"0123456789abcdef0",
        both([
            (0x4d58_3fb0, 0),
            (0x54c6_bce0, 0xb1cb_3b86),
            (0x5898_0be8, 0xd053_7126),
        ]),
    );
    assert_hashes(
        SEED,
        &[b'x'; 255],
        both([
            (0x3055_7da6, 0),
            (0x5966_f920, 0x2628_1ca3),
            (0xc414_3c16, 0xcb83_0954),
        ]),
    );
}

#[test]
fn signedness_matters_above_ascii() {
    assert_hashes(
        SEED,
        b"\xc3\xa4\xff\x80z",
        [
            (0xd1c9_bc5e, 0),
            (0x263e_ea68, 0xe03b_8595),
            (0x8cad_40bc, 0x2e4d_5c1d),
            (0xd828_0e60, 0),
            (0x7c60_fae8, 0x5f01_bc7b),
            (0x089b_b868, 0x4397_0066),
        ],
    );
}

#[test]
fn zero_seed_is_the_initial_state_of_md4() {
    let half_md4 = HashVersion::of_directory(1, false).unwrap();
    let zeros = half_md4.hash(HashSeed::default(), b"hello");
    assert_eq!((zeros.major, zeros.minor), (0x1746_da32, 0x4200_13b5));
    assert_eq!(half_md4.hash(HashSeed(INITIAL_STATE), b"hello"), zeros);
}

#[test]
fn full_block_is_padded_with_the_remaining_length() {
    let tea = HashVersion::of_directory(2, false).unwrap();
    let hash = tea.hash(HashSeed::default(), b"0123456789abcdef0123456789abcdef");
    assert_eq!((hash.major, hash.minor), (0xcbe9_5e3c, 0x1762_7589));
}

#[test]
fn unknown_versions_have_no_hash() {
    assert_eq!(HashVersion::of_directory(3, false), None);
    assert_eq!(HashVersion::of_directory(6, false), None);
    assert_eq!(HashVersion::of_superblock(6, false), None);
    assert_eq!(
        HashVersion::of_superblock(4, false),
        HashVersion::of_directory(1, true)
    );
}

#[test]
fn no_name_hashes_to_the_end_of_the_directory() {
    let legacy = HashVersion::of_directory(0, true).unwrap();
    for first in 0..=255 {
        for second in 0..=255 {
            let hash = legacy.hash(HashSeed::default(), &[first, second]);
            assert!(hash.major < END_OF_DIRECTORY && hash.major & 1 == 0);
        }
    }
}
