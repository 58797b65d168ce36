//! A server that is killed at random moments: nothing that was synced is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::cells::Kind;
use super::super::stage::Stage;
use super::{Done, Load};
use crate::command::{self, command};

/// Writes files, syncs each, removes some, copies some, which shares their blocks where the filesystem can, and
/// renames the copies; where `$4` is a program, does so in a subvolume, makes read-only snapshots, and deletes
/// some. Records every step in a log outside of the mount: `synced NAME SUM`, `removing NAME` and
/// `moving FROM TO` before, and `removed NAME` and `moved FROM TO` after that is durable.
const SCRIPT: &str = r#"
cd "$1" || exit 1
number=0
dir=.
snap=
[ -z "$4" ] || { "$4" subvolume create "$2" >/dev/null && dir=$2; } || exit 0
while name="$dir/$2-$number"; echo "$name" > "$name"; do
    head -c $((number * 997 % 70000)) /dev/urandom >> "$name" || break
    sync "$name" || break
    sum=$(sha256sum < "$name") || break
    echo "synced $name $sum" >> "$3"
    if [ $((number % 3)) -eq 2 ]; then
        old="$dir/$2-$((number - 1))"
        echo "removing $old" >> "$3"
        rm -f "$old" && sync "$dir" || break
        echo "removed $old" >> "$3"
    fi
    if [ $((number % 4)) -eq 1 ]; then
        cp --reflink=auto "$name" "$name.copy" && sync "$name.copy" || break
        echo "synced $name.copy $sum" >> "$3"
        echo "moving $name.copy $name.moved" >> "$3"
        mv "$name.copy" "$name.moved" && sync "$name.moved" "$dir" || break
        echo "moved $name.copy $name.moved" >> "$3"
    fi
    if [ -n "$4" ] && [ $((number % 4)) -eq 2 ]; then
        if [ -n "$snap" ]; then
            echo "removing $snap" >> "$3"
            "$4" subvolume delete "${snap%/*}" >/dev/null && sync . || break
            echo "removed $snap" >> "$3"
        fi
        "$4" subvolume snapshot -r "$dir" "$2-$number.snap" >/dev/null || break
        snap="$2-$number.snap/$2-$number"
        sync "$snap" || break
        echo "synced $snap $sum" >> "$3"
    fi
    number=$((number + 1))
done 2>/dev/null
true
"#;
/// With so many kills each kind of step was durable before one of them.
const KILLS_OF_ALL: u64 = 16;

/// Kills it as often as there are seeds.
pub(super) fn kill(stage: &Stage, load: &Load) -> Result<Done> {
    let log = stage.path("synced");
    let has_snapshots = stage.cell.kind == Kind::Btrfs;
    let mut total = Guarantees::default();
    for round in load.seeds.clone() {
        std::fs::write(&log, "")?;
        let mut server = stage.serve()?;
        let mut writer = command("sh");
        writer
            .args(["-c", SCRIPT, "sh"])
            .arg(stage.mounted())
            .arg(format!("round{round}"))
            .arg(&log);
        if has_snapshots {
            writer.arg(stage.program().get_program());
        }
        let mut writer = writer.spawn()?;
        std::thread::sleep(Duration::from_millis(100 + round * 137 % 900));
        server.kill()?;
        server.wait()?;
        writer.wait()?;
        stage.abandon()?;
        stage.mount()?;
        let kept = keep_count(stage, &std::fs::read_to_string(&log)?);
        stage.unmount()?;
        let kept = kept.with_context(|| format!("round {round}"))?;
        total.files += kept.files;
        total.removals += kept.removals;
        total.renames += kept.renames;
        total.snapshots += kept.snapshots;
        stage.check().with_context(|| format!("round {round}"))?;
    }
    ensure!(total.files > 0, "nothing was synced before a kill");
    let kills = load.seeds.end - load.seeds.start;
    let is_all = total.renames > 0 && (total.snapshots > 0 || !has_snapshots);
    ensure!(
        is_all || kills < KILLS_OF_ALL,
        "steps are missing: {total:?}"
    );
    let text = format!(
        "{kills} kills, {} synced files, {} removals, {} renames and {} files of snapshots kept",
        total.files, total.removals, total.renames, total.snapshots
    );
    Ok(Done::new(text)
        .count("kills", kills)
        .count("kept", (total.files + total.removals) as u64))
}

/// What was synced, and is so.
#[derive(Debug, Default)]
struct Guarantees {
    files: usize,
    removals: usize,
    renames: usize,
    snapshots: usize,
}

/// What the log last says of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said<'a> {
    Synced(&'a str),
    /// It may be there, with these contents, or not.
    Removing(&'a str),
    Removed,
    /// It is there with these contents, or under the other name.
    Moving(&'a str, &'a str),
    /// It has its other name.
    Moved,
}

/// Counts what the log guarantees, and checks it.
fn keep_count(stage: &Stage, log: &str) -> Result<Guarantees> {
    let mut kept = Guarantees::default();
    for (name, said) in read(log) {
        let found = sum(stage, name)?;
        let is_same = |sum: &str| found.as_deref() == Some(sum);
        match said {
            Said::Synced(sum) => {
                ensure!(found.is_some(), "{name} is gone");
                ensure!(is_same(sum), "{name} has other contents");
                kept.files += 1;
                kept.snapshots += usize::from(name.contains(".snap/"));
            }
            Said::Removing(sum) => {
                ensure!(found.is_none() || is_same(sum), "{name} has other contents");
            }
            Said::Removed => {
                ensure!(found.is_none(), "{name} is there again");
                kept.removals += 1;
            }
            Said::Moving(old, to) => {
                let moved = self::sum(stage, to)?;
                let is_one = is_same(old) || moved.as_deref() == Some(old);
                ensure!(is_one, "{name} has neither name");
            }
            Said::Moved => {
                ensure!(found.is_none(), "{name} is there again");
                kept.renames += 1;
            }
        }
    }
    Ok(kept)
}

/// The digest of a file, if it is there.
fn sum(stage: &Stage, name: &str) -> Result<Option<String>> {
    let path = stage.mounted().join(name);
    if !path.try_exists()? {
        return Ok(None);
    }
    let line = command::output(command("sha256sum").arg(&path))?;
    let line = String::from_utf8_lossy(&line);
    Ok(line.split_whitespace().next().map(str::to_owned))
}

/// Returns the last entry for each name. A truncated line is ignored.
fn read(log: &str) -> BTreeMap<&str, Said<'_>> {
    let mut said = BTreeMap::new();
    for line in log
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["synced", name, sum, ..] => {
                said.insert(*name, Said::Synced(sum));
            }
            ["removing", name] => {
                if let Some(Said::Synced(sum)) = said.get(name).copied() {
                    said.insert(*name, Said::Removing(sum));
                }
            }
            ["removed", name] => {
                said.insert(*name, Said::Removed);
            }
            ["moving", from, to] => {
                if let Some(Said::Synced(sum)) = said.get(from).copied() {
                    said.insert(*from, Said::Moving(sum, to));
                }
            }
            ["moved", from, to] => {
                if let Some(Said::Moving(sum, _)) = said.insert(*from, Said::Moved) {
                    said.insert(*to, Said::Synced(sum));
                }
            }
            _ => {}
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_removal_that_was_begun_excuses_a_missing_file() {
        let log =
            "synced a 12 -\nsynced b 34 -\nremoving a\nsynced c 56 -\nremoving c\nremoved c\nsync";
        let said: Vec<_> = read(log).into_iter().collect();
        let expected = [
            ("a", Said::Removing("12")),
            ("b", Said::Synced("34")),
            ("c", Said::Removed),
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_file_that_is_moved_has_one_of_both_names() {
        let log = "synced a 12 -\nmoving a b\nsynced c 34 -\nmoving c d\nmoved c d\nmoved e f";
        let said: Vec<_> = read(log).into_iter().collect();
        let expected = [
            ("a", Said::Moving("12", "b")),
            ("c", Said::Moved),
            ("d", Said::Synced("34")),
        ];
        assert_eq!(said, expected);
    }
}
