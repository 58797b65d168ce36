//! The 512-byte ustar header block. Spec: POSIX.1-2017, pax, "ustar Interchange Format".

use std::ops::Range;

/// Archives are made of blocks of this many bytes.
pub(super) const BLOCK_BYTES: usize = 512;

const NAME: Range<usize> = 0..100;
const MODE: Range<usize> = 100..108;
const UID: Range<usize> = 108..116;
const GID: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const MTIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;
const KIND: usize = 156;
const LINK_NAME: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..265;
const DEVICE_MAJOR: Range<usize> = 329..337;
const DEVICE_MINOR: Range<usize> = 337..345;
const PREFIX: Range<usize> = 345..500;

/// What the type flag says a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum TypeFlag {
    Regular = b'0',
    HardLink = b'1',
    Symlink = b'2',
    CharDevice = b'3',
    BlockDevice = b'4',
    Directory = b'5',
    Fifo = b'6',
    Pax = b'x',
}

/// A header block being filled in. The setters say whether the value had space; where it had not,
/// the field holds the nearest value and a PAX record must hold the true one.
#[derive(Debug)]
pub(super) struct Ustar([u8; BLOCK_BYTES]);

impl Ustar {
    /// A header without a name, of mode, owner, size and time 0.
    pub(super) fn new(kind: TypeFlag) -> Self {
        let mut block = [0; BLOCK_BYTES];
        block[KIND] = kind as u8;
        block[MAGIC].copy_from_slice(b"ustar\x0000");
        let mut header = Self(block);
        for field in [MODE, UID, GID, SIZE, MTIME, DEVICE_MAJOR, DEVICE_MINOR] {
            header.set_octal(field, 0);
        }
        header
    }

    /// Sets the path, cut in two at a slash if it is long.
    pub(super) fn set_path(&mut self, path: &[u8]) -> bool {
        if path.len() <= NAME.len() {
            self.0[NAME][..path.len()].copy_from_slice(path);
            return true;
        }
        let earliest = path.len() - NAME.len() - 1;
        let slash = path
            .iter()
            .enumerate()
            .skip(earliest.max(1))
            .take_while(|&(at, _)| at <= PREFIX.len() && at + 1 < path.len())
            .find_map(|(at, &byte)| (byte == b'/').then_some(at));
        if let Some(slash) = slash {
            let (prefix, name) = (&path[..slash], &path[slash + 1..]);
            self.0[PREFIX][..prefix.len()].copy_from_slice(prefix);
            self.0[NAME][..name.len()].copy_from_slice(name);
            return true;
        }
        self.0[NAME].copy_from_slice(&path[..NAME.len()]);
        false
    }

    /// Sets the target of a link.
    pub(super) fn set_link_name(&mut self, target: &[u8]) -> bool {
        let length = target.len().min(LINK_NAME.len());
        self.0[LINK_NAME][..length].copy_from_slice(&target[..length]);
        length == target.len()
    }

    /// Sets the permission bits.
    pub(super) fn set_mode(&mut self, mode: u32) {
        self.set_octal(MODE, u64::from(mode & 0o7777));
    }

    /// Sets the owner.
    pub(super) fn set_uid(&mut self, uid: u32) -> bool {
        self.set_octal(UID, u64::from(uid))
    }

    /// Sets the group.
    pub(super) fn set_gid(&mut self, gid: u32) -> bool {
        self.set_octal(GID, u64::from(gid))
    }

    /// Sets the length of the contents that follow, in bytes.
    pub(super) fn set_size(&mut self, size_bytes: u64) -> bool {
        self.set_octal(SIZE, size_bytes)
    }

    /// Sets the modification time in seconds since 1970.
    pub(super) fn set_mtime(&mut self, seconds: i64) -> bool {
        match u64::try_from(seconds) {
            Ok(seconds) => self.set_octal(MTIME, seconds),
            Err(_) => false,
        }
    }

    /// Sets the numbers of a device.
    pub(super) fn set_device(&mut self, major: u32, minor: u32) -> bool {
        let major_fits = self.set_octal(DEVICE_MAJOR, u64::from(major));
        self.set_octal(DEVICE_MINOR, u64::from(minor)) && major_fits
    }

    /// The block with its checksum: the sum of all bytes, with the checksum's own as spaces.
    pub(super) fn finish(mut self) -> [u8; BLOCK_BYTES] {
        self.0[CHECKSUM].fill(b' ');
        let sum: u32 = self.0.iter().copied().map(u32::from).sum();
        // Six digits, a NUL, and a space that stays from above.
        self.set_octal(CHECKSUM.start..CHECKSUM.end - 1, u64::from(sum));
        self.0
    }

    /// Writes `value` in octal with leading zeros and a NUL at the end, or the greatest value that
    /// the field holds.
    fn set_octal(&mut self, field: Range<usize>, value: u64) -> bool {
        let digits = field.len() - 1;
        let greatest = (1_u64 << (3 * digits)) - 1;
        let mut rest = value.min(greatest);
        self.0[field.end - 1] = 0;
        for at in (field.start..field.end - 1).rev() {
            self.0[at] = b'0' | (rest & 7) as u8;
            rest >>= 3;
        }
        value <= greatest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_counts_itself_as_spaces() {
        let mut header = Ustar::new(TypeFlag::Regular);
        assert!(header.set_path(b"a"));
        let block = header.finish();
        let sum: u32 = block.iter().copied().map(u32::from).sum();
        let own: u32 = block[CHECKSUM].iter().copied().map(u32::from).sum();
        let text = format!("{:06o}\0 ", sum - own + 8 * u32::from(b' '));
        assert_eq!(block[CHECKSUM], *text.as_bytes());
    }

    #[test]
    fn long_paths_are_cut_at_a_slash_if_there_is_one_in_reach() {
        let mut fits = vec![b'p'; 155];
        fits.push(b'/');
        fits.extend([b'n'; 100]);
        let mut header = Ustar::new(TypeFlag::Regular);
        assert!(header.set_path(&fits));
        assert_eq!(header.0[PREFIX], fits[..155]);
        assert_eq!(header.0[NAME], fits[156..]);

        fits.insert(0, b'p');
        assert!(!Ustar::new(TypeFlag::Regular).set_path(&fits));
        assert!(!Ustar::new(TypeFlag::Regular).set_path(&[b'x'; 101]));
        let leading = [&b"/"[..], &[b'x'; 100]].concat();
        assert!(!Ustar::new(TypeFlag::Regular).set_path(&leading));
        let directory = [&[b'x'; 100][..], b"/"].concat();
        assert!(!Ustar::new(TypeFlag::Directory).set_path(&directory));
    }

    #[test]
    fn a_number_without_space_becomes_the_greatest() {
        let mut header = Ustar::new(TypeFlag::Regular);
        assert!(header.set_uid(0o777_7777));
        assert!(!header.set_uid(0o1000_0000));
        assert_eq!(&header.0[UID], b"7777777\0");
        assert!(header.set_size(0o7777_7777_7777 >> 3));
        assert!(!header.set_mtime(-1));
        assert_eq!(&header.0[MTIME], b"00000000000\0");
    }
}
