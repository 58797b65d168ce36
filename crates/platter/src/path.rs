//! Paths in an image, as callers have them.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

mod sealed {
    /// Keeps [`AsPath`](super::AsPath) to the types of this module.
    pub trait Sealed {}
}

/// What names a file in an image: text, bytes, or a path of the standard library.
///
/// Names on Linux filesystems are bytes, which need not be UTF-8. `AsRef<Path>` would refuse byte strings,
/// and `AsRef<[u8]>` would refuse [`Path`]; this is implemented for both, and cannot be implemented
/// elsewhere.
pub trait AsPath: sealed::Sealed {
    /// The bytes of the path.
    fn path_bytes(&self) -> &[u8];
}

macro_rules! paths {
    ($($type:ty: $value:ident => $bytes:expr;)*) => {$(
        impl sealed::Sealed for $type {}
        impl AsPath for $type {
            fn path_bytes(&self) -> &[u8] {
                let $value = self;
                $bytes
            }
        }
    )*};
}

paths! {
    str: path => path.as_bytes();
    String: path => path.as_bytes();
    [u8]: path => path;
    Vec<u8>: path => path;
    Box<[u8]>: path => path;
    OsStr: path => path.as_bytes();
    OsString: path => path.as_bytes();
    Path: path => path.as_os_str().as_bytes();
    PathBuf: path => path.as_os_str().as_bytes();
    Cow<'_, str>: path => path.as_bytes();
    Cow<'_, Path>: path => path.as_os_str().as_bytes();
}

impl<const N: usize> sealed::Sealed for [u8; N] {}

impl<const N: usize> AsPath for [u8; N] {
    fn path_bytes(&self) -> &[u8] {
        self
    }
}

impl<T: AsPath + ?Sized> sealed::Sealed for &T {}

impl<T: AsPath + ?Sized> AsPath for &T {
    fn path_bytes(&self) -> &[u8] {
        (**self).path_bytes()
    }
}
