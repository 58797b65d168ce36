//! Why aims are missed: a file for each, written by hand, which the report takes in. Each says what a
//! profile shows, and the physical reason or the next step.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};

use super::aims::Aim;

/// What says how to write one, and is none.
const ABOUT: &str = "README";

/// The texts, by the name of the aim.
#[derive(Debug, Default)]
pub(super) struct Explanations(BTreeMap<String, String>);

impl Explanations {
    /// All that a directory has: `NAME.md` is about the aim of that name.
    pub(super) fn load(dir: &Path) -> Result<Self> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            entries => entries.with_context(|| dir.display().to_string())?,
        };
        let mut texts = BTreeMap::new();
        for entry in entries {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str());
            let is_text = path.extension().is_some_and(|extension| extension == "md");
            if let Some(name) = name.filter(|name| is_text && *name != ABOUT) {
                let text = fs::read_to_string(&path)?;
                texts.insert(name.to_owned(), text.trim().to_owned());
            }
        }
        Ok(Self(texts))
    }

    pub(super) fn of(&self, key: &str) -> Option<&str> {
        let text = self.0.get(key).map(String::as_str);
        text.filter(|text| !text.is_empty())
    }

    /// What is wrong: an aim missed, over any transport, without an explanation; an explanation of what is not
    /// missed or is no aim.
    pub(super) fn complaints(&self, aims: &[Aim]) -> Vec<String> {
        let mut is_missed: BTreeMap<&str, bool> = BTreeMap::new();
        for aim in aims {
            *is_missed.entry(&aim.reason).or_default() |= aim.is_missed();
        }
        let complaint = |(&reason, &is_missed): (&&str, &bool)| match (is_missed, self.of(reason)) {
            (true, None) => Some(format!("{reason} is missed, and nothing says why")),
            (false, Some(_)) => Some(format!("{reason} is not missed, and a text says why it is")),
            (true, Some(_)) | (false, None) => None,
        };
        let mut complaints: Vec<String> = is_missed.iter().filter_map(complaint).collect();
        let unknown = self
            .0
            .keys()
            .filter(|key| !is_missed.contains_key(key.as_str()));
        complaints.extend(unknown.map(|key| format!("no aim is called {key}")));
        complaints
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Explanations {
    fn from(texts: [(&str, &str); N]) -> Self {
        Self(
            texts
                .map(|(key, text)| (key.to_owned(), text.to_owned()))
                .into(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanations_and_missed_aims_belong_together() {
        let aims = [
            Aim::of_two("missed", Some(1.0)),
            Aim::of_two("met", Some(3.0)),
        ];
        let complaints = |texts: &[(&str, &str)]| -> Vec<String> {
            let texts = texts
                .iter()
                .map(|&(key, text)| (key.to_owned(), text.to_owned()));
            Explanations(texts.collect()).complaints(&aims)
        };
        assert!(complaints(&[("missed", "Because.")]).is_empty());
        assert_eq!(complaints(&[]), ["missed is missed, and nothing says why"]);
        assert_eq!(
            complaints(&[("missed", "")]),
            ["missed is missed, and nothing says why"]
        );
        assert_eq!(
            complaints(&[("missed", "Because."), ("met", "Because.")]),
            ["met is not missed, and a text says why it is"]
        );
        assert_eq!(
            complaints(&[("missed", "Because."), ("other", "Because.")]),
            ["no aim is called other"]
        );
    }

    #[test]
    fn what_is_missed_over_one_transport_is_explained() {
        let none = Explanations::default();
        let device = [Aim::of_mount("device", [3.0, 1.0])];
        let expected = ["device is missed, and nothing says why"];
        assert_eq!(none.complaints(&device), expected);
        let both = [Aim::of_mount("both", [3.0, 2.0])];
        assert!(none.complaints(&both).is_empty());
        let because = Explanations::from([("device", "Because.")]);
        assert!(because.complaints(&device).is_empty());
    }

    #[test]
    fn aims_of_one_reason_share_a_text() {
        let of = |key: &str, reached: f64| {
            let mut aim = Aim::of_two(key, Some(reached));
            aim.reason = "shared".to_owned();
            aim
        };
        let because = Explanations::from([("shared", "Because.")]);
        let aims = [of("high", 3.0), of("low", 1.0)];
        assert!(because.complaints(&aims).is_empty());
        let expected = ["shared is not missed, and a text says why it is"];
        assert_eq!(because.complaints(&aims[..1]), expected);
    }

    #[test]
    fn every_text_but_the_readme_is_an_explanation() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("a-b.md", "Why.\n"),
            ("README.md", "How."),
            ("c.svg", "<svg"),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let found = Explanations::load(dir.path()).unwrap();
        assert_eq!(found.of("a-b"), Some("Why."));
        assert_eq!(found.0.len(), 1);
        assert!(
            Explanations::load(&dir.path().join("none"))
                .unwrap()
                .0
                .is_empty()
        );
    }
}
