//! Runs the programs with which Git itself checks signatures, each with a time limit.

use std::path::Path;
use std::process::Command;

use jiff::Timestamp;

/// Time limit, longer than any check takes with a hundred keys on a slow machine.
const SECONDS_MAX: &str = "20";
/// Exit codes of coreutils' `timeout`.
const TIMED_OUT: i32 = 124;
const NOT_FOUND: i32 = 127;

pub(super) struct Answer {
    pub(super) success: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Runs `program` with `dir` as its home and the file `stdin`, if any, as its input.
pub(super) fn run(
    program: &str,
    package: &str,
    args: &[&str],
    dir: &Path,
    stdin: Option<&Path>,
) -> Result<Answer, String> {
    let failed = |error: std::io::Error| format!("cannot run {program}: {error}");
    let mut command = Command::new("timeout");
    command.args([SECONDS_MAX, program]).args(args).env("LC_ALL", "C").env("GNUPGHOME", dir).current_dir(dir);
    match stdin {
        Some(file) => command.stdin(std::fs::File::open(file).map_err(failed)?),
        None => command.stdin(std::process::Stdio::null()),
    };
    let output = command.output().map_err(failed)?;
    match output.status.code() {
        Some(TIMED_OUT) => Err(format!("{program} did not answer within {SECONDS_MAX} s")),
        Some(NOT_FOUND) => Err(format!("{program} is not installed; install the package {package}")),
        _ => Ok(Answer {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }),
    }
}

// Input of a signature check, and the reason for rejecting a commit.

/// Reason for rejecting a commit, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Doubt {
    pub(super) why: String,
    pub(super) help: &'static str,
}

impl Doubt {
    pub(super) fn new(why: impl Into<String>, help: &'static str) -> Self {
        Self { why: why.into(), help }
    }
}

pub(super) const HELP_SIGN: &str =
    "sign it (git commit --amend -S) with a key that the source allows, and push";

pub(super) struct SignedCommit<'a> {
    pub(super) content: &'a [u8],
    pub(super) signature: &'a [u8],
    pub(super) email: &'a str,
    /// As the committer says.
    pub(super) committed_at: Timestamp,
    /// Time at which a reconciler first saw the commit; `None` where only the commit's own date is known.
    pub(super) first_seen: Option<Timestamp>,
}
