//! How costs grow.

use std::collections::BTreeMap;

use super::Page;
use super::charts::{Curve, curves};
use super::number::{short, time};
use crate::measure::{exponent, median};
use crate::record::Record;
use crate::scale::{self, At, Grown, Growth};
use crate::side::Side;

/// A figure of a sample that is followed.
struct Figure {
    name: String,
    unit: &'static str,
    of: Box<Read>,
}

/// Reads a figure off a sample.
type Read = dyn Fn(&At) -> Option<f64>;

pub(super) fn tell(page: &mut Page, record: &Record<Vec<Grown>>) {
    page.paragraph("## As things grow");
    page.provenance(record);
    for grown in &record.result {
        let Some(growth) = scale::ALL.iter().find(|growth| growth.name == grown.name) else {
            continue;
        };
        let (name, about) = (growth.name, growth.about);
        page.paragraph(&format!("### {name}\n\nWhat grows: {about}."));
        for failure in &grown.failures {
            page.paragraph(&format!("**Not measured to the end:** {failure}."));
        }
        for figure in figures(grown) {
            tell_figure(page, growth, grown, &figure);
        }
    }
}

/// Time for each operation of each phase, time to mount, and memory.
fn figures(grown: &Grown) -> Vec<Figure> {
    let mut figures = Vec::new();
    let phases = grown.samples.first().map(|at| &at.sample.phases);
    for part in phases.into_iter().flatten() {
        // To sync is one operation, however much there is to write.
        if part.unit != "operation" {
            continue;
        }
        let name = part.name.clone();
        figures.push(Figure {
            name: format!("time for each {name}"),
            unit: "ns",
            of: Box::new(move |at| {
                let part = at.sample.phases.iter().find(|part| part.name == name)?;
                Some(part.seconds * 1e9 / part.units())
            }),
        });
    }
    figures.push(Figure {
        name: "time to mount".to_owned(),
        unit: "ns",
        of: Box::new(|at| Some(at.sample.mount_seconds * 1e9)),
    });
    #[expect(clippy::cast_precision_loss, reason = "memory is far below 2^52")]
    let peak = |at: &At| match at.sample.side {
        Side::Library => Some(at.sample.client_peak_bytes as f64 / f64::from(1 << 20)),
        Side::Fuse | Side::Device => Some(at.sample.server_peak_bytes? as f64 / f64::from(1 << 20)),
        Side::Tmpfs | Side::Kernel | Side::Fuse2fs | Side::Bindfs | Side::NullFuse => None,
    };
    figures.push(Figure {
        name: "peak memory".to_owned(),
        unit: "MiB",
        of: Box::new(peak),
    });
    figures
}

fn tell_figure(page: &mut Page, growth: &Growth, grown: &Grown, figure: &Figure) {
    let curves_of = Side::ALL.map(|side| (side, points(grown, side, figure)));
    let mut rows = Vec::new();
    let mut drawn = Vec::new();
    for (side, points) in curves_of
        .into_iter()
        .filter(|(_, points)| !points.is_empty())
    {
        let shown = |value: f64| match figure.unit {
            "ns" => time(value),
            unit => format!("{} {unit}", short(value)),
        };
        let mut row = vec![side.name().to_owned()];
        row.extend(points.iter().map(|(_, value)| shown(*value)));
        let power = exponent(&points);
        row.push(power.map_or_else(|| "-".to_owned(), |power| format!("{power:.2}")));
        rows.push(row);
        drawn.push(Curve {
            name: side.name().to_owned(),
            points,
        });
    }
    let Some(first) = drawn.first() else {
        return;
    };
    let mut head = vec![figure.name.clone()];
    let size = |(size, _): &(f64, f64)| format!("{} {}", short(*size), growth.unit);
    head.extend(first.points.iter().map(size));
    head.push("exponent".to_owned());
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    page.table(&head, &rows);
    let title = format!("{}: {}", growth.name, figure.name);
    let name = format!(
        "scale-{}-{}",
        growth.name,
        figure.name.replace([' ', ','], "-")
    );
    let picture = curves(&title, [growth.unit, figure.unit], &drawn);
    page.picture(&name, &title, picture);
}

/// The median at each size.
fn points(grown: &Grown, side: Side, figure: &Figure) -> Vec<(f64, f64)> {
    let mut by_size: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for at in grown.samples.iter().filter(|at| at.sample.side == side) {
        if let Some(value) = (figure.of)(at) {
            by_size.entry(at.size).or_default().push(value);
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
    let point = |(size, values): (u64, Vec<f64>)| (size as f64, median(&values).value);
    by_size.into_iter().map(point).collect()
}
