//! Instructions counted by callgrind: the same for the same binary, on any machine.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use testkit::tool;

use super::float;

/// Returns the instructions that one operation takes: those of a process that does many, less those of
/// one that does few, so that what both do once does not count. `orders` names a number of operations,
/// and `part` is the part of this program that carries them out.
pub(crate) fn instructions_each<T: Serialize>(
    part: &str,
    [few, many]: [u64; 2],
    orders: impl Fn(u64) -> T,
) -> Result<f64> {
    ensure!(few < many, "nothing to compare");
    let all = float(collect(part, &orders(many))?) - float(collect(part, &orders(few))?);
    Ok(all / float(many - few))
}

/// Returns the instructions of a whole process.
fn collect(part: &str, orders: &impl Serialize) -> Result<u64> {
    let mut valgrind = tool::command("valgrind");
    valgrind
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .arg(part)
        .arg(serde_json::to_string(orders)?);
    let finished = tool::succeed(&mut valgrind)?;
    let text = String::from_utf8_lossy(&finished.stderr).into_owned();
    let line = text.lines().find_map(|line| line.split_once("Collected :"));
    let (_, number) = line.with_context(|| format!("valgrind says {text}"))?;
    let number = number.trim().parse()?;
    ensure!(number > 0, "nothing was counted");
    Ok(number)
}
