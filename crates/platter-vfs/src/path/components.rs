//! A path taken apart, with the targets of followed links spliced in where they stand.

use std::borrow::Cow;

use super::LastComponent;
use crate::{Name, Result};

/// What is left of a path and of the link targets being followed within it.
///
/// # Invariants
/// There is one frame for the path and at most one for each followed link, so the depth is bounded
/// by the number of links the walk allows.
#[derive(Debug)]
pub(super) struct Components<'a> {
    frames: Vec<Frame<'a>>,
}

#[derive(Debug)]
struct Frame<'a> {
    bytes: Cow<'a, [u8]>,
    position: usize,
}

/// One component and what follows it.
#[derive(Debug)]
pub(super) struct Step<'s> {
    pub(super) component: Component<'s>,
    /// Nothing but slashes is left.
    pub(super) is_last: bool,
    /// It is the last, and a slash follows.
    pub(super) trailing_slash: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Component<'s> {
    Dot,
    DotDot,
    /// Not yet checked to be a valid name.
    Name(&'s [u8]),
}

impl<'a> Components<'a> {
    pub(super) fn new(path: &'a [u8]) -> Self {
        let frame = Frame {
            bytes: Cow::Borrowed(path),
            position: 0,
        };
        Self {
            frames: vec![frame],
        }
    }

    /// Goes on with `target`, and after it with what was left.
    pub(super) fn follow(&mut self, target: Vec<u8>) {
        self.frames.push(Frame {
            bytes: Cow::Owned(target),
            position: 0,
        });
    }

    pub(super) fn next(&mut self) -> Option<Step<'_>> {
        while self.frames.last()?.is_exhausted() {
            self.frames.pop();
        }
        let range = self.frames.last_mut()?.take();
        let is_last = self.frames.iter().all(Frame::is_exhausted);
        let trailing_slash = is_last && self.frames.iter().any(|frame| !frame.rest().is_empty());
        let component = match &self.frames.last()?.bytes[range] {
            b"." => Component::Dot,
            b".." => Component::DotDot,
            name => Component::Name(name),
        };
        Some(Step {
            component,
            is_last,
            trailing_slash,
        })
    }
}

impl Frame<'_> {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.position..]
    }

    fn is_exhausted(&self) -> bool {
        self.rest().iter().all(|&byte| byte == b'/')
    }

    /// Where the next component lies, which there must be.
    fn take(&mut self) -> std::ops::Range<usize> {
        let rest = self.rest();
        let slashes = rest.iter().take_while(|&&byte| byte == b'/').count();
        let len = rest[slashes..].iter().take_while(|&&byte| byte != b'/');
        let start = self.position + slashes;
        self.position = start + len.count();
        start..self.position
    }
}

impl Component<'_> {
    pub(super) fn to_last(self) -> Result<LastComponent> {
        Ok(match self {
            Self::Dot => LastComponent::Dot,
            Self::DotDot => LastComponent::DotDot,
            Self::Name(name) => LastComponent::Name(Name::new(name)?.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
