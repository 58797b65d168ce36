//! Figures as people read them: three digits that count.

use crate::measure::Estimate;

/// Three digits, with thousands as `k` and millions as `M`.
pub(super) fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 999_500.0 => (value / 1e6, "M"),
        size if size >= 999.5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        0.0 => 0,
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        size if size >= 0.0995 => 3,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text}{unit}")
}

/// A figure with its range.
pub(super) fn with_range(estimate: Estimate) -> String {
    let Estimate { value, low, high } = estimate;
    format!("{} ({} to {})", short(value), short(low), short(high))
}

/// A figure of runs with its range; nothing where there are none.
pub(super) fn of_runs(runs: &[f64], estimate: impl FnOnce() -> Estimate) -> String {
    if runs.is_empty() {
        "-".to_owned()
    } else {
        with_range(estimate())
    }
}

/// Nanoseconds in the unit that fits.
pub(super) fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        time if time < 1e3 => format!("{} ns", short(time)),
        time if time < 1e6 => format!("{} µs", short(time / 1e3)),
        time if time < 1e9 => format!("{} ms", short(time / 1e6)),
        time => format!("{} s", short(time / 1e9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_count() {
        let expected = [
            (0.0, "0"),
            (0.012_34, "0.0123"),
            (0.5, "0.5"),
            (1.234, "1.23"),
            (12.0, "12"),
            (123.4, "123"),
            (1234.0, "1.23k"),
            (999_900.0, "1M"),
            (123_456.0, "123k"),
        ];
        for (value, text) in expected {
            assert_eq!(short(value), text);
        }
        assert_eq!(time(1500.0), "1.5 µs");
        assert_eq!(time(2.5e9), "2.5 s");
    }
}
