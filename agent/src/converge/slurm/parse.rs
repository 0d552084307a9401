//! Parser for the output of squeue and sacct. Pure.
//!
//! States and their flags are those of Slurm's `job_state_codes`; an unrecognized word is never a failure.

use std::collections::BTreeMap;

use schema::kinds::job::status::array_tasks;
use schema::kinds::job::{FailureClass, JobPhase};

/// Fields requested from squeue, in the order of [`Row`]; each followed by `|`.
pub const SQUEUE_FIELDS: &str =
    "JobArrayID:|,ArrayJobID:|,Name:|,State:|,Reason:|,exit_code:|,SubmitTime:|,TimeUsed:|,NodeList:|";
/// Fields requested from sacct.
pub const SACCT_FIELDS: &str =
    "JobID,JobName,State,Reason,ExitCode,DerivedExitCode,Submit,ElapsedRaw,NodeList";

/// A job, or a task of an array.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// Number of the job; for a task, that of the array.
    pub id: u64,
    /// Index of a task, or the indices of waiting tasks.
    pub task: Option<String>,
    pub name: String,
    pub state: String,
    /// Reason; empty if Slurm gives none.
    pub reason: String,
    /// Exit code and signal.
    pub exit: Option<(u32, u32)>,
    /// Highest exit code of a step.
    pub derived: Option<String>,
    pub submitted: String,
    pub elapsed_seconds: Option<i64>,
    pub nodes: String,
}

/// Interpretation of a Slurm state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateClass {
    Queued,
    Running,
    Suspended,
    Ended(EndKind),
    /// A state not known to this parser.
    Unknown,
}

/// Kind of a job's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum EndKind {
    Completed,
    Cancelled,
    /// Ended with an exit code or by a signal.
    Failed,
    Timeout,
    Deadline,
    OutOfMemory,
    NodeFailure,
}

/// Interprets a state as squeue and sacct write it, long or short.
pub fn meaning(state: &str) -> StateClass {
    // `CANCELLED by 1000`, or `CANCELLED+` if the column is too narrow.
    let word = state.split_whitespace().next().unwrap_or_default().trim_end_matches('+');
    match word {
        "PENDING" | "PD" | "CONFIGURING" | "CF" | "REQUEUED" | "RQ" | "REQUEUE_FED" | "RF"
        | "REQUEUE_HOLD" | "RH" | "SPECIAL_EXIT" | "SE" | "RESV_DEL_HOLD" | "RD" | "POWER_UP_NODE" => {
            StateClass::Queued
        }
        // A completing job is not done: its nodes still clean up.
        "RUNNING" | "R" | "COMPLETING" | "CG" | "RESIZING" | "RS" | "SIGNALING" | "SI" | "STAGE_OUT"
        | "SO" | "EXPEDITING" | "UPDATE_DB" => StateClass::Running,
        "SUSPENDED" | "S" | "STOPPED" | "ST" => StateClass::Suspended,
        "COMPLETED" | "CD" => StateClass::Ended(EndKind::Completed),
        "CANCELLED" | "CA" => StateClass::Ended(EndKind::Cancelled),
        "FAILED" | "F" => StateClass::Ended(EndKind::Failed),
        "TIMEOUT" | "TO" => StateClass::Ended(EndKind::Timeout),
        "DEADLINE" | "DL" => StateClass::Ended(EndKind::Deadline),
        "OUT_OF_MEMORY" | "OUT_OF_ME" | "OOM" => StateClass::Ended(EndKind::OutOfMemory),
        "NODE_FAIL" | "NF" | "BOOT_FAIL" | "BF" | "PREEMPTED" | "PR" | "LAUNCH_FAILED" | "RECONFIG_FAIL" => {
            StateClass::Ended(EndKind::NodeFailure)
        }
        _ => StateClass::Unknown,
    }
}

/// Parses the rows of `squeue -h -O SQUEUE_FIELDS`. Malformed lines are skipped.
pub fn squeue(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [job, array, name, state, reason, exit, submitted, used, nodes, ..] = fields[..] else {
            return None;
        };
        let (_, task) = job_id(job)?;
        Some(Row {
            id: array.parse().ok()?,
            task,
            name: name.to_owned(),
            state: state.to_owned(),
            reason: non_placeholder(reason),
            exit: exit_of_squeue(exit),
            derived: None,
            submitted: submitted.to_owned(),
            elapsed_seconds: time_used(used),
            nodes: non_placeholder(nodes),
        })
    };
    text.lines().filter_map(row).collect()
}

/// Parses the rows of `sacct -nPX -o SACCT_FIELDS`.
pub fn sacct(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [job, name, state, reason, exit, derived, submitted, elapsed, nodes] = fields[..] else {
            return None;
        };
        let (id, task) = job_id(job)?;
        Some(Row {
            id,
            task,
            name: name.to_owned(),
            state: state.to_owned(),
            reason: non_placeholder(reason),
            exit: exit_pair(exit),
            derived: Some(derived.to_owned()).filter(|derived| !matches!(derived.as_str(), "" | "0:0")),
            submitted: submitted.to_owned(),
            elapsed_seconds: elapsed.parse().ok(),
            nodes: non_placeholder(nodes),
        })
    };
    text.lines().filter_map(row).collect()
}

/// Parses `123`, `123_4`, `123_[4-9%2]`; `123+1` is a component of a heterogeneous job.
fn job_id(text: &str) -> Option<(u64, Option<String>)> {
    let (id, task) = match text.split_once('_') {
        Some((id, task)) => (id, Some(task.to_owned())),
        None => (text.split('+').next().unwrap_or_default(), None),
    };
    Some((id.parse().ok()?, task))
}

/// Maps Slurm's placeholders for "no value" to an empty string.
fn non_placeholder(text: &str) -> String {
    if matches!(text, "None" | "None assigned" | "N/A" | "(null)" | "Unknown") {
        String::new()
    } else {
        text.to_owned()
    }
}

fn exit_pair(text: &str) -> Option<(u32, u32)> {
    let (code, signal) = text.split_once(':')?;
    Some((code.parse().ok()?, signal.parse().ok()?))
}

/// Parses squeue's exit code: the status from wait(2), in newer versions `code:signal`.
fn exit_of_squeue(text: &str) -> Option<(u32, u32)> {
    let status = || text.parse::<u32>().ok().map(|status| ((status >> 8) & 0xff, status & 0x7f));
    exit_pair(text).or_else(status)
}

/// Parses `D-HH:MM:SS`, of which leading parts may be missing.
fn time_used(text: &str) -> Option<i64> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let mut seconds: i64 = 0;
    for part in clock.split(':') {
        seconds = seconds.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    days.parse::<i64>().ok()?.checked_mul(86_400)?.checked_add(seconds)
}

/// Slurm's view of one job, with all its tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Facts {
    pub id: u64,
    pub submitted: String,
    /// State as reported by Slurm.
    pub state: String,
    pub reason: String,
    pub exit: Option<(u32, u32)>,
    pub derived: Option<String>,
    pub nodes: String,
    pub elapsed_seconds: Option<i64>,
    /// Tasks of an array by state.
    pub tasks: BTreeMap<String, u32>,
    pub phase: JobPhase,
    /// Kind of the end, once the whole job has ended.
    pub ended: Option<EndKind>,
    /// Ended tasks by index, remembered because Slurm without accounting forgets them before the last one ends.
    #[serde(default)]
    pub ended_tasks: BTreeMap<u32, EndedTask>,
}

/// End of an array's task.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EndedTask {
    /// State as reported by Slurm.
    pub state: String,
    pub exit: Option<(u32, u32)>,
}

/// Merges the answers of both programs about a job by its name; `None` if neither knows it. `squeue` takes
/// precedence while the job lives, because accounting lags behind; `sacct` takes precedence for its end, because
/// squeue forgets. Ended tasks from `before` are kept.
pub fn facts(name: &str, squeue: &[Row], sacct: &[Row], before: &Facts) -> Option<Facts> {
    let of_name = |row: &&Row| row.name == name;
    // The newest, in case the controller lost its state and restarted its numbering.
    let id = squeue.iter().chain(sacct).filter(of_name).max_by_key(|row| (row.submitted.clone(), row.id))?.id;
    let mut rows: BTreeMap<Option<String>, Row> = BTreeMap::new();
    for row in squeue.iter().filter(of_name).filter(|row| row.id == id) {
        rows.insert(row.task.clone(), row.clone());
    }
    let is_over = |row: &Row| matches!(meaning(&row.state), StateClass::Ended(_));
    for row in sacct.iter().filter(of_name).filter(|row| row.id == id) {
        match rows.get_mut(&row.task) {
            Some(known) if is_over(known) && is_over(row) => {
                let reason = if row.reason.is_empty() { known.reason.clone() } else { row.reason.clone() };
                *known = Row { reason, ..row.clone() };
            }
            Some(_) => {}
            None if is_over(row) || squeue.iter().all(|other| other.name != name) => {
                rows.insert(row.task.clone(), row.clone());
            }
            // Tasks that squeue combines in one row, or lists under another one.
            None => {}
        }
    }
    for (index, task) in before.ended_tasks.iter().filter(|_| before.id == id) {
        let EndedTask { state, exit } = task.clone();
        let (submitted, name) = (before.submitted.clone(), name.to_owned());
        let row = Row { id, task: Some(index.to_string()), name, state, exit, submitted, ..Row::default() };
        rows.entry(row.task.clone()).or_insert(row);
    }
    let is_array = rows.keys().any(Option::is_some);
    let all: Vec<Row> = rows.into_values().collect();
    let mut tasks: BTreeMap<String, u32> = BTreeMap::new();
    for row in all.iter().filter(|_| is_array) {
        let word = row.state.split_whitespace().next().unwrap_or_default();
        *tasks.entry(word.to_owned()).or_default() += task_count(row.task.as_deref());
    }
    let ended_tasks = all.iter().filter(|row| is_over(row)).filter_map(|row| {
        let index = row.task.as_ref()?.parse().ok()?;
        Some((index, EndedTask { state: row.state.clone(), exit: row.exit }))
    });
    let ended_tasks = ended_tasks.collect();
    let decisive = all.iter().max_by_key(|row| weight(&row.state))?;
    let (phase, ended) = match meaning(&decisive.state) {
        StateClass::Queued => (JobPhase::Queued, None),
        StateClass::Running => (JobPhase::Running, None),
        StateClass::Suspended => (JobPhase::Suspended, None),
        StateClass::Unknown => (JobPhase::Unknown, None),
        StateClass::Ended(ended) => (phase_of(ended), Some(ended)),
    };
    Some(Facts {
        id,
        submitted: decisive.submitted.clone(),
        state: decisive.state.clone(),
        reason: decisive.reason.clone(),
        exit: decisive.exit,
        derived: decisive.derived.clone(),
        nodes: decisive.nodes.clone(),
        elapsed_seconds: all.iter().filter_map(|row| row.elapsed_seconds).max(),
        tasks,
        phase,
        ended,
        ended_tasks,
    })
}

/// Rank of the row that represents an array: unknown states first, then live tasks, then the worst end.
fn weight(state: &str) -> (u8, Option<EndKind>) {
    match meaning(state) {
        StateClass::Unknown => (4, None),
        StateClass::Running => (3, None),
        StateClass::Suspended => (2, None),
        StateClass::Queued => (1, None),
        StateClass::Ended(ended) => (0, Some(ended)),
    }
}

fn phase_of(ended: EndKind) -> JobPhase {
    match ended {
        EndKind::Completed => JobPhase::Succeeded,
        EndKind::Cancelled => JobPhase::Cancelled,
        _ => JobPhase::Failed,
    }
}

/// Returns the class of a job's failure; `None` if it did not fail.
pub fn failure_class(ended: EndKind, exit: Option<(u32, u32)>) -> Option<FailureClass> {
    match ended {
        EndKind::Completed | EndKind::Cancelled => None,
        EndKind::Failed if exit.is_some_and(|(_, signal)| signal > 0) => Some(FailureClass::Signal),
        EndKind::Failed => Some(FailureClass::ExitCode),
        EndKind::Timeout => Some(FailureClass::Timeout),
        EndKind::Deadline => Some(FailureClass::Deadline),
        EndKind::OutOfMemory => Some(FailureClass::OutOfMemory),
        EndKind::NodeFailure => Some(FailureClass::NodeFailure),
    }
}

/// Returns the number of tasks in a row: `[4-9%2]` are six waiting tasks.
fn task_count(task: Option<&str>) -> u32 {
    let inner = task.and_then(|task| task.strip_prefix('[')).map(|task| task.trim_end_matches(']'));
    inner.and_then(array_tasks).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    // As Slurm 22.05 printed them.
    const SQUEUE: &str = "\
1|1|default.x.abcdef12.1|FAILED|NonZeroExitCode|768|2026-11-23T15:05:28|0:01|vm|
2_1|2|a.sh|FAILED|NonZeroExitCode|768|2026-11-23T15:05:28|0:01|vm|
2_0|2|a.sh|FAILED|NonZeroExitCode|768|2026-11-23T15:05:28|0:01|vm|
";
    const SACCT: &str = "\
1|default.x.abcdef12.1|FAILED|None|3:0|0:0|2026-11-23T15:05:28|1|vm
2_0|a.sh|FAILED|None|3:0|0:0|2026-11-23T15:05:28|1|vm
2_1|a.sh|FAILED|None|3:0|0:0|2026-11-23T15:05:28|1|vm
";

    #[test]
    fn a_job_that_failed_is_read_from_either_program() {
        let name = "default.x.abcdef12.1";
        for (queue, accounts) in
            [(squeue(SQUEUE), sacct(SACCT)), (squeue(SQUEUE), vec![]), (vec![], sacct(SACCT))]
        {
            let facts = facts(name, &queue, &accounts, &Facts::default()).unwrap();
            assert_eq!((facts.id, facts.exit, facts.phase), (1, Some((3, 0)), JobPhase::Failed));
            assert_eq!((facts.ended, facts.elapsed_seconds), (Some(EndKind::Failed), Some(1)));
            assert_eq!((facts.nodes.as_str(), facts.tasks.len()), ("vm", 0));
        }
        let other = facts("default.x.abcdef12.2", &squeue(SQUEUE), &sacct(SACCT), &Facts::default());
        assert_eq!(other, None);
    }

    #[test]
    fn a_job_without_memory_has_no_signal() {
        // As Slurm 22.05 printed it: 125 is not a signal of the kernel.
        let row = "2|2|n|OUT_OF_MEMORY|OutOfMemory|253|2026-11-23T20:03:56|0:01|vm|\n";
        let facts = facts("n", &squeue(row), &[], &Facts::default()).unwrap();
        assert_eq!((facts.ended, facts.exit), (Some(EndKind::OutOfMemory), Some((0, 125))));
        assert_eq!(failure_class(EndKind::OutOfMemory, facts.exit), Some(FailureClass::OutOfMemory));
    }

    #[test]
    fn an_array_runs_until_its_last_task_has_ended_and_ends_as_its_worst_one() {
        let row = |task: &str, state: &str| Row {
            id: 5,
            task: Some(task.to_owned()),
            name: "n".to_owned(),
            state: state.to_owned(),
            ..Row::default()
        };
        let of = |rows: &[Row], accounts: &[Row]| facts("n", rows, accounts, &Facts::default()).unwrap();
        let waiting = of(&[row("0", "COMPLETED"), row("[2-9%2]", "PENDING"), row("1", "RUNNING")], &[]);
        assert_eq!((waiting.phase, waiting.ended), (JobPhase::Running, None));
        let tasks: Vec<(&str, u32)> =
            waiting.tasks.iter().map(|(word, count)| (word.as_str(), *count)).collect();
        assert_eq!(tasks, [("COMPLETED", 1), ("PENDING", 8), ("RUNNING", 1)]);
        // squeue has forgotten the first task, sacct has not.
        let over = of(&[row("1", "COMPLETED")], &[row("0", "TIMEOUT"), row("1", "COMPLETED")]);
        assert_eq!((over.phase, over.ended), (JobPhase::Failed, Some(EndKind::Timeout)));
        let cancelled = of(&[row("0", "CANCELLED by 1000"), row("1", "COMPLETED")], &[]);
        assert_eq!(cancelled.phase, JobPhase::Cancelled);
    }

    // Seen red without the earlier facts: the array ends like its last task.
    #[test]
    fn tasks_that_squeue_forgets_count_where_there_are_no_accounts() {
        let row = |task: &str, state: &str, exit| Row {
            id: 5,
            task: Some(task.to_owned()),
            name: "n".to_owned(),
            state: state.to_owned(),
            exit,
            ..Row::default()
        };
        let one =
            [row("0", "FAILED", Some((3, 0))), row("1", "RUNNING", None), row("[2-3]", "PENDING", None)];
        let mut seen = facts("n", &one, &[], &Facts::default()).unwrap();
        for two in [
            [row("1", "COMPLETED", None), row("2", "RUNNING", None)],
            [row("2", "COMPLETED", None), row("3", "RUNNING", None)],
        ] {
            seen = facts("n", &two, &[], &seen).unwrap();
            assert_eq!((seen.phase, seen.tasks["FAILED"]), (JobPhase::Running, 1));
        }
        let over = facts("n", &[row("3", "COMPLETED", Some((0, 0)))], &[], &seen).unwrap();
        assert_eq!((over.ended, over.exit), (Some(EndKind::Failed), Some((3, 0))));
        assert_eq!((over.tasks["FAILED"], over.tasks["COMPLETED"]), (1, 3));
        // Another job has the number by now.
        assert_eq!(
            facts("n", &[Row { id: 6, ..row("0", "RUNNING", None) }], &[], &seen).unwrap().tasks.len(),
            1
        );
        // No trace of the job: its outcome is unknown.
        assert_eq!(facts("n", &[], &[], &seen), None);
    }

    #[test]
    fn accounts_that_are_late_make_nothing_end() {
        let row = |state: &str| Row { id: 5, name: "n".into(), state: state.into(), ..Row::default() };
        let of = |queue: &str, accounts: &str| {
            facts("n", &[row(queue)], &[row(accounts)], &Facts::default()).unwrap().phase
        };
        assert_eq!(of("RUNNING", "PENDING"), JobPhase::Running);
        // Requeued by an administrator: sacct still has the end of the previous run.
        assert_eq!(of("PENDING", "NODE_FAIL"), JobPhase::Queued);
        assert_eq!(of("COMPLETING", "COMPLETED"), JobPhase::Running);
        assert_eq!(of("COMPLETED", "RUNNING"), JobPhase::Succeeded);
    }

    #[test]
    fn every_state_and_flag_has_a_meaning_and_a_new_word_is_unknown() {
        use StateClass::{Queued, Running, Suspended};
        let ended = StateClass::Ended;
        for (words, expected) in [
            (
                "PENDING PD CONFIGURING CF REQUEUED RQ REQUEUE_FED RF REQUEUE_HOLD RH SPECIAL_EXIT SE RESV_DEL_HOLD RD",
                Queued,
            ),
            ("RUNNING R COMPLETING CG RESIZING RS SIGNALING SI STAGE_OUT SO EXPEDITING", Running),
            ("SUSPENDED S STOPPED ST", Suspended),
            ("COMPLETED CD", ended(EndKind::Completed)),
            ("CANCELLED CA CANCELLED+", ended(EndKind::Cancelled)),
            ("FAILED F", ended(EndKind::Failed)),
            ("TIMEOUT TO", ended(EndKind::Timeout)),
            ("DEADLINE DL", ended(EndKind::Deadline)),
            ("OUT_OF_MEMORY OOM OUT_OF_ME+", ended(EndKind::OutOfMemory)),
            ("NODE_FAIL NF BOOT_FAIL BF PREEMPTED PR", ended(EndKind::NodeFailure)),
            ("REVOKED RV SOMETHING_NEW", StateClass::Unknown),
        ] {
            for word in words.split(' ') {
                assert_eq!(meaning(word), expected, "{word}");
            }
        }
        assert_eq!(meaning("CANCELLED by 1000"), ended(EndKind::Cancelled));
        assert_eq!(meaning(""), StateClass::Unknown);
    }

    #[test]
    fn signals_are_distinguished_from_exit_codes() {
        assert_eq!(failure_class(EndKind::Failed, Some((0, 9))), Some(FailureClass::Signal));
        assert_eq!(failure_class(EndKind::Failed, Some((3, 0))), Some(FailureClass::ExitCode));
        assert_eq!(exit_of_squeue("9"), Some((0, 9)));
        assert_eq!(exit_of_squeue("3:0"), Some((3, 0)));
        assert_eq!(time_used("1-02:03:04"), Some(86_400 + 7384));
        assert_eq!(job_id("123_[4-9%2]"), Some((123, Some("[4-9%2]".to_owned()))));
    }
}
