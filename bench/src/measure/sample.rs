//! What may be said of repeated measurements: medians, ratios and growth, with intervals.

use serde::{Deserialize, Serialize};
use testkit::prng::Prng;

use super::float;

/// Samples drawn anew for an interval.
const RESAMPLES: u64 = 2000;
/// How many of them lie outside of an interval, on each side: one in forty.
const OUTSIDE: usize = 50;

/// A figure and the range it lies in with 95 % confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Estimate {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Estimate {
    /// What is not in doubt.
    pub(crate) const fn exactly(value: f64) -> Self {
        Self {
            value,
            low: value,
            high: value,
        }
    }
}

/// The value in the middle; 0 of none.
pub(crate) fn median(values: &[f64]) -> Estimate {
    bootstrap(|prng| middle(&mut drawn(values, prng))).around(middle(&mut values.to_vec()))
}

/// The mean; 0 of none.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / float(values.len().max(1) as u64)
}

/// The standard deviation of what these are a sample of; 0 of one.
pub(crate) fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / float(values.len().saturating_sub(1).max(1) as u64)).sqrt()
}

/// The median of `values` over that of `of`.
pub(crate) fn ratio(values: &[f64], of: &[f64]) -> Estimate {
    let quotient = |above: &mut [f64], below: &mut [f64]| {
        let below = middle(below);
        if below > 0.0 {
            middle(above) / below
        } else {
            0.0
        }
    };
    bootstrap(|prng| quotient(&mut drawn(values, prng), &mut drawn(of, prng)))
        .around(quotient(&mut values.to_vec(), &mut of.to_vec()))
}

/// The power of x that y grows with: the slope of a straight line through their logarithms.
pub(crate) fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> = points
        .iter()
        .filter(|(x, y)| *x > 0.0 && *y > 0.0)
        .map(|(x, y)| (x.ln(), y.ln()))
        .collect();
    let count = float(logs.len() as u64);
    let mean_x = logs.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = logs.iter().map(|(_, y)| y).sum::<f64>() / count;
    let spread: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let common: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    (logs.len() > 1 && spread > 0.0).then(|| common / spread)
}

/// The range of resampled figures, the same for the same samples.
struct Range {
    low: f64,
    high: f64,
}

impl Range {
    fn around(self, value: f64) -> Estimate {
        Estimate {
            value,
            low: self.low.min(value),
            high: self.high.max(value),
        }
    }
}

fn bootstrap(mut figure: impl FnMut(&mut Prng) -> f64) -> Range {
    let mut prng = Prng::new(1);
    let mut figures: Vec<f64> = (0..RESAMPLES).map(|_| figure(&mut prng)).collect();
    figures.sort_by(f64::total_cmp);
    Range {
        low: figures[OUTSIDE],
        high: figures[figures.len() - 1 - OUTSIDE],
    }
}

/// As many values, each drawn from all.
fn drawn(values: &[f64], prng: &mut Prng) -> Vec<f64> {
    let count = values.len() as u64;
    (0..count)
        .map(|_| values[usize::try_from(prng.below(count)).unwrap_or(0)])
        .collect()
}

fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_its_interval_and_repeats() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0, 6.0, 8.0, 7.0, 10.0, 9.0];
        let estimate = median(&values);
        assert!((estimate.value - 5.5).abs() < 1e-9);
        assert!(estimate.low < 5.0 && estimate.high > 6.0, "{estimate:?}");
        assert!(estimate.low >= 1.0 && estimate.high <= 10.0);
        assert_eq!(median(&values), estimate);
        assert_eq!(median(&[3.0]), Estimate::exactly(3.0));
    }

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert!((mean(&values) - 5.0).abs() < 1e-9);
        assert!((deviation(&values) - (32.0_f64 / 7.0).sqrt()).abs() < 1e-9);
        assert!(deviation(&[3.0]).abs() < 1e-9);
    }

    #[test]
    fn equal_samples_have_a_ratio_around_one() {
        let values = [1.0, 1.1, 0.9, 1.05, 0.95, 1.2];
        let estimate = ratio(&values, &values);
        assert!(estimate.low < 1.0 && 1.0 < estimate.high, "{estimate:?}");
        let twice = values.map(|value| value * 2.0);
        assert!((ratio(&twice, &values).value - 2.0).abs() < 1e-9);
    }

    #[test]
    fn growth_has_its_exponent() {
        let square: Vec<_> = (1..5).map(|x| (f64::from(x), f64::from(x * x))).collect();
        assert!((exponent(&square).unwrap() - 2.0).abs() < 1e-9);
        let flat = [(1.0, 3.0), (10.0, 3.0), (100.0, 3.0)];
        assert!(exponent(&flat).unwrap().abs() < 1e-9);
        assert_eq!(exponent(&[(1.0, 1.0)]), None);
    }
}
