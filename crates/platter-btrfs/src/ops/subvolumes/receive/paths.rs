//! Paths of a stream in the subvolume that is received: they lead through its directories alone.

use std::sync::Arc;

use platter_vfs::{Condition, FileKind, Inode, Name, Result};

/// The file that was used last, and the directory that a name was looked up in last: commands come in runs.
#[derive(Debug, Default)]
pub(super) struct Recent {
    file: Option<(Vec<u8>, Arc<dyn Inode>)>,
    dir: Option<(Vec<u8>, Arc<dyn Inode>)>,
}

impl Recent {
    /// Forgets both, after a name was changed.
    pub(super) fn forget(&mut self) {
        self.file = None;
        self.dir = None;
    }

    /// Forgets the file alone, after a name was added or one of a file was removed.
    pub(super) fn forget_file(&mut self) {
        self.file = None;
    }

    /// The file at `path` below `root`.
    pub(super) fn file(&mut self, root: &Arc<dyn Inode>, path: &[u8]) -> Result<Arc<dyn Inode>> {
        if let Some((known, inode)) = &self.file
            && known == path
        {
            return Ok(Arc::clone(inode));
        }
        let inode = if path.is_empty() {
            Arc::clone(root)
        } else {
            let (dir, name) = self.parent(root, path)?;
            of_tree(dir.lookup(name)?, root)?
        };
        self.file = Some((path.to_vec(), Arc::clone(&inode)));
        Ok(inode)
    }

    /// The directory that `path` is in, and the name in that.
    pub(super) fn parent<'p>(
        &mut self,
        root: &Arc<dyn Inode>,
        path: &'p [u8],
    ) -> Result<(Arc<dyn Inode>, Name<'p>)> {
        let slash = path.iter().rposition(|&byte| byte == b'/');
        let (dir, name) = match slash {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&[][..], path),
        };
        let name = Name::new(name)?;
        if let Some((known, inode)) = &self.dir
            && known == dir
        {
            return Ok((Arc::clone(inode), name));
        }
        let inode = walk(root, dir)?;
        self.dir = Some((dir.to_vec(), Arc::clone(&inode)));
        Ok((inode, name))
    }
}

/// The directory at `path`. Symbolic links are not followed.
pub(super) fn walk(root: &Arc<dyn Inode>, path: &[u8]) -> Result<Arc<dyn Inode>> {
    let mut at = Arc::clone(root);
    for name in path.split(|&byte| byte == b'/').filter(|it| !it.is_empty()) {
        at = of_tree(at.lookup(Name::new(name)?)?, root)?;
        if at.attr()?.kind != FileKind::Directory {
            return Err(Condition::NotDirectory.into());
        }
    }
    Ok(at)
}

/// What a name names, in the same subvolume.
fn of_tree(inode: Arc<dyn Inode>, root: &Arc<dyn Inode>) -> Result<Arc<dyn Inode>> {
    if inode.id().tree != root.id().tree {
        return Err(Condition::CrossDevice.into());
    }
    Ok(inode)
}
