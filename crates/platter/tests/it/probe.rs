//! Identification of the contents of an image without opening it.

use platter::Format;
use platter::block::Access;
use platter::block::partition::Scheme;

use super::*;

fn probe(path: &Path) -> platter::Probe {
    Image::open(path, Access::Read).unwrap().probe().unwrap()
}

#[test]
fn probe_of_a_bare_filesystem_returns_kind_label_and_uuid() {
    let workshop = Workshop::new();
    let probe = probe(&workshop.filesystem("disk.img"));
    assert_eq!(probe.len_bytes, 8 << 20);
    assert!(probe.table.is_none());
    let signature = probe.signature.unwrap();
    assert_eq!((signature.kind, signature.supported), (*KIND, true));
    assert_eq!(signature.label.unwrap(), b"data");
    assert_eq!(signature.uuid.unwrap().to_string(), UUID);
}

#[test]
fn probe_of_a_disk_returns_contents_of_each_partition() {
    let workshop = Workshop::new();
    let probe = probe(&workshop.disk("disk.img"));
    assert!(probe.signature.is_none());
    let table = probe.table.unwrap();
    assert!(matches!(table.table.scheme, Scheme::Gpt { .. }));
    let kinds: Vec<_> = table
        .iter()
        .map(|(partition, signature)| (partition.number, signature.unwrap().kind))
        .collect();
    assert_eq!(kinds, [(1, "swap"), (2, *KIND)]);
}

#[test]
fn a_boot_sector_of_a_filesystem_is_no_partition_table() {
    let workshop = Workshop::new();
    let entry = [0x80, 0, 0, 0, 0x83, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0];
    let contents: [(u64, &[u8]); 3] = [(54, b"FAT16   "), (446, &entry), (510, b"\x55\xaa")];
    let probe = probe(&workshop.file("fat.img", 1 << 20, &contents));
    let signature = probe.signature.unwrap();
    assert_eq!(
        (signature.format, signature.supported),
        (Format::Vfat, false)
    );
    assert!(probe.table.is_none());
}

#[test]
fn probe_identifies_a_corrupt_superblock_by_its_magic() {
    let workshop = Workshop::new();
    let path = workshop.filesystem("disk.img");
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"x", 1024 + 0x100).unwrap();
    let signature = probe(&path).signature.unwrap();
    assert_eq!((signature.format, signature.label), (Format::Ext, None));
    let problem = signature.problem.unwrap().to_string();
    assert!(
        problem.ends_with("superblock at byte 1024: checksum does not match"),
        "{problem}"
    );
}
