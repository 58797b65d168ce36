//! Two ways of doing the same, timed in turns: A B B A A B B A. Whatever drifts affects both alike.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::measure::{float, now};

/// The times of one way, in seconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Times {
    /// What was done.
    pub(crate) name: String,
    /// Each run, in order.
    pub(crate) runs: Vec<f64>,
}

/// Runs each of two ways `rounds` times two.
pub(crate) fn alternate(
    names: [&'static str; 2],
    rounds: usize,
    mut run: impl FnMut(usize) -> Result<Duration>,
) -> Result<[Times; 2]> {
    let mut times = names.map(|name| Times {
        name: name.to_owned(),
        runs: Vec::new(),
    });
    for round in 0..rounds {
        let order = if round % 2 == 0 {
            [0, 1, 1, 0]
        } else {
            [1, 0, 0, 1]
        };
        for way in order {
            let taken = run(way)?;
            times[way].runs.push(taken.as_secs_f64());
        }
    }
    Ok(times)
}

/// How long `action` takes, with what it gives.
pub(crate) fn time<T>(action: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let start = now();
    let value = action()?;
    Ok((start.elapsed(), value))
}

impl Times {
    /// The run in the middle.
    pub(crate) fn median(&self) -> f64 {
        let sorted = self.sorted();
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        }
    }

    /// The range that the median lies in with at least 95 % confidence: order statistics of a
    /// binomial distribution, whatever the times' own.
    pub(crate) fn interval(&self) -> (f64, f64) {
        let sorted = self.sorted();
        let mut outside = 0;
        while tail_probability(sorted.len(), outside + 1) <= 0.025 {
            outside += 1;
        }
        let low = outside.saturating_sub(1);
        (sorted[low], sorted[sorted.len() - 1 - low])
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.runs.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

/// The probability that fewer than `count` of `runs` fair coins show heads.
fn tail_probability(runs: usize, count: usize) -> f64 {
    let mut probability = 0.5_f64.powi(i32::try_from(runs).unwrap_or(i32::MAX));
    let mut sum = 0.0;
    for heads in 0..count {
        sum += probability;
        let (left, next) = (float((runs - heads) as u64), float(heads as u64 + 1));
        probability *= left / next;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_interval_are_order_statistics() {
        let times = Times {
            name: String::new(),
            runs: vec![5.0, 1.0, 4.0, 2.0, 3.0, 6.0, 8.0, 7.0, 10.0, 9.0],
        };
        assert!((times.median() - 5.5).abs() < 1e-9);
        // Of ten runs, the second and the ninth enclose the median with 97.9 %.
        assert_eq!(times.interval(), (2.0, 9.0));
    }

    #[test]
    fn turns_are_fair() {
        let mut order = Vec::new();
        let times = alternate(["a", "b"], 2, |way| {
            order.push(way);
            Ok(Duration::from_secs(1))
        });
        assert_eq!(order, [0, 1, 1, 0, 1, 0, 0, 1]);
        assert!(times.unwrap().iter().all(|times| times.runs.len() == 4));
    }
}
