//! The `platter` command: arguments in, text out. All that can be reused lives in the library.

mod args;
mod commands;
mod console;
mod interrupt;
mod output;
mod startup;

use std::process::ExitCode;

use args::Invocation;
use output::error::is_usage;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What a shell reports for a program that a closed pipe ended.
const BROKEN_PIPE: u8 = 128 + 13;

fn main() -> ExitCode {
    let invocation = match Invocation::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(usage) => return usage.print(),
    };
    console::write_json(invocation.cli.output.json);
    let status = match commands::run(&invocation.cli) {
        Ok(status) => status,
        Err(error) if console::is_broken_pipe(&error) => BROKEN_PIPE,
        Err(error) if is_usage(&error) => {
            console::report(&error);
            invocation.usage_status
        }
        Err(error) => {
            console::report(&console::name_output(error));
            invocation.cli.command.failure_status()
        }
    };
    interrupt::end_if_pending();
    ExitCode::from(status)
}
