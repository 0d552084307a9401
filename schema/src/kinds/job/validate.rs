//! Checks of a job beyond the schema: above all, that no value can leave its place in the script or on a command
//! line.

use super::{JobSpec, status};
use crate::names;
use crate::quantity::Memory;
use crate::violation::{Findings, Path, rules};

/// Maximum length of an option's value.
const OPTION_MAX_BYTES: usize = 255;
/// Minimum memory per node: a value below a mebibyte is a number without its unit.
const MEMORY_MIN: Memory = Memory { bytes: 1 << 20 };

/// Checks a spec as written.
pub(super) fn validate(job: &JobSpec, at: &Path<'_>, findings: &mut Findings) {
    job.login.validate(&at.field("login"), findings);
    if let Some(files) = &job.files {
        names::check(files, &at.field("files"), findings);
    }
    let words = [
        ("partition", &job.partition),
        ("account", &job.account),
        ("qos", &job.qos),
        ("gpuType", &job.gpu_type),
    ];
    for (field, value) in words {
        let Some(value) = value else { continue };
        let items = if field == "partition" { value.split(',').collect() } else { vec![value.as_str()] };
        if !items.into_iter().all(is_word) {
            let message = format!(
                "Invalid value: `{}`: must be a word of letters, digits, '_', '-', '.' and '+'",
                value.escape_debug()
            );
            findings.add(&rules::SLURM_OPTION, &at.field(field), message);
        }
    }
    if job.gpu_type.is_some() && job.gpus_per_node.unwrap_or(0) == 0 {
        let message = "Invalid value: gives a type of GPU, but not how many";
        findings.add(&rules::SLURM_OPTION, &at.field("gpuType"), message).help("add gpusPerNode");
    }
    if let Some(folder) = &job.work_dir {
        let below = folder.strip_prefix('/').unwrap_or(folder);
        below_folder(below, "", &at.field("workDir"), findings);
    }
    if let Some(dependency) = job.dependency.as_ref().filter(|dependency| !is_word(&dependency.job)) {
        let message = format!("Invalid value: `{}`: not a valid Job name", dependency.job.escape_debug());
        findings.add(&rules::INVALID_NAME, &at.field("dependency").field("job"), message);
    }
    let extra = at.field("extraOptions");
    for (index, option) in job.extra_options.iter().enumerate() {
        extra_option(option, &extra.index(index), findings);
    }
    limits(job, at, findings);
    layout(job, at, findings);
    commands(job, at, findings);
    for (field, file) in [("outputFile", &job.output_file), ("errorFile", &job.error_file)] {
        if let Some(file) = file {
            log_file(file, &at.field(field), findings);
        }
    }
    let outputs = at.field("outputs");
    for (index, pattern) in job.outputs.iter().enumerate() {
        below_folder(pattern, "*?", &outputs.index(index), findings);
    }
}

/// Options of sbatch that change neither the commands, nor their output, nor how the job is tracked.
const EXTRA_OPTIONS: &[&str] = &[
    "bb",
    "begin",
    "cluster-constraint",
    "constraint",
    "contiguous",
    "core-spec",
    "cores-per-socket",
    "cpu-freq",
    "cpus-per-gpu",
    "deadline",
    "distribution",
    "exclude",
    "exclusive",
    "gpu-bind",
    "gpu-freq",
    "gpus",
    "gpus-per-socket",
    "gpus-per-task",
    "gres",
    "gres-flags",
    "hint",
    "hold",
    "licenses",
    "mail-type",
    "mail-user",
    "mem-bind",
    "mem-per-cpu",
    "mem-per-gpu",
    "mincpus",
    "network",
    "nice",
    "no-kill",
    "nodelist",
    "ntasks-per-core",
    "ntasks-per-gpu",
    "ntasks-per-socket",
    "overcommit",
    "oversubscribe",
    "power",
    "prefer",
    "priority",
    "profile",
    "propagate",
    "reboot",
    "reservation",
    "signal",
    "sockets-per-node",
    "spread-job",
    "switches",
    "thread-spec",
    "threads-per-core",
    "time-min",
    "tmp",
    "use-min-nodes",
    "wait-all-nodes",
    "wckey",
];

fn extra_option(option: &str, at: &Path<'_>, findings: &mut Findings) {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let known = name.strip_prefix("--").is_some_and(|name| EXTRA_OPTIONS.contains(&name));
    // No blank, quote, backslash or `#`, because sbatch splits its lines at these.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.,:@+/%*[]&|()=".contains(c);
    let fits = option.len() <= OPTION_MAX_BYTES
        && value.is_none_or(|value| !value.is_empty() && value.chars().all(is_plain));
    if known && fits {
        return;
    }
    let shown = option.escape_debug();
    let (message, help) = if known {
        (
            format!("Invalid value: `{shown}`: the value must be one word"),
            "write `--name=value`, without spaces or quotes",
        )
    } else {
        (
            format!("Invalid value: `{shown}`: not an allowed option"),
            "write `--name` or `--name=value`; most options have their own field in spec, see `minik8s explain job.spec`",
        )
    };
    findings.add(&rules::SLURM_OPTION, at, message).help(help);
}

fn limits(job: &JobSpec, at: &Path<'_>, findings: &mut Findings) {
    if let Some(memory) = job.memory.filter(|memory| *memory < MEMORY_MIN) {
        let message = format!("Invalid value: `{memory}`: less than {MEMORY_MIN}");
        findings
            .add(&rules::SLURM_OPTION, &at.field("memory"), message)
            .help("a number without a unit is bytes: write `4Gi`");
    }
    let is_time = |time: &&str| status::is_unlimited(time) || status::time_limit_seconds(time).is_some();
    if let Some(time) = job.time_limit.as_deref().filter(|time| !is_time(time)) {
        let message = format!("Invalid value: `{}`: not a Slurm time limit", time.escape_debug());
        findings.add(&rules::SLURM_OPTION, &at.field("timeLimit"), message).help(
            "write minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS or UNLIMITED, for example `02:00:00`",
        );
    }
    let Some(array) = &job.array else { return };
    let here = at.field("array");
    match status::array_tasks(array) {
        None => {
            let message = format!("Invalid value: `{}`: not a list of array indices", array.escape_debug());
            findings
                .add(&rules::SLURM_OPTION, &here, message)
                .help("for example `0-15`, `1,3,5-7`, `0-15:4` or `0-15%4`");
        }
        Some(tasks) if tasks > status::ARRAY_TASKS_DEFAULT_MAX => {
            let message = format!(
                "{tasks} tasks are more than the {} that Slurm accepts by default",
                status::ARRAY_TASKS_DEFAULT_MAX
            );
            findings.add(&rules::SLURM_LAYOUT, &here, message);
        }
        Some(_) => {}
    }
}

/// Reports numbers that Slurm rejects, or changes with only a line in its log.
fn layout(job: &JobSpec, at: &Path<'_>, findings: &mut Findings) {
    if let (Some(nodes), Some(tasks)) = (job.nodes, job.n_tasks)
        && nodes > tasks
    {
        let message = format!("{nodes} nodes for {tasks} tasks: Slurm uses only {tasks} nodes");
        findings.add(&rules::SLURM_LAYOUT, &at.field("nodes"), message);
    }
    let (Some(per_node), Some(tasks)) = (job.n_tasks_per_node, job.n_tasks) else { return };
    let here = at.field("nTasksPerNode");
    if per_node > tasks {
        let message =
            format!("{per_node} tasks per node are more than the job's {tasks} tasks: Slurm ignores it");
        findings.add(&rules::SLURM_LAYOUT, &here, message);
    } else if let Some(nodes) =
        job.nodes.filter(|nodes| u64::from(*nodes) * u64::from(per_node) < u64::from(tasks))
    {
        let message = format!(
            "Invalid value: {per_node}: {tasks} tasks do not fit on {nodes} nodes with {per_node} each"
        );
        findings.add(&rules::SLURM_OPTION, &here, message);
    }
}

fn commands(job: &JobSpec, at: &Path<'_>, findings: &mut Findings) {
    if job.run_commands.is_empty() {
        let message = "Required value: a job needs at least one command";
        findings.add(&rules::REQUIRED, &at.field("runCommands"), message);
    }
    for (field, commands) in [("compileCommands", &job.compile_commands), ("runCommands", &job.run_commands)]
    {
        let list = at.field(field);
        for (index, command) in commands.iter().enumerate() {
            let here = list.index(index);
            if command.trim().is_empty() {
                findings.add(&rules::REQUIRED, &here, "Required value: the command is empty");
            } else if command.contains(['\0', '\r']) {
                // sbatch refuses a script with either.
                let message = "Invalid value: must not contain NUL or carriage return";
                findings.add(&rules::SLURM_OPTION, &here, message);
            } else if command.lines().any(|line| line.trim_start().starts_with("#SBATCH")) {
                let message = "Invalid value: `#SBATCH` has no effect here";
                findings
                    .add(&rules::SLURM_OPTION, &here, message)
                    .help("write the option as a field of spec");
            }
        }
    }
}

/// Checks an output file with sbatch's patterns: `%` and one of its letters, optionally with a width.
fn log_file(file: &str, at: &Path<'_>, findings: &mut Findings) {
    let is_pattern = |rest: &str| {
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        rest.starts_with(['%', 'A', 'a', 'J', 'j', 'N', 'n', 's', 't', 'u', 'x'])
    };
    let known = file.replace("%%", "").split('%').skip(1).all(is_pattern);
    if !known {
        let message =
            format!("Invalid value: `{}`: `%` does not begin an sbatch pattern", file.escape_debug());
        findings.add(&rules::SLURM_OPTION, at, message).help("`%j` is the job's number, `%%` a `%`");
        return;
    }
    below_folder(file, "%", at, findings);
}

/// Checks a path below the job's folder, of characters without meaning to a shell or SFTP, and those in `also`.
fn below_folder(path: &str, also: &str, at: &Path<'_>, findings: &mut Findings) {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./+=@,:".contains(c) || also.contains(c);
    let why = if path.is_empty() || path.len() > OPTION_MAX_BYTES {
        format!("must be 1 to {OPTION_MAX_BYTES} bytes")
    } else if path.starts_with(['/', '-']) {
        "must be a path below the job's folder".to_owned()
    } else if path.split('/').any(|part| part == "..") {
        "must not contain '..'".to_owned()
    } else if let Some(bad) = path.chars().find(|c| !is_plain(*c)) {
        format!("must not contain {bad:?}")
    } else {
        return;
    };
    findings.add(&rules::INVALID_PATH, at, format!("Invalid value: `{}`: {why}", path.escape_debug()));
}

/// True for a name as Slurm's administrators assign it; never an option, never more than one word.
fn is_word(text: &str) -> bool {
    (1..=OPTION_MAX_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+'))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
}
