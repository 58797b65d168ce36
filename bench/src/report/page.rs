//! One page of the report: its text in Markdown, and its pictures.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::links::relative;
use crate::measure::Machine;
use crate::peers::Sample;
use crate::record::Record;

/// The page that is read first. Paths of pages and pictures are below the directory of the report.
pub(super) const SUMMARY: &str = "PERFORMANCE.md";
/// The directory of all other pages.
pub(super) const PAGES: &str = "performance";
/// The directory of the pictures of all pages.
pub(super) const PICTURES: &str = "performance/pictures";
/// How the figures are measured.
pub(super) const METHOD: &str = "method.md";
/// The first line of each page, by which a page that is no longer made is recognised.
pub(super) const MARK: &str =
    "<!-- Made by `cargo xtask bench report` from bench/results/. Do not edit. -->";

/// Where FUSE has no part, and every table compares calls with system calls.
pub(super) const NO_FUSE: &str = "\
Transport in all tables: none. The library is called within the process that measures; FUSE has no part.";
const TRANSPORTS: &str = "\
Transport, in the name of each row: `/dev/fuse` is FUSE over the device, the default of every mount. *Rings* are FUSE over \
`io_uring(7)`, which needs Linux 6.14 and `fuse.enable_uring`, which only root can set and which is off after a boot. \
*Library* is platter called within the process that works. The kernel's filesystem and tmpfs are used by system calls.";
/// The first release of Linux that offers FUSE over `io_uring(7)`.
const RINGS_SINCE: (u32, u32) = (6, 14);

/// A page with its pictures.
#[derive(Debug)]
pub(super) struct Page {
    path: String,
    text: String,
    pictures: BTreeMap<String, String>,
}

impl Page {
    /// The summary, with its title.
    pub(super) fn summary() -> Self {
        Self {
            path: SUMMARY.to_owned(),
            text: format!("{MARK}\n\n# Performance\n\n"),
            pictures: BTreeMap::new(),
        }
    }

    /// A page of a subject, with links to the summary and to the method.
    pub(super) fn new(file: &str, title: &str) -> Self {
        let mut page = Self {
            path: path_of(file),
            text: format!("{MARK}\n\n# {title}\n\n"),
            pictures: BTreeMap::new(),
        };
        let mut links = format!("[Summary]({})", page.link(SUMMARY));
        if file != METHOD {
            let _ = write!(
                links,
                " | [How it is measured]({})",
                page.link_to_page(METHOD)
            );
        }
        page.paragraph(&links);
        page
    }

    /// Where it lies below the directory of the report.
    #[cfg(test)]
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    #[cfg(test)]
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Its files by path, the page itself among them.
    pub(super) fn into_files(self) -> impl Iterator<Item = (String, String)> {
        let text = format!("{}\n", self.text.trim_end());
        self.pictures.into_iter().chain([(self.path, text)])
    }

    /// The target of a link to another file of the report.
    pub(super) fn link(&self, to: &str) -> String {
        relative(&self.path, to)
    }

    /// The target of a link to the page of a subject.
    pub(super) fn link_to_page(&self, file: &str) -> String {
        self.link(&path_of(file))
    }

    pub(super) fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.text, "{text}\n");
    }

    /// A picture that this page brings.
    pub(super) fn picture(&mut self, name: &str, about: &str, svg: String) {
        let file = picture_path(name);
        self.show(name, about);
        self.pictures.insert(file, svg);
    }

    /// A picture that another page brings.
    pub(super) fn show(&mut self, name: &str, about: &str) {
        let target = self.link(&picture_path(name));
        self.paragraph(&format!("![{about}]({target})"));
    }

    pub(super) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let mut row = |cells: &mut dyn Iterator<Item = &str>| {
            let cells: Vec<&str> = cells.collect();
            let _ = writeln!(self.text, "| {} |", cells.join(" | "));
        };
        row(&mut head.iter().copied());
        let ruler = head.iter().enumerate();
        row(&mut ruler.map(|(column, _)| if column == 0 { "---" } else { "---:" }));
        for cells in rows {
            row(&mut cells.iter().map(String::as_str));
        }
        self.text.push('\n');
    }

    /// A table of texts, which are aligned to the left.
    pub(super) fn table_of_texts(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let ruler = vec!["---"; head.len()];
        let _ = writeln!(self.text, "| {} |", head.join(" | "));
        let _ = writeln!(self.text, "| {} |", ruler.join(" | "));
        for cells in rows {
            let _ = writeln!(self.text, "| {} |", cells.join(" | "));
        }
        self.text.push('\n');
    }

    /// The command, source and machine of a measurement, and whether the machine was quiet.
    pub(super) fn provenance<T>(&mut self, record: &Record<T>) {
        self.provenance_of("Measured", record);
    }

    /// The same of one of several measurements.
    pub(super) fn provenance_of<T>(&mut self, what: &str, record: &Record<T>) {
        let text = format!(
            "{what} by `{}` at commit `{}` on {}. {}",
            record.command,
            record.commit,
            machine(&record.machine),
            quiet(record)
        );
        self.paragraph(&text);
        if record.is_partial {
            self.paragraph(
                "**The run was ended before it was complete:** what came later in it is missing.",
            );
        }
        for failure in &record.failures {
            self.paragraph(&format!("**Not measured to the end:** {failure}."));
        }
    }

    /// What the sides of a comparison talk to, and which of the samples were not over the rings they wanted.
    pub(super) fn transports<'s, T>(
        &mut self,
        record: &Record<T>,
        samples: impl IntoIterator<Item = &'s Sample>,
    ) {
        self.paragraph(TRANSPORTS);
        self.missing_rings("", record, samples);
    }

    /// Which transports there are.
    pub(super) fn all_transports(&mut self) {
        self.paragraph(TRANSPORTS);
    }

    /// Which of the samples, of a format where several are on a page, were not over the rings they wanted.
    pub(super) fn missing_rings<'s, T>(
        &mut self,
        format: &str,
        record: &Record<T>,
        samples: impl IntoIterator<Item = &'s Sample>,
    ) {
        // Raw runs that do not record it are judged by the release of the kernel.
        let is_without = !has_rings(&record.machine.kernel);
        if is_without || samples.into_iter().any(Sample::is_without_rings) {
            let of = if format.is_empty() { "" } else { " for " };
            self.paragraph(&format!(
                "**Rings were not available{of}{format}**: some or all rows named *rings* were measured over `/dev/fuse`, too; \
                 they are not judged as runs over rings."
            ));
        }
    }

    /// That nothing is kept of a subject, and the command that measures it.
    pub(super) fn not_measured(&mut self, command: &str) {
        self.paragraph(&not_measured(command));
    }
}

/// Where the page of a subject lies.
pub(super) fn path_of(file: &str) -> String {
    format!("{PAGES}/{file}")
}

fn picture_path(name: &str) -> String {
    format!("{PICTURES}/{name}.svg")
}

/// What is said where a measurement is missing.
pub(super) fn not_measured(command: &str) -> String {
    format!("**Not measured**; `{command}` measures it.")
}

/// A machine in a few words.
pub(super) fn machine(machine: &Machine) -> String {
    format!(
        "{} processors ({}), {} GiB of memory, Linux {}",
        machine.processors,
        machine.model,
        machine.memory_mib.div_ceil(1024),
        machine.kernel
    )
}

/// Whether the machine had nothing else to do.
fn quiet<T>(record: &Record<T>) -> String {
    let [before, after] = record.quiet.map(|quiet| quiet.busy_share * 100.0);
    let busy = format!("{before:.0} % busy before, {after:.0} % after");
    if record.quiet.iter().all(|quiet| quiet.is_quiet()) {
        format!("The machine was quiet ({busy}).")
    } else {
        format!("**The machine was not quiet** ({busy}): only counts mean anything.")
    }
}

/// Whether a kernel of this release offers FUSE over `io_uring(7)`.
fn has_rings(release: &str) -> bool {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let version = number().zip(number());
    version.is_some_and(|version| version >= RINGS_SINCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_with_rings_are_recognised() {
        assert!(has_rings("6.14.0-rc1") && has_rings("6.18.44-x") && has_rings("7.0"));
        assert!(!has_rings("6.13.9") && !has_rings("5.15") && !has_rings("unknown"));
    }

    #[test]
    fn pictures_are_linked_from_both_directories() {
        let mut summary = Page::summary();
        summary.show("a", "A");
        assert!(summary.text().contains("![A](performance/pictures/a.svg)"));
        let mut page = Page::new("fuse.md", "FUSE");
        page.picture("a", "A", "<svg/>".to_owned());
        assert!(page.text().contains("![A](pictures/a.svg)"));
        assert!(page.text().contains("[Summary](../PERFORMANCE.md)"));
        let files: BTreeMap<_, _> = page.into_files().collect();
        assert!(files.contains_key("performance/pictures/a.svg"));
        assert!(files["performance/fuse.md"].starts_with(MARK));
    }
}
