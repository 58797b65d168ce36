//! What is on the host is what was in memory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use platter_memfs::MemFs;
use platter_vfs::{FileKind, Filesystem, InodeId, SeekTarget};
use rustix::fs::{lgetxattr, llistxattr};

/// What is compared: everything an archive keeps.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: FileKind,
    permissions: u32,
    owner: (u32, u32),
    /// Of links, no program restores it everywhere.
    modified: Option<(i64, i64)>,
    contents: Vec<u8>,
    /// Where the first hole begins.
    hole: u64,
    xattrs: BTreeMap<String, String>,
    /// The first path of the same file.
    same_as: Vec<u8>,
}

fn seen_in_memory(fs: &MemFs) -> BTreeMap<Vec<u8>, Seen> {
    let mut all = BTreeMap::new();
    let mut first: BTreeMap<InodeId, Vec<u8>> = BTreeMap::new();
    let mut todo = vec![(b".".to_vec(), fs.root().unwrap())];
    while let Some((path, inode)) = todo.pop() {
        let attr = inode.attr().unwrap();
        let is_regular = attr.kind == FileKind::Regular;
        let mut contents = Vec::new();
        if is_regular {
            contents.resize(usize::try_from(attr.size_bytes).unwrap(), 0);
            inode.read_at(0, &mut contents).unwrap();
        } else if attr.kind == FileKind::Symlink {
            contents = inode.read_link().unwrap();
        } else if attr.kind == FileKind::Directory {
            for entry in platter_vfs::inode::read_dir_all(&*inode).unwrap() {
                let below = [&path[..], b"/", &entry.name].concat();
                todo.push((below, fs.inode(entry.id).unwrap()));
            }
        }
        let same_as = first.entry(inode.id()).or_insert_with(|| path.clone());
        if *same_as > path {
            same_as.clone_from(&path);
        }
        let names = inode.list_xattrs().unwrap().into_iter();
        let xattrs = names.map(|name| (shown(&name), shown(&inode.get_xattr(&name).unwrap())));
        let hole = if is_regular && attr.size_bytes > 0 {
            inode.seek(0, SeekTarget::Hole).unwrap()
        } else {
            0
        };
        let modified = (attr.modified.seconds, i64::from(attr.modified.nanoseconds));
        let seen = Seen {
            kind: attr.kind,
            permissions: attr.permissions,
            owner: (attr.uid, attr.gid),
            modified: (attr.kind != FileKind::Symlink).then_some(modified),
            contents,
            hole,
            xattrs: xattrs.collect(),
            same_as: inode.id().number.to_le_bytes().to_vec(),
        };
        all.insert(path, seen);
    }
    for seen in all.values_mut() {
        let number = u64::from_le_bytes(seen.same_as[..].try_into().unwrap());
        let id = InodeId { tree: 0, number };
        seen.same_as.clone_from(&first[&id]);
    }
    all
}

fn seen_on_host(base: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let mut all = BTreeMap::new();
    let mut first: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut todo = vec![b".".to_vec()];
    while let Some(path) = todo.pop() {
        let host = base.join(OsStr::from_bytes(&path));
        let metadata = host.symlink_metadata().unwrap();
        let kind = FileKind::from_mode(metadata.mode()).unwrap();
        assert_eq!(metadata.file_type().is_fifo(), kind == FileKind::Fifo);
        let mut contents = Vec::new();
        let mut hole = 0;
        if kind == FileKind::Regular {
            contents = std::fs::read(&host).unwrap();
            let file = std::fs::File::open(&host).unwrap();
            if metadata.size() > 0 {
                hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap();
            }
        } else if kind == FileKind::Symlink {
            contents = host.read_link().unwrap().as_os_str().as_bytes().to_vec();
        } else if kind == FileKind::Directory {
            for entry in std::fs::read_dir(&host).unwrap() {
                todo.push([&path[..], b"/", entry.unwrap().file_name().as_bytes()].concat());
            }
        }
        let same_as = first.entry(metadata.ino()).or_insert_with(|| path.clone());
        if *same_as > path {
            same_as.clone_from(&path);
        }
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        let seen = Seen {
            kind,
            permissions: metadata.mode() & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            modified: (kind != FileKind::Symlink).then_some(modified),
            contents,
            hole,
            xattrs: host_xattrs(&host),
            same_as: metadata.ino().to_le_bytes().to_vec(),
        };
        all.insert(path, seen);
    }
    for seen in all.values_mut() {
        let inode = u64::from_le_bytes(seen.same_as[..].try_into().unwrap());
        seen.same_as.clone_from(&first[&inode]);
    }
    all
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn host_xattrs(path: &PathBuf) -> BTreeMap<String, String> {
    let mut list = vec![0; 1 << 16];
    let length = llistxattr(path, &mut list[..]).unwrap();
    let names = list[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let length = lgetxattr(path, name, &mut value[..]).unwrap();
            value.truncate(length);
            (shown(name), shown(&value))
        })
        .collect()
}

/// Compares the tree in `fs` with what lies below `host`, file by file, so that a difference is
/// readable. `top_time` says whether the time of the top directory itself counts.
pub(crate) fn assert_same(fs: &MemFs, host: &Path, top_time: bool) {
    let (mut expected, mut found) = (seen_in_memory(fs), seen_on_host(host));
    for (path, seen) in expected.iter_mut().chain(found.iter_mut()) {
        if !rustix::process::geteuid().is_root() {
            // The owner cannot be kept, and so the set-id bits must not be.
            seen.owner = (0, 0);
            seen.permissions &= 0o1777;
        }
        if path == b"." && !top_time {
            seen.modified = None;
        }
    }
    assert!(expected.keys().eq(found.keys()), "{:?}", found.keys());
    for (path, expected) in expected {
        let name = path.escape_ascii();
        let found = &found[&path];
        assert_eq!(found.contents.len(), expected.contents.len(), "{name}");
        assert!(found.contents == expected.contents, "{name}");
        let found = Seen {
            contents: Vec::new(),
            ..clone(found)
        };
        assert_eq!(
            found,
            Seen {
                contents: Vec::new(),
                ..expected
            },
            "{name}"
        );
    }
}

fn clone(seen: &Seen) -> Seen {
    Seen {
        contents: Vec::new(),
        xattrs: seen.xattrs.clone(),
        same_as: seen.same_as.clone(),
        ..*seen
    }
}
