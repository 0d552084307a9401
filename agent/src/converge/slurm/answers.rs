//! Interprets the output of commands on a login host. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::job::JobPhase;
use schema::records::ResultKind;

use super::commands::LIST_MAX_BYTES;
use super::machine::{JobRecord, StepResult};
use super::parse::{Facts, Row, facts, sacct, squeue};

/// Longest time for which sacct may lag behind a change.
const ACCOUNTS_LAG: SignedDuration = SignedDuration::from_secs(60);

/// Parts of sbatch's error messages for jobs that no retry can fix, as `slurm_strerror` and sbatch itself print
/// them. All other errors are retried: a controller that is starting, a munge that is down, a limit on submitted
/// jobs. Accounts, QOS and wckeys are invalid, too, until slurmdbd has announced them to slurmctld.
const REFUSALS: &[&str] = &[
    "nvalid partition name specified",
    "nvalid feature specification",
    "nvalid generic resource (gres) specification",
    "nvalid Trackable RESource (TRES) specification",
    "nvalid node name specified",
    "nvalid license specification",
    "nvalid job array specification",
    "equested time limit is invalid",
    "equested reservation is invalid",
    "equested node configuration is not available",
    "ode count specification invalid",
    "ore processors requested than permitted",
    "emory specification can not be satisfied",
    "ob size specification",
    "nrecognized option",
    "unknown option",
    "nvalid option",
    "atch script contains",
    "oes not look like a batch script",
    "ob script exceeds size limit",
    "nvalid numeric value",
    "nvalid time limit specification",
    "nvalid constraint",
    "nvalid --",
];

/// True if sbatch refused the job permanently.
pub(super) fn is_refused(stderr: &str) -> bool {
    REFUSALS.iter().any(|refusal| stderr.contains(refusal))
}

/// Output of squeue and sacct.
#[derive(Default)]
pub(super) struct Sections {
    pub(super) squeue: Vec<Row>,
    pub(super) sacct: Vec<Row>,
    pub(super) squeue_ok: bool,
    pub(super) sacct_ok: bool,
}

impl Sections {
    /// Parses `== squeue`, lines, `== 0`, `== sacct`, lines, `== 0`.
    pub(super) fn parse(answer: &str) -> Self {
        let mut parts: BTreeMap<&str, String> = BTreeMap::new();
        let (mut section, mut found) = ("", Self::default());
        for line in answer.lines() {
            match line.strip_prefix("== ") {
                Some("squeue") => section = "squeue",
                Some("sacct") => section = "sacct",
                Some(code) if section == "squeue" => found.squeue_ok = code == "0",
                Some(code) => found.sacct_ok = code == "0",
                None => parts.entry(section).or_default().push_str(&format!("{line}\n")),
            }
        }
        found.squeue = squeue(parts.get("squeue").map_or("", String::as_str));
        found.sacct = sacct(parts.get("sacct").map_or("", String::as_str));
        found
    }

    /// True if accounting is off, or has had the time to record the job's last change: it lags behind.
    pub(super) fn has_answered_all(&self, record: &JobRecord, now: Timestamp) -> bool {
        !self.sacct_ok || now.duration_since(record.changed_at) > ACCOUNTS_LAG
    }

    /// Returns the poll event of a job; `None` if the answers change nothing.
    pub(super) fn polled(&self, record: &JobRecord, now: Timestamp) -> Option<StepResult> {
        let found = facts(&record.slurm_name(), &self.squeue, &self.sacct, &record.facts);
        // Without squeue, only a job's end counts in accounting; and only both together can say that a job is
        // unknown.
        let counts = match &found {
            Some(found) => self.squeue_ok || found.ended.is_some(),
            None => self.squeue_ok && self.has_answered_all(record, now),
        };
        counts.then_some(StepResult::Polled(found))
    }
}

/// Finds the newest of these attempts that Slurm or the login host knows.
pub(super) fn find_attempt(names: &[String], answer: &str) -> Option<(u32, Facts)> {
    let sections = Sections::parse(answer);
    names.iter().rev().find_map(|name| {
        let attempt = name.rsplit('.').next().and_then(|attempt| attempt.parse().ok()).unwrap_or(1);
        if let Some(facts) = facts(name, &sections.squeue, &sections.sacct, &Facts::default()) {
            return Some((attempt, facts));
        }
        let of_name = |line: &str| line.strip_prefix(name.as_str())?.strip_prefix(' ').and_then(slurm_id);
        let id = answer.lines().take_while(|line| !line.starts_with("== ")).find_map(of_name)?;
        Some((attempt, Facts { id, phase: JobPhase::Unknown, ..Facts::default() }))
    })
}

/// Parses `123` or `123;cluster`.
pub(super) fn slurm_id(text: &str) -> Option<u64> {
    text.split(';').next()?.trim().parse().ok()
}

/// Parses the list of files to fetch, and the number of files that the list has no room for.
pub(super) fn listing(bytes: &[u8]) -> (Vec<(ResultKind, u64, String)>, u64) {
    let mut parts: Vec<&[u8]> = bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty()).collect();
    let count =
        |part: &&[u8]| std::str::from_utf8(part).ok()?.strip_prefix("more ")?.trim().parse::<u64>().ok();
    let more = parts.last().and_then(count);
    parts.truncate(parts.len() - usize::from(more.is_some()));
    let more = more.unwrap_or_default();
    // If files are missing from the list, its last entry may be truncated.
    let is_cut = |part: &&[u8]| more > 0 && bytes[..LIST_MAX_BYTES.min(bytes.len())].ends_with(part);
    if parts.last().is_some_and(is_cut) {
        parts.pop();
    }
    let entries = parts.into_iter().filter_map(|entry| {
        let text = std::str::from_utf8(entry).ok()?;
        let mut parts = text.splitn(3, ' ');
        let kind = match parts.next()? {
            "o" => ResultKind::Stdout,
            "e" => ResultKind::Stderr,
            _ => ResultKind::Output,
        };
        let size = parts.next()?.parse().ok()?;
        let path = parts.next()?.strip_prefix("./")?;
        let leads_out = path.is_empty() || path.split('/').any(|part| part == "..");
        (!leads_out).then(|| (kind, size, path.to_owned()))
    });
    (entries.collect(), more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_no_later_try_makes_better_is_refused() {
        let failed = |why: &str| format!("sbatch: error: Batch job submission failed: {why}\n");
        for why in ["Invalid partition name specified", "Requested node configuration is not available"] {
            assert!(is_refused(&failed(why)), "{why}");
        }
        assert!(is_refused("sbatch: unrecognized option '--nope'\n"));
        for why in [
            "Invalid account or account/partition combination specified",
            "Unable to contact slurm controller (connect failure)",
            "Socket timed out on send/recv operation",
            "Invalid authentication credential",
            "Invalid user id",
            "Access/permission denied",
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "Slurm temporarily unable to accept job, sleeping and retrying",
            "Requested partition configuration not available now",
            "Job dependency problem",
        ] {
            assert!(!is_refused(&failed(why)), "{why}");
        }
        assert!(!is_refused("sh: 1: cannot create .minik8s/id.part: Permission denied"));
        assert!(!is_refused("sbatch: error: If munged is up, restart with --num-threads=10: invalid socket"));
    }
}
