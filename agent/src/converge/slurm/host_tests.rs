//! Effects on the login host itself: locks, folders, unreadable files.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use schema::kinds::job::{DependencyType, FailureClass, JobDependency};
use schema::records::{JobDependencyState, JobOrder};

use super::commands::{self, LIST_MAX_BYTES};
use super::machine::{JobRecord, JobState, JobStep};
use super::parse::{EndKind, Facts};
use super::tests::{Site, at};
use crate::worlds::ssh::SshError;

/// An uploaded job, with its folder.
async fn uploaded(site: &Site) -> (JobRecord, PathBuf) {
    let mut record = site.record();
    for _ in 0..2 {
        site.step(&mut record, at(1), &[]).await;
    }
    assert_eq!(record.state, JobState::Submitting, "{record:?}");
    let folder = site.home().join("minik8s-jobs").join(record.slurm_name());
    (record, folder)
}

/// Leaves the lock of a submission whose holder last touched it `age` seconds ago.
fn lock(folder: &std::path::Path, host: &str, pid: u32, age: u32) {
    let lock = folder.join(".minik8s/lock");
    fs::create_dir_all(&lock).unwrap();
    fs::write(lock.join("holder"), format!("{host} {pid}\n")).unwrap();
    let touch =
        Command::new("touch").args(["-d", &format!("-{age} seconds")]).arg(lock.join("beat")).status();
    assert!(touch.unwrap().success());
}

fn this_host() -> String {
    String::from_utf8(Command::new("uname").arg("-n").output().unwrap().stdout).unwrap().trim().to_owned()
}

/// Id of a process that has ended.
fn dead() -> u32 {
    let mut child = Command::new("true").process_group(0).spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

#[tokio::test]
async fn a_submission_waits_for_the_one_that_is_under_way() {
    let here = this_host();
    let alive = std::process::id();
    for (host, pid, age, goes_on) in [
        (here.as_str(), alive, 100, false),
        (here.as_str(), dead(), 5, false),
        (here.as_str(), dead(), 20, true),
        // The heartbeat is all that is known of a process on another host.
        ("elsewhere", dead(), 100, false),
        ("elsewhere", alive, 300, true),
    ] {
        let site = Site::new();
        let (mut record, folder) = uploaded(&site).await;
        lock(&folder, host, pid, age);
        site.step(&mut record, at(2), &[]).await;
        assert_eq!(record.state == JobState::Submitted, goes_on, "{host} {age}: {record:?}");
        assert_eq!(site.submitted(), usize::from(goes_on));
    }
}

#[tokio::test]
async fn a_lock_whose_holder_submitted_before_it_died_leads_to_its_job() {
    // The job's number was printed but not yet moved into place.
    let site = Site::new();
    let (mut record, folder) = uploaded(&site).await;
    lock(&folder, &this_host(), dead(), 60);
    fs::write(folder.join(".minik8s/id.part"), "17\n").unwrap();
    site.step(&mut record, at(2), &[]).await;
    assert_eq!((record.state.clone(), record.facts.id, site.submitted()), (JobState::Submitted, 17, 0));
    // Not even printed: Slurm is queried again once the lock is taken over.
    let site = Site::new();
    let (mut record, folder) = uploaded(&site).await;
    lock(&folder, &this_host(), dead(), 60);
    let asked = r#"case "$*" in *%F*) echo 23;; *) cat "$HOME/jobs";; esac"#;
    site.host.program("squeue", asked);
    site.step(&mut record, at(2), &[]).await;
    assert_eq!((record.state.clone(), record.facts.id, site.submitted()), (JobState::Submitted, 23, 0));
    assert_eq!(fs::read_to_string(folder.join(".minik8s/id")).unwrap(), "23\n");
}

#[tokio::test]
async fn a_removal_waits_for_a_submission_before_it_asks_slurm() {
    let site = Site::new();
    let (mut record, folder) = uploaded(&site).await;
    lock(&folder, &this_host(), std::process::id(), 0);
    record.state = JobState::Deleting;
    site.host.program("scancel", r#"echo "$*" >> "$HOME/cancelled""#);
    assert_eq!(site.step(&mut record, at(2), &[]).await, JobStep::Delete);
    assert_eq!(record.state, JobState::Deleting, "{record:?}");
    assert!(!site.home().join("cancelled").exists(), "Slurm was asked while sbatch may be under way");
    assert!(!folder.exists(), "another submission could begin");
    // The submission has ended, with a job.
    let gone = site.home().join(format!("minik8s-jobs/.{}.gone", record.slurm_name()));
    fs::write(gone.join(".minik8s/id"), "1\n").unwrap();
    site.step(&mut record, at(9), &[]).await;
    assert!(record.state == JobState::Gone && !gone.exists(), "{record:?}");
    assert!(site.home().join("cancelled").exists());
}

#[tokio::test]
async fn a_result_that_cannot_be_read_keeps_the_job_from_nothing() {
    let site = Site::new();
    let (mut record, folder) = uploaded(&site).await;
    fs::create_dir(folder.join("out")).unwrap();
    for file in ["slurm-1.out", "out/bad", "out/good"] {
        fs::write(folder.join(file), "x").unwrap();
    }
    let head = r#"case "$*" in *bad*) echo denied >&2; exit 1;; esac; exec /usr/bin/head "$@""#;
    site.host.program("head", head);
    record.facts = Facts { id: 1, ended: Some(EndKind::Completed), ..Facts::default() };
    record.state = JobState::Fetching;
    site.step(&mut record, at(3), &[]).await;
    assert!(matches!(record.state, JobState::Ended(_)), "{record:?}");
    let unreadable: Vec<_> =
        record.results.iter().map(|it| (it.path.as_str(), it.unreadable.as_str())).collect();
    assert_eq!(unreadable.len(), 3);
    assert!(
        unreadable.contains(&("out/bad", "denied")) && unreadable.contains(&("out/good", "")),
        "{unreadable:?}"
    );
    // The job's files go; the record of its submission stays.
    fs::create_dir(folder.join(".minik8s")).unwrap();
    fs::write(folder.join(".minik8s/id"), "1\n").unwrap();
    record.order.spec.ttl_seconds_after_finished = Some(0);
    record.ended_at = Some(at(3));
    assert_eq!(site.step(&mut record, at(4), &[]).await, JobStep::Clean);
    assert!(record.is_cleaned && !folder.join("out").exists() && folder.join(".minik8s/id").exists());
    let mut other = site.record();
    fs::write(site.home().join("jobs"), "").unwrap();
    site.step(&mut other, at(5), &[]).await;
    assert_eq!((other.state.clone(), other.facts.id), (JobState::Submitted, 1), "{other:?}");
}

#[tokio::test]
async fn a_work_folder_that_is_away_keeps_a_job_that_has_ended_and_a_removed_job_folder_does_not() {
    let site = Site::new();
    let (mut record, folder) = uploaded(&site).await;
    fs::write(folder.join("slurm-1.out"), "x").unwrap();
    record.facts = Facts { id: 1, ended: Some(EndKind::Completed), ..Facts::default() };
    record.state = JobState::Fetching;
    let (work, away) = (site.home().join("minik8s-jobs"), site.home().join("away"));
    fs::rename(&work, &away).unwrap();
    site.step(&mut record, at(3), &[]).await;
    assert_eq!(record.state, JobState::Fetching, "{record:?}");
    fs::rename(&away, &work).unwrap();
    let mut other = record.clone();
    site.step(&mut record, at(300), &[]).await;
    assert!(matches!(record.state, JobState::Ended(_)) && record.results.len() == 1, "{record:?}");
    fs::remove_dir_all(&folder).unwrap();
    site.step(&mut other, at(300), &[]).await;
    assert!(matches!(other.state, JobState::Ended(_)) && other.results.is_empty(), "{other:?}");
}

// An accounting query that fails does not prove that the job is missing: its number may have gone with its folder.
#[tokio::test]
async fn a_job_is_not_submitted_again_while_the_accounts_do_not_answer() {
    let site = Site::new();
    let mut record = site.record();
    record.reached = true;
    let down = "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1";
    site.host.program("sacct", down);
    assert_eq!(site.step(&mut record, at(1), &[]).await, JobStep::Look);
    assert_eq!((record.state.clone(), record.step(at(2))), (JobState::Looking, None), "{record:?}");
    let why = &record.trouble.as_ref().unwrap().why;
    assert!(
        why.contains("Slurm does not answer") && why.contains("Problem talking to the database"),
        "{why}"
    );
    let row = format!("7|{}|COMPLETED|None|0:0|0:0|2026-11-23T15:05:28|1|n1\n", record.slurm_name());
    site.host.program("sacct", &format!("printf '{row}'"));
    site.step(&mut record, at(300), &[]).await;
    assert_eq!((record.facts.id, site.submitted()), (7, 0), "{record:?}");
}

#[tokio::test]
async fn the_next_host_of_a_pool_is_used_while_the_first_is_down() {
    let site = Site::new();
    let mut record = site.record();
    record.order.spec.login.login_pool = vec!["login2".into()];
    let down = || Some(SshError::Unreachable("no route".into()));
    site.step(&mut record, at(1), &[down()]).await;
    assert_eq!(record.state, JobState::Uploading, "{record:?}");
    site.step(&mut record, at(1), &[]).await;
    assert_eq!(
        *site.host.asked.lock().unwrap(),
        // The pool was searched, then uploaded to.
        ["login", "login2", "login2", "login", "login2", "login2"],
        "the one that answered goes first"
    );
    // An interrupted submission is looked up on whichever host answers.
    site.step(&mut record, at(1), &[Some(SshError::BrokenOff("cut".into()))]).await;
    site.step(&mut record, at(100), &[down()]).await;
    assert_eq!((record.state.clone(), site.submitted()), (JobState::Submitted, 1), "{record:?}");
    let mut other = site.record();
    other.order.spec.login.login_pool = vec!["login2".into()];
    site.step(&mut other, at(1), &[down(), down()]).await;
    let why = other.trouble.unwrap().why;
    assert!(why.contains("login2: no route") && why.contains("login: no route"), "{why}");
}

// Seen red without a search of the pool: login2 submits nothing, and reports that there is no folder.
#[tokio::test]
async fn hosts_of_a_pool_that_share_no_folder_get_no_job() {
    let site = Site::new();
    let own = site.home().join("of-login2");
    fs::create_dir(&own).unwrap();
    site.host.homes.lock().unwrap().insert("login2".into(), own.clone());
    let mut record = site.record();
    record.order.spec.login.login_pool = vec!["login2".into()];
    site.step(&mut record, at(1), &[]).await;
    assert_eq!(site.step(&mut record, at(1), &[]).await, JobStep::Upload);
    let why = record.report().status.reason;
    assert!(why.contains("do not share") && why.contains("login2") && why.contains("workDir"), "{why}");
    assert!(record.state == JobState::Uploading && site.submitted() == 0, "{record:?}");
    let left = |folder: PathBuf| fs::read_dir(folder).map_or(0, Iterator::count);
    assert_eq!(
        (left(site.home().join("minik8s-jobs")), left(own.join("minik8s-jobs"))),
        (0, 0),
        "a marker is left"
    );
    // Both hosts share a work folder.
    let shared = site.home().join("shared");
    record.order.spec.work_dir = Some(shared.display().to_string());
    for second in [100, 101] {
        site.step(&mut record, at(second), &[]).await;
    }
    assert_eq!((record.state.clone(), site.submitted()), (JobState::Submitted, 1), "{record:?}");
    // The other host was down at first, and is the only one up when the job is submitted.
    let mut late = site.record();
    late.order.uid = "fedcba9876543210".into();
    late.order.spec.login.login_pool = vec!["login2".into(), "login3".into()];
    let down = || Some(SshError::Unreachable("no route".into()));
    site.step(&mut late, at(1), &[]).await;
    site.step(&mut late, at(1), &[None, down(), None, None, None]).await;
    assert_eq!(late.state, JobState::Submitting, "{late:?}");
    site.step(&mut late, at(1), &[down()]).await;
    assert!(late.state == JobState::Submitting && late.trouble.is_some(), "{late:?}");
    assert_eq!(site.submitted(), 1);
}

// Seen red while a removed folder was a failure like others: it never comes back.
#[tokio::test]
async fn a_folder_that_was_removed_before_the_submission_is_uploaded_again() {
    let site = Site::new();
    let (mut record, folder) = uploaded(&site).await;
    fs::remove_dir_all(&folder).unwrap();
    let mut steps = Vec::new();
    while let Some(step) = record.step(at(2)) {
        steps.push(step);
        site.step(&mut record, at(2), &[]).await;
    }
    assert_eq!(steps, [JobStep::Submit, JobStep::Look, JobStep::Upload, JobStep::Submit], "{record:?}");
    assert_eq!((record.state.clone(), site.submitted()), (JobState::Submitted, 1));
    // A submission may be under way of which the login host keeps no trace.
    let site = Site::new();
    let (mut record, folder) = uploaded(&site).await;
    site.host.program("sbatch", "exit 1");
    site.step(&mut record, at(2), &[]).await;
    fs::remove_dir_all(&folder).unwrap();
    site.step(&mut record, at(60), &[]).await;
    assert_eq!((record.state.clone(), record.step(at(299))), (JobState::Looking, None), "{record:?}");
    assert_eq!(record.step(at(300)), Some(JobStep::Look));
}

// Seen red with a failure that is forgotten while its lock is awaited: the waits stay at two seconds.
#[tokio::test]
async fn a_submission_that_is_turned_down_is_tried_less_and_less_often() {
    let site = Site::new();
    let (mut record, folder) = uploaded(&site).await;
    site.host.program(
        "sbatch",
        "echo x >> $HOME/tried; echo 'sbatch: error: Job violates accounting/QOS policy' >&2; exit 1",
    );
    let tried = || fs::read_to_string(site.home().join("tried")).unwrap_or_default().lines().count();
    let (mut now, mut since, mut waits) = (1, 1, Vec::new());
    while waits.len() < 8 {
        now += 1;
        if record.step(at(now)).is_none() {
            continue;
        }
        let before = tried();
        // Time also passes on the login host.
        if folder.join(".minik8s/lock").exists() && now - since > 15 {
            lock(&folder, &this_host(), dead(), 60);
        }
        site.step(&mut record, at(now), &[]).await;
        assert!(record.report().status.reason.contains("QOS policy"), "{record:?}");
        if tried() > before {
            waits.push(now - since);
            since = now;
        }
    }
    assert!(waits[1..].is_sorted() && waits[7] >= 119, "{waits:?}");
    assert_eq!(site.submitted(), 0);
}

// Seen red without the count: the status does not mention results that have no room.
#[tokio::test]
async fn results_that_have_no_room_are_named_and_stay_where_they_are() {
    let site = Site::new();
    let (mut record, folder) = uploaded(&site).await;
    fs::create_dir(folder.join("out")).unwrap();
    for number in 0..155 {
        fs::write(folder.join(format!("out/{number:03}")), "x").unwrap();
    }
    record.facts = Facts { id: 1, ended: Some(EndKind::Completed), ..Facts::default() };
    record.state = JobState::Fetching;
    site.step(&mut record, at(3), &[]).await;
    let report = record.report();
    assert_eq!((report.results.len(), report.unfetched.count, report.unfetched.paths.len()), (150, 5, 5));
    assert!(report.unfetched.paths.iter().all(|path| folder.join(path).exists()), "{report:?}");
    assert_eq!(report.folder, format!("minik8s-jobs/{}", record.slurm_name()));
    // More names than their list has room for: none is truncated.
    let long = "y".repeat(200);
    for number in 0..1500 {
        fs::write(folder.join(format!("out/{number:04}-{long}")), "").unwrap();
    }
    let name = record.slurm_name();
    let text = commands::list(&super::act::place(&record, &name), 1);
    let output = Command::new("sh").args(["-c", &text]).current_dir(site.home()).output().unwrap();
    let (files, more) = super::answers::listing(&output.stdout);
    assert!(output.stdout.len() > LIST_MAX_BYTES && more > 300, "{more}");
    assert_eq!(files.len() as u64 + more, 1655);
    assert!(files.iter().all(|(_, _, path)| folder.join(path).is_file()));
}

// Seen red with digests of pods alone.
#[tokio::test]
async fn the_login_of_a_job_stays_on_the_disk_until_it_is_gone() {
    let site = Site::new();
    let (record, _) = uploaded(&site).await;
    let blobs = crate::names::blobs_dir(site.home().parent().unwrap());
    let kept = || fs::read_dir(&blobs).unwrap().flatten().count();
    let age = || {
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
        for entry in fs::read_dir(&blobs).unwrap().flatten() {
            fs::File::open(entry.path()).unwrap().set_modified(then).unwrap();
        }
    };
    assert_eq!(kept(), 1);
    age();
    let files = &site.worker.files;
    files.hold_for_jobs(super::job_store::login_secrets([&record].into_iter()));
    files.sweep_now(BTreeSet::new());
    assert_eq!(kept(), 1, "a job that is to be removed can't log in any more");
    age();
    files.hold_for_jobs(BTreeSet::new());
    files.sweep_now(BTreeSet::new());
    assert_eq!(kept(), 0);
}

#[tokio::test]
async fn a_dependency_that_ends_and_is_forgotten_before_the_submission_holds_nothing_up() {
    let site = Site::new();
    let (mut record, folder) = uploaded(&site).await;
    record.order.dependency = JobDependencyState::Submitted(41);
    record.order.spec.dependency = Some(JobDependency { job: "first".into(), kind: DependencyType::AfterOk });
    let sbatch = "if grep -q dependency= .minik8s/script.sh; then echo 'sbatch: error: Batch job submission failed: \
                  Job dependency problem' >&2; exit 1; fi; echo '9|9|n|PENDING|None|0|2026-11-23T15:05:28|0:00||' >> $HOME/jobs; echo 9";
    site.host.program("sbatch", sbatch);
    site.step(&mut record, at(2), &[]).await;
    assert!(record.report().status.reason.contains("dependency problem"), "{record:?}");
    // The end of the dependency is known: satisfied, and never satisfied.
    let mut otherwise = record.clone();
    let ordered = |dependency| JobOrder { dependency, ..record.order.clone() };
    let (met, never) = (ordered(JobDependencyState::None), ordered(JobDependencyState::Never("no".into())));
    otherwise.follow(Some(&never), at(60));
    for second in [60, 61] {
        if otherwise.step(at(second)).is_some() {
            site.step(&mut otherwise, at(second), &[]).await;
        }
    }
    assert_eq!(otherwise.report().status.class, Some(FailureClass::Dependency), "{otherwise:?}");
    record.follow(Some(&met), at(60));
    lock(&folder, &this_host(), dead(), 60);
    site.step(&mut record, at(60), &[]).await;
    assert_eq!(
        (record.state.clone(), record.facts.id, site.submitted()),
        (JobState::Submitted, 9, 1),
        "{record:?}"
    );
}
