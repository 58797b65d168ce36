//! Answers the kernel's requests out of a filesystem, whatever way they come in.
//!
//! Everything is said in our own types: a transport turns the bytes of requests into calls of
//! [`Server`], and what they return into bytes.

mod caller;
mod read;
mod change;
mod devices;
mod extents;
mod defragment;
mod subvolumes;
mod send;
pub(crate) mod ioctl;

use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use platter_vfs::{
    Attr, Condition, Context, Credentials, Error, FileKind, Filesystem, Inode, InodeId, MountEntry,
    MountTable, MountedDevice, Name,
};
use rustix::io::Errno;

pub(crate) use self::caller::Caller;
pub(crate) use self::change::{
    Change, Changes, Effect, KeptName, MakeKind, WriteFrom, WriteManner, XattrChange,
};
pub(crate) use self::ioctl::{ChangedName, IoctlAnswer};
pub(crate) use self::read::{DirLine, PlusFile, PlusLine};
use crate::attr_versions::{AttrChange, AttrVersion, AttrVersions};
use crate::node::{Known, NodeId, NodeTable};
use crate::statistics::Counters;
use crate::{ErrorSink, MountOptions, Operation};

/// The answer to a request.
pub(crate) type Answer<T> = Result<T, Errno>;

/// `FS_CASEFOLD_FL`: names in the directory are equal when they differ in case only.
const CASEFOLD: u32 = 0x4000_0000;

/// How long the kernel may go on without asking again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validity {
    /// Until it makes a change itself: there are no other changes.
    Always,
    /// Not at all.
    Never,
}

/// Attributes as they are sent to the kernel, which keeps them as long as they are of the current version.
#[derive(Debug)]
pub(crate) struct ReadAttr {
    pub(crate) attr: Attr,
    pub(crate) version: AttrVersion,
}

/// A file as it is sent to the kernel, which now holds it once more.
#[derive(Debug)]
pub(crate) struct EntryParam {
    pub(crate) node: NodeId,
    pub(crate) attr: Attr,
    pub(crate) version: AttrVersion,
    /// Of the name.
    pub(crate) validity: Validity,
}

/// What a name turned out to be.
#[derive(Debug)]
pub(crate) enum Looked {
    Found(EntryParam),
    /// There is no such file, and this may be remembered as long as it says.
    Missing(Validity),
}

/// Serves one filesystem.
#[derive(Debug)]
pub(crate) struct Server {
    fs: Arc<dyn Filesystem>,
    nodes: NodeTable,
    versions: AttrVersions,
    counters: Counters,
    options: MountOptions,
    /// The number of the mounted filesystem, once it is mounted.
    device: OnceLock<MountedDevice>,
    /// An operation broke off in the middle, so what is in memory may be half changed.
    broken: AtomicBool,
    /// The command on its devices that was given last.
    devices: devices::LastJob,
    defragmenting: defragment::DefragmentTurn,
    sends: send::SendStreams,
    /// What it says of itself, for a caller that reads it in parts.
    report: ioctl::LastReport,
    /// The filesystem was shut down: contents are neither read nor changed any more.
    shut_down: AtomicBool,
}

impl Server {
    pub(crate) fn new(fs: Arc<dyn Filesystem>, options: MountOptions) -> Result<Self, Error> {
        let nodes = NodeTable::new(Arc::clone(&fs))?;
        Ok(Self {
            fs,
            nodes,
            versions: AttrVersions::default(),
            counters: Counters::default(),
            options,
            device: OnceLock::new(),
            broken: AtomicBool::new(false),
            devices: devices::LastJob::default(),
            defragmenting: defragment::DefragmentTurn::default(),
            sends: send::SendStreams::default(),
            report: ioctl::LastReport::default(),
            shut_down: AtomicBool::new(false),
        })
    }

    pub(crate) fn fs(&self) -> &Arc<dyn Filesystem> {
        &self.fs
    }

    pub(crate) fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Says under which number it is mounted.
    pub(crate) fn set_device(&self, device: MountedDevice) {
        self.device.get_or_init(|| device);
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The answer of `run`, or an I/O error if it panics. That is a bug, which costs its caller the
    /// answer, and all callers the right to change anything; reading goes on.
    pub(crate) fn guarded<T>(&self, run: impl FnOnce(&Self) -> Answer<T>) -> Answer<T> {
        catch_unwind(AssertUnwindSafe(|| run(self))).unwrap_or_else(|_| {
            self.broken.store(true, Ordering::Relaxed);
            Err(Errno::IO)
        })
    }

    /// How many inodes the kernel holds, the root left out.
    pub(crate) fn nodes_held(&self) -> usize {
        self.nodes.len()
    }

    /// Whether ioctls may change names.
    pub(crate) fn has_subvolumes(&self) -> bool {
        self.fs.subvolumes().is_some()
    }

    /// Whether the kernel may have to hear of names: those that ioctls change, and those that are moved to where names
    /// fold.
    pub(crate) fn announces_names(&self) -> bool {
        self.has_subvolumes() || !self.options.read_only
    }

    /// Whether ACLs take part in permission checks.
    pub(crate) fn uses_acls(&self) -> bool {
        // With everything shown as belonging to one user, an entry for another says nothing.
        !self.options.no_permission_checks
            && self.options.uid.is_none()
            && self.options.gid.is_none()
    }

    /// The kernel is gone: nothing is held for it any more, and nothing is sent to callers.
    pub(crate) fn kernel_gone(&self) {
        self.sends.end_all();
        self.nodes.clear();
    }

    pub(crate) fn lookup(&self, parent: NodeId, name: &[u8]) -> Answer<Looked> {
        self.counters.count(Operation::Lookup);
        if name == b"." {
            return self.lookup_handle(parent).map(Looked::Found);
        }
        let dir = self.inode(parent)?;
        let name = self.name(name)?;
        let found = match dir.lookup(name) {
            Ok(inode) => inode,
            Err(Error::Condition(Condition::NotFound)) => {
                return Ok(Looked::Missing(self.name_validity(&*dir)));
            }
            Err(error) => return Err(self.refuse(&error)),
        };
        self.make_entry(&found, self.name_validity(&*dir))
            .map(Looked::Found)
    }

    /// Looks up a node that the kernel found in a file handle (`open_by_handle_at`) and does not hold:
    /// only a node that is the shown number of its inode can be found again. The kernel compares the
    /// generations.
    fn lookup_handle(&self, node: NodeId) -> Answer<EntryParam> {
        let inode = if let Some(known) = self.nodes.get(node) {
            self.known(known)?
        } else {
            let id = self.nodes.id_of(node).ok_or(Errno::STALE)?;
            let inode = self.check(self.fs.inode_of_handle(id))?;
            if self.check(inode.attr())?.links == 0 {
                return Err(Errno::STALE);
            }
            inode
        };
        let entry = self.make_entry(&inode, Validity::Never)?;
        if entry.node != node {
            self.nodes.forget(entry.node, 1);
            return Err(Errno::STALE);
        }
        Ok(entry)
    }

    /// The node of an inode, if the kernel holds it.
    pub(crate) fn held(&self, id: InodeId) -> Option<NodeId> {
        self.nodes.held(id)
    }

    pub(crate) fn forget(&self, node: NodeId, lookups: u64) {
        self.counters.count(Operation::Forget);
        self.nodes.forget(node, lookups);
    }

    /// Whether the kernel has attributes of a node that the last request may have changed
    /// without its knowledge: how much space contents take is known here alone.
    pub(crate) fn has_stale_attributes(&self, node: NodeId) -> bool {
        self.nodes.take_attr_sent(node)
    }

    /// Returns whether a node's attributes were sent to the kernel since they became stale, or the
    /// kernel does not know the node any more.
    pub(crate) fn has_fresh_attributes(&self, node: NodeId) -> bool {
        self.nodes.is_attr_sent(node)
    }

    /// Returns the entry of a file for the kernel, which holds it once more, with the validity of its name.
    fn make_entry(&self, inode: &Arc<dyn Inode>, validity: Validity) -> Answer<EntryParam> {
        // First, so that a thread that writes from now on knows that the attributes are out.
        let node = self.nodes.hold(inode.id());
        match self.read_attr(&**inode) {
            Ok(ReadAttr { attr, version }) => {
                if attr.links == 0 {
                    self.nodes.keep(node, inode);
                }
                Ok(EntryParam {
                    node,
                    attr,
                    version,
                    validity,
                })
            }
            Err(errno) => {
                self.nodes.forget(node, 1);
                Err(errno)
            }
        }
    }

    /// How long names in `dir` stay as they are, found or not. Where names fold, the kernel does not
    /// know which others change with one.
    fn name_validity(&self, dir: &dyn Inode) -> Validity {
        if self.options.read_only {
            return Validity::Always;
        }
        match dir.attr() {
            Ok(attr) if attr.flags & CASEFOLD == 0 => Validity::Always,
            Ok(_) | Err(_) => Validity::Never,
        }
    }

    fn must_be_writable(&self) -> Answer<()> {
        self.must_not_be_shut_down()?;
        if self.options.read_only || self.broken.load(Ordering::Relaxed) {
            return Err(Errno::ROFS);
        }
        Ok(())
    }

    /// Refuses changes also of a mount that was made read-only later (`mount -o remount,ro`): the kernel checks that
    /// for `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR` alone, from Linux 5.13 on.
    fn must_be_mounted_writable(&self) -> Answer<()> {
        self.must_be_writable()?;
        let table = MountTable::read().map_err(|_| Errno::IO)?;
        let is_ours = |mount: &&MountEntry| self.device.get() == Some(&mount.device);
        let read_only = |mount: &MountEntry| {
            let options = mount.fs_options.as_bytes();
            options.split(|&byte| byte == b',').any(|it| it == b"ro")
        };
        if table.mounts().iter().find(is_ours).is_some_and(read_only) {
            return Err(Errno::ROFS);
        }
        Ok(())
    }

    /// Refuses callers, of this uid, that neither own what has these attributes nor are above its owner.
    fn must_own(&self, caller: Caller, uid: u32, shown: &Attr) -> Answer<()> {
        if self.options.no_permission_checks || uid == shown.uid || caller.is_above_owners() {
            return Ok(());
        }
        Err(Errno::PERM)
    }

    fn must_not_be_shut_down(&self) -> Answer<()> {
        if self.shut_down.load(Ordering::Relaxed) {
            return Err(Errno::IO);
        }
        Ok(())
    }

    fn inode(&self, node: NodeId) -> Answer<Arc<dyn Inode>> {
        self.known(self.nodes.get(node).ok_or(Errno::STALE)?)
    }

    fn known(&self, known: Known) -> Answer<Arc<dyn Inode>> {
        match known {
            Known::Kept(inode) => Ok(inode),
            Known::Named(id) => self.check(self.fs.inode(id)),
        }
    }

    /// Whether the kernel may have pages of a node that it is to write.
    pub(crate) fn may_have_pages(&self, node: NodeId) -> bool {
        let kind = self.guarded(|server| Ok(server.check(server.inode(node)?.attr())?.kind));
        kind == Ok(FileKind::Regular)
    }

    /// What `name` in `dir` names.
    fn named(&self, dir: &dyn Inode, name: Name<'_>) -> Answer<Option<Arc<dyn Inode>>> {
        match dir.lookup(name) {
            Err(Error::Condition(Condition::NotFound)) => Ok(None),
            looked_up => self.check(looked_up).map(Some),
        }
    }

    /// Keeps an inode that lost a name, if that was the last, as long as the kernel holds it. Whether it
    /// does is asked afterwards: a file handle needs no name. The kernel knows what that changes of a
    /// file; a directory has no size any more.
    fn keep_nameless(&self, inode: Option<Arc<dyn Inode>>, effect: &mut Effect) {
        let Some(inode) = inode else {
            return;
        };
        let attr = inode.attr();
        if attr.as_ref().is_ok_and(|attr| attr.links > 0) {
            return;
        }
        let Some(node) = self.nodes.held(inode.id()) else {
            return;
        };
        if attr.is_ok_and(|attr| attr.kind == FileKind::Directory) {
            *effect = Effect::Unforeseen(node);
        }
        self.nodes.keep(node, &inode);
    }

    /// The attributes of an inode, for the kernel.
    fn read_attr(&self, inode: &dyn Inode) -> Answer<ReadAttr> {
        let version = self.versions.version(inode.id());
        let attr = self.shown_attr(inode)?;
        Ok(ReadAttr { attr, version })
    }

    /// Begins changes of the attributes of inodes.
    fn begin_changes<const N: usize>(
        &self,
        inodes: [Option<&Arc<dyn Inode>>; N],
    ) -> [Option<AttrChange<'_>>; N] {
        inodes.map(|inode| Some(self.versions.begin(inode?.id())))
    }

    /// Whether the kernel may keep attributes of this version: no change has overtaken them.
    pub(crate) fn is_current(&self, version: AttrVersion) -> bool {
        self.versions.is_current(version)
    }

    /// The attributes of an inode, as this mount shows them.
    fn shown_attr(&self, inode: &dyn Inode) -> Answer<Attr> {
        let attr = self.check(inode.attr())?;
        Ok(self.as_shown(attr))
    }

    fn as_shown(&self, mut attr: Attr) -> Attr {
        // A kernel that gathers writes would ask again before each of them.
        attr.space_is_estimated &= !self.options.writeback;
        attr.uid = self.options.uid.unwrap_or(attr.uid);
        attr.gid = self.options.gid.unwrap_or(attr.gid);
        attr
    }

    fn name<'n>(&self, name: &'n [u8]) -> Answer<Name<'n>> {
        self.check(Name::new(name))
    }

    fn context(caller: Caller, umask: u32) -> Context {
        Context {
            credentials: Credentials {
                uid: caller.uid,
                gid: caller.gid,
                groups: Vec::new(),
            },
            umask,
        }
    }

    /// The result with an errno, after reporting an error that is worth it.
    fn check<T>(&self, result: Result<T, Error>) -> Answer<T> {
        result.map_err(|error| self.refuse(&error))
    }

    fn refuse(&self, error: &Error) -> Errno {
        report(self.options.on_error.as_ref(), error);
        error.errno()
    }
}

/// Reports an error that is more than an ordinary refusal.
fn report(sink: Option<&ErrorSink>, error: &Error) {
    match (error, sink) {
        (Error::Condition(_) | Error::Refused(_), _) | (_, None) => {}
        (Error::Unsupported(_) | Error::Corrupt(_) | Error::Io(_), Some(sink)) => {
            sink.report(error);
        }
    }
}
