//! `minik8s`: parse, run, exit code.

use std::process::ExitCode;

/// Number of worker threads: the reconciler mostly waits, or works in short bursts; more would only cost memory.
const WORKER_THREADS: usize = 2;

fn main() -> ExitCode {
    let cli = match reconciler::args::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(WORKER_THREADS).enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(reconciler::cli::run(cli)),
        Err(error) => {
            eprintln!("minik8s: cannot start threads: {error}; raise the limit on processes (ulimit -u)");
            ExitCode::FAILURE
        }
    }
}
