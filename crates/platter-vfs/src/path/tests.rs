//! How a path comes apart.

use super::components::{Component, Components};

/// The components with `<` for the last one and `/` for a slash after it.
fn taken_apart(path: &str, links: &[(&str, &str)]) -> Vec<String> {
    let mut components = Components::new(path.as_bytes());
    let mut seen = Vec::new();
    while let Some(step) = components.next() {
        let text = match step.component {
            Component::Dot => ".".to_owned(),
            Component::DotDot => "..".to_owned(),
            Component::Name(name) => String::from_utf8_lossy(name).into_owned(),
        };
        let last = if step.is_last { "<" } else { "" };
        let slash = if step.trailing_slash { "/" } else { "" };
        seen.push(format!("{text}{last}{slash}"));
        if let Some((_, target)) = links.iter().find(|(name, _)| *name == text) {
            components.follow(target.as_bytes().to_vec());
        }
    }
    seen
}

#[test]
fn slashes_part_components_and_the_last_is_known() {
    assert_eq!(taken_apart("/", &[]), [""; 0]);
    assert_eq!(taken_apart("a", &[]), ["a<"]);
    assert_eq!(taken_apart("//a/.//../b", &[]), ["a", ".", "..", "b<"]);
    assert_eq!(taken_apart("a/b//", &[]), ["a", "b</"]);
}

#[test]
fn what_follows_a_link_counts_for_its_target() {
    let links = [("l", "x/y"), ("d", "z/")];
    assert_eq!(taken_apart("l/b", &links), ["l", "x", "y", "b<"]);
    assert_eq!(taken_apart("l", &links), ["l<", "x", "y<"]);
    assert_eq!(taken_apart("l/", &links), ["l</", "x", "y</"]);
    assert_eq!(taken_apart("d", &links), ["d<", "z</"]);
    assert_eq!(taken_apart("d/l", &links), ["d", "z", "l<", "x", "y<"]);
}
