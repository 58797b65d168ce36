//! ACLs as attributes: what setting and removing them changes, and what it does not.

use anyhow::{Context as _, Result, ensure};
use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclEntry, AclSubject, PosixAcl};
use platter_vfs::{
    Condition, Context, CreateKind, Credentials, Error, Inode, Name, SetAttr, Timestamp, XattrMode,
};

use super::Candidate;

const GROUP: u32 = 20;

/// Sets and removes ACLs in every mode, as users that may keep the set-group-ID bit and as one that may not.
pub fn acls_are_set_in_any_mode(candidate: Candidate) -> Result<()> {
    run(candidate).with_context(|| candidate.name())
}

fn run(candidate: Candidate) -> Result<()> {
    let mut mounted = candidate.mount(1)?;
    let named = list(true)?;
    let minimal = list(false)?.encode();
    let file = mounted.file("file")?;
    let group = SetAttr {
        gid: Some(GROUP),
        permissions: Some(0o2604),
        ..SetAttr::default()
    };
    file.set_attr(&Context::root(), &group)?;
    for mode in [XattrMode::Replace, XattrMode::Create, XattrMode::Create] {
        file.set_xattr(&user(GROUP), ACL_ACCESS_NAME, &named.encode(), mode)?;
        ensure!(
            file.get_xattr(ACL_ACCESS_NAME)? == named.encode(),
            "another list"
        );
        ensure!(
            file.attr()?.permissions == 0o2670,
            "other bits with {mode:?}"
        );
    }
    drop(file);
    mounted.remount()?;
    let file = mounted.lookup("file")?;
    ensure!(
        file.get_xattr(ACL_ACCESS_NAME)? == named.encode(),
        "another list on disk"
    );
    file.set_xattr(&user(7), ACL_ACCESS_NAME, &minimal, XattrMode::Replace)?;
    ensure!(file.attr()?.permissions == 0o640, "set-group-ID is kept");
    absent(&*file, ACL_ACCESS_NAME)?;
    // What is not there is removed, and that is no change.
    let long_ago = SetAttr {
        changed: Some(Timestamp::default()),
        ..SetAttr::default()
    };
    file.set_attr(&Context::root(), &long_ago)?;
    let before = file.attr()?;
    ensure!(
        before.changed == Timestamp::default(),
        "a change has a time of its own"
    );
    file.remove_xattr(&Context::root(), ACL_ACCESS_NAME)?;
    file.remove_xattr(&Context::root(), ACL_DEFAULT_NAME)?;
    file.set_xattr(
        &Context::root(),
        ACL_ACCESS_NAME,
        b"\x02\0\0\0",
        XattrMode::Set,
    )?;
    ensure!(file.attr()? == before, "removing nothing is a change");
    let set = |inode: &dyn Inode, name: &[u8], value: &[u8]| {
        inode.set_xattr(&Context::root(), name, value, XattrMode::Set)
    };
    refused(
        set(&*file, ACL_DEFAULT_NAME, &minimal),
        Condition::AccessDenied,
    )?;
    refused(
        set(&*file, ACL_ACCESS_NAME, b"no"),
        Condition::InvalidArgument,
    )?;
    let root = mounted.root()?;
    let name = |text: &'static str| Name::new(text.as_bytes());
    let dir = root.create(
        &Context::root(),
        name("dir")?,
        CreateKind::Directory,
        0o2755,
    )?;
    set(&*dir, ACL_DEFAULT_NAME, &minimal)?;
    ensure!(
        dir.get_xattr(ACL_DEFAULT_NAME)? == minimal,
        "another default list"
    );
    ensure!(
        dir.attr()?.permissions & 0o777 == 0o755,
        "a default list changes the mode"
    );
    dir.remove_xattr(&Context::root(), ACL_DEFAULT_NAME)?;
    absent(&*dir, ACL_DEFAULT_NAME)?;
    let target = CreateKind::Symlink(b"file".to_vec());
    let symlink = root.create(&Context::root(), name("symlink")?, target, 0o777)?;
    refused(
        set(&*symlink, ACL_ACCESS_NAME, &minimal),
        Condition::NotSupported,
    )?;
    let removed = symlink.remove_xattr(&Context::root(), ACL_ACCESS_NAME);
    refused(removed, Condition::NotSupported)?;
    drop((file, root, dir, symlink));
    mounted.finish()
}

/// `u::rw-,g::r--,o::---`, with a named user and a mask of `rwx` if so wanted.
fn list(is_named: bool) -> Result<PosixAcl> {
    let entry = |subject, permissions| AclEntry {
        subject,
        permissions,
    };
    let mut entries = vec![
        entry(AclSubject::Owner, 0o6),
        entry(AclSubject::OwningGroup, 0o4),
        entry(AclSubject::Other, 0),
    ];
    if is_named {
        entries.insert(1, entry(AclSubject::User(11), 0o7));
        entries.insert(3, entry(AclSubject::Mask, 0o7));
    }
    Ok(PosixAcl::new(entries)?)
}

fn user(gid: u32) -> Context {
    Context {
        credentials: Credentials {
            uid: 1000,
            gid,
            groups: Vec::new(),
        },
        ..Context::root()
    }
}

fn absent(inode: &dyn Inode, name: &[u8]) -> Result<()> {
    match inode.get_xattr(name) {
        Err(Error::Condition(Condition::NoAttribute)) => Ok(()),
        other => anyhow::bail!("there is {other:?}"),
    }
}

fn refused(result: platter_vfs::Result<()>, condition: Condition) -> Result<()> {
    match result {
        Err(Error::Condition(found)) if found == condition => Ok(()),
        other => anyhow::bail!("{other:?} instead of {condition:?}"),
    }
}
