//! The page about checking images, and copying out all they hold.

use testkit::fs_type::FsType;

use super::aims::{self, Aim, Group};
use super::charts::{Bar, ratio_bars};
use super::missed::Explanations;
use super::number::{of_runs, short};
use super::page::Page;
use super::peers::format_name;
use super::raw::{CHECKS, Raw};
use crate::checks::{Image, Measured, Run, Tool, pairs};
use crate::measure::{float, median, ratio};

pub(super) const FILE: &str = "checks.md";

const MIB: f64 = 1024.0 * 1024.0;

const ABOUT: &str = "\
Transport in all tables: none. All tools open the image themselves; FUSE has no part.

Images are made by `platter mkfs --from`, one of `/usr` (in a quick run of `/usr/sbin`) and one of small files, 250 in each \
directory, with 0 to 800 bytes of text in each. They lie on tmpfs, so that no image is cold: its pages are in memory whatever \
was done before, and what a disk would add is not measured. *Peak* is the largest resident set of the process that the kernel \
reports to its parent (`ru_maxrss`, by `time`). *Reads* are \
requests to a loop device over the image and what they read, in one turn of its own of which the times are not used: nothing \
of the device is cached before, and what the kernel reads ahead is included. Tools take turns, first in one order, then \
backwards. What is copied out, in one turn, goes to tmpfs. A ratio below 1 is in favour of platter.";

pub(super) fn page(raw: &Raw, aims: &[Aim], explanations: Option<&Explanations>) -> Page {
    let mut page = Page::new(FILE, "Checking and copying out images");
    let Some(record) = &raw.checks else {
        page.not_measured(CHECKS);
        return page;
    };
    page.provenance(record);
    page.paragraph(ABOUT);
    aims::write(&mut page, aims, Group::Checks, explanations);
    for format in FsType::ALL {
        write(&mut page, &record.result, format);
    }
    page
}

fn write(page: &mut Page, measured: &Measured, format: FsType) {
    let is_of = |image: &&Image| image.format == format;
    let images: Vec<&Image> = measured.images.iter().filter(is_of).collect();
    if images.is_empty() {
        return;
    }
    page.paragraph(&format!("## {}", format_name(format)));
    let mut bars = Vec::new();
    for image in images {
        let content = image.content.name();
        page.paragraph(&format!(
            "{content}: {} files that are no directories, an image of {} MiB.",
            image.files,
            short(float(image.bytes) / MIB)
        ));
        let mut rows = Vec::new();
        for tools in pairs(format) {
            for &tool in tools {
                rows.push(row(measured, image, [tools[0], tool]));
            }
            let [ours, theirs] = tools.map(|tool| seconds(measured, image, tool));
            if !ours.is_empty() && !theirs.is_empty() {
                bars.push(Bar {
                    name: format!("{content}: {} / {}", tools[0].name(), tools[1].name()),
                    ratio: ratio(&theirs, &ours),
                });
            }
        }
        let head = [
            "tool",
            "runs",
            "s",
            "CPU s",
            "peak MiB",
            "reads",
            "MiB read",
            "platter's time over it",
            "platter's peak over it",
        ];
        page.table(&head, &rows);
    }
    if bars.is_empty() {
        return;
    }
    let title = format!(
        "{}: rate of the first over the second; right is faster",
        format_name(format)
    );
    let name = format!("ratio-checks-{}", format.kernel_name());
    page.picture(&name, &title, ratio_bars(&title, &bars));
}

fn seconds(measured: &Measured, image: &Image, tool: Tool) -> Vec<f64> {
    measured.figures((image.format, image.content, tool), |run| run.seconds)
}

/// The row of a tool, compared with ours.
fn row(measured: &Measured, image: &Image, [ours, tool]: [Tool; 2]) -> Vec<String> {
    let figures = |tool: Tool, figure: fn(&Run) -> f64| {
        measured.figures((image.format, image.content, tool), figure)
    };
    let seconds = |tool: Tool| figures(tool, |run| run.seconds);
    let peaks = |tool: Tool| figures(tool, |run| float(run.peak_bytes) / MIB);
    let over = |of: &dyn Fn(Tool) -> Vec<f64>| {
        if tool == ours {
            return String::new();
        }
        let (mine, others) = (of(ours), of(tool));
        let either = if mine.is_empty() { &mine } else { &others };
        of_runs(either, || ratio(&mine, &others))
    };
    let cpu = figures(tool, |run| run.cpu_seconds);
    let cpu = if cpu.is_empty() {
        "-".to_owned()
    } else {
        short(median(&cpu).value)
    };
    let mut counted = measured.counted.iter();
    let counted = counted.find(|counted| {
        let place = (counted.format, counted.content, counted.tool);
        place == (image.format, image.content, tool)
    });
    let counted = |figure: fn(&crate::checks::Counted) -> f64| {
        counted.map_or_else(|| "-".to_owned(), |counted| short(figure(counted)))
    };
    vec![
        tool.name().to_owned(),
        seconds(tool).len().to_string(),
        of_runs(&seconds(tool), || median(&seconds(tool))),
        cpu,
        of_runs(&peaks(tool), || median(&peaks(tool))),
        counted(|counted| float(counted.reads)),
        counted(|counted| float(counted.read_bytes) / MIB),
        over(&seconds),
        over(&peaks),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::Content;

    #[test]
    fn a_format_that_was_not_measured_has_no_section() {
        let mut page = Page::new(FILE, "Title");
        write(&mut page, &Measured::default(), FsType::Xfs);
        assert!(!page.text().contains("## "));
    }

    #[test]
    fn tools_without_runs_have_no_figures() {
        let image = Image {
            format: FsType::Xfs,
            content: Content::Small,
            files: 2,
            bytes: 1 << 20,
        };
        let run = Run {
            format: image.format,
            content: image.content,
            tool: Tool::PlatterCheck,
            seconds: 1.0,
            cpu_seconds: 1.0,
            peak_bytes: 1 << 20,
        };
        let mut measured = Measured {
            images: vec![image],
            ..Measured::default()
        };
        let text = |measured: &Measured| {
            let mut page = Page::new(FILE, "Title");
            write(&mut page, measured, FsType::Xfs);
            assert!(!page.text().contains("!["), "{}", page.text());
            page.text().to_owned()
        };
        let of_none = text(&measured);
        assert!(
            of_none.contains("| platter check | 0 | - | - | - | - | - |  |  |"),
            "{of_none}"
        );
        measured.runs.push(run);
        let of_one = text(&measured);
        assert!(
            of_one.contains("| platter check | 1 | 1 (1 to 1) |"),
            "{of_one}"
        );
        assert!(
            of_one.contains("| xfs_repair -n | 0 | - | - | - | - | - | - | - |"),
            "{of_one}"
        );
    }
}
