//! Pictures: a small writer of SVG, with just the shapes that charts here are made of. A crate for
//! charts would bring in fonts and layout of its own; these are a few lines and texts, and read well
//! on light and dark ground.

use std::fmt::Write;

use crate::measure::float;

/// Colours that are distinguishable on light and dark ground, with any colour vision.
pub(super) const COLOURS: [&str; 9] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888", "#7f5539",
    "#b09500",
];
const INK: &str = "#808080";
/// About what a letter of the usual size takes.
pub(super) const LETTER: f64 = 6.6;

/// A picture being drawn. Lengths are pixels, from the upper left corner.
#[derive(Debug)]
pub(super) struct Svg {
    width: f64,
    height: f64,
    shapes: String,
}

/// Which end of a text is where it is put.
#[derive(Debug, Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self {
            width,
            height,
            shapes: String::new(),
        }
    }

    pub(super) fn rectangle(&mut self, at: (f64, f64), size: (f64, f64), colour: &str) {
        let ((x, y), (width, height)) = (at, size);
        self.shape(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
        ));
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), width: f64) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.shape(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{INK}" stroke-width="{width}"/>"#
        ));
    }

    pub(super) fn path(&mut self, points: &[(f64, f64)], colour: &str) {
        let mut text = String::new();
        for (x, y) in points {
            let _ = write!(text, "{x:.1},{y:.1} ");
        }
        self.shape(format_args!(
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
            text.trim_end()
        ));
    }

    pub(super) fn dot(&mut self, at: (f64, f64), colour: &str) {
        let (x, y) = at;
        self.shape(format_args!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#
        ));
    }

    pub(super) fn text(&mut self, at: (f64, f64), anchor: Anchor, text: &str) {
        let (x, y) = at;
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        self.shape(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    /// A row of colours with what they stand for.
    pub(super) fn legend<'n>(
        &mut self,
        at: (f64, f64),
        names: impl Iterator<Item = (&'n str, &'static str)>,
    ) {
        let (mut x, y) = at;
        for (name, colour) in names {
            let width = float(name.len() as u64) * LETTER;
            self.rectangle((x, y - 9.0), (10.0, 10.0), colour);
            self.text((x + 14.0, y), Anchor::Start, name);
            x += 14.0 + width + 16.0;
        }
    }

    pub(super) fn finish(self, title: &str) -> String {
        let Self {
            width,
            height,
            shapes,
        } = self;
        let title = escaped(title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" font-family=\"sans-serif\" \
             font-size=\"12\" fill=\"{INK}\">\n<title>{title}</title>\n{shapes}</svg>\n"
        )
    }

    fn shape(&mut self, shape: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.shapes, "{shape}");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A scale by powers: equal factors are equal lengths.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Shows all of `values`, which are positive, between two places.
    pub(super) fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let positive = values.filter(|value| value.is_finite() && *value > 0.0);
        let start = (f64::INFINITY, f64::NEG_INFINITY);
        let (low, high) = positive.fold(start, |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = if low > high { (1.0, 10.0) } else { (low, high) };
        // Some space on both sides, and never a scale of no length.
        let (low, high) = (low.log10() - 0.15, high.log10() + 0.15);
        Self {
            low,
            high,
            from,
            to,
        }
    }

    pub(super) fn place(self, value: f64) -> f64 {
        let share = (value.max(f64::MIN_POSITIVE).log10() - self.low) / (self.high - self.low);
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Round values to be marked, few enough to be read.
    pub(super) fn marks(self) -> Vec<f64> {
        #[expect(clippy::cast_possible_truncation, reason = "logarithms are small")]
        let (first, last) = (self.low.floor() as i32, self.high.ceil() as i32);
        let within = |value: &f64| (self.low..=self.high).contains(&value.log10());
        let steps: &[f64] = match last - first {
            ..3 => &[1.0, 2.0, 5.0],
            3..5 => &[1.0, 3.0],
            5.. => &[1.0],
        };
        (first..=last)
            .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)))
            .filter(within)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_factors_are_equal_lengths() {
        let scale = Scale::of([1.0, 100.0].into_iter(), 0.0, 300.0);
        let step = scale.place(10.0) - scale.place(1.0);
        assert!((scale.place(100.0) - scale.place(10.0) - step).abs() < 1e-9);
        assert!(scale.marks().contains(&10.0));
        let none = Scale::of(std::iter::empty(), 0.0, 1.0);
        assert!(none.place(5.0).is_finite());
    }

    #[test]
    fn text_cannot_break_out_of_a_picture() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text((0.0, 0.0), Anchor::Start, "a < b & c");
        let text = svg.finish("x<y");
        assert!(text.contains("a &lt; b &amp; c") && text.contains("x&lt;y"));
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
    }
}
