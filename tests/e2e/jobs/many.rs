//! Many jobs on one login host, and jobs with values that have a meaning in a shell.

use harness::{Change, Result, ensure, eventually, secs};
use schema::kinds::job::JobPhase;

use super::with_slurm;

/// Jobs that wait in Slurm's queue.
const JOBS: usize = 200;

/// Values that a shell, sbatch or ssh could interpret.
const HOSTILE: [&str; 9] = [
    "$(touch CANARY)",
    "`touch CANARY`",
    "a; touch CANARY",
    "a'; touch CANARY; '",
    "a\\n#SBATCH --wrap=x\\ntouch CANARY",
    "-oProxyCommand=touch CANARY",
    "a\\r\\nb",
    "a\\0b",
    "../../CANARY",
];

/// Single-text fields of a job, as YAML with `VALUE` as placeholder.
const FIELDS: [&str; 16] = [
    "files: VALUE",
    "workDir: VALUE",
    "partition: VALUE",
    "account: VALUE",
    "qos: VALUE",
    "gpuType: VALUE\n  gpusPerNode: 1",
    "timeLimit: VALUE",
    "array: VALUE",
    "dependency: {job: VALUE}",
    "extraOptions: [VALUE]",
    "extraOptions: [--comment=VALUE]",
    "outputFile: VALUE",
    "errorFile: VALUE",
    "outputs: [VALUE]",
    "login: {host: VALUE}",
    "login: {username: VALUE}",
];

#[test]
fn two_hundred_queued_jobs_are_one_question_and_hostile_values_do_nothing() -> Result<()> {
    with_slurm(|site| {
        let hold = "  runCommands: [\"true\"]\n  extraOptions: [--hold]\n";
        let jobs: Vec<Change> = (0..JOBS).map(|job| site.manifest(&format!("held{job}"), hold)).collect();
        site.cluster.push(&jobs, "Two hundred jobs")?;
        eventually("all of them are queued", secs(240), || {
            let queued = site.slurm.slurm("squeue", &["-h", "-o", "%j"])?.lines().count();
            ensure!(queued == JOBS, "{queued}");
            site.report(&format!("held{}", JOBS - 1)).map(drop)
        })?;
        // The calls must not grow with the number of jobs: no job queries Slurm by itself.
        let begun = std::time::Instant::now();
        let before = calls(site);
        hostile(site)?;
        let (asked, most) = (calls(site) - before, begun.elapsed().as_secs() / 2 + 2);
        ensure!((1..=most).contains(&asked), "{asked} calls of sacct in {:?}", begun.elapsed());
        println!("{JOBS} queued jobs: {asked} calls of sacct in {:?}", begun.elapsed());
        Ok(())
    })
}

fn calls(site: &super::Site<'_>) -> u64 {
    site.slurm.calls("sacct").iter().filter(|call| call.starts_with("begin")).count() as u64
}

/// Puts each value in each field, and in a command, where it stays literal.
fn hostile(site: &mut super::Site<'_>) -> Result<()> {
    let canary = site.cluster.dir("canary");
    let mut files = Vec::new();
    for (number, field) in FIELDS.iter().enumerate() {
        for (which, value) in HOSTILE.iter().enumerate() {
            let value = value.replace("CANARY", &canary.display().to_string());
            let name = format!("bad{number}-{which}");
            let mut spec = String::from("  runCommands: [\"true\"]\n  ");
            spec.push_str(&field.replace("VALUE", &format!("\"{value}\"")));
            spec.push('\n');
            let whole = site.manifest(&name, &spec);
            files.push(if field.starts_with("workDir") { without_work_dir(&name, &spec) } else { whole });
        }
    }
    let large = format!("  runCommands: [\"# {}\"]\n", "x".repeat((4 << 20) + 1));
    files.push(site.manifest("large", &large));
    // Commands are the author's script: quotes and everything else stay literal.
    let plain = "  runCommands:\n  - |\n    echo \"it's $((1 + 1))\" '$(no)' \\\n      -x\n  - \"echo 'a'\\necho b\"\n";
    files.push(site.manifest("plain", plain));
    let commit = site.cluster.push(&files, "Hostile values")?;
    site.cluster.applied(&commit)?;
    site.reaches("plain", JobPhase::Succeeded)?;
    let said = site.cluster.cli(&["logs", "job/plain"])?.ok()?;
    ensure!(said == "it's 2 $(no) -x\na\nb\n", "{said}");
    // A hostile value that is accepted must reach Slurm as a value.
    let table = site.cluster.cli(&["get", "jobs"])?.ok()?;
    ensure!(table.lines().any(|line| line.starts_with("plain ")), "{table}");
    let taken: Vec<&str> = table.lines().filter(|line| line.starts_with("bad")).collect();
    println!("taken: {taken:?}");
    for line in taken {
        let name = line.split_whitespace().next().unwrap_or_default();
        eventually(&format!("{name} is refused by Slurm, or waits"), secs(60), || {
            let status = site.report(name)?.status;
            ensure!(!status.reason.is_empty() || status.phase.is_final(), "{status:?}");
            Ok(())
        })?;
    }
    ensure!(!canary.exists(), "a value was carried out");
    ensure!(site.report("large").is_err(), "a script that Slurm can't take was sent");
    Ok(())
}

fn without_work_dir(name: &str, spec: &str) -> Change {
    let text = format!("apiVersion: minik8s.io/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n{spec}");
    Change::write(format!("jobs/{name}.yaml"), text)
}
