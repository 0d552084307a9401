//! `up --detach`: runs `up` in the background and shows its output until the repository is healthy, or can't
//! become so.

use std::env;
use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use super::progress::{Marked, marked, unmark};
use super::record::StateDir;

const HEALTHY_WITHIN: Duration = Duration::from_secs(180);

/// Outcome of `up`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Came up, and was ended by a signal.
    Ended,
    Running,
    /// Runs in the background, but the repository did not become healthy, or can't without a change.
    Unhealthy,
    /// Did not come up; the reason was printed.
    Failed,
}

/// Starts this program again without `--detach`, and returns once the repository is healthy, or
/// can't become so without a change.
pub(super) async fn run(state: &StateDir) -> Result<Outcome> {
    if let Some(pid) = state.running() {
        println!("already running as process {pid} on {}", state.root().display());
        return Ok(Outcome::Running);
    }
    let log = state.log("up");
    let out = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let err = out.try_clone().with_context(|| format!("cannot write {}", log.display()))?;
    let mut shown = File::open(&log).with_context(|| format!("cannot read {}", log.display()))?;
    unmark(state);
    let args: Vec<_> = env::args_os().skip(1).filter(|arg| arg != "--detach").collect();
    let mut child = Command::new(env::current_exe().context("cannot find the path of this program")?)
        .args(args)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .process_group(0)
        .spawn()
        .context("cannot start 'minik8s up' in the background")?;
    let deadline = Instant::now() + HEALTHY_WITHIN;
    loop {
        let ended = child.try_wait().context("cannot wait for 'minik8s up'")?;
        let marked = marked(state);
        show_new(&mut shown)?;
        if let Some(status) = ended {
            return Ok(if status.success() { Outcome::Ended } else { Outcome::Failed });
        }
        match marked {
            Some(Marked::Healthy) => return Ok(Outcome::Running),
            Some(Marked::Failed(why)) => {
                eprintln!(
                    "minik8s: {why}; push a commit that fixes it; the daemons keep running in the background: see 'minik8s \
                     status' and {}",
                    log.display()
                );
                return Ok(Outcome::Unhealthy);
            }
            None => {}
        }
        if Instant::now() >= deadline {
            eprintln!(
                "minik8s: not healthy after {} s; the daemons keep running in the background: see 'minik8s status' and {}",
                HEALTHY_WITHIN.as_secs(),
                log.display()
            );
            return Ok(Outcome::Unhealthy);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn show_new(log: &mut File) -> Result<()> {
    let mut text = Vec::new();
    log.read_to_end(&mut text).context("cannot read the log of 'minik8s up'")?;
    std::io::stdout().write_all(&text).context("cannot write to standard output")
}
