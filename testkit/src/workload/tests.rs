//! Sequences on the filesystem in memory: what is drawn succeeds, and judgements find what is wrong.

use std::collections::BTreeSet;
use std::sync::Arc;

use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{CreateKind, FixedClock, Timestamp};

use super::*;

const MIX: Mix = Mix {
    one_sync_in: 8,
    one_whole_sync_in: 5,
    one_refused_in: 0,
    abilities: Abilities {
        shift_bytes: 4096,
        fallocate: true,
        copies: true,
        clones: true,
        exchanges: true,
        subvolumes: true,
    },
    names: true,
};

fn model() -> MemFs {
    let clock = Arc::new(FixedClock::new(Timestamp::default(), 1));
    MemFs::new(clock, MemFsLimits::default())
}

/// A history in which each operation adds one entry to the log.
fn history(seed: u64, mix: Mix, count: usize) -> History {
    let fs = model();
    let mut session = Session::new(&fs);
    let mut history = History::new(Tree::read(&fs, None).unwrap());
    let mut generator = Generator::new(seed, mix, &[""], "n");
    for number in 0..count {
        let operation = generator.next(history.now());
        let done = session.apply(&operation);
        assert!(
            done.is_ok() || mix.one_refused_in != 0,
            "{operation:?}: {done:?}"
        );
        let pace = Pace {
            begin: number,
            end: done.is_ok().then_some(number + 1),
        };
        let is_done = done.is_ok();
        if !is_done {
            assert_eq!(Tree::of_session(&session, None).unwrap(), *history.now());
        }
        history.add(operation, pace, is_done, &session).unwrap();
    }
    history
}

#[test]
fn operations_that_are_drawn_succeed() {
    let mut files = 0;
    for seed in 0..20 {
        let history = history(seed, MIX, 200);
        assert!(history.syncs() > 5);
        files += history.now().files().count();
    }
    assert!(files > 20, "{files}");
}

#[test]
fn half_of_the_contents_repeat_within_sectors() {
    let is_repeated = |unit: &[u8]| unit.chunks(16).all(|chunk| unit.starts_with(chunk));
    for seed in 0..8 {
        let bytes = Fill {
            offset: 0,
            len: 5000,
            seed,
        }
        .bytes();
        assert_eq!(bytes.len(), 5000);
        let mut units: Vec<_> = bytes.chunks(512).collect();
        let repeated = units.iter().filter(|unit| is_repeated(unit)).count();
        assert_eq!(repeated, if seed % 2 == 1 { 10 } else { 0 });
        // No sector can be taken for another one.
        units.sort_unstable();
        units.dedup();
        assert_eq!(units.len(), 10);
    }
}

#[test]
fn every_kind_of_operation_is_drawn() {
    let listing = history(3, MIX, 1500).listing();
    let kind = |line: &String| {
        let text = line.split("} ").nth(1).unwrap();
        text.split('(').next().unwrap().to_owned()
    };
    let kinds: BTreeSet<String> = listing.iter().map(kind).collect();
    assert_eq!(kinds.len(), 24, "{kinds:?}");
    for word in [
        "CollapseRange",
        "InsertRange",
        "PunchHole",
        "ZeroRange",
        "Exchange",
        "NoReplace",
        "Whiteout",
        "Write(\"#",
        "Link(\"#",
        "Fsync(\"#",
    ] {
        assert!(listing.iter().any(|line| line.contains(word)), "{word}");
    }
}

#[test]
fn every_moment_since_the_last_sync_passes_and_no_other() {
    let history = history(5, MIX, 150);
    let fs = model();
    let mut session = Session::new(&fs);
    let mut before = None;
    for (number, operation) in history.operations().enumerate() {
        let now = Tree::read(&fs, before.as_ref()).unwrap();
        for durability in [Durability::Journaled, Durability::Synced] {
            let lines = history.judge(number, &now, durability);
            assert!(lines.is_empty(), "after {number} operations: {lines:?}");
        }
        session.apply(operation).unwrap();
        before = Some(now);
    }
    let initial = Tree::read(&model(), None).unwrap();
    assert!(
        !history
            .judge(150, &initial, Durability::Journaled)
            .is_empty()
    );
    assert!(!history.judge(150, &initial, Durability::Synced).is_empty());
}

#[test]
fn a_sector_of_no_version_and_a_wrong_attribute_are_found() {
    let is_long = |file: &Entry| file.content.as_ref().unwrap().len() > 900;
    let mut histories = (5..).map(|seed| history(seed, MIX, 150));
    let history = histories
        .find(|history| history.now().files().any(|(_, file)| is_long(file)))
        .unwrap();
    let mut left = history.now().clone();
    let (path, entry) = left.files().find(|(_, file)| is_long(file)).unwrap();
    let (path, mut entry) = (path.to_owned(), entry.clone());
    let mut bytes = entry.content.unwrap().to_vec();
    bytes[700] ^= 1;
    entry.content = Some(bytes.into());
    left.entries.insert(path.clone(), entry);
    let lines = history.judge(150, &left, Durability::Journaled);
    assert!(lines[0].contains("the sector at 512"), "{lines:?}");
    left = history.now().clone();
    left.entries.get_mut(&path).unwrap().permissions ^= 1;
    let lines = history.judge(150, &left, Durability::Journaled);
    assert!(lines[1].contains("permissions"), "{lines:?}");
}

#[test]
fn names_of_two_moments_pass_as_a_log_and_not_as_one_commit() {
    let fs = model();
    let mut session = Session::new(&fs);
    let mut history = History::new(Tree::read(&fs, None).unwrap());
    for number in 0..20 {
        let path = format!("file{number}");
        let create = Operation::Create(path, CreateKind::Regular, 0o644);
        session.apply(&create).unwrap();
        let pace = Pace {
            begin: number,
            end: Some(number + 1),
        };
        history.push(create, pace, &session).unwrap();
    }
    let judge = |left: &Tree, durability| history.judge(20, left, durability);
    let (one, other) = (history.after(8), history.now());
    for whole in [one, other] {
        assert!(judge(whole, Durability::Journaled).is_empty());
    }
    // Of the later moment a power cut left every other name.
    let mut mixed = one.clone();
    for (path, entry) in other.entries.iter().step_by(2) {
        let entry = entry.clone();
        mixed.entries.entry(path.clone()).or_insert(entry);
    }
    assert!(mixed.entries.len() > one.entries.len());
    assert!(judge(&mixed, Durability::Logged).is_empty());
    let lines = judge(&mixed, Durability::Journaled);
    assert!(lines[0].contains("of no moment"), "{lines:?}");
    // A snapshot may be of any moment while it was made, and of no other, nor of two.
    assert!(history.judge_between(8..=20, one).is_empty());
    assert!(!history.judge_between(9..=20, one).is_empty());
    assert!(!history.judge_between(8..=20, &mixed).is_empty());
}

#[test]
fn refused_operations_change_nothing() {
    let mix = Mix {
        one_whole_sync_in: 5,
        one_refused_in: 3,
        ..MIX
    };
    history(7, mix, 300);
}
