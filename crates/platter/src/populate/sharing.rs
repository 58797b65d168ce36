//! Files with equal contents, which are stored once where the format lets files share extents.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::contents::{CHUNK_BYTES, Contents, HOLE_BYTES, write_data};
use super::{Content, MemberKind};
use crate::{Cause, Progress, Result};

/// What identifies contents.
pub(super) type ContentsDigest = [u8; 32];

/// Makes the digest of all blocks with data and their places, however long the pieces are that they come in.
#[derive(Debug, Default)]
pub(super) struct Digester {
    hasher: Sha256,
    has_data: bool,
}

impl Digester {
    /// Adds what is no zeros of a part of a file, which begins at a block.
    pub(super) fn add_data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Cause> {
        write_data(offset, bytes, &mut |offset, bytes| {
            for (at, block) in (offset..).step_by(HOLE_BYTES).zip(bytes.chunks(HOLE_BYTES)) {
                self.hasher.update(at.to_le_bytes());
                self.hasher.update((block.len() as u64).to_le_bytes());
                self.hasher.update(block);
                self.has_data = true;
            }
            Ok(())
        })
    }

    /// The digest; none if there is no data.
    pub(super) fn digest(&self) -> Option<ContentsDigest> {
        self.has_data.then(|| self.hasher.clone().finalize().into())
    }
}

/// How much of a file is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// What is read at once.
    Beginning,
    Whole,
}

/// See [`Content::share_equal_files`].
pub(super) fn share_equal_files(content: &mut Content, progress: &Progress) -> Result<()> {
    let mut of_size: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, (_, member)) in content.members.iter().enumerate() {
        let size_bytes = member.kind.contents().map(Contents::size_bytes);
        if let Some(size_bytes) = size_bytes.filter(|&size| size >= HOLE_BYTES as u64) {
            of_size.entry(size_bytes).or_default().push(index);
        }
    }
    for (size_bytes, indices) in of_size {
        let mut equal = Vec::new();
        for (digest, indices) in alike(content, indices, Depth::Beginning, progress)? {
            if size_bytes <= CHUNK_BYTES {
                equal.push((digest, indices));
            } else {
                equal.extend(alike(content, indices, Depth::Whole, progress)?);
            }
        }
        for (digest, equal) in equal {
            // Without data there is nothing to share.
            if let Some(digest) = digest {
                share(content, &equal, digest, size_bytes);
            }
        }
    }
    Ok(())
}

/// The files, by their digests, that are no longer alone then.
fn alike(
    content: &Content,
    indices: Vec<usize>,
    depth: Depth,
    progress: &Progress,
) -> Result<BTreeMap<Option<ContentsDigest>, Vec<usize>>> {
    let mut found: BTreeMap<Option<ContentsDigest>, Vec<usize>> = BTreeMap::new();
    if indices.len() < 2 {
        return Ok(found);
    }
    for index in indices {
        let Some((path, member)) = content.members.get(index) else {
            continue;
        };
        let Some(contents) = member.kind.contents() else {
            continue;
        };
        let digest = digest(contents, depth, progress);
        let digest = digest.map_err(|cause| content.error(path, cause))?;
        found.entry(digest).or_default().push(index);
    }
    found.retain(|_, indices| indices.len() > 1);
    Ok(found)
}

/// Makes all but the first of equal files clones.
fn share(content: &mut Content, equal: &[usize], digest: ContentsDigest, size_bytes: u64) {
    let Some((&first, others)) = equal.split_first() else {
        return;
    };
    let Some((first, _)) = content.members.get(first) else {
        return;
    };
    let first = first.clone();
    for &index in others {
        if let Some((_, member)) = content.members.get_mut(index) {
            member.kind = MemberKind::Clone(first.clone(), size_bytes);
        }
    }
    content.digests.insert(first, digest);
}

fn digest(
    contents: &Contents,
    depth: Depth,
    progress: &Progress,
) -> Result<Option<ContentsDigest>, Cause> {
    let mut digester = Digester::default();
    progress.check()?;
    match depth {
        Depth::Beginning => {
            let bytes = contents.first_bytes()?;
            progress.add_bytes(bytes.len() as u64);
            digester.add_data(0, &bytes)?;
        }
        Depth::Whole => contents.copy(&|| progress.check(), &mut |offset, bytes| {
            progress.add_bytes(bytes.len() as u64);
            digester.add_data(offset, bytes)
        })?,
    }
    Ok(digester.digest())
}
