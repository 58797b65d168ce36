//! Streams files out of a volume as a tar archive.
//!
//! The format is PAX (POSIX.1-2001) with the vendor records that GNU tar, bsdtar and star share:
//! extended attributes as `SCHILY.xattr.*`, ACLs as `SCHILY.acl.*` in text form, `SELinux` labels
//! also as `RHT.security.selinux`, sparse files as `GNU.sparse.*` version 1.0. Owners are numeric.
//! The same image gives the same bytes on every machine and with any number of threads: entries
//! are sorted by name, and nothing of the machine enters the archive.
//!
//! One thread plans, several read and encode, the caller's thread writes. Corruption costs only what
//! is corrupt: what cannot be read is reported and left out or filled with zeros, and the archive
//! stays valid.

mod ustar;
mod pax;
mod sparse;
mod member;
pub(crate) mod acl_text;
mod job;
mod plan;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use platter_block::lock::Mutex;
use platter_vfs::{Condition, Inode};

use self::job::{Chunk, Encoder, Job};
use self::plan::Planner;
use crate::pipeline::Pipeline;
use crate::{Cause, Error, Problem, Result, Volume};

/// Archives end with two zero blocks and are filled up to a multiple of this, as tar does it.
const RECORD_BYTES: u64 = 20 * ustar::BLOCK_BYTES as u64;

/// Finished buffers that wait to be written, in bytes.
const READY_BYTES_MAX: usize = 16 << 20;

/// Finished buffers beyond this many are freed instead of kept for the next job.
const SPARE_BUFFERS_MAX: usize = 8;

/// How to write an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarOptions {
    /// The number of threads that read and encode, besides one that plans and the caller's, which writes.
    pub threads: NonZeroUsize,
    /// Leave out the holes of sparse files.
    pub sparse: bool,
    /// Include extended attributes.
    pub xattrs: bool,
    /// Include POSIX ACLs.
    pub acls: bool,
}

impl Default for TarOptions {
    /// Everything, on as many threads as there are processors.
    fn default() -> Self {
        Self {
            threads: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            sparse: true,
            xattrs: true,
            acls: true,
        }
    }
}

/// Events reported while an archive is written.
#[derive(Debug)]
pub enum TarEvent<'a> {
    /// Something went wrong with one member.
    Problem(&'a Problem),
    /// The archive has grown.
    Progress(TarSummary),
}

/// How far an archive has come, or what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TarSummary {
    /// Members written.
    pub members: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Members that are corrupt.
    pub corrupt: u64,
}

/// Writes an archive of `members`, which are paths below the directory `base`, to `out`.
///
/// A member `.` is `base` itself; paths in the archive are the members' with what is below them.
/// Members may not lead out of `base` by `..`, and their symbolic links are not followed.
/// Problems with what is found are reported to `observer` and do not end the writing.
///
/// # Errors
/// When a member cannot be found, or `out` fails.
pub fn write_tar(
    volume: &Volume,
    base: &[u8],
    members: &[&[u8]],
    out: &mut dyn Write,
    options: &TarOptions,
    observer: &mut dyn FnMut(TarEvent<'_>),
) -> Result<TarSummary> {
    let roots = members
        .iter()
        .map(|member| find_root(volume, base, member))
        .collect::<Result<Vec<_>>>()?;
    let pipeline = Pipeline::new(READY_BYTES_MAX);
    let buffers = Mutex::new(Vec::new());
    let written = thread::scope(|scope| {
        let planner = Planner::new(volume.entry_source(true), options, &pipeline);
        let plan = || {
            let _guard = pipeline.stop_on_panic();
            planner.run(roots);
        };
        let encode = || {
            let _guard = pipeline.stop_on_panic();
            let mut encoder = Encoder::new(options);
            while let Some((ticket, job)) = pipeline.start() {
                let buffer = buffers.lock().pop().unwrap_or_default();
                pipeline.finish(&ticket, encoder.encode(job, buffer));
            }
        };
        let spawned = thread::Builder::new()
            .name("tar-plan".into())
            .spawn_scoped(scope, plan)
            .and_then(|_| {
                (0..options.threads.get()).try_for_each(|number| {
                    thread::Builder::new()
                        .name(format!("tar-read-{number}"))
                        .spawn_scoped(scope, encode)
                        .map(drop)
                })
            });
        let written =
            spawned.and_then(|()| write_chunks(volume, &pipeline, &buffers, out, observer));
        pipeline.stop();
        written
    });
    volume.entry_source(true).forget();
    written.map_err(|error| Error {
        image: "".into(),
        path: None,
        cause: Cause::from(error),
    })
}

/// Writes what comes out of the pipeline.
fn write_chunks(
    volume: &Volume,
    pipeline: &Pipeline<Job, Chunk>,
    buffers: &Mutex<Vec<Vec<u8>>>,
    out: &mut dyn Write,
    observer: &mut dyn FnMut(TarEvent<'_>),
) -> std::io::Result<TarSummary> {
    let mut summary = TarSummary::default();
    let mut last_corrupt = Vec::new();
    while let Some(mut chunk) = pipeline.take() {
        out.write_all(&chunk.bytes)?;
        summary.bytes += chunk.bytes.len() as u64;
        summary.members += chunk.members;
        for hitch in chunk.problems {
            let problem = Problem {
                image: Arc::clone(volume.name()),
                path: hitch.path,
                effect: hitch.effect,
                cause: hitch.error.map(Cause::from),
            };
            observer(TarEvent::Problem(&problem));
            if problem.is_corruption() && last_corrupt != problem.path {
                summary.corrupt += 1;
                last_corrupt = problem.path;
            }
        }
        observer(TarEvent::Progress(summary));
        chunk.bytes.clear();
        let mut buffers = buffers.lock();
        if buffers.len() < SPARE_BUFFERS_MAX {
            buffers.push(chunk.bytes);
        }
    }
    let end = summary.bytes + 2 * ustar::BLOCK_BYTES as u64;
    let padding = end.next_multiple_of(RECORD_BYTES) - summary.bytes;
    out.write_all(&vec![0; usize::try_from(padding).unwrap_or_default()])?;
    out.flush()?;
    summary.bytes += padding;
    Ok(summary)
}

/// Finds a member, and gives it the path it has in the archive, without a slash at the end.
fn find_root(volume: &Volume, base: &[u8], member: &[u8]) -> Result<(Vec<u8>, Arc<dyn Inode>)> {
    let components: Vec<&[u8]> = member
        .split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty())
        .collect();
    let slash: &[u8] = if base.ends_with(b"/") { b"" } else { b"/" };
    let file_path = [base, slash, member].concat();
    if components.contains(&&b".."[..]) {
        let cause = platter_vfs::Error::from(Condition::InvalidArgument);
        return Err(Error::at_path(volume.name(), &file_path, cause));
    }
    let file = volume.open_no_follow(&file_path)?;
    let path = if components.is_empty() {
        b".".to_vec()
    } else {
        components.join(&b'/')
    };
    Ok((path, Arc::clone(file.inode())))
}
