//! A matrix of layouts: each is made, filled, checked, mounted by both, written by both, grown.
//!
//! `PLATTER_TEST_ALL_LAYOUTS` takes all of them through the course, as `cargo xtask soak ext4` does.

mod catalogue;
mod course;

use catalogue::{LARGE, LAYOUTS, Layout};

/// Runs the course over each layout of a list, and fails with all that failed.
fn run(layouts: &[Layout]) {
    let is_whole = std::env::var_os("PLATTER_TEST_ALL_LAYOUTS").is_some();
    let wanted = std::env::var("PLATTER_TEST_LAYOUT").unwrap_or_default();
    let mut failures = Vec::new();
    let mut count = 0;
    for layout in layouts {
        let name = layout.name();
        if !(is_whole || layout.is_ordinary) || !name.contains(&wanted) {
            continue;
        }
        count += 1;
        if let Err(error) = course::run(layout) {
            failures.push(format!("{name}: {error:#}"));
        }
    }
    assert!(count > 0, "no layout was asked for");
    assert!(
        failures.is_empty(),
        "{} of {count}:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn layouts_are_written_and_checked() {
    run(LAYOUTS);
}

#[test]
fn large_layouts_are_written_and_checked() {
    run(LARGE);
}
