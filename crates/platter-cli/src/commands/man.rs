//! `platter man`: manual pages.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use platter::Escaped;

use crate::args;
use crate::console::Stdout;

/// Write manual pages
///
/// Without a directory, the page of platter itself goes to standard output: platter man | man -l -
#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// Write a page for each command into this directory
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(&self) -> anyhow::Result<u8> {
        let Some(dir) = &self.dir else {
            let mut text = Vec::new();
            clap_mangen::Man::new(args::command()).render(&mut text)?;
            Stdout.write_all(&text)?;
            return Ok(0);
        };
        let shown = || Escaped(dir.as_os_str().as_encoded_bytes()).to_string();
        std::fs::create_dir_all(dir).with_context(shown)?;
        clap_mangen::generate_to(args::command(), dir).with_context(shown)?;
        Ok(0)
    }
}
