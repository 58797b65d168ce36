//! The check compared with `e2fsck -fn`: both call the same images clean, and the same images corrupt.
//!
//! Where they disagree for a reason, `explained.md` states it; any other disagreement fails. More
//! images, or one again: `PLATTER_VERDICTS=FIRST..END` or `PLATTER_VERDICT=N`, before
//! `cargo test -p platter-fuzz --test verdicts -- --nocapture`.
#![expect(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

mod explained;
mod judges;
mod run;

use explained::Explanations;
use judges::{Desk, Judged};
use run::{Corpus, Outcome};
use testkit::fixtures::{Place, catalogue};

/// Corrupt images of a test run.
const IMAGES: u64 = 1000;

#[test]
fn intact_fixtures_are_clean_for_both() {
    let mut unequal = Vec::new();
    for fixture in catalogue::all() {
        if fixture.place != Place::Whole || fixture.name.contains("dirty") {
            continue;
        }
        let image = std::fs::read(fixture.build().unwrap().image).unwrap();
        let Judged {
            platter, e2fsck, ..
        } = Desk::new(&image).unwrap().judge(image.clone()).unwrap();
        if !platter.is_empty() || !e2fsck.is_empty() {
            unequal.push(format!("{}: {platter:#?}\n{e2fsck:#?}", fixture.name));
        }
    }
    assert!(unequal.is_empty(), "{}", unequal.join("\n"));
}

#[test]
fn verdicts_on_corrupt_images_agree_or_are_explained() {
    let explanations = Explanations::read();
    let number = |name| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let corpus = Corpus::find();
    if let Some(number) = number("PLATTER_VERDICT") {
        let outcome = corpus.examine(number);
        println!("{outcome}");
        for line in &outcome.judged.platter {
            println!("    {line}");
        }
        println!("{}", outcome.judged.e2fsck_said);
        return;
    }
    let numbers = std::env::var("PLATTER_VERDICTS").map_or(0..IMAGES, |text| {
        let (first, end) = text.split_once("..").expect("FIRST..END");
        first.parse().unwrap()..end.parse().unwrap()
    });
    let outcomes = corpus.examine_all(numbers);
    let count = |holds: &dyn Fn(&Outcome) -> bool| outcomes.iter().filter(|o| holds(o)).count();
    println!(
        "{} corrupt images, {} with checksums put right: {} clean for both, {} for neither",
        outcomes.len(),
        count(&|outcome| outcome.is_sealed),
        count(&|outcome| outcome.judged.platter_is_clean() && outcome.judged.e2fsck_is_clean()),
        count(&|outcome| !outcome.judged.platter_is_clean() && !outcome.judged.e2fsck_is_clean()),
    );
    let mut unexplained = 0;
    let differing: Vec<_> = outcomes.iter().filter(|o| o.judged.differs()).collect();
    println!("{} disagreements", differing.len());
    for outcome in differing {
        println!("{outcome}");
        match explanations.explain(&outcome.judged) {
            Ok(reasons) => {
                for reason in reasons {
                    println!("    explained: {reason}");
                }
            }
            Err(lines) => {
                unexplained += 1;
                for line in lines {
                    println!("    UNEXPLAINED: {line}");
                }
                println!(
                    "    again: PLATTER_VERDICT={} cargo test -p platter-fuzz --test verdicts \
                     corrupt -- --nocapture",
                    outcome.number
                );
            }
        }
    }
    assert_eq!(unexplained, 0, "disagreements without an explanation");
}
