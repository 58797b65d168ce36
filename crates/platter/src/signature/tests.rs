//! Every row of the table is found, and doubtful heads are read as blkid reads them.

use super::table::FORMATS;
use super::*;

fn head(magics: &[(usize, &[u8])]) -> Vec<u8> {
    let mut head = vec![0; SIGNATURE_LEN_BYTES];
    for (offset, magic) in magics {
        head[*offset..offset + magic.len()].copy_from_slice(magic);
    }
    head
}

#[test]
fn every_format_is_found_by_each_of_its_magics() {
    for row in FORMATS {
        for set in row.magics {
            assert_eq!(
                Format::identify(&head(set)),
                Some(row.format),
                "{}",
                row.name
            );
        }
        assert_eq!(row.format.name(), row.name);
    }
}

#[test]
fn short_and_empty_heads_are_nothing() {
    assert_eq!(Format::identify(&[]), None);
    assert_eq!(Format::identify(&[0; 4096]), None);
    let ext = head(&[(0x438, b"\x53\xef")]);
    assert_eq!(Format::identify(&ext[..0x439]), None);
    assert_eq!(Format::identify(&ext[..0x43a]), Some(Format::Ext));
}

#[test]
fn a_container_goes_before_a_stale_filesystem() {
    let stale: (usize, &[u8]) = (0x438, b"\x53\xef");
    for container in [Format::Luks, Format::Lvm2, Format::MdRaid] {
        let row = FORMATS.iter().find(|row| row.format == container).unwrap();
        let mut magics = row.magics[0].to_vec();
        magics.push(stale);
        assert_eq!(Format::identify(&head(&magics)), Some(container));
    }
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    for row in FORMATS {
        if matches!(row.class, FormatClass::Wrapping) {
            assert!(row.advice.is_some(), "{}", row.name);
        }
    }
}
