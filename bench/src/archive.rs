//! An archive of a tree of many small files of text, written as it is made: the same for the same numbers.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use testkit::prng::Prng;

use crate::reading::{text, words};

const BLOCK_BYTES: usize = 512;
/// Directories in each directory above, but for the root of the tree, which has as many as it takes.
const DIRS_PER_DIR: u64 = 16;
/// Any time, the same for all.
const MODIFIED_SECONDS: u64 = 1_700_000_000;

/// A tree of files of the same name, `file`, with numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree {
    pub(crate) files: u64,
    pub(crate) files_per_dir: u64,
    /// All lengths below are as likely.
    pub(crate) file_bytes_below: u64,
}

/// What a header describes.
#[derive(Debug, Clone, Copy)]
enum Member {
    File(usize),
    Directory,
}

impl Tree {
    /// The directory of everything.
    pub(crate) const ROOT: &'static str = "tree";
    /// A file that every tree has.
    pub(crate) const FIRST: &'static str = "tree/top0/middle0/subdir0/file0.txt";

    /// The directory of a file.
    fn dir_of(number: u64) -> String {
        let middle = number / DIRS_PER_DIR;
        let (top, middle) = (middle / DIRS_PER_DIR, middle % DIRS_PER_DIR);
        let bottom = number % DIRS_PER_DIR;
        format!("{}/top{top}/middle{middle}/subdir{bottom}", Self::ROOT)
    }

    /// Writes a tar archive of it.
    pub(crate) fn write(&self, out: &mut dyn Write) -> Result<()> {
        let mut prng = Prng::new(1);
        let words = words(&mut prng);
        let text = text(&words, &mut prng);
        let padding = [0; BLOCK_BYTES];
        for number in 0..self.files {
            let dir = Self::dir_of(number / self.files_per_dir);
            if number % self.files_per_dir == 0 {
                // Those above come again and again, which changes nothing.
                for (end, _) in dir.match_indices('/') {
                    out.write_all(&header(&dir[..=end], Member::Directory)?)?;
                }
                out.write_all(&header(&format!("{dir}/"), Member::Directory)?)?;
            }
            let length = usize::try_from(prng.below(self.file_bytes_below))?;
            let start = usize::try_from(prng.below((text.len() - length) as u64))?;
            let name = format!("{dir}/file{number}.txt");
            out.write_all(&header(&name, Member::File(length))?)?;
            out.write_all(&text[start..][..length])?;
            out.write_all(&padding[..length.next_multiple_of(BLOCK_BYTES) - length])?;
        }
        // Two empty blocks end an archive.
        out.write_all(&padding)?;
        Ok(out.write_all(&padding)?)
    }
}

/// A header as POSIX has it (ustar).
fn header(name: &str, member: Member) -> Result<[u8; BLOCK_BYTES]> {
    let mut header = [0; BLOCK_BYTES];
    let mut put = |at: usize, text: &[u8]| -> Result<()> {
        let end = at + text.len();
        header
            .get_mut(at..end)
            .context("a header")?
            .copy_from_slice(text);
        Ok(())
    };
    let (mode, length, kind) = match member {
        Member::File(length) => (0o644, length, b'0'),
        Member::Directory => (0o755, 0, b'5'),
    };
    ensure!(name.len() <= 100, "{name} is too long for an archive");
    put(0, name.as_bytes())?;
    put(100, format!("{mode:07o}\0").as_bytes())?;
    put(108, b"0000000\0")?;
    put(116, b"0000000\0")?;
    put(124, format!("{length:011o}\0").as_bytes())?;
    put(136, format!("{MODIFIED_SECONDS:011o}\0").as_bytes())?;
    // The sum is one of all bytes with spaces in its own place.
    put(148, b"        ")?;
    put(156, &[kind])?;
    put(257, b"ustar\x0000")?;
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

#[cfg(test)]
mod tests {
    use testkit::tool;

    use super::*;
    use crate::programs::count_files;

    #[test]
    fn tar_unpacks_all_files_of_a_written_archive() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree {
            files: 700,
            files_per_dir: 2,
            file_bytes_below: 1500,
        };
        let archive = dir.path().join("tree.tar");
        tree.write(&mut std::fs::File::create(&archive).unwrap())
            .unwrap();
        let mut tar = tool::command("tar");
        tar.arg("--extract").arg("--file").arg(&archive);
        tool::succeed(tar.arg("--directory").arg(dir.path())).unwrap();
        let root = dir.path().join(Tree::ROOT);
        assert_eq!(count_files(&root).unwrap(), 700);
        let last = root.join("top1/middle5/subdir13/file699.txt");
        let length = std::fs::metadata(last).unwrap().len();
        assert!((1..1500).contains(&length), "{length}");
    }
}
