//! The table of magic numbers. Facts: each format's own documentation.

use super::FormatClass;
use FormatClass::{Container, Filesystem, Other, Wrapping};

/// Byte offset and bytes found there.
type Magic = (usize, &'static [u8]);

/// What is known of one format.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) format: Format,
    pub(super) name: &'static str,
    pub(super) class: FormatClass,
    /// Alternatives; in each, all magics must be there.
    pub(super) magics: &'static [&'static [Magic]],
    pub(super) advice: Option<&'static str>,
}

macro_rules! formats {
    ($(
        $(#[$doc:meta])*
        $format:ident $name:literal $class:ident [$([$($magic:expr),+]),+ $(,)?] $advice:expr;
    )+) => {
        /// A format that can be recognised.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Format { $($(#[$doc])* $format,)+ }

        /// All formats, in the order they are looked for.
        pub(super) const FORMATS: &[Row] = &[$(Row {
            format: Format::$format,
            name: $name,
            class: $class,
            magics: &[$(&[$($magic),+]),+],
            advice: $advice,
        },)+];
    };
}

const BOOT_SECTOR: Magic = (510, b"\x55\xaa");
const DECOMPRESS: Option<&str> = Some("decompress it first");
const CONVERT: Option<&str> =
    Some("make a raw image of it with: qemu-img convert -O raw IMAGE disk.raw");
const LVM: Option<&str> = Some("activate the volume group and open the logical volume's device");

formats! {
    /// qcow, versions 1 to 3.
    Qcow2 "qcow2" Wrapping [[(0, b"QFI\xfb")]] CONVERT;
    /// `VMware` virtual disk.
    Vmdk "vmdk" Wrapping [
        [(0, b"KDMV")], [(0, b"COWD")], [(0, b"# Disk DescriptorFile")],
    ] CONVERT;
    /// Hyper-V virtual disk.
    Vhdx "vhdx" Wrapping [[(0, b"vhdxfile")]] CONVERT;
    /// Virtual PC virtual disk, dynamic.
    Vhd "vhd" Wrapping [[(0, b"conectix")]] CONVERT;
    /// `VirtualBox` virtual disk.
    Vdi "vdi" Wrapping [[(64, b"\x7f\x10\xda\xbe")]] CONVERT;
    /// QEMU enhanced disk.
    Qed "qed" Wrapping [[(0, b"QED\0")]] CONVERT;
    /// Parallels virtual disk.
    Parallels "parallels" Wrapping [[(0, b"WithoutFreeSpace")], [(0, b"WithouFreSpacExt")]] CONVERT;
    /// Android sparse image.
    AndroidSparse "android-sparse" Wrapping [[(0, b"\x3a\xff\x26\xed")]]
        Some("make a raw image of it with simg2img");
    /// gzip.
    Gzip "gzip" Wrapping [[(0, b"\x1f\x8b\x08")]] DECOMPRESS;
    /// xz.
    Xz "xz" Wrapping [[(0, b"\xfd7zXZ\0")]] DECOMPRESS;
    /// Zstandard.
    Zstd "zstd" Wrapping [[(0, b"\x28\xb5\x2f\xfd")]] DECOMPRESS;
    /// bzip2.
    Bzip2 "bzip2" Wrapping [[(0, b"BZh"), (4, b"1AY&SY")]] DECOMPRESS;
    /// lz4 frames.
    Lz4 "lz4" Wrapping [[(0, b"\x04\x22\x4d\x18")]] DECOMPRESS;
    /// LUKS, versions 1 and 2.
    Luks "crypto_LUKS" Container [[(0, b"LUKS\xba\xbe")]]
        Some("open it with cryptsetup and use the device that makes");
    /// `BitLocker`.
    BitLocker "BitLocker" Container [[(3, b"-FVE-FS-")]]
        Some("open it with cryptsetup bitlkOpen and use the device that makes");
    /// Physical volume of LVM2, whose label is in one of the first four sectors.
    Lvm2 "LVM2_member" Container [
        [(0, b"LABELONE"), (24, b"LVM2 001")],
        [(512, b"LABELONE"), (536, b"LVM2 001")],
        [(1024, b"LABELONE"), (1048, b"LVM2 001")],
        [(1536, b"LABELONE"), (1560, b"LVM2 001")],
    ] LVM;
    /// Member of a Linux software RAID, superblock versions 1.1 and 1.2.
    MdRaid "linux_raid_member" Container [
        [(0, b"\xfc\x4e\x2b\xa9\x01\0\0\0")],
        [(4096, b"\xfc\x4e\x2b\xa9\x01\0\0\0")],
    ] Some("assemble the array with mdadm and open its device");
    /// bcache.
    Bcache "bcache" Container [
        [(4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81")],
    ] None;
    /// btrfs.
    Btrfs "btrfs" Filesystem [[(0x1_0040, b"_BHRfS_M")]] None;
    /// XFS.
    Xfs "xfs" Filesystem [[(0, b"XFSB")]] None;
    /// ext2, ext3 or ext4; its driver determines which.
    Ext "ext" Filesystem [[(0x438, b"\x53\xef")]] None;
    /// Squashfs, little-endian.
    Squashfs "squashfs" Filesystem [[(0, b"hsqs")]] None;
    /// EROFS.
    Erofs "erofs" Filesystem [[(1024, b"\xe2\xe1\xf5\xe0")]] None;
    /// F2FS.
    F2fs "f2fs" Filesystem [[(1024, b"\x10\x20\xf5\xf2")]] None;
    /// bcachefs.
    Bcachefs "bcachefs" Filesystem [
        [(4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef")],
    ] None;
    /// NTFS.
    Ntfs "ntfs" Filesystem [[(3, b"NTFS    ")]] None;
    /// exFAT.
    Exfat "exfat" Filesystem [[(3, b"EXFAT   ")]] None;
    /// FAT with 12, 16 or 32 bits.
    Vfat "vfat" Filesystem [
        [(82, b"FAT32   "), BOOT_SECTOR],
        [(54, b"FAT16   "), BOOT_SECTOR],
        [(54, b"FAT12   "), BOOT_SECTOR],
        [(54, b"FAT     "), BOOT_SECTOR],
    ] None;
    /// ISO 9660.
    Iso9660 "iso9660" Filesystem [[(0x8001, b"CD001")]] None;
    /// UDF without an ISO 9660 bridge.
    Udf "udf" Filesystem [[(0x8001, b"BEA01"), (0x8801, b"NSR0")]] None;
    /// JFS.
    Jfs "jfs" Filesystem [[(0x8000, b"JFS1")]] None;
    /// `ReiserFS` 3.6.
    Reiserfs "reiserfs" Filesystem [
        [(0x1_0034, b"ReIsEr2Fs")], [(0x1_0034, b"ReIsEr3Fs")], [(0x1_0034, b"ReIsErFs")],
    ] None;
    /// NILFS2.
    Nilfs2 "nilfs2" Filesystem [[(0x406, b"\x34\x34")]] None;
    /// HFS Plus.
    HfsPlus "hfsplus" Filesystem [[(1024, b"H+\0\x04")], [(1024, b"HX\0\x05")]] None;
    /// APFS.
    Apfs "apfs" Filesystem [[(32, b"NXSB")]] None;
    /// cramfs.
    Cramfs "cramfs" Filesystem [[(0, b"\x45\x3d\xcd\x28")]] None;
    /// romfs.
    Romfs "romfs" Filesystem [[(0, b"-rom1fs-")]] None;
    /// Swap space, on pages of 4 to 64 KiB.
    Swap "swap" Other [
        [(0x0ff6, b"SWAPSPACE2")], [(0x1ff6, b"SWAPSPACE2")], [(0x3ff6, b"SWAPSPACE2")],
        [(0xfff6, b"SWAPSPACE2")],
    ] Some("it holds no files");
    /// A hibernated system in swap space.
    Hibernation "swsuspend" Other [[(0x0ff6, b"S1SUSPEND")], [(0x0ff6, b"S2SUSPEND")]]
        Some("it holds no files");
}
