//! The reasons of disagreements, from the tables of `explained.md`.

use crate::judges::Judged;

const TEXT: &str = include_str!("explained.md");

/// One row: complaints that contain all `parts` are explained when only `by` makes them.
#[derive(Debug)]
struct Row {
    by: &'static str,
    parts: Vec<&'static str>,
    reason: &'static str,
}

/// All rows.
#[derive(Debug)]
pub(crate) struct Explanations(Vec<Row>);

impl Explanations {
    pub(crate) fn read() -> Self {
        let cells = |line: &'static str| -> Option<[&'static str; 3]> {
            let line = line.strip_prefix('|')?.strip_suffix('|')?;
            line.split('|')
                .map(str::trim)
                .collect::<Vec<_>>()
                .try_into()
                .ok()
        };
        let rows = TEXT.lines().filter_map(cells);
        let rows = rows.filter(|[by, ..]| matches!(*by, "platter" | "e2fsck"));
        let row = |[by, part, reason]: [&'static str; 3]| Row {
            by,
            parts: quoted(part),
            reason,
        };
        let rows: Vec<_> = rows.map(row).collect();
        for row in &rows {
            assert!(!row.parts.is_empty() && !row.reason.is_empty(), "{row:?}");
        }
        Self(rows)
    }

    /// The reasons of a disagreement, or the complaints that have none. A prompt, which follows
    /// a complaint, needs none.
    pub(crate) fn explain(&self, judged: &Judged) -> Result<Vec<&'static str>, Vec<String>> {
        let (by, complaints) = if judged.platter_is_clean() {
            ("e2fsck", &judged.e2fsck)
        } else {
            ("platter", &judged.platter)
        };
        let mut reasons = Vec::new();
        let mut left = Vec::new();
        for complaint in complaints.iter().filter(|line| !is_prompt(line)) {
            let mut rows = self.0.iter().filter(|row| row.by == by);
            match rows.find(|row| row.explains(complaint)) {
                Some(row) if reasons.contains(&row.reason) => {}
                Some(row) => reasons.push(row.reason),
                None => left.push(complaint.clone()),
            }
        }
        if left.is_empty() && !reasons.is_empty() {
            Ok(reasons)
        } else {
            Err(left)
        }
    }
}

impl Row {
    fn explains(&self, complaint: &str) -> bool {
        self.parts.iter().all(|part| complaint.contains(part))
    }
}

/// What stands between backquotes.
fn quoted(cell: &'static str) -> Vec<&'static str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn is_prompt(line: &str) -> bool {
    line.ends_with("? no") && line.split_whitespace().count() <= 4
        || line.contains("WARNING: Filesystem still has errors")
}
