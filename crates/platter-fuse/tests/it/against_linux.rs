//! Random operations on a mount and on the kernel's own memory filesystem: every result and every
//! tree that comes of it has to be the same.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, RenameFlags, Uid, XattrFlags, chownat,
    fallocate, getxattr, mknodat, removexattr, renameat_with, setxattr,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use tempfile::TempDir;

use crate::mounted::{Mounted, force_detach};

/// Enough to reach most pairs of states, few enough to take a second.
const SEEDS: u64 = 60;
const STEPS: usize = 600;

/// A small tree, so that operations meet.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const DEPTH_MAX: u64 = 3;

/// splitmix64, as good as needed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }

    fn path(&mut self) -> PathBuf {
        // Mostly near the root, where most files are.
        let depth = 1 + self.below(DEPTH_MAX).min(self.below(DEPTH_MAX));
        (0..depth).map(|_| self.pick(&NAMES)).collect()
    }
}

/// One operation, on paths below some root.
#[derive(Debug, Clone)]
enum Step {
    MakeFile(PathBuf),
    MakeDir(PathBuf),
    MakeFifo(PathBuf),
    MakeLink(PathBuf, PathBuf),
    HardLink(PathBuf, PathBuf),
    Unlink(PathBuf),
    RemoveDir(PathBuf),
    Rename(PathBuf, PathBuf, RenameFlags),
    Write(PathBuf, u64, Vec<u8>),
    Append(PathBuf, Vec<u8>),
    Truncate(PathBuf, u64),
    Punch(PathBuf, u64, u64),
    Read(PathBuf),
    List(PathBuf),
    Chmod(PathBuf, u32),
    Chown(PathBuf, u32, u32),
    SetXattr(PathBuf, u8, XattrFlags),
    GetXattr(PathBuf, u8),
    RemoveXattr(PathBuf, u8),
    /// Holds the file open, in place of what was held before.
    Hold(PathBuf),
    /// Writes and reads through what is held, whatever became of its names.
    UseHeld(u64, Vec<u8>),
}

impl Step {
    fn random(random: &mut Random) -> Self {
        let (path, other) = (random.path(), random.path());
        let offset = random.below(3) * 4096 + random.below(64);
        let len = usize::try_from(random.below(6000)).unwrap();
        let data = vec![u8::try_from(random.below(255)).unwrap() + 1; len];
        let attribute = u8::try_from(random.below(3)).unwrap();
        match random.below(26) {
            0..3 => Self::MakeFile(path),
            3..6 => Self::MakeDir(path),
            6 => Self::MakeFifo(path),
            7 => Self::MakeLink(other, path),
            8 => Self::HardLink(path, other),
            9 => Self::Unlink(path),
            10 => Self::RemoveDir(path),
            11..14 => {
                let flags = [
                    RenameFlags::empty(),
                    RenameFlags::NOREPLACE,
                    RenameFlags::EXCHANGE,
                ];
                Self::Rename(path, other, random.pick(&flags))
            }
            14 => Self::Write(path, offset, data),
            15 => Self::Append(path, data),
            16 => Self::Truncate(path, offset),
            17 => Self::Punch(path, offset, 1 + len as u64),
            18 => Self::Read(path),
            19 => Self::List(path),
            20 => Self::Chmod(path, 0o1000 * u32::from(attribute) + 0o755),
            21 => Self::Chown(path, attribute.into(), 7),
            22 => {
                let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
                Self::SetXattr(path, attribute, random.pick(&flags))
            }
            23 => Self::GetXattr(path, attribute),
            24 => Self::RemoveXattr(path, attribute),
            _ if attribute == 0 => Self::Hold(path),
            _ => Self::UseHeld(offset, data),
        }
    }
}

/// A tree that steps are done in.
struct Place {
    root: PathBuf,
    held: Option<File>,
}

impl Place {
    /// Does a step; what comes of it as text, with the errno of a refusal.
    fn take(&mut self, step: &Step) -> String {
        match self.try_step(step) {
            Ok(result) => result,
            Err(error) => format!("{:?}", Errno::from_io_error(&error)),
        }
    }

    fn try_step(&mut self, step: &Step) -> io::Result<String> {
        let at = |path: &Path| self.root.join(path);
        let mode = Mode::from_raw_mode(0o644);
        let done = || Ok("done".to_owned());
        match step {
            Step::MakeFile(path) => {
                OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o644)
                    .open(at(path))?;
            }
            Step::MakeDir(path) => fs::create_dir(at(path))?,
            Step::MakeFifo(path) => mknodat(CWD, at(path), FileType::Fifo, mode, 0)?,
            Step::MakeLink(target, path) => symlink(target, at(path))?,
            Step::HardLink(from, to) => fs::hard_link(at(from), at(to))?,
            Step::Unlink(path) => fs::remove_file(at(path))?,
            Step::RemoveDir(path) => fs::remove_dir(at(path))?,
            Step::Rename(from, to, flags) => renameat_with(CWD, at(from), CWD, at(to), *flags)?,
            Step::Write(path, offset, data) => {
                open(&at(path), true)?.write_all_at(data, *offset)?;
            }
            Step::Append(path, data) => {
                let options = OpenOptions::new().append(true).clone();
                nonblocking(options).open(at(path))?.write_all(data)?;
            }
            Step::Truncate(path, size) => open(&at(path), true)?.set_len(*size)?,
            Step::Punch(path, offset, len) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(open(&at(path), true)?, flags, *offset, *len)?;
            }
            Step::Read(path) => return contents(&mut open(&at(path), false)?),
            Step::List(path) => return list(&at(path)),
            Step::Chmod(path, bits) => {
                fs::set_permissions(at(path), PermissionsExt::from_mode(*bits))?;
            }
            Step::Chown(path, uid, gid) => {
                let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
                chownat(
                    CWD,
                    at(path),
                    Some(uid),
                    Some(gid),
                    AtFlags::SYMLINK_NOFOLLOW,
                )?;
            }
            Step::SetXattr(path, which, flags) => {
                setxattr(at(path), attribute(*which), &[*which; 9], *flags)?;
            }
            Step::GetXattr(path, which) => {
                let mut value = [0; 16];
                let len = getxattr(at(path), attribute(*which), &mut value)?;
                return Ok(format!("{:?}", &value[..len]));
            }
            Step::RemoveXattr(path, which) => removexattr(at(path), attribute(*which))?,
            Step::Hold(path) => self.held = Some(open(&at(path), true)?),
            Step::UseHeld(offset, data) => {
                let Some(held) = &mut self.held else {
                    return done();
                };
                held.write_all_at(data, *offset)?;
                held.seek(SeekFrom::Start(0))?;
                let links = held.metadata()?.nlink();
                return contents(held).map(|contents| format!("{links} {contents}"));
            }
        }
        done()
    }

    /// Every file with what is to be known of it, in order.
    fn tree(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut left = vec![self.root.clone()];
        while let Some(path) = left.pop() {
            let metadata = fs::symlink_metadata(&path).unwrap();
            let size = if metadata.is_dir() { 0 } else { metadata.len() };
            let content = if metadata.is_file() {
                contents(&mut File::open(&path).unwrap()).unwrap()
            } else if metadata.is_symlink() {
                fs::read_link(&path).unwrap().display().to_string()
            } else {
                String::new()
            };
            lines.push(format!(
                "{} {:o} {} {}:{} {size} {content}",
                path.strip_prefix(&self.root).unwrap().display(),
                metadata.mode(),
                metadata.nlink(),
                metadata.uid(),
                metadata.gid(),
            ));
            if metadata.is_dir() {
                left.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            }
        }
        lines.sort();
        lines
    }
}

/// `trusted.` is what tmpfs keeps for every kind of file.
fn attribute(which: u8) -> String {
    format!("trusted.{which}")
}

/// A FIFO without another end must not block its opener.
fn nonblocking(mut options: OpenOptions) -> OpenOptions {
    const O_NONBLOCK: i32 = 0o4000;
    options.custom_flags(O_NONBLOCK);
    options
}

fn open(path: &Path, write: bool) -> io::Result<File> {
    nonblocking(OpenOptions::new().read(true).write(write).clone()).open(path)
}

/// The contents by length and sum.
fn contents(file: &mut File) -> io::Result<String> {
    if file.metadata()?.file_type().is_file() {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let weighted = bytes
            .iter()
            .zip(1_u64..)
            .map(|(&byte, place)| u64::from(byte) * place);
        return Ok(format!(
            "{} bytes, sum {}",
            bytes.len(),
            weighted.sum::<u64>()
        ));
    }
    Ok("no regular file".to_owned())
}

fn list(dir: &Path) -> io::Result<String> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().as_bytes().to_vec()));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(format!("{names:?}"))
}

/// A tmpfs that is gone with its value.
struct Tmpfs(TempDir);

impl Tmpfs {
    fn new() -> Self {
        let dir = TempDir::with_prefix("platter-tmpfs-").unwrap();
        mount(
            "tmpfs",
            dir.path(),
            "tmpfs",
            MountFlags::empty(),
            c"mode=755",
        )
        .unwrap();
        Self(dir)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        force_detach(self.0.path());
    }
}

#[test]
fn random_operations_end_as_on_linux_itself() {
    for seed in 0..SEEDS {
        let (mounted, tmpfs) = (Mounted::new(), Tmpfs::new());
        let mut ours = Place {
            root: mounted.root(),
            held: None,
        };
        let mut theirs = Place {
            root: tmpfs.0.path().to_owned(),
            held: None,
        };
        let mut random = Random(seed);
        for number in 0..STEPS {
            let step = Step::random(&mut random);
            let (found, expected) = (ours.take(&step), theirs.take(&step));
            assert_eq!(found, expected, "seed {seed}, step {number}: {step:?}");
        }
        assert_eq!(ours.tree(), theirs.tree(), "seed {seed}");
        ours.held = None;
        mounted.unmount();
    }
}
