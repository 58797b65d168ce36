//! The rules one by one, on files in memory.

use std::ops::Range;
use std::sync::Arc;

use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::permission::{
    Access, check_access, check_create, check_delete, permissions_of_new, prepare_set_attr,
};
use platter_vfs::xattr::{XattrAccess, check_xattr, is_listed};
use platter_vfs::{
    AclEntry, AclSubject, Attr, Condition, Context, CreateKind, Credentials, DirCursor, DirSink,
    Error, ExtentSink, FileKind, Filesystem, FixedClock, Inode, InodeId, Name, PosixAcl, Result,
    SeekTarget, SetAttr, SetTime, Timestamp, XattrMode, acl,
};

const OWNER: u32 = 1000;
const GROUP: u32 = 100;

struct File {
    fs: MemFs,
    inode: Arc<dyn Inode>,
}

impl File {
    fn of(kind: CreateKind, permissions: u32) -> Self {
        let clock = FixedClock::new(Timestamp::default(), 0);
        let fs = MemFs::new(Arc::new(clock), MemFsLimits::default());
        let inode = fs.plant(b"f", kind, permissions).unwrap();
        let set = SetAttr {
            uid: Some(OWNER),
            gid: Some(GROUP),
            ..SetAttr::default()
        };
        inode.set_attr(&Context::root(), &set).unwrap();
        Self { fs, inode }
    }

    fn new(permissions: u32) -> Self {
        Self::of(CreateKind::Regular, permissions)
    }

    fn dir(permissions: u32) -> Self {
        Self::of(CreateKind::Directory, permissions)
    }

    fn flagged(self, flags: u32) -> Self {
        let set = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        self.inode.set_attr(&Context::root(), &set).unwrap();
        self
    }

    fn with_acl(self, entries: &[(AclSubject, u8)]) -> Self {
        let entry = |&(subject, permissions)| AclEntry {
            subject,
            permissions,
        };
        let acl = PosixAcl::new(entries.iter().map(entry).collect()).unwrap();
        let (name, value) = (acl::ACL_ACCESS_NAME, acl.encode());
        self.inode
            .set_xattr(&Context::root(), name, &value, XattrMode::Set)
            .unwrap();
        self
    }

    fn attr(&self) -> Attr {
        self.inode.attr().unwrap()
    }

    fn allows(&self, credentials: &Credentials, wanted: Access) -> bool {
        let allowed = check_access(&*self.inode, &self.attr(), credentials, wanted);
        if allowed.is_err() {
            refused(allowed, Condition::AccessDenied);
            return false;
        }
        true
    }

    /// `rwx` as far as allowed.
    fn rights(&self, credentials: &Credentials) -> String {
        let marks = [
            (Access::READ, 'r'),
            (Access::WRITE, 'w'),
            (Access::EXECUTE, 'x'),
        ];
        let mark = |(access, mark)| {
            if self.allows(credentials, access) {
                mark
            } else {
                '-'
            }
        };
        marks.into_iter().map(mark).collect()
    }

    fn set(&self, credentials: &Credentials, changes: SetAttr) -> Result<SetAttr> {
        prepare_set_attr(&*self.inode, &self.attr(), credentials, &changes)
    }

    fn xattr(&self, credentials: &Credentials, name: &str, access: XattrAccess) -> Result<()> {
        check_xattr(
            &*self.inode,
            &self.attr(),
            credentials,
            name.as_bytes(),
            access,
        )
    }
}

#[track_caller]
fn refused<T>(result: Result<T>, expected: Condition) {
    match result {
        Err(Error::Condition(found)) => assert_eq!(found, expected),
        Err(error) => panic!("{error} instead of {expected}"),
        Ok(_) => panic!("allowed instead of {expected}"),
    }
}

fn owner() -> Credentials {
    Credentials::new(OWNER, 7)
}

fn member() -> Credentials {
    Credentials {
        groups: vec![5, GROUP],
        ..Credentials::new(2000, 7)
    }
}

fn stranger() -> Credentials {
    Credentials::new(3000, 8)
}

fn root() -> Credentials {
    Credentials::root()
}

#[test]
fn owner_group_and_others_have_their_own_bits() {
    let file = File::new(0o421);
    assert_eq!(file.rights(&owner()), "r--");
    assert_eq!(file.rights(&member()), "-w-");
    assert_eq!(file.rights(&stranger()), "--x");
    // The class is chosen by the caller's ids, not by what would be allowed.
    let file = File::new(0o077);
    assert_eq!(file.rights(&owner()), "---");
    let file = File::new(0o707);
    assert_eq!(file.rights(&member()), "---");
}

#[test]
fn several_rights_are_needed_together() {
    let file = File::new(0o640);
    assert!(file.allows(&owner(), Access::READ | Access::WRITE));
    assert!(!file.allows(&member(), Access::READ | Access::WRITE));
}

#[test]
fn superuser_executes_only_files_with_an_execute_bit() {
    assert_eq!(File::new(0o000).rights(&root()), "rw-");
    assert_eq!(File::new(0o001).rights(&root()), "rwx");
    assert_eq!(File::dir(0o000).rights(&root()), "rwx");
}

#[test]
fn immutable_file_is_not_writable() {
    let file = File::new(0o666).flagged(0x10);
    for credentials in [owner(), root()] {
        let write = check_access(&*file.inode, &file.attr(), &credentials, Access::WRITE);
        refused(write, Condition::NotPermitted);
        assert!(file.allows(&credentials, Access::READ));
    }
}

#[test]
fn an_acl_names_users_and_groups_within_its_mask() {
    use AclSubject::{Group, Mask, Other, Owner, OwningGroup, User};
    let file = File::new(0o660).with_acl(&[
        (Owner, 6),
        (User(3000), 7),
        (OwningGroup, 4),
        (Group(8), 2),
        (Mask, 6),
        (Other, 0),
    ]);
    assert_eq!(file.rights(&owner()), "rw-");
    assert_eq!(file.rights(&stranger()), "rw-", "named, less the mask");
    assert_eq!(file.rights(&member()), "r--");
    assert_eq!(file.rights(&Credentials::new(4000, 8)), "-w-");
    assert_eq!(file.rights(&Credentials::new(4000, 9)), "---");
    let both = Credentials {
        groups: vec![GROUP],
        ..Credentials::new(4000, 8)
    };
    assert_eq!(file.rights(&both), "rw-", "one right from each group");
    assert!(
        !file.allows(&both, Access::READ | Access::WRITE),
        "but none has both"
    );
}

#[test]
fn an_acl_without_group_bits_in_the_mode_is_not_asked() {
    use AclSubject::{Mask, Other, Owner, OwningGroup, User};
    let entries = [
        (Owner, 6),
        (User(3000), 6),
        (OwningGroup, 4),
        (Mask, 0),
        (Other, 4),
    ];
    let file = File::new(0o604).with_acl(&entries);
    assert_eq!(file.rights(&stranger()), "r--");
}

/// An inode whose ACL cannot be understood.
#[derive(Debug)]
struct CorruptAcl;

impl Inode for CorruptAcl {
    fn id(&self) -> InodeId {
        unreachable!()
    }

    fn attr(&self) -> Result<Attr> {
        unreachable!()
    }

    fn lookup(&self, _: Name<'_>) -> Result<Arc<dyn Inode>> {
        unreachable!()
    }

    fn read_dir(&self, _: DirCursor, _: &mut DirSink<'_>) -> Result<()> {
        unreachable!()
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        unreachable!()
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize> {
        unreachable!()
    }

    fn seek(&self, _: u64, _: SeekTarget) -> Result<u64> {
        unreachable!()
    }

    fn extents(&self, _: Range<u64>, _: &mut ExtentSink<'_>) -> Result<()> {
        unreachable!()
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        assert_eq!(name, acl::ACL_ACCESS_NAME);
        Ok(b"corrupt".to_vec())
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        unreachable!()
    }
}

#[test]
fn corrupt_acl_admits_only_owner_and_superuser() {
    let attr = File::new(0o666).attr();
    let read = |caller: &Credentials| check_access(&CorruptAcl, &attr, caller, Access::READ);
    assert!(read(&stranger()).is_err());
    assert!(read(&member()).is_err());
    assert!(read(&owner()).is_ok());
    assert!(read(&root()).is_ok());
}

#[test]
fn names_are_made_where_one_may_write_and_search() {
    let create = |dir: &File, caller: &Credentials| check_create(&*dir.inode, &dir.attr(), caller);
    assert!(create(&File::dir(0o300), &owner()).is_ok());
    refused(create(&File::dir(0o200), &owner()), Condition::AccessDenied);
    refused(
        create(&File::dir(0o755), &stranger()),
        Condition::AccessDenied,
    );
    let removed = File::dir(0o777);
    let name = Name::new(b"f").unwrap();
    removed
        .fs
        .root()
        .unwrap()
        .remove_dir(&Context::root(), name)
        .unwrap();
    refused(create(&removed, &root()), Condition::NotFound);
}

#[test]
fn a_sticky_directory_keeps_files_of_others() {
    let mut victim = File::new(0o644).attr();
    victim.uid = 2000;
    let delete = |dir: &File, victim: &Attr, caller: &Credentials| {
        check_delete(&*dir.inode, &dir.attr(), victim, caller)
    };
    let sticky = File::dir(0o1777);
    refused(
        delete(&sticky, &victim, &stranger()),
        Condition::NotPermitted,
    );
    assert!(delete(&sticky, &victim, &member()).is_ok(), "its owner");
    assert!(
        delete(&sticky, &victim, &owner()).is_ok(),
        "the directory's owner"
    );
    assert!(delete(&sticky, &victim, &root()).is_ok());
    assert!(delete(&File::dir(0o777), &victim, &stranger()).is_ok());
    refused(
        delete(&File::dir(0o755), &victim, &member()),
        Condition::AccessDenied,
    );
    victim.flags = 0x20;
    refused(
        delete(&File::dir(0o777), &victim, &root()),
        Condition::NotPermitted,
    );
    victim.flags = 0;
    let growing = File::dir(0o777).flagged(0x20);
    refused(delete(&growing, &victim, &root()), Condition::NotPermitted);
}

#[test]
fn programs_for_a_group_are_made_by_its_members() {
    let dir = File::dir(0o2777).attr();
    let bits = |caller: &Credentials, kind, bits| permissions_of_new(&dir, caller, kind, bits);
    assert_eq!(bits(&stranger(), FileKind::Regular, 0o2755), 0o755);
    assert_eq!(bits(&member(), FileKind::Regular, 0o2755), 0o2755);
    assert_eq!(bits(&root(), FileKind::Regular, 0o2755), 0o2755);
    assert_eq!(bits(&stranger(), FileKind::Directory, 0o2755), 0o2755);
    assert_eq!(
        bits(&stranger(), FileKind::Regular, 0o2644),
        0o2644,
        "no program"
    );
}

#[test]
fn modes_are_changed_by_owners() {
    let file = File::new(0o644);
    let chmod = |caller: &Credentials, permissions| {
        let changes = SetAttr {
            permissions: Some(permissions),
            ..SetAttr::default()
        };
        file.set(caller, changes)
    };
    refused(chmod(&stranger(), 0o777), Condition::NotPermitted);
    assert_eq!(chmod(&owner(), 0o4777).unwrap().permissions, Some(0o4777));
    assert_eq!(
        chmod(&owner(), 0o2755).unwrap().permissions,
        Some(0o755),
        "not in the group"
    );
    assert_eq!(chmod(&root(), 0o2755).unwrap().permissions, Some(0o2755));
}

#[test]
fn owner_is_changed_by_the_superuser() {
    let file = File::new(0o6755);
    let chown = |caller: &Credentials, uid, gid| {
        let changes = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        file.set(caller, changes)
    };
    refused(chown(&owner(), Some(5), None), Condition::NotPermitted);
    refused(chown(&owner(), None, Some(55)), Condition::NotPermitted);
    refused(
        chown(&stranger(), Some(OWNER), None),
        Condition::NotPermitted,
    );
    assert!(chown(&owner(), Some(OWNER), Some(7)).is_ok());
    let given = chown(&root(), Some(5), None).unwrap();
    assert_eq!(
        given.permissions,
        Some(0o755),
        "set-id bits do not change hands"
    );
    let dir = File::dir(0o2755);
    let changes = SetAttr {
        uid: Some(5),
        ..SetAttr::default()
    };
    assert_eq!(dir.set(&root(), changes).unwrap().permissions, None);
}

#[test]
fn times_are_set_by_owners_and_to_now_by_writers() {
    let file = File::new(0o662);
    let touch = |caller: &Credentials, accessed, modified| {
        let changes = SetAttr {
            accessed,
            modified,
            ..SetAttr::default()
        };
        file.set(caller, changes)
    };
    let (now, then) = (Some(SetTime::Now), Some(SetTime::At(Timestamp::default())));
    assert!(touch(&owner(), then, then).is_ok());
    assert!(touch(&stranger(), now, now).is_ok());
    refused(touch(&stranger(), then, now), Condition::NotPermitted);
    refused(touch(&stranger(), now, None), Condition::NotPermitted);
    let closed = File::new(0o600);
    let changes = SetAttr {
        accessed: now,
        modified: now,
        ..SetAttr::default()
    };
    refused(closed.set(&stranger(), changes), Condition::AccessDenied);
}

#[test]
fn sizes_are_changed_by_writers_of_regular_files() {
    let changes = SetAttr {
        size_bytes: Some(0),
        ..SetAttr::default()
    };
    let file = File::new(0o6771);
    refused(file.set(&stranger(), changes), Condition::AccessDenied);
    assert_eq!(
        file.set(&member(), changes).unwrap().permissions,
        Some(0o771)
    );
    assert_eq!(file.set(&root(), changes).unwrap().permissions, None);
    refused(
        File::dir(0o777).set(&root(), changes),
        Condition::IsDirectory,
    );
    let fifo = File::of(CreateKind::Fifo, 0o666);
    refused(fifo.set(&root(), changes), Condition::InvalidArgument);
}

#[test]
fn frozen_files_change_in_their_flags_only() {
    let flags = |flags| SetAttr {
        flags: Some(flags),
        ..SetAttr::default()
    };
    let mode = SetAttr {
        permissions: Some(0),
        ..SetAttr::default()
    };
    let touch = SetAttr {
        modified: Some(SetTime::Now),
        ..SetAttr::default()
    };
    let (immutable, growing) = (
        File::new(0o666).flagged(0x10),
        File::new(0o666).flagged(0x20),
    );
    refused(immutable.set(&root(), mode), Condition::NotPermitted);
    refused(growing.set(&root(), mode), Condition::NotPermitted);
    refused(immutable.set(&root(), touch), Condition::NotPermitted);
    assert!(growing.set(&root(), touch).is_ok());
    assert!(immutable.set(&root(), flags(0)).is_ok());
    refused(immutable.set(&owner(), flags(0)), Condition::NotPermitted);
    assert!(File::new(0o666).set(&owner(), flags(0x40)).is_ok());
    refused(
        File::new(0o666).set(&stranger(), flags(0x40)),
        Condition::NotPermitted,
    );
}

#[test]
fn user_attributes_are_contents() {
    use XattrAccess::{Read, Write};
    let file = File::new(0o604);
    assert!(file.xattr(&owner(), "user.a", Write).is_ok());
    assert!(file.xattr(&stranger(), "user.a", Read).is_ok());
    refused(
        file.xattr(&stranger(), "user.a", Write),
        Condition::AccessDenied,
    );
    refused(
        file.xattr(&member(), "user.a", Read),
        Condition::AccessDenied,
    );
    let link = File::of(CreateKind::Symlink(b"x".to_vec()), 0);
    refused(link.xattr(&root(), "user.a", Read), Condition::NoAttribute);
    refused(
        link.xattr(&root(), "user.a", Write),
        Condition::NotPermitted,
    );
    let shared = File::dir(0o1777);
    refused(
        shared.xattr(&stranger(), "user.a", Write),
        Condition::NotPermitted,
    );
    assert!(shared.xattr(&owner(), "user.a", Write).is_ok());
    let frozen = File::new(0o666).flagged(0x10);
    refused(
        frozen.xattr(&root(), "user.a", Write),
        Condition::NotPermitted,
    );
}

#[test]
fn other_namespaces_have_their_own_rules() {
    use XattrAccess::{Read, Write};
    let file = File::new(0o666);
    refused(
        file.xattr(&owner(), "trusted.a", Read),
        Condition::NoAttribute,
    );
    refused(
        file.xattr(&owner(), "trusted.a", Write),
        Condition::NotPermitted,
    );
    assert!(file.xattr(&root(), "trusted.a", Write).is_ok());
    assert!(is_listed(b"trusted.a", &root()) && !is_listed(b"trusted.a", &owner()));
    assert!(is_listed(b"user.a", &stranger()));
    assert!(file.xattr(&stranger(), "security.selinux", Read).is_ok());
    refused(
        file.xattr(&owner(), "security.capability", Write),
        Condition::NotPermitted,
    );
    assert!(
        file.xattr(&stranger(), "system.posix_acl_access", Read)
            .is_ok()
    );
    assert!(
        file.xattr(&owner(), "system.posix_acl_access", Write)
            .is_ok()
    );
    refused(
        file.xattr(&stranger(), "system.posix_acl_access", Write),
        Condition::NotPermitted,
    );
    // Setting it fails later: removing a list that no file can have is no error.
    assert!(
        file.xattr(&owner(), "system.posix_acl_default", Write)
            .is_ok()
    );
    assert!(
        File::dir(0o755)
            .xattr(&owner(), "system.posix_acl_default", Write)
            .is_ok()
    );
    let link = File::of(CreateKind::Symlink(b"x".to_vec()), 0);
    refused(
        link.xattr(&root(), "system.posix_acl_access", Read),
        Condition::NotSupported,
    );
    for name in ["other.a", "user", "user.", ".a"] {
        refused(file.xattr(&root(), name, Read), Condition::NotSupported);
    }
    refused(file.xattr(&root(), "", Read), Condition::OutOfRange);
    let long = format!("user.{}", "n".repeat(251));
    refused(file.xattr(&root(), &long, Read), Condition::OutOfRange);
}
