//! `fusermount3`, the program that mounts for unprivileged users. Its protocol: it finds a socket by
//! the number in `_FUSE_COMMFD` and sends the opened FUSE device through it.

use std::ffi::OsString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::{AttachError, WhenBusy, system};
use crate::MountOptions;

/// Its names, the better one first.
const PROGRAMS: [&str; 2] = ["fusermount3", "fusermount"];

/// Mounts on `mountpoint` and returns the kernel's end of the connection.
pub(super) fn mount(
    mountpoint: &Path,
    options: &MountOptions,
    checks_permissions: bool,
) -> Result<OwnedFd, AttachError> {
    let failed = |error| system(mountpoint, "mounting with fusermount3", error);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let options = option_list(options, checks_permissions);
    let arguments = ["-o".into(), options.into(), "--".into(), mountpoint.into()];
    let theirs = OwnedFd::from(theirs);
    // As its standard input the socket survives exec without being inheritable by anyone else.
    let mut child = spawn(&arguments, |command| {
        Ok(command.env("_FUSE_COMMFD", "0").stdin(theirs.try_clone()?))
    })?;
    drop(theirs);
    let received = receive_descriptor(&ours).map_err(failed);
    let message = finish(&mut child).map_err(failed);
    let connection = received.and_then(|received| {
        let message = message?;
        received.ok_or(AttachError::Helper { message })
    });
    let has_mounted = child.wait().is_ok_and(|status| status.success());
    if connection.is_err() && has_mounted {
        // Without a server it would stay, and fail its users.
        let _ = unmount(mountpoint, WhenBusy::Detach);
    }
    connection
}

/// Takes the mount off `mountpoint`.
pub(super) fn unmount(mountpoint: &Path, when_busy: WhenBusy) -> Result<(), AttachError> {
    let mut arguments: Vec<OsString> = vec!["-u".into()];
    if when_busy == WhenBusy::Detach {
        arguments.push("-z".into());
    }
    arguments.extend(["--".into(), mountpoint.into()]);
    let mut child = spawn(&arguments, |command| Ok(command.stdin(Stdio::null())))?;
    let failed = |error| system(mountpoint, "unmounting with fusermount3", error);
    let message = finish(&mut child).map_err(failed)?;
    if child.wait().map_err(failed)?.success() {
        return Ok(());
    }
    Err(AttachError::Helper { message })
}

/// Starts the helper under whichever name it is installed.
fn spawn(
    arguments: &[OsString],
    prepare: impl Fn(&mut Command) -> io::Result<&mut Command>,
) -> Result<Child, AttachError> {
    for program in PROGRAMS {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let started = prepare(&mut command).and_then(Command::spawn);
        match started {
            Ok(child) => return Ok(child),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(system(Path::new(program), "run", error)),
        }
    }
    Err(AttachError::Helper {
        message: "fusermount3 is not installed (package fuse3), and only the superuser can mount \
                  without it"
            .to_owned(),
    })
}

/// Waits for the helper to end and returns what it complained of.
fn finish(child: &mut Child) -> io::Result<String> {
    let mut message = Vec::new();
    if let Some(stderr) = &mut child.stderr {
        stderr.read_to_end(&mut message)?;
    }
    child.wait()?;
    Ok(String::from_utf8_lossy(&message).into_owned())
}

/// The descriptor the helper sends, or `None` when it ends without sending one.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut received = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            received = descriptors.next();
        }
    }
    Ok(received)
}

/// The options in the helper's words.
fn option_list(options: &MountOptions, checks_permissions: bool) -> String {
    let source = options
        .source_shown()
        .replace('\\', "\\\\")
        .replace(',', "\\,");
    let mut list = format!(
        "fsname={source},subtype=platter,max_read={}",
        options.request_bytes_max
    );
    for (wanted, option) in [
        (options.read_only, ",ro"),
        (options.devices, ",dev"),
        (options.set_id, ",suid"),
        (options.no_exec, ",noexec"),
        (checks_permissions, ",default_permissions"),
        (options.allow_other, ",allow_other"),
    ] {
        if wanted {
            list.push_str(option);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_with_commas_stays_one_option() {
        let options = MountOptions {
            source: Some("a,b\\c".to_owned()),
            read_only: true,
            request_bytes_max: 4096,
            ..MountOptions::default()
        };
        let list = option_list(&options, true);
        let expected = r"fsname=a\,b\\c,subtype=platter,max_read=4096,ro,default_permissions";
        assert_eq!(list, expected);
    }

    #[test]
    fn a_helper_that_sends_nothing_gives_nothing() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(receive_descriptor(&ours).unwrap().is_none());
    }
}
