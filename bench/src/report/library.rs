//! The page about the library compared with the kernel.

use super::aims::{self, Aim, Group};
use super::missed::Explanations;
use super::page::{NO_FUSE, Page};
use super::peers;
use super::raw::Raw;

pub(super) const FILE: &str = "library.md";

pub(super) fn page(raw: &Raw, aims: &[Aim], explanations: Option<&Explanations>) -> Page {
    let mut page = Page::new(FILE, "The library, compared with the kernel");
    peers::measurements(&mut page, raw);
    page.paragraph(&format!(
        "{NO_FUSE} The kernel is used by system calls, each of which enters and leaves the kernel."
    ));
    aims::write(&mut page, aims, Group::Library, explanations);
    page
}
