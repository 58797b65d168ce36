//! A source tree that is unpacked and compiled.

use anyhow::Result;

use super::super::stage::Stage;
use super::{Done, Load};
use crate::command::{self, command};

/// Unpacks a source tree from an archive, compiles it there, and removes half of it.
pub(super) fn build(stage: &Stage, _: &Load) -> Result<Done> {
    const SCRIPT: &str = r#"
set -e
cd "$1"
tar -C "$2" -cf - --exclude ./target --exclude ./.git . | (mkdir source && cd source && tar -xf -)
diff -r --no-dereference -x target -x .git "$2" source
cd source
CARGO_TARGET_DIR="$1/target" "${CARGO:-cargo}" build --offline --quiet --package platter-block \
    --config 'profile.dev.opt-level=0' --config 'profile.dev.package."*".opt-level=0'
echo "$(find . -type f | wc -l) source files unpacked and compiled," \
    "$(find "$1/target" -type f | wc -l) files made"
rm -rf "$1/target/debug/deps" source/docs
sync "$1"
"#;
    stage.mount()?;
    let mut sh = command("sh");
    sh.args(["-c", SCRIPT, "sh"])
        .arg(stage.mounted())
        .arg(&stage.root);
    let report = command::output(&mut sh)?;
    stage.unmount()?;
    let report = String::from_utf8_lossy(&report).trim().to_owned();
    Ok(Done::new(report).count("builds", 1))
}
