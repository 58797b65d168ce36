//! `platter generate`: shell completions and manual pages, for packages.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap_complete::Shell;

use crate::args;

/// Write shell completions or manual pages
#[derive(Debug, clap::Args)]
pub(crate) struct Generate {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Write completions to standard output
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// Write a manual page for each command into a directory
    Man {
        /// The directory
        dir: PathBuf,
    },
}

impl Generate {
    pub(crate) fn run(&self) -> anyhow::Result<u8> {
        match &self.what {
            What::Completions { shell } => {
                let mut text = Vec::new();
                clap_complete::generate(*shell, &mut args::command(), "platter", &mut text);
                std::io::stdout().write_all(&text)?;
            }
            What::Man { dir } => write_man(dir)?,
        }
        Ok(0)
    }
}

fn write_man(dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(args::command(), dir)?;
    Ok(())
}
