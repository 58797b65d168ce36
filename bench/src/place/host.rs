//! A directory of the host, by system calls relative to its descriptor.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result, bail};
use platter_fuse::Control;
use rustix::fs::{AtFlags, Dir, DirEntry, FileType, Mode as Permissions, OFlags, XattrFlags};
use rustix::io::Errno;
use testkit::tool;

use super::{Directory, Document, Entry, Mapped, Mode};

const DIR: OFlags = OFlags::DIRECTORY
    .union(OFlags::RDONLY)
    .union(OFlags::CLOEXEC);

/// A directory of any mounted filesystem.
#[derive(Debug)]
pub(crate) struct HostDir(OwnedFd);

#[derive(Debug)]
struct HostFile(OwnedFd);

impl HostDir {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let opened = rustix::fs::open(path, DIR, Permissions::empty());
        Ok(Self(opened.with_context(|| path.display().to_string())?))
    }
}

impl HostDir {
    /// What takes ioctls in a directory in it.
    fn control(&self, name: &str) -> Result<Control> {
        let path = format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd());
        Ok(Control::open(Path::new(&path))?)
    }

    /// What a listed name is. Some servers do not say, and have to be asked.
    fn kind(&self, entry: &DirEntry) -> Result<FileType> {
        if entry.file_type() != FileType::Unknown {
            return Ok(entry.file_type());
        }
        let status = rustix::fs::statat(&self.0, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileType::from_raw_mode(status.st_mode))
    }
}

impl Directory for HostDir {
    fn make_dir(&self, name: &str) -> Result<Box<dyn Directory>> {
        rustix::fs::mkdirat(&self.0, name, Permissions::from_raw_mode(0o755))?;
        self.dir(name)
    }

    fn make_subvolume(&self, name: &str) -> Result<Box<dyn Directory>> {
        self.control(".")?.create_subvolume(name.as_bytes())?;
        self.dir(name)
    }

    fn snapshot(&self, source: &str, name: &str) -> Result<()> {
        let source = self.control(source)?;
        Ok(self
            .control(".")?
            .snapshot(&source, name.as_bytes(), false)?)
    }

    fn dir(&self, name: &str) -> Result<Box<dyn Directory>> {
        let dir = rustix::fs::openat(&self.0, name, DIR, Permissions::empty())?;
        Ok(Box::new(Self(dir)))
    }

    fn create(&self, name: &str) -> Result<Box<dyn Document>> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let permissions = Permissions::from_raw_mode(0o644);
        let file = rustix::fs::openat(&self.0, name, flags, permissions)?;
        Ok(Box::new(HostFile(file)))
    }

    fn open(&self, name: &str, mode: Mode) -> Result<Box<dyn Document>> {
        let flags = match mode {
            Mode::Read => OFlags::RDONLY,
            Mode::Write => OFlags::RDWR,
            Mode::WriteDirect => OFlags::RDWR | OFlags::DIRECT,
        };
        let flags = flags | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Permissions::empty())?;
        Ok(Box::new(HostFile(file)))
    }

    fn size_bytes(&self, name: &str) -> Result<u64> {
        let status = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(u64::try_from(status.st_size)?)
    }

    fn size_bytes_of(&self, entry: &Entry) -> Result<u64> {
        self.size_bytes(&entry.name)
    }

    fn unlink(&self, name: &str) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_str()?;
            if name != "." && name != ".." {
                entries.push(Entry {
                    name: name.to_owned(),
                    is_dir: self.kind(&entry)? == FileType::Directory,
                    inode: entry.ino(),
                });
            }
        }
        Ok(entries)
    }

    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::fsync(&self.0)?)
    }
}

impl HostFile {
    /// By fio, which maps files: this program has no unsafe code.
    fn run_fio(&self, bytes: u64) -> Result<Mapped> {
        // The file by its descriptor, since only that is known.
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd());
        let mut fio = tool::command("fio");
        fio.args(["--name=read", "--ioengine=mmap", "--rw=randread", "--bs=4k"]);
        // As everywhere here, a page may come twice, and others not at all.
        fio.args([
            "--norandommap=1",
            "--invalidate=0",
            "--allow_file_create=0",
            "--output-format=json",
        ]);
        fio.arg(format!("--size={bytes}"));
        fio.arg(format!("--filename={path}"));
        let finished = tool::succeed(&mut fio)?;
        let report: serde_json::Value = serde_json::from_slice(&finished.stdout)?;
        let number = |name| report.pointer(&format!("/jobs/0/read/{name}"));
        let reads = number("total_ios").and_then(serde_json::Value::as_u64);
        let milliseconds = number("runtime").and_then(serde_json::Value::as_f64);
        Ok(Mapped {
            reads: reads.context("the report of fio lacks the bytes read")?,
            seconds: milliseconds
                .context("the report of fio lacks the time")?
                .max(1.0)
                / 1e3,
        })
    }
}

impl Document for HostFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(&self.0, &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(length) => done += length,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&self.0, &data[done..], offset + done as u64) {
                Ok(0) => bail!("nothing was written"),
                Ok(length) => done += length,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn set_xattr(&self, name: &str, value: &[u8]) -> Result<()> {
        Ok(rustix::fs::fsetxattr(
            &self.0,
            name,
            value,
            XattrFlags::empty(),
        )?)
    }

    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::fsync(&self.0)?)
    }

    fn read_mapped(&self, bytes: u64) -> Result<Option<Mapped>> {
        self.run_fio(bytes).map(Some)
    }
}
