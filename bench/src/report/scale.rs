//! The page about costs that grow.

use std::collections::{BTreeMap, BTreeSet};

use testkit::fs_type::FsType;

use super::aims::{self, Aim, Group};
use super::charts::{Curve, curves};
use super::missed::Explanations;
use super::number::{short, time};
use super::page::Page;
use super::raw::{Raw, SCALE};
use crate::measure::{exponent, float, median};
use crate::record::Record;
use crate::scale::{self, At, Grown, Growth};
use crate::side::Side;

const MIB: f64 = 1024.0 * 1024.0;

/// A figure of a sample that is followed.
struct Figure {
    name: String,
    unit: &'static str,
    of: Box<Read>,
}

/// Reads a figure off a sample.
type Read = dyn Fn(&At) -> Option<f64>;

pub(super) const FILE: &str = "scale.md";

const ABOUT: &str = "\
Medians at each size, of ext4. The exponent is the slope of a straight line through the logarithms of size and figure: 0 \
does not grow, 1 grows in proportion.";

pub(super) fn page(raw: &Raw, aims: &[Aim], explanations: Option<&Explanations>) -> Page {
    let mut page = Page::new(FILE, "How costs grow");
    let Some(record) = &raw.scale else {
        page.not_measured(SCALE);
        aims::write(&mut page, aims, Group::Growth, explanations);
        return page;
    };
    page.provenance(record);
    let samples = record.result.iter().flat_map(|grown| &grown.samples);
    page.transports(record, samples.map(|at| &at.sample));
    aims::write(&mut page, aims, Group::Growth, explanations);
    page.paragraph(ABOUT);
    write(&mut page, record);
    page
}

fn write(page: &mut Page, record: &Record<Vec<Grown>>) {
    for grown in &record.result {
        let Some(growth) = scale::ALL.iter().find(|growth| growth.name == grown.name) else {
            continue;
        };
        let (name, about) = (growth.name, growth.about);
        page.paragraph(&format!("## {name}\n\nWhat grows: {about}."));
        for failure in &grown.failures {
            page.paragraph(&format!("**Not measured to the end:** {failure}."));
        }
        for figure in figures(grown) {
            write_figure(page, growth, grown, &figure);
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
    figures.push(Figure {
        name: "peak memory".to_owned(),
        unit: "MiB",
        of: Box::new(|at| Some(float(at.sample.platter_peak_bytes()?) / MIB)),
    });
    figures
}

fn write_figure(page: &mut Page, growth: &Growth, grown: &Grown, figure: &Figure) {
    let points_of = Side::ALL.map(|side| (side, points(grown, side, figure)));
    let measured = points_of
        .into_iter()
        .filter(|(_, points)| !points.is_empty());
    let measured: Vec<(Side, BTreeMap<u64, f64>)> = measured.collect();
    let sizes = measured.iter().flat_map(|(_, points)| points.keys());
    let sizes: BTreeSet<u64> = sizes.copied().collect();
    if sizes.is_empty() {
        return;
    }
    let curve = |(side, points): &(Side, BTreeMap<u64, f64>)| Curve {
        name: side.name(FsType::Ext4).to_owned(),
        points: points
            .iter()
            .map(|(&size, &value)| (float(size), value))
            .collect(),
    };
    let drawn: Vec<Curve> = measured.iter().map(curve).collect();
    let shown = |value: &f64| match figure.unit {
        "ns" => time(*value),
        unit => format!("{} {unit}", short(*value)),
    };
    let rows = measured.iter().zip(&drawn).map(|((_, points), curve)| {
        let mut row = vec![curve.name.clone()];
        let values = sizes.iter().map(|size| points.get(size).map(shown));
        let power = exponent(&curve.points).map(|power| format!("{power:.2}"));
        row.extend(
            values
                .chain([power])
                .map(|text| text.unwrap_or_else(|| "-".to_owned())),
        );
        row
    });
    let rows: Vec<_> = rows.collect();
    let mut head = vec![figure.name.clone()];
    head.extend(
        sizes
            .iter()
            .map(|&size| format!("{} {}", short(float(size)), growth.unit)),
    );
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
fn points(grown: &Grown, side: Side, figure: &Figure) -> BTreeMap<u64, f64> {
    let mut by_size: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for at in grown.samples.iter().filter(|at| at.sample.side == side) {
        if let Some(value) = (figure.of)(at) {
            by_size.entry(at.size).or_default().push(value);
        }
    }
    let point = |(size, values): (u64, Vec<f64>)| (size, median(&values).value);
    by_size.into_iter().map(point).collect()
}
