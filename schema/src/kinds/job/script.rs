//! Batch script of a job. Pure: the agent submits the script that `describe` shows.
//!
//! Values of the manifest are in `#SBATCH` lines, and `validate.rs` restricts them to words without blanks and
//! quotes. The commands are included as written, since they are the user's own script. Each is evaluated as a
//! separate script, so that a quote or a here-document that it leaves open does not swallow the next one, and its
//! exit code is checked.

use super::JobSpec;

/// Parts of the script that are not in the manifest.
#[derive(Debug, Clone, Copy)]
pub struct Submission<'a> {
    /// Slurm's name for the job, unique to this attempt.
    pub name: &'a str,
    /// Namespace and name of the object.
    pub job: &'a str,
    /// Slurm's number of the job to wait for.
    pub after: Option<u64>,
}

/// Exits with the exit code of the preceding command if that failed.
const CHECK: &str = "(exit $?) || exit $?";

/// Quotes a command as one word of the shell. No other program receives it: if that were missing, or a disk full,
/// the command would be skipped.
fn quoted(command: &str) -> String {
    format!("'{}'", command.trim_end_matches('\n').replace('\'', r"'\''"))
}

/// Returns the script of a job, whose spec has its defaults.
pub fn script(spec: &JobSpec, submission: Submission<'_>) -> String {
    let mut text = String::from("#!/bin/bash\n");
    for (option, value) in options(spec, submission) {
        let value = value.map(|value| format!("={value}")).unwrap_or_default();
        text.push_str(&format!("#SBATCH --{option}{value}\n"));
    }
    for option in &spec.extra_options {
        text.push_str(&format!("#SBATCH {option}\n"));
    }
    text.push_str(&format!("\n# Job {} of Minik8s, as its manifest says.\nset -e\n", submission.job));
    text.push_str("# Each command is checked besides: set -e does not see that 'false && true' failed.\n");
    for (title, commands) in
        [("compileCommands", &spec.compile_commands), ("runCommands", &spec.run_commands)]
    {
        if !commands.is_empty() {
            text.push_str(&format!("\n# {title}\n"));
        }
        for command in commands {
            text.push_str(&format!("eval -- {}\n{CHECK}\n", quoted(command)));
        }
    }
    text
}

fn options(spec: &JobSpec, submission: Submission<'_>) -> Vec<(&'static str, Option<String>)> {
    let mut options = vec![("job-name", Some(submission.name.to_owned()))];
    let mut with = |option, value: Option<String>| options.extend(value.map(|value| (option, Some(value))));
    with("output", spec.output_file.clone());
    with("error", spec.error_file.clone());
    with("partition", spec.partition.clone());
    with("account", spec.account.clone());
    with("qos", spec.qos.clone());
    with("nodes", spec.nodes.map(|nodes| nodes.to_string()));
    with("ntasks", spec.n_tasks.map(|tasks| tasks.to_string()));
    with("ntasks-per-node", spec.n_tasks_per_node.map(|tasks| tasks.to_string()));
    with("cpus-per-task", spec.cpus_per_task.map(|cores| cores.to_string()));
    let gpus = spec.gpus_per_node.filter(|gpus| *gpus > 0);
    let kind = spec.gpu_type.iter().map(|kind| format!("{kind}:")).collect::<String>();
    with("gres", gpus.map(|gpus| format!("gpu:{kind}{gpus}")));
    with("mem", spec.memory.map(|memory| format!("{}M", memory.bytes.div_ceil(1 << 20))));
    with("time", spec.time_limit.clone());
    with("array", spec.array.clone());
    if let (Some(dependency), Some(after)) = (&spec.dependency, submission.after) {
        with("dependency", Some(format!("{}:{after}", dependency.kind.as_str())));
        // Otherwise the job would be pending forever.
        with("kill-on-invalid-dep", Some("yes".to_owned()));
    }
    // The agent requeues jobs itself and counts the attempts, so Slurm must not.
    options.push(("no-requeue", None));
    options
}

/// Returns the shell pattern of the files that sbatch's file pattern produces for the job with this number.
pub fn output_pattern(file: &str, slurm_id: u64, name: &str) -> String {
    let mut pattern = String::new();
    let mut rest = file;
    while let Some((before, after)) = rest.split_once('%') {
        pattern.push_str(before);
        let letter = after.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_plain = letter.len() == after.len();
        match letter.chars().next() {
            Some('%') => pattern.push('%'),
            Some('A') if is_plain => pattern.push_str(&slurm_id.to_string()),
            Some('x') => pattern.push_str(name),
            _ => pattern.push('*'),
        }
        rest = letter.get(1..).unwrap_or_default();
    }
    pattern.push_str(rest);
    pattern
}

#[cfg(test)]
mod tests {
    use super::super::{DependencyType, JobDependency};
    use super::*;
    use crate::quantity::Memory;

    fn submission() -> Submission<'static> {
        Submission { name: "default.matrix.0123abcd.1", job: "default/matrix", after: Some(41) }
    }

    #[test]
    fn a_job_with_every_field() {
        let spec = JobSpec {
            partition: Some("gpu,debug".into()),
            account: Some("physics".into()),
            qos: Some("high".into()),
            nodes: Some(2),
            n_tasks: Some(4),
            n_tasks_per_node: Some(2),
            cpus_per_task: Some(3),
            gpus_per_node: Some(1),
            gpu_type: Some("a100".into()),
            memory: Some(Memory { bytes: (512 << 20) + 1 }),
            time_limit: Some("00:10:00".into()),
            array: Some("0-15%4".into()),
            dependency: Some(JobDependency { job: "first".into(), kind: DependencyType::AfterAny }),
            extra_options: vec!["--exclusive".into(), "--constraint=fast".into()],
            compile_commands: vec!["make".into()],
            run_commands: vec!["echo \"$(hostname)\" 'a'\n".into(), "exit 3".into()],
            output_file: Some("out-%j".into()),
            error_file: Some("err-%j".into()),
            ..JobSpec::default()
        };
        let expected = "\
#!/bin/bash
#SBATCH --job-name=default.matrix.0123abcd.1
#SBATCH --output=out-%j
#SBATCH --error=err-%j
#SBATCH --partition=gpu,debug
#SBATCH --account=physics
#SBATCH --qos=high
#SBATCH --nodes=2
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=3
#SBATCH --gres=gpu:a100:1
#SBATCH --mem=513M
#SBATCH --time=00:10:00
#SBATCH --array=0-15%4
#SBATCH --dependency=afterany:41
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --no-requeue
#SBATCH --exclusive
#SBATCH --constraint=fast

# Job default/matrix of Minik8s, as its manifest says.
set -e
# Each command is checked besides: set -e does not see that 'false && true' failed.

# compileCommands
eval -- 'make'
(exit $?) || exit $?

# runCommands
eval -- 'echo \"$(hostname)\" '\\''a'\\'''
(exit $?) || exit $?
eval -- 'exit 3'
(exit $?) || exit $?
";
        assert_eq!(script(&spec, submission()), expected);
    }

    #[test]
    fn what_a_job_does_not_say_is_left_to_slurm() {
        let spec = JobSpec { run_commands: vec!["true".into()], ..JobSpec::default() };
        let expected = "#!/bin/bash\n#SBATCH --job-name=default.matrix.0123abcd.1\n#SBATCH --no-requeue\n\n\
                        # Job default/matrix of Minik8s, as its manifest says.\nset -e\n";
        let text = script(&spec, submission());
        assert!(text.starts_with(expected) && text.contains("\neval -- 'true'\n"), "{text}");
    }

    /// Runs a job with these commands in bash. Returns the output and the exit code.
    fn run(commands: &[&str]) -> (String, Option<i32>) {
        let run_commands = commands.iter().map(|&command| command.to_owned()).collect();
        let text = script(&JobSpec { run_commands, ..JobSpec::default() }, submission());
        let output = std::process::Command::new("bash").args(["-c", &text]).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.code())
    }

    // Seen red with `set -e` alone: the result of `false && true`, and the last line of a here-document, were not
    // checked.
    #[test]
    fn the_first_command_that_fails_ends_the_job_with_its_exit_code() {
        let swallowed = "cat <<EOF\na\nb";
        for (commands, said, code) in [
            (vec!["false && true", "echo next"], "", 1),
            (vec!["(exit 7) && true", "echo next"], "", 7),
            (vec!["f() { return 5; }", "f && echo ok", "echo next"], "", 5),
            (vec!["if true; then (exit 9) && true; fi", "echo next"], "", 9),
            (vec!["echo a; (exit 4)\necho b", "echo next"], "a\n", 4),
            (vec!["set +e", "exit_with() { return 6; }; exit_with", "echo next"], "", 6),
            (vec!["cat > /dev/null <<EOF && false\nx\nEOF", "echo next"], "", 1),
            (vec!["echo 'open", "echo next"], "", 2),
            (vec!["exit 3", "echo next"], "", 3),
            (vec!["kill -9 $$", "echo next"], "", -1),
            // Successful commands continue, in one shell.
            (vec!["cd / && v=1", "echo $PWD $v \\", "[ $v = 1 ] || false"], "/ 1 \\\n", 0),
            (
                vec!["false || true", "! false", "echo $(( 1 + 1 )) '$(no)' `echo x` \\$v"],
                "2 $(no) x $v\n",
                0,
            ),
            (vec![swallowed, "echo next"], "a\nb\nnext\n", 0),
            // A command is never an option of eval.
            (vec!["-x", "echo next"], "", 127),
            // A command can't keep the next one from being read.
            (vec!["export PATH=/nonexistent", "echo next; exit 9"], "next\n", 9),
            (vec!["cat() { return 1; }", "ulimit -f 0", "echo next; exit 9"], "next\n", 9),
        ] {
            let (printed, ended) = run(&commands);
            assert_eq!((printed.as_str(), ended.unwrap_or(-1)), (said, code), "{commands:?}");
        }
    }

    #[test]
    fn names_of_output_files_become_patterns_that_find_them() {
        for (file, pattern) in [
            ("slurm-%j.out", "slurm-*.out"),
            ("slurm-%A_%a.out", "slurm-7_*.out"),
            ("%x/100%%-%5j", "n/100%-*"),
            ("plain.txt", "plain.txt"),
        ] {
            assert_eq!(output_pattern(file, 7, "n"), pattern, "{file}");
        }
    }
}
