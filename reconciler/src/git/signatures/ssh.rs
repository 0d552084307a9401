//! SSH signatures, checked by `ssh-keygen -Y` as Git does: the committer must be allowed to sign with the key, and
//! must have been when the commit was made and when it was first seen.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::program::{Answer, Doubt, HELP_SIGN, SignedCommit, run};

const HELP_ALLOW: &str = "sign it with an allowed key, or add the key to the allowed signers of the source";

/// OpenSSH's allowed_signers (ssh-keygen(1), "ALLOWED SIGNERS"): who may sign, with which key, until when.
pub(super) struct AllowedSigners(String);

impl AllowedSigners {
    /// Accepts the file if it names a signer; `ssh-keygen` skips lines that it can't read.
    pub(super) fn parse(text: String) -> Result<Self, String> {
        let is_signer = |line: &str| !line.trim().is_empty() && !line.trim().starts_with('#');
        let names_any = text.lines().any(is_signer);
        names_any.then_some(Self(text)).ok_or_else(|| "it names no signer".to_owned())
    }
}

/// Verifies `armor` over the commit, or returns the reason for rejecting it.
pub(super) fn verify(signers: &AllowedSigners, armor: &str, signed: &SignedCommit<'_>) -> Result<(), Doubt> {
    let refuse = |why: String, help| Err(Doubt::new(why, help));
    let io = |error: std::io::Error| Doubt::new(error.to_string(), HELP_ALLOW);
    let dir = tempfile::tempdir().map_err(io)?;
    for (name, bytes) in
        [("signers", signers.0.as_bytes()), ("signature", armor.as_bytes()), ("commit", signed.content)]
    {
        fs::write(dir.path().join(name), bytes).map_err(io)?;
    }
    let ask = |args: &[&str]| keygen(dir.path(), args);
    let fits = ask(&["-Y", "check-novalidate", "-n", "git", "-s", "signature"])?;
    if !fits.success {
        return refuse(misfit(&fits.stderr), HELP_SIGN);
    }
    // Without a zone, the time is this machine's; OpenSSH before 9.1 understands no zone.
    let option =
        |at: Timestamp| at.to_zoned(TimeZone::system()).strftime("verify-time=%Y%m%d%H%M%S").to_string();
    let mut refused = None;
    for at in [signed.committed_at].into_iter().chain(signed.first_seen).map(option) {
        let verify = "-Y verify -f signers -n git -s signature".split(' ');
        let args: Vec<&str> = verify.chain(["-I", signed.email, "-O", &at]).collect();
        let allowed = ask(&args)?;
        if !allowed.success {
            refused = Some((allowed, at));
            break;
        }
    }
    let Some((allowed, at)) = refused else { return Ok(()) };
    let print = fits.stdout.split_whitespace().last().unwrap_or_default();
    let of_lines: Vec<&str> =
        allowed.stderr.lines().filter_map(|line| line.strip_prefix("signers:")).collect();
    if !of_lines.is_empty() {
        return refuse(format!("key {print} is not allowed: line {}", of_lines.join("; line ")), HELP_ALLOW);
    }
    let known = ask(&["-Y", "find-principals", "-f", "signers", "-s", "signature", "-O", &at])?;
    if known.success {
        let why = format!("key {print} is not allowed for the committer <{}>", shown(signed.email));
        return refuse(why, HELP_ALLOW);
    }
    refuse(format!("key {print} is not among the allowed signers"), HELP_ALLOW)
}

fn keygen(dir: &Path, args: &[&str]) -> Result<Answer, Doubt> {
    let commit = dir.join("commit");
    let answer = run("ssh-keygen", "openssh-client", args, dir, Some(&commit));
    answer.map_err(|why| Doubt::new(why, HELP_ALLOW))
}

/// Explains why Git can't accept the signature for these bytes.
fn misfit(stderr: &str) -> String {
    if stderr.contains("namespace") {
        "its signature was made for something other than Git".to_owned()
    } else if stderr.contains("incorrect signature") {
        "its SSH signature does not match the commit".to_owned()
    } else {
        let last = stderr.lines().last().unwrap_or("ssh-keygen gives no reason");
        format!("its SSH signature can't be read: {last}")
    }
}

/// Makes an address safe for a terminal.
fn shown(email: &str) -> String {
    email.chars().filter(|c| !c.is_control()).take(200).collect()
}
