//! A server that is killed at random moments: nothing that was synced is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::stage::Stage;
use super::{Done, Load};
use crate::command::{self, command};

/// Writes files, syncs each, removes some, and records every step in a log outside of the mount:
/// `synced NAME SUM`, `removing NAME` before, and `removed NAME` after that is durable.
const SCRIPT: &str = r#"
cd "$1" || exit 1
number=0
while name="$2-$number"; echo "$name" > "$name"; do
    head -c $((number * 997 % 70000)) /dev/urandom >> "$name" || break
    sync "$name" || break
    sum=$(sha256sum < "$name") || break
    echo "synced $name $sum" >> "$3"
    if [ $((number % 3)) -eq 2 ]; then
        old="$2-$((number - 1))"
        echo "removing $old" >> "$3"
        rm -f "$old" && sync . || break
        echo "removed $old" >> "$3"
    fi
    number=$((number + 1))
done 2>/dev/null
true
"#;

/// Kills it as often as there are seeds.
pub(super) fn kill(stage: &Stage, load: &Load) -> Result<Done> {
    let log = stage.path("synced");
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
        stage.check().with_context(|| format!("round {round}"))?;
    }
    ensure!(total.files > 0, "nothing was synced before a kill");
    let kills = load.seeds.end - load.seeds.start;
    let text = format!(
        "{kills} kills, {} synced files and {} synced removals kept",
        total.files, total.removals
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
}

/// What the log last says of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said<'a> {
    Synced(&'a str),
    /// It may be there, with these contents, or not.
    Removing(&'a str),
    Removed,
}

/// Counts what the log guarantees, and checks it.
fn keep_count(stage: &Stage, log: &str) -> Result<Guarantees> {
    let mut kept = Guarantees::default();
    for (name, said) in read(log) {
        let path = stage.mounted().join(name);
        let found = if path.try_exists()? {
            Some(command::output(command("sha256sum").arg(&path))?)
        } else {
            None
        };
        let is_same = |sum: &str| {
            let found = found.as_deref();
            found.is_some_and(|found| found.starts_with(sum.as_bytes()))
        };
        match said {
            Said::Synced(sum) => {
                ensure!(found.is_some(), "{name} is gone");
                ensure!(is_same(sum), "{name} has other contents");
                kept.files += 1;
            }
            Said::Removing(sum) => {
                ensure!(found.is_none() || is_same(sum), "{name} has other contents");
            }
            Said::Removed => {
                ensure!(found.is_none(), "{name} is there again");
                kept.removals += 1;
            }
        }
    }
    Ok(kept)
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
}
