//! Folding compared with e2fsprogs, through the hash of the folded name.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::super::hash::{HashSeed, HashVersion};
use super::*;

/// Returns the hashes that `debugfs` computes of the folded `names`, which contain no quotes or
/// line breaks.
fn debugfs_hashes(names: &[String]) -> Vec<String> {
    let mut commands = String::new();
    for name in names {
        writeln!(commands, "dx_hash -c -e utf8 -h half_md4 \"{name}\"").unwrap();
    }
    let mut script = tempfile::NamedTempFile::new().unwrap();
    script.write_all(commands.as_bytes()).unwrap();
    let output = Command::new("debugfs")
        .arg("-f")
        .arg(script.path())
        .stderr(Stdio::null())
        .output()
        .expect("debugfs (package e2fsprogs) must be installed");
    let answers: Vec<_> = String::from_utf8_lossy(&output.stdout)
        .split("\nHash of ")
        .skip(1)
        .map(|answer| {
            let (_, hash) = answer.split_once(" is 0x").unwrap();
            hash.lines().next().unwrap().to_owned()
        })
        .collect();
    assert_eq!(answers.len(), names.len(), "debugfs left out an answer");
    answers
}

fn assert_folds_as_e2fsprogs(names: &[String]) {
    let half_md4 = HashVersion::of_directory(1, false).unwrap();
    for (name, expected) in names.iter().zip(debugfs_hashes(names)) {
        let hash = half_md4.hash(HashSeed::default(), &fold(name.as_bytes()).unwrap());
        let found = format!("{:x} (minor 0x{:x})", hash.major, hash.minor);
        assert_eq!(found, expected, "{}", name.escape_unicode());
    }
}

/// Returns every character of the planes with letters, and a sample of the others.
fn characters() -> impl Iterator<Item = char> {
    (0x80..0x2_0000)
        .chain(0x2_f000..0x2_fb00)
        .chain(0xd_ff00..0xe_1100)
        .chain(0x10_fff0..0x11_0000)
        .filter_map(char::from_u32)
}

#[test]
fn every_character_folds_as_in_unicode_12_1() {
    let names: Vec<_> = characters()
        .map(|character| format!("X{character}"))
        .collect();
    assert_folds_as_e2fsprogs(&names);
}

#[test]
fn combining_marks_are_put_in_canonical_order() {
    let marks: Vec<_> = (0x300..0x370)
        .chain(0x5b0..0x5c0)
        .chain([0x345, 0x1d16d, 0x180f, 0x2c2f, 0xad])
        .collect();
    let bases = [
        0x41, 0x130, 0x1e9e, 0x1f80, 0xac01, 0x3d3, 0x212b, 0x1100, 0x4e00, 0x378,
    ];
    let mut state = 1u64;
    let mut pick = |from: &[u32]| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let index = usize::try_from(state >> 33).unwrap() % from.len();
        char::from_u32(from[index]).unwrap()
    };
    let names: Vec<String> = (0..20_000)
        .map(|_| {
            [
                pick(&bases),
                pick(&marks),
                pick(&marks),
                pick(&marks),
                pick(&bases),
                pick(&marks),
            ]
            .into_iter()
            .collect()
        })
        .collect();
    assert_folds_as_e2fsprogs(&names);
}

#[test]
fn equal_names_fold_to_equal_bytes() {
    let same = |one: &str, other: &str| fold(one.as_bytes()) == fold(other.as_bytes());
    assert!(same("Straße", "STRASSE"));
    assert!(same("\u{c4}", "a\u{308}"));
    assert!(same("soft\u{ad}hyphen", "softhyphen"));
    assert!(!same("a", "á"));
    assert_eq!(fold("\u{ad}".as_bytes()), Ok(Vec::new()));
    assert_eq!(fold(b"READ me\x7f"), Ok(b"read me\x7f".to_vec()));
}

#[test]
fn invalid_utf8_is_not_folded() {
    assert_eq!(fold(b"\xff"), Err(NotUtf8));
    assert_eq!(fold(b"a\xed\xa0\x80"), Err(NotUtf8));
}
