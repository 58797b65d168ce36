//! Page cache insertion: how an item enters an XArray over eviction shadows, in the form that
//! walks the tree three times, in one walk, and many items under one lock hold.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use platter_cache::xarray::{Content, Counts, New, Order, Ref, SplitPlan, SplitReserve, XArray};
use serde::Serialize;

use crate::abba::{Times, alternate, time};
use crate::record::{self, Keep};

/// Items of a run: pages of a file of 512 MiB.
const ITEMS: u64 = 1 << 17;
/// Shadows of a run with splits, each of `SPLIT_ORDER`.
const SPLITS: u64 = 256;
/// A large folio of 2 MiB.
const SPLIT_ORDER: u8 = 9;
/// Runs of each form are twice this.
const ROUNDS: usize = 5;

/// A way of adding an item of order 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Form {
    /// Looks the order up, walks again for conflicts, and once more to store. A larger shadow is
    /// split wholly. Only here, to compare with.
    ThreeWalk,
    /// One walk; a larger shadow is split wholly, with nodes taken without the lock.
    OneWalk,
    /// One walk; a larger shadow is split as little as needed.
    OneWalkMinimalSplit,
    /// All items under one lock hold.
    Batched,
}

const FORMS: [Form; 4] = [
    Form::ThreeWalk,
    Form::OneWalk,
    Form::OneWalkMinimalSplit,
    Form::Batched,
];

/// Exact costs of one insertion, as averages over a run in which all are alike.
#[derive(Debug, Clone, Copy, Serialize)]
struct Costs {
    walks_per_add: f64,
    nodes_per_add: f64,
}

#[derive(Debug, Serialize)]
struct Measured {
    form: Form,
    over_shadows: Costs,
    over_larger_shadows: Costs,
    times: Vec<Times>,
}

pub(crate) fn run(keep: Keep) -> Result<()> {
    println!("{ITEMS} items over shadows; {SPLITS} over shadows of order {SPLIT_ORDER}");
    println!(
        "{:<22}{:>10}{:>16}{:>16}",
        "form", "walks", "walks (split)", "nodes (split)"
    );
    let mut measured = Vec::new();
    for form in FORMS {
        let over_shadows = costs(form, ITEMS, Order::ZERO)?;
        let over_larger_shadows = costs(form, SPLITS, split_order())?;
        println!(
            "{:<22}{:>10.3}{:>16.3}{:>16.3}",
            format!("{form:?}"),
            over_shadows.walks_per_add,
            over_larger_shadows.walks_per_add,
            over_larger_shadows.nodes_per_add,
        );
        measured.push(Measured {
            form,
            over_shadows,
            over_larger_shadows,
            times: Vec::new(),
        });
    }
    for result in measured.iter_mut().skip(1) {
        let form = result.form;
        let times = alternate(["ThreeWalk", "this form"], ROUNDS, |way| {
            timed(if way == 0 { Form::ThreeWalk } else { form })
        })?;
        let [reference, own] = &times;
        let (low, high) = own.interval();
        println!(
            "{form:?}: {:.1} ns an item [{:.1}, {:.1}], ThreeWalk {:.1} ns, ratio {:.2}",
            per_item(own.median()),
            per_item(low),
            per_item(high),
            per_item(reference.median()),
            reference.median() / own.median(),
        );
        result.times = times.into();
    }
    record::keep(keep, "m3", &measured)
}

#[expect(clippy::cast_precision_loss, reason = "numbers of items are small")]
fn per_item(seconds: f64) -> f64 {
    seconds * 1e9 / ITEMS as f64
}

fn split_order() -> Order {
    Order::new(SPLIT_ORDER).unwrap_or(Order::MAX)
}

/// An array of `count` shadows of `order`, side by side.
fn shadows(count: u64, order: Order) -> Result<XArray<u64>> {
    let array = XArray::new();
    for index in (0..count).map(|number| number * order.span()) {
        let mut locked = array.lock();
        if locked.cursor(index, order).store(New::Value(1)).is_err() {
            bail!("a shadow meets another");
        }
    }
    Ok(array)
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn costs(form: Form, count: u64, order: Order) -> Result<Costs> {
    let array = shadows(count, order)?;
    let before = Counts::now();
    add_all(form, &array, count, order)?;
    let costs = Counts::now().since(before);
    Ok(Costs {
        walks_per_add: costs.walks as f64 / count as f64,
        nodes_per_add: costs.nodes as f64 / count as f64,
    })
}

fn timed(form: Form) -> Result<Duration> {
    let array = shadows(ITEMS, Order::ZERO)?;
    let (taken, ()) = time(|| add_all(form, &array, ITEMS, Order::ZERO))?;
    Ok(taken)
}

/// Adds one item at the start of each of `count` shadows of `order`.
fn add_all(form: Form, array: &XArray<u64>, count: u64, order: Order) -> Result<()> {
    let places = (0..count).map(|number| number * order.span());
    if form == Form::Batched && order == Order::ZERO {
        let items = places.map(|index| (Ref::new(index), Order::ZERO));
        let added = array.lock().add_range(0, items, |_, _| {});
        ensure!(added as u64 == count, "an item was in the way");
        return Ok(());
    }
    for index in places {
        let item = Ref::new(index);
        let is_added = match form {
            Form::ThreeWalk => add_in_three_walks(array, index, item),
            Form::OneWalk => array.add_with_reserve(index, Order::ZERO, item).is_ok(),
            Form::OneWalkMinimalSplit | Form::Batched => {
                array.add(index, Order::ZERO, item).is_ok()
            }
        };
        ensure!(is_added, "an item was in the way");
    }
    Ok(())
}

fn add_in_three_walks(array: &XArray<u64>, index: u64, item: Ref<u64>) -> bool {
    let larger = |found: &platter_cache::xarray::Found<'_, u64>| found.order > Order::ZERO;
    let plan = {
        let mut locked = array.lock();
        let found = locked.cursor(index, Order::ZERO).load();
        found
            .filter(larger)
            .map(|found| SplitPlan::new(&found, Order::ZERO))
    };
    let reserve = plan.map(SplitReserve::new);
    let mut locked = array.lock();
    let mut conflicts = locked.cursor(index, Order::ZERO);
    while let Some(found) = conflicts.next_conflict() {
        if matches!(found.content, Content::Item(_)) {
            return false;
        }
    }
    let mut cursor = locked.cursor(index, Order::ZERO);
    if cursor.load().is_some_and(|found| larger(&found)) {
        let Some(Ok(())) = reserve.map(|reserve| cursor.split(reserve)) else {
            return false;
        };
    }
    cursor.store(New::Item(item)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_and_nodes_are_those_of_the_mechanism() {
        let walks = |form, order| costs(form, 64, order).unwrap().walks_per_add;
        assert!((walks(Form::ThreeWalk, Order::ZERO) - 3.0).abs() < 1e-9);
        assert!((walks(Form::OneWalk, Order::ZERO) - 1.0).abs() < 1e-9);
        assert!((walks(Form::OneWalkMinimalSplit, Order::ZERO) - 1.0).abs() < 1e-9);
        assert!(walks(Form::Batched, Order::ZERO) <= 1.0 / 64.0 + 1e-9);
        assert!(walks(Form::OneWalk, split_order()) <= 3.0);
        let nodes = |form| costs(form, 8, split_order()).unwrap().nodes_per_add;
        assert!((nodes(Form::OneWalk) - 8.0).abs() < 1e-9);
        assert!((nodes(Form::OneWalkMinimalSplit) - 1.0).abs() < 1e-9);
    }
}
