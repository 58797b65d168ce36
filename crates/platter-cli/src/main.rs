//! The `platter` command: arguments in, text out. All that can be reused lives in the library.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod console;
mod output;

use std::process::ExitCode;

use args::Invocation;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What a shell reports for a program that a closed pipe ended.
const BROKEN_PIPE: u8 = 128 + 13;

fn main() -> ExitCode {
    let invocation = match Invocation::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(usage) => return usage.tell(),
    };
    let status = match commands::run(&invocation.cli) {
        Ok(status) => status,
        Err(error) if console::is_broken_pipe(&error) => BROKEN_PIPE,
        Err(error) => {
            console::complain(console::in_one_line(&console::name_output(error)));
            invocation.cli.command.failure_status()
        }
    };
    ExitCode::from(status)
}
