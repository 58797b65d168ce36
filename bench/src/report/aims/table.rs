//! Tables of aims, and why those are missed that are.

use std::collections::BTreeSet;

use super::{Aim, COMPARED, Group, Scope, Verdict, with_unit};
use crate::report::missed::Explanations;
use crate::report::page::Page;

/// Writes a group of aims and, where that is to be explained, why those are missed that are.
pub(in crate::report) fn write(
    page: &mut Page,
    aims: &[Aim],
    group: Group,
    explanations: Option<&Explanations>,
) {
    let aims: Vec<&Aim> = aims.iter().filter(|aim| aim.group == group).collect();
    page.paragraph(&format!("## Aims: {}", group.title()));
    page.paragraph(
        "Ratios of medians, with the interval of 95 % confidence. An aim is *met* if the whole interval is, and \
         *met by the median* if the interval's end is not.",
    );
    let rows: Vec<_> = aims.iter().map(|aim| aim.row()).collect();
    if group.is_mounted() {
        let mut head = vec![
            "what",
            "aim",
            "over `/dev/fuse`, the default",
            "verdict",
            "over rings",
            "verdict",
            "runs",
        ];
        head.extend(COMPARED.map(|(_, shows)| shows));
        page.table(&head, &rows);
        notes(page, &aims);
    } else {
        page.table(&["what", "aim", "reached", "runs", "verdict"], &rows);
    }
    if let Some(explanations) = explanations {
        reasons(page, &aims, explanations);
    }
}

/// How many aims of a group have each verdict, in the order of [`Verdict::ALL`].
pub(in crate::report) fn counts(
    aims: &[Aim],
    group: Group,
    verdict: fn(&Aim) -> Option<Verdict>,
) -> [usize; Verdict::ALL.len()] {
    Verdict::ALL.map(|wanted| {
        let of_group = aims.iter().filter(|aim| aim.group == group);
        of_group.filter(|aim| verdict(aim) == Some(wanted)).count()
    })
}

/// What has to be known to read a table of mounts.
fn notes(page: &mut Page, aims: &[&Aim]) {
    for aim in aims {
        if let Some(difference) = &aim.difference {
            page.paragraph(&format!(
                "*{}* compares unequal work, and is not judged: {difference}.",
                aim.what
            ));
        }
    }
    let by_transport = |aim: &&&Aim| {
        aim.default_verdict() == Some(Verdict::Missed)
            && matches!(aim.verdict(), Some(Verdict::Met | Verdict::MetByTheMedian))
    };
    let missed: Vec<&str> = aims
        .iter()
        .filter(by_transport)
        .map(|aim| &*aim.what)
        .collect();
    if !missed.is_empty() {
        page.paragraph(&format!(
            "Missed over `/dev/fuse` and met over rings: {}. Server, image and requests are the same; the difference \
             is what a request costs to be handed over and answered, as is explained below.",
            missed.join("; ")
        ));
    }
}

fn reasons(page: &mut Page, aims: &[&Aim], explanations: &Explanations) {
    let missed = aims.iter().filter(|aim| aim.is_missed());
    let missed: Vec<&&Aim> = missed.collect();
    if missed.is_empty() {
        return;
    }
    page.paragraph("### Why aims are missed");
    let mut explained = BTreeSet::new();
    for aim in &missed {
        if !explained.insert(&aim.reason) {
            continue;
        }
        let alike = missed.iter().filter(|other| other.reason == aim.reason);
        let alike: Vec<String> = alike.map(|aim| aim.result()).collect();
        page.paragraph(&alike.join("\n"));
        match explanations.of(&aim.reason) {
            Some(text) => page.paragraph(text),
            None => page.paragraph(&format!("**Not explained** (`{}`).", aim.reason)),
        }
    }
}

impl Aim {
    /// What was to be reached, and what was.
    fn result(&self) -> String {
        let by_default = format!("{} over `/dev/fuse`", self.shown(self.by_default));
        let over_rings = format!("{} over rings", self.shown(self.reached));
        let reached = match (self.group.is_mounted(), self.scope) {
            (false, _) => self.shown(self.reached),
            (true, Scope::Both) => format!("{over_rings}, {by_default}"),
            (true, Scope::Rings) => over_rings,
            (true, Scope::Device) => by_default,
        };
        let bound = self.bound();
        format!("**{}**. Aim: {bound}. Reached: {reached}.", self.what)
    }

    fn row(&self) -> Vec<String> {
        let runs = self.reached.map_or(0, |reached| reached.runs).to_string();
        let shown = |verdict: Option<Verdict>| verdict.map_or("-", Verdict::shown).to_owned();
        let verdict = shown(self.verdict());
        let reached = self.shown(self.reached);
        let mut row = vec![self.what.clone(), self.bound()];
        if !self.group.is_mounted() {
            row.extend([reached, runs, verdict]);
            return row;
        }
        let by_default = shown(self.default_verdict());
        row.extend([
            self.shown(self.by_default),
            by_default,
            reached,
            verdict,
            runs,
        ]);
        row.extend(self.compared.map(|other| {
            other.map_or_else(|| "-".to_owned(), |other| with_unit(other, self.unit))
        }));
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(aims: &[Aim], group: Group, explanations: &Explanations) -> String {
        let mut page = Page::new("aims.md", "Aims");
        write(&mut page, aims, group, Some(explanations));
        page.text().to_owned()
    }

    #[test]
    fn every_aim_has_a_row() {
        let aims = [Aim::of_two("never", None), Aim::of_two("high", Some(2.5))];
        let text = written(&aims, Group::Library, &Explanations::default());
        assert!(text.contains("| what never does | at least 2x | - | 0 | **not measured** |"));
        assert!(text.contains("| what high does | at least 2x | 2.5x (2.5 to 2.5) | 1 | met |"));
        assert_eq!(counts(&aims, Group::Library, Aim::verdict), [1, 0, 0, 1, 0]);
        assert_eq!(counts(&aims, Group::Jobs, Aim::verdict), [0; 5]);
    }

    #[test]
    fn a_missed_aim_is_shown_with_what_it_reached_and_why() {
        let aims = [
            Aim::of_two("low", Some(1.5)),
            Aim::of_two("high", Some(2.5)),
            Aim::of_two("lower", Some(1.0)),
        ];
        let explanations = Explanations::from([("low", "Half of it waits.")]);
        let text = written(&aims, Group::Library, &explanations);
        let why = text.split("### Why aims are missed").nth(1).unwrap();
        assert!(
            why.contains("**what low does**. Aim: at least 2x. Reached: 1.5x (1.5 to 1.5)."),
            "{why}"
        );
        assert!(why.contains("Half of it waits."), "{why}");
        assert!(!why.contains("what high does"), "{why}");
        assert!(why.contains("**Not explained** (`lower`)"), "{why}");
    }

    #[test]
    fn mounts_are_judged_over_both_transports() {
        let mut unequal = Aim::of_mount("direct", [3.0, 3.0]);
        unequal.difference = Some("nothing is written".to_owned());
        let aims = [
            Aim::of_mount("both", [1.0, 1.0]),
            Aim::of_mount("rings", [3.0, 1.0]),
            unequal,
        ];
        let explanations =
            Explanations::from([("both", "It waits."), ("rings", "A wake-up for each.")]);
        let text = written(&aims, Group::Fuse2fs, &explanations);
        assert!(
            text.contains("1x (1 to 1) | **missed** | 3x (3 to 3) | met | 1 |"),
            "{text}"
        );
        assert!(
            text.contains("Missed over `/dev/fuse` and met over rings: what rings does."),
            "{text}"
        );
        assert!(
            text.contains(
                "*what direct does* compares unequal work, and is not judged: nothing is written."
            ),
            "{text}"
        );
        assert!(text.contains("over rings, 1x (1 to 1) over `/dev/fuse`."));
        assert!(text.contains("A wake-up for each."), "{text}");
        assert_eq!(
            counts(&aims, Group::Fuse2fs, Aim::default_verdict),
            [0, 0, 2, 0, 1]
        );
    }
}
