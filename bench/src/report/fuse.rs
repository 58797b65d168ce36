//! The page about mounts through FUSE: aims over both transports.

use testkit::fs_type::FsType;

use super::aims::{self, Aim, Group};
use super::missed::Explanations;
use super::page::Page;
use super::peers;
use super::raw::{PEERS, Raw};
use super::requests;

pub(super) const FILE: &str = "fuse.md";

pub(super) fn page(raw: &Raw, aims: &[Aim], explanations: Option<&Explanations>) -> Page {
    let mut page = Page::new(FILE, "Mounts of ext4 through FUSE");
    match raw.ext4() {
        Some(record) => {
            page.provenance(record);
            page.transports(record, &record.result.samples);
            let tables = peers::links(&page, FsType::Ext4);
            let requests = page.link_to_page(requests::FILE);
            page.paragraph(&format!(
                "fuse2fs and bindfs are over `/dev/fuse`. With `noperm` no permissions are checked; with \
                 `writeback=on` the kernel gathers writes, which rings do not carry. All tables: {tables}. [Requests of \
                 each operation]({requests})."
            ));
        }
        None => page.not_measured(PEERS),
    }
    for group in Group::ALL.into_iter().filter(|group| group.is_mounted()) {
        aims::write(&mut page, aims, group, explanations);
    }
    page
}
