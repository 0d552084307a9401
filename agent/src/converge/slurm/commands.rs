//! The commands that run on login hosts, as text for a POSIX shell. Pure.
//!
//! Every value stands between single quotes; names of jobs and patterns consist of checked characters besides.

use schema::kinds::job::{JobSpec, output_pattern};

use super::parse::{SACCT_FIELDS, SQUEUE_FIELDS};

/// The folder with the jobs' folders, unless the manifest names one.
const WORK_DIR: &str = "minik8s-jobs";
/// Slurm did not answer.
pub const EXIT_SLURM: i32 = 75;
/// Seconds for which a submission that has no outcome is left alone: sacct lags by less.
const SUBMISSION_GRACE_SECONDS: u32 = 15;
/// Most bytes of a list of results.
const LIST_MAX_BYTES: u64 = 256 * 1024;

/// A job on its login host.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    pub spec: &'a JobSpec,
    /// Its name in Slurm, and that of its folder.
    pub name: &'a str,
}

/// A word that the shell takes as it is.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A pattern of a shell in which `*` and `?` alone have a meaning.
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

fn work_dir(spec: &JobSpec) -> String {
    let folder = spec.work_dir.as_deref().unwrap_or(WORK_DIR);
    // Never an option.
    quoted(&if folder.starts_with('/') { folder.to_owned() } else { format!("./{folder}") })
}

fn squeue(names: &[String]) -> String {
    let names = quoted(&names.join(","));
    let fields = quoted(SQUEUE_FIELDS);
    format!("squeue -h -t all --user=\"$(id -un)\" --name={names} -O {fields}")
}

/// Looks for jobs by their names: numbers that a submission left in its folder, what squeue and sacct say.
pub fn look(spec: &JobSpec, names: &[String], since: &str) -> String {
    let (dir, list) = (work_dir(spec), names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(" "));
    format!(
        "if [ -d {dir} ]; then for n in {list}; do id=$(cat {dir}/\"$n\"/.minik8s/id 2>/dev/null) && echo \"$n $id\"; done; fi\n\
         echo '== squeue'\n{squeue} || exit {EXIT_SLURM}\n\
         echo '== sacct'\nsacct -nPX --name={csv} -S {since} -o {SACCT_FIELDS} 2>/dev/null; echo \"== $?\"\n",
        squeue = squeue(names),
        csv = quoted(&names.join(",")),
        since = quoted(since),
    )
}

/// Asks for all jobs of a login host at once.
pub fn poll(names: &[String], ids: &[u64]) -> String {
    let ids = ids.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    format!(
        "echo '== squeue'\n{squeue}; echo \"== $?\"\n\
         echo '== sacct'\nsacct -nPX -j {ids} -o {SACCT_FIELDS} 2>/dev/null; echo \"== $?\"\n",
        squeue = squeue(names),
    )
}

/// Unpacks the archive that it reads, as a whole or not at all.
pub fn upload(place: &Place<'_>, digest: &str) -> String {
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
         sync -f {part} 2>/dev/null || sync\nmv {part} {name}\n"
    )
}

/// Submits the script in the job's folder, once: what another submission left counts, and one that is under way is
/// waited for. Prints `id NUMBER` or `busy`.
pub fn submit(place: &Place<'_>) -> String {
    let (dir, name) = (work_dir(place.spec), quoted(place.name));
    format!(
        "set -u\ncd {dir}/{name} || exit 66\n\
         if [ -s .minik8s/id ]; then echo \"id $(cat .minik8s/id)\"; exit 0; fi\n\
         if ! mkdir .minik8s/lock 2>/dev/null; then\n\
         age=$(( $(date +%s) - $(stat -c %Y .minik8s/lock) )) || exit 66\n\
         if [ \"$age\" -lt {SUBMISSION_GRACE_SECONDS} ] || kill -0 \"$(cat .minik8s/lock/pid 2>/dev/null || echo 0)\" 2>/dev/null; then echo busy; exit 0; fi\n\
         mv .minik8s/lock .minik8s/lock.$$ && rm -rf .minik8s/lock.$$ && mkdir .minik8s/lock || {{ echo busy; exit 0; }}\n\
         fi\n\
         echo $$ > .minik8s/lock/pid\n\
         trap '' HUP PIPE\n\
         sbatch --parsable .minik8s/script.sh > .minik8s/id.part 2> .minik8s/sbatch.err\ncode=$?\n\
         if [ $code = 0 ]; then sync .minik8s/id.part 2>/dev/null; mv .minik8s/id.part .minik8s/id; echo \"id $(cat .minik8s/id)\"; exit 0; fi\n\
         cat .minik8s/sbatch.err >&2\nexit $code\n"
    )
}

/// Gives a submission free that Slurm refused.
pub fn unlock(place: &Place<'_>) -> String {
    let (dir, name) = (work_dir(place.spec), quoted(place.name));
    format!("rm -rf {dir}/{name}/.minik8s/lock\n")
}

/// Cancels all attempts and removes their folders. Prints `gone`, or `alive` while Slurm has one of them.
pub fn delete(spec: &JobSpec, names: &[String]) -> String {
    let (dir, list) = (work_dir(spec), names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(" "));
    format!(
        "set -u\nuser=$(id -un)\n\
         # Out of the way first: no submission begins in it any more.\n\
         if [ -d {dir} ]; then for n in {list}; do [ ! -d {dir}/\"$n\" ] || mv {dir}/\"$n\" {dir}/\".$n.gone\"; done; fi\n\
         for n in {list}; do scancel --quiet --user=\"$user\" --name=\"$n\" || exit {EXIT_SLURM}; done\n\
         live=$(squeue -h --user=\"$user\" --name={csv} -o %i) || exit {EXIT_SLURM}\n\
         [ -z \"$live\" ] || {{ echo alive; exit 0; }}\n\
         if [ -d {dir} ]; then for n in {list}; do\n\
         lock={dir}/\".$n.gone/.minik8s/lock\"\n\
         if [ -s \"$lock/pid\" ] && [ ! -e {dir}/\".$n.gone/.minik8s/id\" ] && kill -0 \"$(cat \"$lock/pid\")\" 2>/dev/null; then echo alive; exit 0; fi\n\
         rm -rf {dir}/\".$n.gone\" {dir}/\".$n.part\" || exit 73\n\
         done; fi\necho gone\n",
        csv = quoted(&names.join(",")),
    )
}

/// Lists what is to be fetched: `KIND SIZE PATH`, each ended by NUL, with the kinds `o`, `e` and `f`.
pub fn list(place: &Place<'_>, slurm_id: u64) -> String {
    let spec = place.spec;
    let (dir, name) = (work_dir(spec), quoted(place.name));
    let mut text = format!("cd {dir}/{name} || exit 66\n{{\n");
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
    text.push_str(&format!("}} | head -c {LIST_MAX_BYTES}\n"));
    text
}

/// The end of what a job has written so far: of several files, each behind its name.
pub fn written(place: &Place<'_>, slurm_id: u64, stderr: bool, max: u64) -> String {
    let spec = place.spec;
    let (dir, name) = (work_dir(spec), quoted(place.name));
    let file = if stderr { spec.error_file.as_ref() } else { spec.output_file.as_ref() };
    let files = file.map(|file| pattern(&output_pattern(file, slurm_id, place.name))).unwrap_or_default();
    format!(
        "cd {dir}/{name} || exit 66\nset -- {files}\nfor p in \"$@\"; do [ -f \"$p\" ] || continue\n\
         [ $# -lt 2 ] || printf '==> %s <==\\n' \"${{p#./}}\"\ntail -c {max} -- \"$p\"\ndone\n"
    )
}

/// The beginning of a file of the job.
pub fn read(place: &Place<'_>, path: &str, max: u64) -> String {
    let (dir, name) = (work_dir(place.spec), quoted(place.name));
    format!("cd {dir}/{name} && head -c {max} -- {}\n", quoted(&format!("./{path}")))
}

#[cfg(test)]
mod tests {
    use super::*;

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
