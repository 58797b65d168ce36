//! What a run came to, for a terminal and for the documentation.

use std::fmt::Write;

use anyhow::Result;

use super::plan::Step;
use super::record::{Counts, Outcome, Records};

/// What a step came to.
#[derive(Debug)]
pub(super) struct Row {
    name: String,
    title: &'static str,
    counts: Counts,
    portions: (usize, usize),
    seconds: f64,
    /// Portions that failed, and goals that were not reached.
    pub(super) failures: Vec<String>,
    commits: Vec<String>,
}

/// What the table is headed by.
#[derive(Debug, Clone)]
pub(super) struct Head {
    /// The filesystem.
    pub(super) filesystem: &'static str,
    pub(super) is_quick: bool,
    /// Of the code.
    pub(super) key: String,
    /// The day on which the run ended.
    pub(super) day: String,
    /// The machine and the tools.
    pub(super) versions: String,
}

/// The rows of a plan.
pub(super) fn rows(plan: &[Step], records: &Records) -> Result<Vec<Row>> {
    plan.iter().map(|step| row(step, records)).collect()
}

fn row(step: &Step, records: &Records) -> Result<Row> {
    let counts = records.counts(&step.name)?;
    let outcomes: Vec<(&str, &Outcome)> = records.of_step(&step.name).collect();
    let mut failures = Vec::new();
    for (portion, outcome) in &outcomes {
        for failure in &outcome.failures {
            let reproduce = &outcome.reproduce;
            failures.push(format!("{} {portion}: {failure}\n{reproduce}", step.name));
        }
    }
    let is_whole = outcomes.len() == step.portions.len();
    for (name, least) in step.goals.iter().filter(|_| is_whole) {
        let count = counts.get(name).copied().unwrap_or(0);
        if count < *least {
            let name = name.replace('_', " ");
            failures.push(format!("{}: {count} {name} of {least}", step.name));
        }
    }
    let mut commits: Vec<String> = outcomes.iter().map(|(_, it)| it.commit.clone()).collect();
    commits.sort();
    commits.dedup();
    Ok(Row {
        name: step.name.clone(),
        title: step.title,
        portions: (outcomes.len(), step.portions.len()),
        seconds: outcomes.iter().map(|(_, it)| it.seconds).sum(),
        counts,
        failures,
        commits,
    })
}

impl Row {
    fn counts(&self) -> String {
        let counts = self.counts.iter();
        let counts = counts.map(|(name, count)| {
            let name = name.replace('_', " ");
            format!("{} {name}", grouped(*count))
        });
        let mut text = counts.collect::<Vec<_>>().join(", ");
        if self.portions.0 < self.portions.1 {
            let _ = write!(
                text,
                " ({} of {} portions)",
                self.portions.0, self.portions.1
            );
        }
        text
    }
}

/// The page, in Markdown.
pub(super) fn page(head: &Head, rows: &[Row]) -> String {
    let mut text = String::new();
    let of_it = if head.is_quick {
        ", a twentieth of it"
    } else {
        ""
    };
    let mut commits: Vec<&str> = rows
        .iter()
        .flat_map(|row| &row.commits)
        .map(String::as_str)
        .collect();
    commits.sort_unstable();
    commits.dedup();
    let seconds: f64 = rows.iter().map(|row| row.seconds).sum();
    let failures: usize = rows.iter().map(|row| row.failures.len()).sum();
    let name = head.filesystem;
    let _ = write!(
        text,
        "# The long run of {name}{of_it}\n\n\
         Made by `cargo xtask soak {name}`, never by hand. The steps are described in\n\
         [testing.md](../design/testing.md).\n\n\
         Commit {}, code {}; ended on {}; {}.\n\n\
         {} steps, {failures} failures, {} minutes of one processor.\n\n\
         | step | tested | counts | failures | seconds |\n|---|---|---|---:|---:|\n",
        commits.join(", "),
        head.key,
        head.day,
        head.versions,
        rows.len(),
        minutes(seconds),
    );
    for row in rows {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {:.0} |",
            row.name,
            row.title,
            row.counts(),
            row.failures.len(),
            row.seconds
        );
    }
    if failures > 0 {
        text.push_str("\n## Failures\n");
        for failure in rows.iter().flat_map(|row| &row.failures) {
            let _ = write!(text, "\n```text\n{failure}\n```\n");
        }
    }
    text
}

/// Whole minutes.
pub(super) fn minutes(seconds: f64) -> String {
    format!("{:.0}", (seconds / 60.0).ceil())
}

/// A number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::step;
    use super::super::record::Records;
    use super::*;

    fn head() -> Head {
        Head {
            filesystem: "xfs",
            is_quick: false,
            key: "cafe".to_owned(),
            day: "2026-01-02".to_owned(),
            versions: "Linux 6.1".to_owned(),
        }
    }

    fn outcome(states: u64, failures: &[&str]) -> Outcome {
        Outcome {
            commit: "abc".to_owned(),
            seconds: 30.0,
            counts: Counts::from([("by_kernel".to_owned(), states)]),
            failures: failures.iter().map(|&text| text.to_owned()).collect(),
            reproduce: "cargo again".to_owned(),
        }
    }

    fn with_records(name: &str, check: impl FnOnce(&mut Records, Vec<Step>)) {
        let name = format!("xtask-table-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let mut plan = vec![step("crash", 2)];
        plan[0].goals = vec![("by_kernel".to_owned(), 2000)];
        let mut records = Records::open(&dir, &plan).unwrap();
        check(&mut records, plan);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn counts_of_portions_add_up_to_a_row() {
        with_records("row", |records, plan| {
            records.keep("crash", "0", outcome(1500, &[])).unwrap();
            records.keep("crash", "1", outcome(1700, &[])).unwrap();
            let page = page(&head(), &rows(&plan, records).unwrap());
            let row = "| `crash` | a test | 3,200 by kernel | 0 | 60 |";
            assert!(page.contains(row), "{page}");
            assert!(page.contains("Commit abc, code cafe;"), "{page}");
            assert!(page.contains("1 steps, 0 failures, 1 minutes"), "{page}");
            assert!(!page.contains("## Failures"), "{page}");
        });
    }

    #[test]
    fn failures_and_missed_goals_are_shown_with_what_repeats_them() {
        with_records("failures", |records, plan| {
            records
                .keep("crash", "0", outcome(5, &["seed 7: lost"]))
                .unwrap();
            let rows_before = rows(&plan, records).unwrap();
            assert_eq!(
                rows_before[0].failures.len(),
                1,
                "a goal is judged at the end"
            );
            assert!(rows_before[0].counts().ends_with("(1 of 2 portions)"));
            records.keep("crash", "1", outcome(6, &[])).unwrap();
            let rows = rows(&plan, records).unwrap();
            assert_eq!(rows[0].failures.len(), 2);
            let page = page(&head(), &rows);
            assert!(
                page.contains("crash 0: seed 7: lost\ncargo again"),
                "{page}"
            );
            assert!(page.contains("crash: 11 by kernel of 2000"), "{page}");
        });
    }

    #[test]
    fn a_quick_run_says_so_in_its_title() {
        let head = Head {
            is_quick: true,
            ..head()
        };
        assert!(page(&head, &[]).starts_with("# The long run of xfs, a twentieth of it\n"));
    }

    #[test]
    fn thousands_are_separated() {
        let texts = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567"]);
    }
}
