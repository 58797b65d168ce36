//! `platter completions`: for shells.

use std::io::Write;

use clap_complete::Shell;

use crate::args;
use crate::console::Stdout;

/// Write completions for a shell to standard output
///
/// For bash, put them into ~/.local/share/bash-completion/completions/platter.
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> anyhow::Result<u8> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut args::command(), "platter", &mut text);
        Stdout.write_all(&text)?;
        Ok(0)
    }
}
