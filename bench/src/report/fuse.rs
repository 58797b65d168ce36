//! The page about mounts through FUSE: aims over both transports.

use super::aims::{self, Aim, Group};
use super::missed::Explanations;
use super::page::Page;
use super::peers::{self, format_name};
use super::raw::Raw;
use super::requests;

pub(super) const FILE: &str = "fuse.md";

pub(super) fn page(raw: &Raw, aims: &[Aim], explanations: Option<&Explanations>) -> Page {
    let mut page = Page::new(FILE, "Aims of mounts through FUSE");
    peers::measurements(&mut page, raw);
    for (&format, record) in &raw.peers {
        page.missing_rings(format_name(format), record, &record.result.samples);
    }
    page.all_transports();
    let requests = page.link_to_page(requests::FILE);
    page.paragraph(&format!(
        "fuse2fs and bindfs are over `/dev/fuse`. With `noperm` no permissions are checked; with `writeback=on` the \
         kernel gathers writes, which rings do not carry. [Requests of each operation]({requests})."
    ));
    for group in [Group::Stock, Group::Fuse2fs, Group::Bindfs] {
        aims::write(&mut page, aims, group, explanations);
    }
    page
}
