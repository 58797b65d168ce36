//! What platter aims at, and what it reached: computed from the raw runs.

mod rates;
mod growth;

use super::Page;
use super::missed::Explanations;
use super::number::short;
use crate::measure::Estimate;
use crate::peers::Measured;
use crate::programs::Run;
use crate::record::Extent;
use crate::scale::Grown;
use crate::side::Side;

/// What there is to judge by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Evidence<'r> {
    pub(super) extent: Extent,
    pub(super) peers: Option<&'r Measured>,
    pub(super) jobs: Option<&'r [Run]>,
    pub(super) scale: Option<&'r [Grown]>,
}

/// Something to be reached, and how far it was.
#[derive(Debug)]
pub(super) struct Aim {
    /// The table it stands in.
    group: String,
    /// Names it among all, as a file can be named.
    pub(super) key: String,
    what: String,
    bound: Bound,
    unit: &'static str,
    /// Nothing, where it was not measured.
    reached: Option<Reached>,
    /// What others reach, to compare it with: by [`COMPARED`].
    compared: [Option<Estimate>; COMPARED.len()],
}

/// A bound of what is to be reached.
#[derive(Debug, Clone, Copy)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Debug, Clone, Copy)]
struct Reached {
    estimate: Estimate,
    runs: usize,
}

/// What is to be said of an aim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Met,
    /// And the end of the range is beyond it.
    MetByTheMedian,
    Missed,
    NotMeasured,
}

const HEAD: &[&str] = &["what", "aim", "reached", "runs", "verdict"];
/// Ours with which the aims through FUSE are compared, and what each shows.
const COMPARED: [(Side, &str); 4] = [
    (Side::Device, "over the device alone"),
    (Side::NullFuse, "null server: what the transport allows"),
    (Side::Unchecked, "with `noperm`"),
    (Side::Gathered, "with `writeback=on`"),
];

/// All aims, whatever there is to judge them by.
pub(super) fn all(evidence: Evidence<'_>) -> Vec<Aim> {
    let mut aims = rates::aims(evidence);
    aims.extend(growth::aims(evidence));
    aims
}

/// Writes all aims and, where that is to be explained, why those are missed that are.
pub(super) fn write(page: &mut Page, aims: &[Aim], explanations: Option<&Explanations>) {
    page.paragraph(
        "## Aims\n\nRates are medians over medians, with the range that holds the true ratio with 95 % \
         confidence. An aim is *met* where the whole range is, and *met by the median* where its lower \
         end is not.",
    );
    for group in aims.chunk_by(|one, other| one.group == other.group) {
        page.paragraph(&format!("### {}", group[0].group));
        let mut head = HEAD.to_vec();
        let is_compared = group
            .iter()
            .any(|aim| aim.compared.iter().any(Option::is_some));
        if is_compared {
            head.extend(COMPARED.map(|(_, shows)| shows));
        }
        let rows: Vec<_> = group.iter().map(|aim| aim.row(is_compared)).collect();
        page.table(&head, &rows);
    }
    if let Some(explanations) = explanations {
        write_reasons(page, aims, explanations);
    }
}

fn write_reasons(page: &mut Page, aims: &[Aim], explanations: &Explanations) {
    let missed = aims.iter().filter(|aim| aim.verdict() == Verdict::Missed);
    let missed: Vec<&Aim> = missed.collect();
    if missed.is_empty() {
        return;
    }
    page.paragraph("## Why aims are missed");
    for aim in missed {
        let (group, what, key) = (&aim.group, &aim.what, &aim.key);
        let (bound, reached) = (aim.bound(), aim.reached());
        page.paragraph(&format!(
            "### {group}: {what}\n\nAimed at: {bound}. Reached: {reached}."
        ));
        match explanations.of(key) {
            Some(text) => page.paragraph(text),
            None => page.paragraph(&format!("**Not explained** (`{key}`).")),
        }
    }
}

impl Aim {
    fn new(group: &str, key: &[&str], what: String, (bound, unit): (Bound, &'static str)) -> Self {
        Self {
            group: group.to_owned(),
            key: as_key(key),
            what,
            bound,
            unit,
            reached: None,
            compared: [None; COMPARED.len()],
        }
    }

    /// With what so many runs reached; of no runs, nothing.
    fn reaching(mut self, estimate: Estimate, runs: usize) -> Self {
        self.reached = (runs > 0).then_some(Reached { estimate, runs });
        self
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.reached.map_or(Verdict::NotMeasured, |reached| {
            self.bound.verdict(reached.estimate)
        })
    }

    fn bound(&self) -> String {
        let (words, figure) = match self.bound {
            Bound::AtLeast(least) => ("at least", least),
            Bound::AtMost(most) => ("at most", most),
        };
        format!("{words} {}{}", short(figure), self.unit)
    }

    fn reached(&self) -> String {
        let shown = |reached: Reached| with_unit(reached.estimate, self.unit);
        self.reached.map_or_else(|| "-".to_owned(), shown)
    }

    /// A row of the table.
    fn row(&self, is_compared: bool) -> Vec<String> {
        let runs = self.reached.map_or(0, |reached| reached.runs);
        let mut row = vec![
            self.what.clone(),
            self.bound(),
            self.reached(),
            runs.to_string(),
            self.verdict().shown().to_owned(),
        ];
        if is_compared {
            row.extend(self.compared.map(|other| {
                other.map_or_else(|| "-".to_owned(), |other| with_unit(other, self.unit))
            }));
        }
        row
    }
}

fn with_unit(estimate: Estimate, unit: &str) -> String {
    let Estimate { value, low, high } = estimate;
    let (value, low, high) = (short(value), short(low), short(high));
    format!("{value}{unit} ({low} to {high})")
}

impl Bound {
    pub(super) fn verdict(self, reached: Estimate) -> Verdict {
        let is_in = |value: f64| match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        };
        let worst = match self {
            Self::AtLeast(_) => reached.low,
            Self::AtMost(_) => reached.high,
        };
        match (is_in(worst), is_in(reached.value)) {
            (true, _) => Verdict::Met,
            (false, true) => Verdict::MetByTheMedian,
            (false, false) => Verdict::Missed,
        }
    }
}

impl Verdict {
    pub(super) const fn shown(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::MetByTheMedian => "met by the median",
            Self::Missed => "**missed**",
            Self::NotMeasured => "**not measured**",
        }
    }
}

/// Letters and digits of all parts, with one line between words.
fn as_key(parts: &[&str]) -> String {
    let parts = parts.join("-");
    let words = parts.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<String> = words
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("-")
}

#[cfg(test)]
impl Aim {
    /// One that reached so much of 2.
    pub(super) fn of_two(key: &str, reached: Option<f64>) -> Self {
        let bound = (Bound::AtLeast(2.0), "x");
        let aim = Self::new("Tests", &[key], format!("what {key} does"), bound);
        match reached {
            Some(value) => aim.reaching(Estimate::exactly(value), 1),
            None => aim,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const NOTHING: Evidence<'_> = Evidence {
        extent: Extent::Full,
        peers: None,
        jobs: None,
        scale: None,
    };

    #[test]
    fn every_aim_has_a_row_and_a_name_of_its_own() {
        let aims = all(NOTHING);
        let keys: BTreeSet<&str> = aims.iter().map(|aim| aim.key.as_str()).collect();
        assert_eq!(keys.len(), aims.len(), "{keys:?}");
        assert!(keys.contains("fuse2fs-files-create") && keys.contains("kernel-tree-cold-ls-lr"));
        assert!(
            aims.iter()
                .all(|aim| aim.verdict() == Verdict::NotMeasured && aim.row(false)[3] == "0")
        );
        let mut page = Page::default();
        write(&mut page, &aims, Some(&Explanations::default()));
        assert_eq!(page.text.matches("**not measured**").count(), aims.len());
    }

    #[test]
    fn a_missed_aim_is_shown_with_what_it_reached_and_why() {
        let aims = [
            Aim::of_two("low", Some(1.5)),
            Aim::of_two("high", Some(2.5)),
            Aim::of_two("lower", Some(1.0)),
        ];
        let explanations = Explanations::from([("low", "Half of it waits.")]);
        let mut page = Page::default();
        write(&mut page, &aims, Some(&explanations));
        let why = page.text.split("## Why aims are missed").nth(1).unwrap();
        assert!(why.contains("Tests: what low does"), "{why}");
        assert!(
            why.contains("Aimed at: at least 2x. Reached: 1.5x (1.5 to 1.5)."),
            "{why}"
        );
        assert!(why.contains("Half of it waits."), "{why}");
        assert!(!why.contains("what high does"), "{why}");
        assert!(why.contains("**Not explained** (`lower`)"), "{why}");
    }

    #[test]
    fn range_around_an_aim_differs_from_one_beyond_it() {
        let reached = Estimate {
            value: 2.0,
            low: 1.5,
            high: 2.5,
        };
        let at_least = |least| Bound::AtLeast(least).verdict(reached);
        assert_eq!(at_least(1.5), Verdict::Met);
        assert_eq!(at_least(1.8), Verdict::MetByTheMedian);
        assert_eq!(at_least(2.1), Verdict::Missed);
        let at_most = |most| Bound::AtMost(most).verdict(reached);
        assert_eq!(at_most(2.5), Verdict::Met);
        assert_eq!(at_most(2.2), Verdict::MetByTheMedian);
        assert_eq!(at_most(1.0), Verdict::Missed);
    }
}
