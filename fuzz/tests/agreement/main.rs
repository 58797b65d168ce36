//! `platter check` beside `e2fsck -fn`, over damage by seed. Where they disagree about an image
//! being clean, the list beside this file says why; any other disagreement fails.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::ControlFlow;

use anyhow::{Context, Result, bail};
use platter_fuzz::mutation::{Mutant, mutate_once};
use platter_fuzz::{open, seeds};
use platter_vfs::{CheckSink, Finding, Severity};
use testkit::oracle::{Verdict, e2fsck};

/// Damaged images that are compared.
const IMAGES: usize = 600;
/// What the caches may hold.
const CACHE_BYTES: u64 = 8 << 20;
/// One line for each image about which the two disagree: its number, what each says, the reason.
const EXPLAINED: &str = include_str!("disagreements.txt");

#[test]
fn platter_and_e2fsck_agree_what_is_clean() -> Result<()> {
    let explained = explanations()?;
    // What e2fsck says of a journal that it does not replay is about another state.
    let seeds: Vec<_> = seeds::all()?
        .into_iter()
        .filter(|seed| !seed.name.contains("dirty"))
        .collect();
    let folder = tempfile::tempdir()?;
    let image = folder.path().join("image");
    let mut unexplained = String::new();
    let mut found = BTreeMap::new();
    let (mut compared, mut clean, mut number) = (0, 0, 0);
    while compared < IMAGES {
        number += 1;
        let mutant = mutate_once(&seeds, number);
        let seed = seeds.iter().find(|seed| seed.name == mutant.seed);
        if seed.is_some_and(|seed| seed.image == mutant.image) {
            continue;
        }
        compared += 1;
        std::fs::write(&image, &mutant.image)?;
        let theirs = e2fsck::check(&image)?;
        let ours = findings(&mutant);
        clean += usize::from(ours.is_empty());
        if ours.is_empty() == theirs.is_clean() {
            continue;
        }
        found.insert(number, ours.is_empty());
        if explained.get(&number) != Some(&ours.is_empty()) {
            describe(&mut unexplained, &mutant, &ours, &theirs)?;
        }
    }
    println!(
        "{compared} damaged images, {clean} of them clean: {} disagreements, all but {} explained",
        found.len(),
        unexplained
            .lines()
            .filter(|line| line.starts_with("image"))
            .count()
    );
    assert!(unexplained.is_empty(), "not explained:\n{unexplained}");
    for number in explained.keys() {
        assert!(
            found.contains_key(number),
            "image {number} is agreed upon now"
        );
    }
    Ok(())
}

/// What platter finds wrong, in words; empty when it finds the image clean.
fn findings(mutant: &Mutant) -> Vec<String> {
    let mut found = Errors::default();
    let image = open::image(mutant.image.clone());
    let checked = open::options(CACHE_BYTES).check(&image, &mut found);
    match checked {
        Ok(report) if report.is_clean() => assert_eq!(found.0, [""; 0]),
        Ok(_) => assert!(!found.0.is_empty()),
        Err(error) => found.0.push(error.to_string()),
    }
    found.0
}

#[derive(Default)]
struct Errors(Vec<String>);

impl CheckSink for Errors {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        if finding.severity != Severity::Notice {
            self.0.push(finding.corruption.to_string());
        }
        ControlFlow::Continue(())
    }
}

/// The explained numbers, and whether platter calls the image clean.
fn explanations() -> Result<BTreeMap<u64, bool>> {
    let lines = EXPLAINED.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            let mut words = line.splitn(3, ' ');
            let number = words.next().context("a number")?.parse()?;
            let is_clean = match words.next() {
                Some("clean") => true,
                Some("damaged") => false,
                other => bail!("{other:?} is neither clean nor damaged: {line}"),
            };
            words.next().with_context(|| format!("no reason: {line}"))?;
            Ok((number, is_clean))
        })
        .collect()
}

fn describe(out: &mut String, mutant: &Mutant, ours: &[String], theirs: &Verdict) -> Result<()> {
    let (number, seed, is_sealed) = (mutant.number, mutant.seed, mutant.is_sealed);
    writeln!(
        out,
        "image {number} from {seed}, checksums put right: {is_sealed}"
    )?;
    writeln!(out, "  {:?}", mutant.changes)?;
    writeln!(out, "  platter: {:?}", &ours[..ours.len().min(4)])?;
    writeln!(out, "  e2fsck: {theirs:?}")?;
    Ok(())
}
