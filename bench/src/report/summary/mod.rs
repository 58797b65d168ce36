//! The page that is read first: what was measured, and what may be concluded, in two minutes.

mod mechanisms;
mod mounts;
mod reading;
mod verdicts;
mod contents;

use testkit::fs_type::FsType;

use super::aims::Aim;
use super::fuse;
use super::page::{METHOD, Page, machine};
use super::peers::format_name;
use super::raw::Raw;

/// Pages beyond this are not read in two minutes.
#[cfg(test)]
pub(super) const LINES_MAX: usize = 150;

pub(super) fn page(raw: &Raw, aims: &[Aim]) -> Page {
    let mut page = Page::summary();
    let [method, transports] = [METHOD, fuse::FILE].map(|file| page.link_to_page(file));
    page.paragraph(&format!(
        "Platter is compared with the kernel's filesystems and with other FUSE servers, which do the same work on equal \
         images. {}\n\n\
         - **By default** a mount takes requests over `/dev/fuse`. That is what an ordinary user gets, and it stands \
         first below.\n\
         - **Rings** are FUSE over `io_uring(7)`. They need Linux 6.14 and `fuse.enable_uring`, which only root can \
         set and which is off after a boot.\n\
         - **The library** works without a mount, in the process that calls it.\n\n\
         Figures are medians, ratios have the interval of 95 % confidence in parentheses, and all are made from raw runs \
         by `cargo xtask bench report`: [how they are measured]({method}), [what each transport reaches]({transports}).",
        machines(raw)
    ));
    if !raw.is_quiet() {
        page.paragraph(
            "**A machine was not quiet while it measured**: of the pages that say so, only counts mean anything.",
        );
    }
    page.paragraph("## Mounts");
    for format in FsType::ALL {
        page.paragraph(&format!("### {}", format_name(format)));
        mounts::write(&mut page, raw, format);
        reading::write(&mut page, raw, format);
    }
    page.paragraph("## The five mechanisms");
    mechanisms::write(&mut page, &raw.mechanisms);
    page.paragraph("## Aims");
    verdicts::write(&mut page, raw, aims);
    page.paragraph("## All pages");
    contents::write(&mut page, raw);
    page
}

/// What all kept runs were measured on.
fn machines(raw: &Raw) -> String {
    let mut shown: Vec<String> = Vec::new();
    for text in raw.machines().into_iter().map(machine) {
        if !shown.contains(&text) {
            shown.push(text);
        }
    }
    if shown.is_empty() {
        "Nothing was measured yet.".to_owned()
    } else {
        format!("Measured on {}.", shown.join("; and on "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Extent;
    use crate::report::raw::peers_command;

    #[test]
    fn the_summary_is_short_and_names_what_is_missing() {
        let raw = Raw::load(Extent::Full).unwrap();
        let page = page(&raw, &raw.aims(Extent::Full));
        let lines = page.text().lines().count();
        assert!(lines <= LINES_MAX, "{lines} lines");
        for format in FsType::ALL {
            let command = format!("`{}`", peers_command(format));
            let is_there = raw.peers.contains_key(&format);
            assert!(is_there || page.text().contains(&command), "{command}");
        }
    }

    #[test]
    fn a_summary_of_nothing_says_what_would_measure_it() {
        let raw = Raw::default();
        let page = page(&raw, &raw.aims(Extent::Full));
        for format in FsType::ALL {
            assert!(page.text().contains(&peers_command(format)));
        }
        assert!(page.text().contains("**Not measured**"));
    }
}
