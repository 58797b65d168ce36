//! The page about the library compared with the kernel.

use testkit::fs_type::FsType;

use super::aims::{self, Aim, Group};
use super::missed::Explanations;
use super::page::{NO_FUSE, Page};
use super::peers;
use super::raw::{PEERS, Raw};

pub(super) const FILE: &str = "library.md";

pub(super) fn page(raw: &Raw, aims: &[Aim], explanations: Option<&Explanations>) -> Page {
    let mut page = Page::new(FILE, "The library, compared with the kernel's ext4");
    match raw.ext4() {
        Some(record) => {
            page.provenance(record);
            let tables = peers::links(&page, FsType::Ext4);
            page.paragraph(&format!(
                "{NO_FUSE} The kernel is used by system calls, each of which enters and leaves the kernel. All tables: \
                 {tables}."
            ));
        }
        None => page.not_measured(PEERS),
    }
    aims::write(&mut page, aims, Group::Library, explanations);
    page
}
