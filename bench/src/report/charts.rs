//! Ratio bars, latency histograms and growth curves.

use super::number::{short, time};
use super::svg::{Anchor, COLOURS, LETTER, Scale, Svg};
use crate::measure::{Estimate, Latencies, float};

const WIDTH: f64 = 1060.0;
const ROW: f64 = 18.0;
const PLOT_HEIGHT: f64 = 260.0;

/// One bar: a ratio by name.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) ratio: Estimate,
}

/// Ratios around 1: to the right is better.
pub(super) fn ratio_bars(title: &str, bars: &[Bar]) -> String {
    let rows = float(bars.len() as u64);
    let longest = bars.iter().map(|bar| bar.name.chars().count()).max();
    let left = float(longest.unwrap_or(0) as u64) * LETTER + 16.0;
    let bottom = 40.0 + rows * ROW;
    let mut svg = Svg::new(WIDTH, bottom + 30.0);
    svg.text((8.0, 18.0), Anchor::Start, title);
    let ends = bars.iter().flat_map(|bar| [bar.ratio.low, bar.ratio.high]);
    let scale = Scale::of(ends.chain([0.5, 2.0]), left, WIDTH - 70.0);
    for mark in scale.marks() {
        let x = scale.place(mark);
        let width = if (mark - 1.0).abs() < 1e-9 { 2.0 } else { 0.4 };
        svg.line((x, 30.0), (x, bottom), width);
        svg.text(
            (x, bottom + 16.0),
            Anchor::Middle,
            &format!("{}x", short(mark)),
        );
    }
    let mut y = 34.0;
    for bar in bars {
        let Estimate { value, low, high } = bar.ratio;
        let (one, end) = (scale.place(1.0), scale.place(value));
        let colour = if value >= 1.0 { COLOURS[2] } else { COLOURS[1] };
        svg.text((left - 8.0, y + 12.0), Anchor::End, &bar.name);
        svg.rectangle(
            (one.min(end), y + 2.0),
            ((end - one).abs().max(1.0), ROW - 5.0),
            colour,
        );
        let middle = y + ROW / 2.0;
        svg.line((scale.place(low), middle), (scale.place(high), middle), 1.5);
        let text = format!("{}x", short(value));
        svg.text(
            (scale.place(high.max(1.0)) + 6.0, y + 12.0),
            Anchor::Start,
            &text,
        );
        y += ROW;
    }
    svg.finish(title)
}

/// How the operations of each side are spread over the time they take.
pub(super) fn histogram(title: &str, sides: &[(&str, &Latencies)]) -> String {
    let (left, right, top, bottom) = (50.0, WIDTH - 20.0, 50.0, 50.0 + PLOT_HEIGHT);
    let mut svg = Svg::new(WIDTH, bottom + 30.0);
    svg.text((8.0, 18.0), Anchor::Start, title);
    let legend = sides.iter().zip(COLOURS.iter().cycle());
    svg.legend(
        (left, 38.0),
        legend.map(|((name, _), colour)| (*name, *colour)),
    );
    let shares: Vec<_> = sides
        .iter()
        .map(|(_, latencies)| latencies.shares())
        .collect();
    let starts = shares.iter().flatten().map(|(start, _)| *start);
    let scale = Scale::of(starts, left, right);
    let highest = shares.iter().flatten().map(|(_, share)| *share);
    let highest = highest.fold(0.01, f64::max);
    for mark in scale.marks() {
        let x = scale.place(mark);
        svg.line((x, top), (x, bottom), 0.4);
        svg.text((x, bottom + 16.0), Anchor::Middle, &time(mark));
    }
    svg.line((left, bottom), (right, bottom), 1.0);
    let share = format!("{:.0} %", highest * 100.0);
    svg.text((left - 6.0, top + 10.0), Anchor::End, &share);
    for (shares, colour) in shares.iter().zip(COLOURS.iter().cycle()) {
        let height = |share: f64| bottom - share / highest * (bottom - top);
        let points: Vec<_> = shares
            .iter()
            .map(|(start, share)| (scale.place(*start), height(*share)))
            .collect();
        svg.path(&points, colour);
    }
    svg.finish(title)
}

/// One curve: what grows, over what it grows with.
#[derive(Debug)]
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Curves on scales of powers: what grows with a power is a straight line.
pub(super) fn curves(title: &str, [x_name, y_name]: [&str; 2], curves: &[Curve]) -> String {
    let (left, right, top, bottom) = (70.0, WIDTH - 20.0, 50.0, 50.0 + PLOT_HEIGHT);
    let mut svg = Svg::new(WIDTH, bottom + 48.0);
    svg.text((8.0, 18.0), Anchor::Start, title);
    let legend = curves.iter().zip(COLOURS.iter().cycle());
    svg.legend(
        (left, 38.0),
        legend.map(|(curve, colour)| (&*curve.name, *colour)),
    );
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let across = Scale::of(points().map(|(x, _)| *x), left, right);
    let up = Scale::of(points().map(|(_, y)| *y), bottom, top);
    for mark in across.marks() {
        let x = across.place(mark);
        svg.line((x, top), (x, bottom), 0.4);
        svg.text((x, bottom + 16.0), Anchor::Middle, &short(mark));
    }
    for mark in up.marks() {
        let y = up.place(mark);
        svg.line((left, y), (right, y), 0.4);
        svg.text((left - 6.0, y + 4.0), Anchor::End, &short(mark));
    }
    svg.text((right, bottom + 36.0), Anchor::End, x_name);
    svg.text((8.0, top - 4.0), Anchor::Start, y_name);
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let places = curve.points.iter();
        let places: Vec<_> = places
            .map(|&(x, y)| (across.place(x), up.place(y)))
            .collect();
        svg.path(&places, colour);
        for place in places {
            svg.dot(place, colour);
        }
    }
    svg.finish(title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_show_every_name_and_are_whole() {
        let bar = Bar {
            name: "create / kernel".to_owned(),
            ratio: Estimate {
                value: 3.0,
                low: 2.5,
                high: 3.5,
            },
        };
        let curve = Curve {
            name: "library".to_owned(),
            points: vec![(10.0, 1.0), (1000.0, 3.0)],
        };
        let mut latencies = Latencies::default();
        (0..64).for_each(|_| latencies.time(|| ()));
        let charts = [
            (ratio_bars("Ratios", &[bar]), "create / kernel"),
            (curves("Growth", ["files", "ns"], &[curve]), "library"),
            (histogram("Latency", &[("kernel", &latencies)]), "kernel"),
        ];
        for (chart, name) in charts {
            assert!(chart.contains(name), "{chart}");
            assert!(chart.ends_with("</svg>\n") && !chart.contains("NaN"));
        }
    }
}
