//! Instructions counted by callgrind: the same for the same binary, on any machine.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use testkit::tool;

use super::float;

/// The first level's data cache of the measuring machine, and its second level as the last one: bytes, ways, bytes of a line.
const CACHES: [&str; 2] = ["--D1=49152,12,64", "--LL=2097152,16,64"];

/// Returns the instructions that one operation takes: those of a process that does many, less those of
/// one that does few, so that what both do once does not count. `orders` names a number of operations,
/// and `part` is the part of this program that carries them out.
pub(crate) fn instructions_each<T: Serialize>(
    part: &str,
    numbers: [u64; 2],
    orders: impl Fn(u64) -> T,
) -> Result<f64> {
    each(numbers, |count| collect(part, &orders(count)))
}

/// Returns the misses of the first level's data cache that one operation takes, by the same difference.
pub(crate) fn misses_each<T: Serialize>(
    part: &str,
    numbers: [u64; 2],
    orders: impl Fn(u64) -> T,
) -> Result<f64> {
    each(numbers, |count| misses(part, &orders(count)))
}

fn each([few, many]: [u64; 2], count: impl Fn(u64) -> Result<u64>) -> Result<f64> {
    ensure!(few < many, "nothing to compare");
    Ok((float(count(many)?) - float(count(few)?)) / float(many - few))
}

/// Returns the misses of a whole process.
fn misses(part: &str, orders: &impl Serialize) -> Result<u64> {
    let mut valgrind = tool::command("valgrind");
    valgrind
        .args([
            "--tool=cachegrind",
            "--cache-sim=yes",
            "--cachegrind-out-file=/dev/null",
        ])
        .args(CACHES)
        .arg(std::env::current_exe()?)
        .arg(part)
        .arg(serde_json::to_string(orders)?);
    let finished = tool::succeed(&mut valgrind)?;
    let text = String::from_utf8_lossy(&finished.stderr).into_owned();
    let is_total = |line: &&str| line.contains("D1 ") && line.contains("misses:");
    let line = text.lines().find(is_total);
    let number = line.and_then(|line| line.split_once("misses:"));
    let number = number.and_then(|(_, rest)| rest.split_whitespace().next());
    let number = number.with_context(|| format!("valgrind says {text}"))?;
    Ok(number.replace(',', "").parse()?)
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
