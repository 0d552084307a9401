//! Commands that run on login hosts, as text for a POSIX shell. Pure.
//!
//! Every value is in single quotes; in addition, names of jobs and patterns consist of checked characters.

use schema::kinds::job::{JobSpec, output_pattern};

use super::parse::{SACCT_FIELDS, SQUEUE_FIELDS};

/// Parent of the jobs' folders, unless the manifest names one.
const WORK_DIR: &str = "minik8s-jobs";
/// Exit code: Slurm did not answer.
pub const EXIT_SLURM: i32 = 75;
/// Seconds for which a submission without an outcome is left alone after its end: squeue lags by less.
const SUBMISSION_GRACE_SECONDS: u32 = 15;
/// Seconds for which a submission on another login host is left alone, as its end can't be observed: sbatch tries
/// for two minutes, and file attributes may be a minute old.
pub const SUBMISSION_MAX_SECONDS: u32 = 240;
/// Exit code: the job's folder is not on the login host.
pub const EXIT_NO_FOLDER: i32 = 66;
/// Maximum bytes of the names and numbers in one query: an argument has at most 128 KiB, and the shell gets the
/// whole command as one.
const QUESTION_MAX_BYTES: usize = 96 * 1024;
/// Planned size of the answer to one query: less than the 4 MiB that are read.
const ANSWER_PLANNED_BYTES: u64 = 3 << 20;
/// Bytes that squeue and sacct print per task, besides its name.
const ROW_BYTES: u64 = 220;

/// Clears variables on the login host that act as options of the programs: they would override the script.
const NO_OPTIONS: &str = "unset $(env | sed -n -E 's/^((SBATCH|SQUEUE|SACCT|SCANCEL)_[A-Za-z0-9_]*)=.*/\\1/p') SLURM_TIME_FORMAT 2>/dev/null || :\n";

/// Lock of a submission: a folder that names its holder, who touches it every second. `take` acquires it, also from
/// a dead holder; then `broken` is `yes`.
const LOCK: &str = r#"held() {
beat=$1/beat; [ -e "$beat" ] || beat=$1
touch "$1.now" || return 0
age=$(( $(stat -c %Y "$1.now") - $(stat -c %Y "$beat") )) || return 0
host= pid=0; read -r host pid 2>/dev/null < "$1/holder"
max=LOCK_MAX; [ "$host" != "$(uname -n)" ] || kill -0 "$pid" 2>/dev/null || max=LOCK_GRACE
[ "$age" -lt "$max" ]
}
take() {
mkdir "$1" 2>/dev/null || {
! held "$1" || return 1
mkdir "$1.break" 2>/dev/null || { find "$1.break" -maxdepth 0 -mmin +3 -exec rmdir {} + 2>/dev/null; return 1; }
if held "$1"; then rmdir "$1.break"; return 1; fi
rm -rf "$1"; mkdir "$1" 2>/dev/null; got=$?; rmdir "$1.break"
[ "$got" = 0 ] || return 1
broken=yes
}
echo "$(uname -n) $$" > "$1/holder"
}
"#;
/// Maximum bytes of a list of results.
pub const LIST_MAX_BYTES: usize = 256 * 1024;

/// A job on its login host.
#[derive(Debug, Clone)]
pub struct RemoteJob<'a> {
    pub spec: &'a JobSpec,
    /// Name in Slurm and of the folder.
    pub name: &'a str,
}

/// Quotes a word for the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Quotes a shell pattern in which only `*` and `?` are special.
fn pattern(text: &str) -> String {
    let mut parts = String::from("./");
    let mut plain = String::new();
    for c in text.chars() {
        if matches!(c, '*' | '?') {
            if !plain.is_empty() {
                parts.push_str(&quoted(&std::mem::take(&mut plain)));
            }
            parts.push(c);
        } else {
            plain.push(c);
        }
    }
    if !plain.is_empty() {
        parts.push_str(&quoted(&plain));
    }
    parts
}

/// Returns the folder of a job with this name in Slurm.
pub fn folder(spec: &JobSpec, name: &str) -> String {
    let folder = spec.work_dir.as_deref().unwrap_or(WORK_DIR);
    format!("{}/{name}", folder.trim_end_matches('/'))
}

fn work_dir(spec: &JobSpec) -> String {
    let folder = spec.work_dir.as_deref().unwrap_or(WORK_DIR);
    // Never parsed as an option.
    quoted(&if folder.starts_with('/') { folder.to_owned() } else { format!("./{folder}") })
}

/// Lists jobs with squeue, without the limit that would truncate the list of an array's tasks.
fn squeue(names: &[String]) -> String {
    let (names, fields) = (quoted(&names.join(",")), quoted(SQUEUE_FIELDS));
    format!("SLURM_BITSTR_LEN=0 squeue -h -t all --user=\"$(id -un)\" --name={names} -O {fields}")
}

/// Returns the bytes that both programs may print for a job with `tasks` tasks.
pub fn answer_bytes(name: &str, tasks: u32) -> u64 {
    2 * u64::from(tasks) * (ROW_BYTES + name.len() as u64)
}

/// Returns how many jobs go into each query: all into one, unless their names or the answer would be too long.
/// `jobs` holds names and task counts.
pub fn batch_sizes(jobs: &[(String, u32)]) -> Vec<usize> {
    let mut questions = Vec::new();
    let (mut count, mut asked, mut answered) = (0, 0, 0);
    for (name, tasks) in jobs {
        // A Slurm job number has at most ten digits.
        let (asks, answers) = (name.len() + 12, answer_bytes(name, *tasks));
        if count > 0 && (asked + asks > QUESTION_MAX_BYTES || answered + answers > ANSWER_PLANNED_BYTES) {
            questions.push(count);
            (count, asked, answered) = (0, 0, 0);
        }
        (count, asked, answered) = (count + 1, asked + asks, answered + answers);
    }
    questions.extend(Some(count).filter(|count| *count > 0));
    questions
}

fn lock() -> String {
    let (most, grace) = (SUBMISSION_MAX_SECONDS.to_string(), SUBMISSION_GRACE_SECONDS.to_string());
    LOCK.replace("LOCK_MAX", &most).replace("LOCK_GRACE", &grace)
}

/// Looks for jobs by name: numbers that a submission left in its folder, the output of squeue, and of sacct from a
/// given day on. If accounting does not answer, nothing is known of a job, so the command fails; a site without
/// accounting reports that.
pub fn look(spec: &JobSpec, names: &[String], since: Option<&str>) -> String {
    let (dir, list) = (work_dir(spec), names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(" "));
    let sacct = since.map(|since| {
        let (csv, since) = (quoted(&names.join(",")), quoted(since));
        format!(
            "echo '== sacct'\n\
             {{ said=$(sacct -nPX --name={csv} -S {since} -o {SACCT_FIELDS} 2>&1 >&3 3>&-); code=$?; }} 3>&1\n\
             case \"$code $said\" in '0 '*|'127 '*|*'accounting storage is disabled'*) ;;\n\
             *) echo \"$said\" >&2; exit {EXIT_SLURM};; esac\necho \"== $code\"\n"
        )
    });
    format!(
        "{NO_OPTIONS}if [ -d {dir} ]; then for n in {list}; do for f in id id.part; do f={dir}/\"$n\"/.minik8s/$f\n\
         [ ! -s \"$f\" ] || {{ echo \"$n $(cat \"$f\")\"; break; }}; done; done; fi\n\
         echo '== squeue'\n{squeue} || exit {EXIT_SLURM}\n{sacct}",
        squeue = squeue(names),
        sacct = sacct.unwrap_or_default(),
    )
}

/// Polls all jobs of a login host together.
pub fn poll(names: &[String], ids: &[u64]) -> String {
    let ids = ids.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    format!(
        "{NO_OPTIONS}echo '== squeue'\n{squeue}; echo \"== $?\"\n\
         echo '== sacct'\nsacct -nPX -j {ids} -o {SACCT_FIELDS} 2>/dev/null; echo \"== $?\"\n",
        squeue = squeue(names),
    )
}

/// Unpacks the archive on stdin, completely or not at all.
pub fn upload(place: &RemoteJob<'_>, digest: &str) -> String {
    let (dir, name, digest) = (work_dir(place.spec), quoted(place.name), quoted(digest));
    let part = quoted(&format!(".{}.part", place.name));
    format!(
        "set -eu\nmkdir -p {dir}\ncd {dir}\n\
         [ ! -e {name} ] || exit 0\n\
         rm -rf {part}\nmkdir {part}\ncat > {part}/.minik8s.tar\n\
         [ \"$(sha256sum < {part}/.minik8s.tar | cut -d ' ' -f 1)\" = {digest} ] || {{ echo 'the upload came damaged' >&2; exit 65; }}\n\
         tar -x -f {part}/.minik8s.tar -C {part}\nrm {part}/.minik8s.tar\n\
         # What the repository's folder has of these names says nothing of a submission.\n\
         rm -rf {part}/.minik8s/id {part}/.minik8s/lock\n\
         # File by file: all of a file system that others write to may take long.\n\
         find {part} ! -type l -exec sync {{}} + 2>/dev/null || sync\nmv {part} {name}\n"
    )
}

/// Submits the script on stdin in the job's folder, once: the result of a former submission counts, and one under
/// way is waited for. Prints `id NUMBER` or `busy`.
pub fn submit(place: &RemoteJob<'_>, digest: &str) -> String {
    let (dir, name, digest) = (work_dir(place.spec), quoted(place.name), quoted(digest));
    let lock = lock();
    format!(
        "{NO_OPTIONS}set -u\ntrap '' HUP PIPE\ncd {dir}/{name} || exit {EXIT_NO_FOLDER}\nmkdir -p .minik8s || exit 73\n{lock}\
         known() {{ for f in id id.part; do [ ! -s .minik8s/$f ] || {{ echo \"id $(cat .minik8s/$f)\"; exit 0; }}; done; }}\n\
         known\nbroken=no\ntake .minik8s/lock || {{ echo busy; exit 0; }}\nknown\n\
         cat > .minik8s/script.part\n\
         [ \"$(sha256sum < .minik8s/script.part | cut -d ' ' -f 1)\" = {digest} ] || {{ rm -rf .minik8s/lock; echo 'the script came damaged' >&2; exit 65; }}\n\
         mv .minik8s/script.part .minik8s/script.sh\n\
         # The one before may have submitted after it was looked for.\n\
         if [ $broken = yes ]; then\n\
         there=$(squeue -h -t all --user=\"$(id -un)\" --name={name} -o %F) || exit {EXIT_SLURM}\n\
         [ -z \"$there\" ] || {{ echo \"$there\" | sort -n | tail -n 1 > .minik8s/id; known; }}\n\
         fi\n\
         sbatch --parsable .minik8s/script.sh > .minik8s/id.part 2> .minik8s/sbatch.err < /dev/null & pid=$!\n\
         echo \"$(uname -n) $pid\" > .minik8s/lock/holder\n\
         while kill -0 $pid; do touch .minik8s/lock/beat; sleep 1; done > /dev/null 2>&1 < /dev/null & beat=$!\n\
         wait $pid; code=$?\nkill $beat 2>/dev/null\n\
         if [ $code = 0 ]; then sync .minik8s/id.part 2>/dev/null; mv .minik8s/id.part .minik8s/id; known; fi\n\
         rm -f .minik8s/id.part; cat .minik8s/sbatch.err >&2; exit $code\n"
    )
}

/// Releases the lock of a submission that Slurm refused.
pub fn unlock(place: &RemoteJob<'_>) -> String {
    let (dir, name) = (work_dir(place.spec), quoted(place.name));
    format!("rm -rf {dir}/{name}/.minik8s/lock\n")
}

/// Cancels all attempts and removes their folders. Prints `gone`, or `alive` while Slurm has one of them or one is
/// being submitted.
pub fn delete(spec: &JobSpec, names: &[String]) -> String {
    let (dir, list) = (work_dir(spec), names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(" "));
    format!(
        "{NO_OPTIONS}set -u\nuser=$(id -un)\n{lock}\
         # No submission begins in a folder that is out of the way, and one that began ends before Slurm is asked.\n\
         for n in {list}; do gone={dir}/\".$n.gone\"\n\
         [ ! -d {dir}/\"$n\" ] || [ -e \"$gone\" ] || mv {dir}/\"$n\" \"$gone\" || exit 73\n\
         [ -d \"$gone\" ] || continue\n\
         mkdir -p \"$gone/.minik8s\"\n\
         [ -s \"$gone/.minik8s/id\" ] || [ -e \"$gone/.minik8s/ours\" ] || take \"$gone/.minik8s/lock\" || {{ echo alive; exit 0; }}\n\
         : > \"$gone/.minik8s/ours\"\ndone\n\
         for n in {list}; do scancel --quiet --user=\"$user\" --name=\"$n\" || exit {EXIT_SLURM}; done\n\
         live=$(squeue -h --user=\"$user\" --name={csv} -o %i) || exit {EXIT_SLURM}\n\
         [ -z \"$live\" ] || {{ echo alive; exit 0; }}\n\
         for n in {list}; do\n\
         rm -rf {dir}/\".$n.gone\" {dir}/\".$n.part\" || exit 73\n\
         [ ! -e {dir}/\"$n\" ] || {{ echo alive; exit 0; }}\n\
         done\necho gone\n",
        lock = lock(),
        csv = quoted(&names.join(",")),
    )
}

/// Removes the files of all attempts, but keeps the evidence of their submission.
pub fn clean(spec: &JobSpec, names: &[String]) -> String {
    let (dir, list) = (work_dir(spec), names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(" "));
    format!(
        "for n in {list}; do [ ! -d {dir}/\"$n\" ] ||\n\
         find {dir}/\"$n\" -mindepth 1 -maxdepth 1 ! -name .minik8s -exec rm -rf -- {{}} + || exit 73\ndone\n"
    )
}

/// Creates a file of this name in the parent of the jobs' folders.
pub fn leave_marker(spec: &JobSpec, marker: &str) -> String {
    let (dir, marker) = (work_dir(spec), quoted(marker));
    format!(
        "mkdir -p {dir} && : > {dir}/{marker} && sync -f {dir}/{marker} 2>/dev/null || [ -e {dir}/{marker} ]\n"
    )
}

/// Exits with 0 if that file exists, after some seconds with 1 if not: file systems of several hosts may lag.
pub fn find_marker(spec: &JobSpec, marker: &str) -> String {
    let (dir, marker) = (work_dir(spec), quoted(marker));
    format!(
        "for i in 1 2 3 4; do ls -a {dir} > /dev/null 2>&1; [ ! -e {dir}/{marker} ] || exit 0; sleep 1; done; exit 1\n"
    )
}

/// Removes the marker.
pub fn remove_marker(spec: &JobSpec, marker: &str) -> String {
    format!("rm -f {}/{}\n", work_dir(spec), quoted(marker))
}

/// Lists the files to fetch: `KIND SIZE PATH`, each terminated by NUL, with the kinds `o`, `e` and `f`. The list
/// ends with `more COUNT`, the number of entries without room, including one that is cut off. Exits with
/// [`EXIT_NO_FOLDER`] if only the job's own folder is missing.
pub fn list(place: &RemoteJob<'_>, slurm_id: u64) -> String {
    let spec = place.spec;
    let (dir, name) = (work_dir(spec), quoted(place.name));
    let mut text = format!("cd {dir} || exit 65\ncd {name} || exit {EXIT_NO_FOLDER}\n{{\n");
    let stream = |file: &Option<String>| {
        file.as_ref().map(|file| pattern(&output_pattern(file, slurm_id, place.name))).unwrap_or_default()
    };
    let outputs = spec.outputs.iter().map(|output| pattern(output)).collect::<Vec<_>>().join(" ");
    for (kind, patterns) in
        [("o", stream(&spec.output_file)), ("e", stream(&spec.error_file)), ("f", outputs)]
    {
        if !patterns.is_empty() {
            text.push_str(&format!(
                "for p in {patterns}; do [ ! -e \"$p\" ] || find \"$p\" -type f -printf '{kind} %s %p\\0'; done\n"
            ));
        }
    }
    text.push_str(&format!(
        "}} | {{ head -c {LIST_MAX_BYTES}; printf '\\0more %s\\0' \"$(tr -cd '\\0' | wc -c)\"; }}\n"
    ));
    text
}

/// Prints a job's output so far: with several files, each after its name. At most `max` bytes of each, from a byte
/// on or at its end.
pub fn written(
    place: &RemoteJob<'_>,
    slurm_id: u64,
    stderr: bool,
    (from, max): (Option<u64>, u64),
) -> String {
    let spec = place.spec;
    let (dir, name) = (work_dir(spec), quoted(place.name));
    let file = if stderr { spec.error_file.as_ref() } else { spec.output_file.as_ref() };
    let files = file.map(|file| pattern(&output_pattern(file, slurm_id, place.name))).unwrap_or_default();
    let part = match from {
        Some(from) => format!("tail -c +{} -- \"$p\" | head -c {max}", from.saturating_add(1)),
        None => format!("tail -c {max} -- \"$p\""),
    };
    format!(
        "cd {dir}/{name} || exit {EXIT_NO_FOLDER}\nset -- {files}\nfor p in \"$@\"; do [ -f \"$p\" ] || continue\n\
         [ $# -lt 2 ] || printf '==> %s <==\\n' \"${{p#./}}\"\n{part}\ndone\n"
    )
}

/// Prints the beginning of a file of the job.
pub fn read(place: &RemoteJob<'_>, path: &str, max: u64) -> String {
    let (dir, name) = (work_dir(place.spec), quoted(place.name));
    format!("cd {dir}/{name} && head -c {max} -- {}\n", quoted(&format!("./{path}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_in_the_environment_of_the_login_host_do_not_count() {
        let text =
            format!("{NO_OPTIONS}echo \"${{SBATCH_ACCOUNT-none}} ${{SQUEUE_STATES-none}} $SLURM_CONF\"");
        let mut sh = std::process::Command::new("sh");
        sh.args(["-c", &text])
            .env("SBATCH_ACCOUNT", "other")
            .env("SQUEUE_STATES", "PD")
            .env("SLURM_CONF", "/x");
        assert_eq!(String::from_utf8(sh.output().unwrap().stdout).unwrap(), "none none /x\n");
    }

    // Seen red with a single query for all.
    #[test]
    fn a_question_has_as_many_jobs_as_its_names_and_its_answer_allow() {
        let jobs = |count: usize, bytes: usize, tasks: u32| vec![("n".repeat(bytes), tasks); count];
        assert_eq!(batch_sizes(&jobs(200, 140, 1)), [200]);
        assert!(batch_sizes(&[]).is_empty());
        for (jobs, at_least) in [(jobs(3000, 140, 1), 4), (jobs(40, 60, 1001), 7), (jobs(2, 60, 100_000), 2)]
        {
            let questions = batch_sizes(&jobs);
            assert_eq!(questions.iter().sum::<usize>(), jobs.len());
            assert!(questions.len() >= at_least, "{questions:?}");
            let (name, tasks) = &jobs[0];
            for count in questions {
                let names = vec![name.clone(); count];
                assert!(poll(&names, &vec![u64::from(u32::MAX); count]).len() < 128 * 1024);
                assert!(count == 1 || count as u64 * answer_bytes(name, *tasks) < 4 << 20);
            }
        }
    }

    #[test]
    fn no_value_leaves_its_quotes() {
        for (text, expected) in [
            ("a", "'a'"),
            ("$(reboot)", "'$(reboot)'"),
            ("it's", "'it'\\''s'"),
            ("-rf", "'-rf'"),
            ("a\nb;c", "'a\nb;c'"),
        ] {
            assert_eq!(quoted(text), expected);
        }
        assert_eq!(pattern("slurm-*.out"), "./'slurm-'*'.out'");
        assert_eq!(pattern("$(x)?"), "./'$(x)'?");
        let spec = JobSpec { work_dir: Some("-rf".into()), ..JobSpec::default() };
        assert_eq!(work_dir(&spec), "'./-rf'");
    }
}
