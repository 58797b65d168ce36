//! Partition types and the names of common ones.
//!
//! Sources: UEFI 2.10 table 5.7; the Discoverable Partitions Specification; for MBR types the list
//! that Linux tools print.

use std::fmt;

use uuid::{Uuid, uuid};

/// The type of a partition: a GUID in a GPT, a byte in an MBR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartitionType {
    /// Of a GPT entry.
    Guid(Uuid),
    /// Of an MBR entry.
    Byte(u8),
}

impl PartitionType {
    /// The MBR type that covers a whole GPT disk.
    pub(super) const PROTECTIVE: Self = Self::Byte(0xee);

    /// Returns its name, if it is a common one.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Guid(guid) => GUIDS
                .iter()
                .find(|(known, _)| *known == guid)
                .map(|(_, name)| *name),
            Self::Byte(byte) => BYTES
                .iter()
                .find(|(known, _)| *known == byte)
                .map(|(_, name)| *name),
        }
    }

    /// Whether it is an extended partition, which holds only logical partitions.
    #[must_use]
    pub fn is_container(self) -> bool {
        matches!(self, Self::Byte(0x05 | 0x0f | 0x85))
    }
}

impl fmt::Display for PartitionType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self) {
            (Some(name), _) => out.write_str(name),
            (None, Self::Guid(guid)) => guid.fmt(out),
            (None, Self::Byte(byte)) => write!(out, "{byte:#04x}"),
        }
    }
}

const GUIDS: &[(Uuid, &str)] = &[
    (uuid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b"), "EFI system"),
    (uuid!("21686148-6449-6e6f-744e-656564454649"), "BIOS boot"),
    (
        uuid!("bc13c2ff-59e6-4262-a352-b275fd6f7172"),
        "Linux extended boot",
    ),
    (
        uuid!("0fc63daf-8483-4772-8e79-3d69d8477de4"),
        "Linux filesystem",
    ),
    (uuid!("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f"), "Linux swap"),
    (
        uuid!("44479540-f297-41b2-9af7-d131d5f0458a"),
        "Linux root (x86)",
    ),
    (
        uuid!("4f68bce3-e8cd-4db1-96e7-fbcaf984b709"),
        "Linux root (x86-64)",
    ),
    (
        uuid!("69dad710-2ce4-4e3c-b16c-21a1d49abed3"),
        "Linux root (ARM)",
    ),
    (
        uuid!("b921b045-1df0-41c3-af44-4c6f280d3fae"),
        "Linux root (ARM64)",
    ),
    (
        uuid!("72ec70a6-cf74-40e6-bd49-4bda08e8f224"),
        "Linux root (RISC-V-64)",
    ),
    (
        uuid!("8484680c-9521-48c6-9c11-b0720656f69e"),
        "Linux /usr (x86-64)",
    ),
    (uuid!("933ac7e1-2eb4-4f13-b844-0e14e2aef915"), "Linux home"),
    (
        uuid!("3b8f8425-20e0-4f3b-907f-1a25a76f98e8"),
        "Linux server data",
    ),
    (
        uuid!("4d21b016-b534-45c2-a9fb-5c16e091fd2d"),
        "Linux variable data",
    ),
    (
        uuid!("7ec6f557-3bc5-4aca-b293-16ef5df639d1"),
        "Linux temporary data",
    ),
    (uuid!("a19d880f-05fc-4d3b-a006-743f0f84911e"), "Linux RAID"),
    (uuid!("e6d6d379-f507-44c2-a23c-238f2a3df928"), "Linux LVM"),
    (uuid!("ca7d7ccb-63ed-4c53-861c-1742536059cc"), "Linux LUKS"),
    (
        uuid!("8da63339-0007-60c0-c436-083ac8230908"),
        "Linux reserved",
    ),
    (
        uuid!("ebd0a0a2-b9e5-4433-87c0-68b6b72699c7"),
        "Microsoft basic data",
    ),
    (
        uuid!("e3c9e316-0b5c-4db8-817d-f92df00215ae"),
        "Microsoft reserved",
    ),
    (
        uuid!("de94bba4-06d1-4d40-a16a-bfd50179d6ac"),
        "Windows recovery",
    ),
    (uuid!("48465300-0000-11aa-aa11-00306543ecac"), "Apple HFS+"),
    (uuid!("7c3457ef-0000-11aa-aa11-00306543ecac"), "Apple APFS"),
    (
        uuid!("9e1a2d38-c612-4316-aa26-8b49521e5a8b"),
        "PowerPC PReP boot",
    ),
    (
        uuid!("fe3a2a5d-4f32-41a7-b725-accc3285a309"),
        "ChromeOS kernel",
    ),
    (
        uuid!("3cb8e202-3b7e-47dd-8a3c-7ff2a13cfcec"),
        "ChromeOS root",
    ),
    (uuid!("516e7cb6-6ecf-11d6-8ff8-00022d09712b"), "FreeBSD UFS"),
    (uuid!("516e7cba-6ecf-11d6-8ff8-00022d09712b"), "FreeBSD ZFS"),
];

const BYTES: &[(u8, &str)] = &[
    (0x01, "FAT12"),
    (0x04, "FAT16 (small)"),
    (0x05, "extended"),
    (0x06, "FAT16"),
    (0x07, "NTFS or exFAT"),
    (0x0b, "FAT32"),
    (0x0c, "FAT32 (LBA)"),
    (0x0e, "FAT16 (LBA)"),
    (0x0f, "extended (LBA)"),
    (0x27, "Windows recovery"),
    (0x41, "PowerPC PReP boot"),
    (0x82, "Linux swap"),
    (0x83, "Linux"),
    (0x85, "Linux extended"),
    (0x8e, "Linux LVM"),
    (0xa5, "FreeBSD"),
    (0xa6, "OpenBSD"),
    (0xa9, "NetBSD"),
    (0xaf, "Apple HFS"),
    (0xda, "raw data"),
    (0xee, "GPT protective"),
    (0xef, "EFI system"),
    (0xfd, "Linux RAID"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::process::Command;

    use super::*;

    /// Returns the types that sfdisk knows, by their first column.
    fn listed(label: &str) -> BTreeMap<String, String> {
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new("sfdisk")
            .args(["--list-types", "--label", label])
            .env("PATH", format!("{path}:/usr/sbin:/sbin"))
            .env("LC_ALL", "C")
            .output()
            .expect("sfdisk cannot be run; is the package fdisk installed?");
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines = lines.lines().filter_map(|line| line.trim().split_once(' '));
        lines
            .map(|(id, name)| (id.to_lowercase(), name.trim().to_owned()))
            .collect()
    }

    #[test]
    fn partition_types_match_sfdisk() {
        /// Newer than the sfdisk of Debian 12.
        const LUKS: Uuid = uuid!("ca7d7ccb-63ed-4c53-861c-1742536059cc");
        let listed_guids = listed("gpt");
        for (guid, name) in GUIDS.iter().filter(|(guid, _)| *guid != LUKS) {
            assert!(
                listed_guids.contains_key(&guid.to_string()),
                "{guid} {name}"
            );
        }
        let listed_bytes = listed("dos");
        for (byte, name) in BYTES {
            assert!(
                listed_bytes.contains_key(&format!("{byte:x}")),
                "{byte:#x} {name}"
            );
        }
    }

    #[test]
    fn unnamed_type_shows_its_number() {
        assert_eq!(PartitionType::Byte(0x83).to_string(), "Linux");
        assert_eq!(PartitionType::Byte(0x42).to_string(), "0x42");
        let guid = Uuid::from_bytes([1; 16]);
        assert_eq!(PartitionType::Guid(guid).to_string(), guid.to_string());
        assert_eq!(PartitionType::Guid(GUIDS[0].0).to_string(), GUIDS[0].1);
    }
}
