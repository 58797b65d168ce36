//! Commands encoded and decoded, and streams that break rules.

use platter_ondisk::{Rule, Uuid};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::{Error, FileKind, Timestamp};

use super::*;
use crate::ondisk::file_extent::Compression;
use crate::ondisk::types::Generation;

fn time(seconds: i64) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds: 999_999_999,
    }
}

fn source(number: u128) -> Source {
    Source {
        uuid: Uuid::from_u128(number),
        generation: Generation(7),
    }
}

/// One of each command.
#[expect(clippy::too_many_lines, reason = "one of each command")]
fn commands() -> Vec<Command<'static>> {
    let path = &b"dir/file"[..];
    let (inode, offset, len_bytes) = (300, 4096, 8192);
    vec![
        Command::Subvolume {
            path: b"snap",
            source: source(1),
        },
        Command::Snapshot {
            path: b"snap",
            source: source(1),
            parent: source(2),
        },
        Command::MakeFile { path, inode },
        Command::MakeDir { path, inode },
        Command::MakeNode {
            path,
            inode,
            kind: FileKind::CharDevice,
            permissions: 0o4640,
            device: DeviceNumber {
                major: 0xfff,
                minor: 0xf_ffff,
            },
        },
        Command::MakeNode {
            path,
            inode,
            kind: FileKind::Fifo,
            permissions: 0o600,
            device: DeviceNumber::default(),
        },
        Command::MakeNode {
            path,
            inode,
            kind: FileKind::Socket,
            permissions: 0,
            device: DeviceNumber::default(),
        },
        Command::Symlink {
            path,
            inode,
            target: b"../anything",
        },
        Command::Rename {
            path: b"o300-7-0",
            to: path,
        },
        Command::Link {
            path,
            existing: b"other",
        },
        Command::Unlink { path },
        Command::RemoveDir { path },
        Command::SetXattr {
            path: b"",
            name: b"user.name",
            value: b"",
        },
        Command::RemoveXattr {
            path,
            name: b"user.name",
        },
        Command::Write {
            path,
            offset,
            data: b"data",
        },
        Command::Clone {
            path,
            offset,
            len_bytes,
            source: source(3),
            source_path: b"from",
            source_offset: 0,
        },
        Command::Truncate {
            path,
            size_bytes: 5,
        },
        Command::Chmod {
            path,
            permissions: 0o7777,
        },
        Command::Chown {
            path,
            uid: u32::MAX,
            gid: 1,
        },
        Command::SetTimes {
            path,
            times: Times {
                accessed: time(-1),
                modified: time(0),
                changed: time(i64::MAX),
                created: None,
            },
        },
        Command::UpdateExtent {
            path,
            offset,
            len_bytes,
        },
        Command::End,
    ]
}

/// One of each command that only version 2 has.
fn newer_commands() -> Vec<Command<'static>> {
    let (path, offset) = (&b"file"[..], 4096);
    vec![
        Command::SetTimes {
            path,
            times: Times {
                accessed: time(1),
                modified: time(2),
                changed: time(3),
                created: Some(time(4)),
            },
        },
        Command::Fallocate {
            path,
            mode: 3,
            offset,
            len_bytes: 4096,
        },
        Command::SetFlags {
            path,
            flags: u64::MAX,
        },
        Command::EncodedWrite {
            path,
            offset,
            encoded: EncodedData {
                file_bytes: 4096,
                ram_bytes: 128 << 10,
                offset: 8192,
                compression: 2,
                encryption: 0,
                data: b"compressed",
            },
        },
    ]
}

fn encoded(commands: &[Command<'_>], version: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::begin(&mut bytes, version).unwrap();
    for command in commands {
        writer.put(command).unwrap();
    }
    assert_eq!(writer.len_bytes(), bytes.len() as u64);
    bytes
}

fn read_all(mut bytes: &[u8]) -> platter_vfs::Result<usize> {
    let mut count = 0;
    let Some(mut stream) = StreamReader::begin(&mut bytes)? else {
        return Ok(0);
    };
    while stream.next_command()?.is_some() {
        count += 1;
    }
    Ok(count)
}

fn rule(bytes: &[u8]) -> String {
    let error = read_all(bytes).unwrap_err();
    let Error::Corrupt(corruption) = error else {
        panic!("{error}");
    };
    corruption.rule.to_string()
}

#[test]
fn commands_survive_encoding() {
    for version in [1, 2] {
        let mut commands = commands();
        if version >= 2 {
            commands.pop();
            commands.extend(newer_commands());
            commands.push(Command::End);
        }
        let bytes = encoded(&commands, version);
        let mut input = &bytes[..];
        let mut stream = StreamReader::begin(&mut input).unwrap().unwrap();
        assert_eq!(stream.version(), version);
        for command in commands {
            assert_eq!(stream.next_command().unwrap(), Some(command));
        }
        assert_eq!(stream.next_command().unwrap(), None);
        assert!(!stream.next_stream().unwrap());
    }
}

/// The bytes of a stream of `btrfs send` of btrfs-progs 6.2: a header and a command.
#[test]
fn bytes_are_those_of_btrfs_progs() {
    let begin = Command::Subvolume {
        path: b"snap",
        source: source(1),
    };
    let begun = encoded(&[begin], 1).len();
    let mkfile = Command::MakeFile {
        path: b"o257-8-0",
        inode: 257,
    };
    let mut bytes = encoded(&[begin, mkfile], 1);
    assert_eq!(&bytes[..17], b"btrfs-stream\0\x01\0\0\0");
    bytes.drain(17..begun);
    let expected = [
        0x18, 0, 0, 0, 3, 0, //
        bytes[23], bytes[24], bytes[25], bytes[26], //
        15, 0, 8, 0, b'o', b'2', b'5', b'7', b'-', b'8', b'-', b'0', //
        3, 0, 8, 0, 1, 1, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(&bytes[17..], expected);
}

#[test]
fn stream_that_breaks_a_rule_is_refused() {
    let good = encoded(&commands(), 1);
    assert_eq!(read_all(&good).unwrap(), commands().len());
    assert_eq!(read_all(&[]).unwrap(), 0);
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        rule(&bytes)
    };
    assert_eq!(changed(0, b'B'), StreamRule::Magic.text());
    assert_eq!(changed(30, 0xff), StreamRule::Checksum.text());
    assert_eq!(changed(20, 0xff), StreamRule::CommandSize.text());
    assert_eq!(rule(&good[..10]), StreamRule::Truncated.text());
    assert_eq!(rule(&good[..40]), StreamRule::Truncated.text());
    let whole = [commands()[0], commands()[0], Command::End];
    assert_eq!(read_all(&encoded(&whole, 1)).unwrap(), whole.len());
    let outside = encoded(&[Command::End, Command::Unlink { path: b"file" }], 1);
    assert_eq!(rule(&outside), StreamRule::Order.text());
    let mut newer = good.clone();
    newer[13] = 3;
    let error = read_all(&newer).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
}

#[test]
fn stream_without_its_end_is_truncated() {
    let commands = commands();
    for count in 0..commands.len() {
        let begun = encoded(&commands[..count], 1);
        assert_eq!(rule(&begun), StreamRule::Truncated.text(), "{count}");
        // After another one, too.
        let mut several = encoded(&commands, 1);
        several.extend(begun);
        let mut input = &several[..];
        let mut stream = StreamReader::begin(&mut input).unwrap().unwrap();
        while stream.next_command().unwrap() != Some(Command::End) {}
        assert!(stream.next_stream().unwrap());
        for command in &commands[..count] {
            assert_eq!(stream.next_command().unwrap(), Some(*command));
        }
        assert!(stream.next_command().is_err(), "{count}");
    }
}

#[test]
fn command_that_breaks_a_rule_is_refused() {
    let decode = |number, attributes: &[u8]| Command::decode(number, attributes, 1).unwrap_err();
    assert_eq!(decode(3, b""), StreamRule::MissingAttribute);
    assert_eq!(decode(3, b"\x0f"), StreamRule::Attribute);
    assert_eq!(decode(3, b"\x0f\0\x05\0path"), StreamRule::Attribute);
    for path in [&b"/a"[..], b"a//b", b"a/", b"../a", b"a/..", b"./a", b"a\0"] {
        let len = u8::try_from(path.len()).unwrap();
        let attributes = [&[15, 0, len, 0], path].concat();
        assert_eq!(decode(3, &attributes), StreamRule::Path, "{path:?}");
    }
    assert_eq!(decode(1, b"\x0f\0\x03\0a/b"), StreamRule::Path);
    let path = b"\x0f\0\x01\0p";
    let with = |rest: &[u8]| [&path[..], rest].concat();
    let size = with(b"\x04\0\x04\0\0\0\0\0");
    assert_eq!(decode(17, &size), StreamRule::AttributeSize);
    let size = with(b"\x04\0\x08\0\xff\xff\xff\xff\xff\xff\xff\xff");
    assert_eq!(decode(17, &size), StreamRule::Range);
    let mode = with(b"\x05\0\x08\0\0\0\0\0\x01\0\0\0");
    assert_eq!(decode(18, &mode), StreamRule::Number);
    let time = [&[0xff; 12][..]; 1].concat();
    let times = with(&[&b"\x0b\0\x0c\0"[..], &time].concat());
    assert_eq!(decode(20, &times), StreamRule::Time);
    assert_eq!(
        Command::decode(99, b"", 1),
        Ok(Command::Unknown { kind: 99 })
    );
}

#[test]
fn value_too_long_for_an_attribute_is_refused() {
    let value = vec![0; 1 << 16];
    let command = Command::Write {
        path: b"file",
        offset: 0,
        data: &value,
    };
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::begin(&mut bytes, 1).unwrap();
    assert!(writer.put(&command).is_err());
    // Version 2 has no length of data.
    let whole = [commands()[0], command, Command::End];
    assert_eq!(read_all(&encoded(&whole, 2)).unwrap(), whole.len());
}

#[test]
fn forms_of_encoded_data_have_their_numbers() {
    for number in 0..=7 {
        let form = EncodedForm::from_number(number).unwrap();
        assert_eq!(form.number(), number);
    }
    assert_eq!(EncodedForm::from_number(8), None);
    let form = EncodedForm::from_number(7).unwrap();
    assert_eq!(
        (form.compression, form.sector_bytes),
        (Compression::Lzo, 65_536)
    );
}

#[test]
fn any_bytes_are_decoded_or_refused() {
    let good = encoded(&commands(), 1);
    for at in 17..good.len() {
        for version in [1, 2] {
            for number in 0..30 {
                let _ = Command::decode(number, &good[at..], version);
            }
        }
    }
}

#[test]
fn what_was_received_matches_better_than_the_source() {
    let other = source(9);
    let older = |source| Source {
        generation: Generation(6),
        ..source
    };
    let rank = |own, received, is_read_only| source(1).rank(&own, &received, is_read_only);
    let ranks = [
        rank(other, other, true),
        rank(older(source(1)), other, false),
        rank(older(source(1)), other, true),
        rank(source(1), other, false),
        rank(source(1), older(source(1)), false),
        rank(other, source(1), false),
        rank(other, source(1), true),
    ];
    assert_eq!(ranks[0], None);
    assert!(ranks.windows(2).all(|pair| pair[0] < pair[1]), "{ranks:?}");
    assert_eq!(source(0).rank(&other, &source(0), true), None);
}
