//! What happens on the login host itself: locks, folders, files that can't be read.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use super::machine::{JobRecord, State, Step};
use super::parse::{Ended, Facts};
use super::tests::{Site, at};
use crate::worlds::ssh::SshError;

/// A job that is uploaded, with its folder.
async fn uploaded(site: &Site) -> (JobRecord, PathBuf) {
    let mut record = site.record();
    for _ in 0..2 {
        site.step(&mut record, at(1), &[]).await;
    }
    assert_eq!(record.state, State::Submitting, "{record:?}");
    let folder = site.home().join("minik8s-jobs").join(record.slurm_name());
    (record, folder)
}

/// Leaves the lock of a submission whose holder last touched it this many seconds ago.
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

/// A number that no process has any more.
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
        // Of a process of another host only its sign of life tells.
        ("elsewhere", dead(), 100, false),
        ("elsewhere", alive, 300, true),
    ] {
        let site = Site::new();
        let (mut record, folder) = uploaded(&site).await;
        lock(&folder, host, pid, age);
        site.step(&mut record, at(2), &[]).await;
        assert_eq!(record.state == State::Submitted, goes_on, "{host} {age}: {record:?}");
        assert_eq!(site.submitted(), usize::from(goes_on));
    }
}

#[tokio::test]
async fn a_lock_whose_holder_submitted_before_it_died_leads_to_its_job() {
    // Its number was printed, but not put in its place.
    let site = Site::new();
    let (mut record, folder) = uploaded(&site).await;
    lock(&folder, &this_host(), dead(), 60);
    fs::write(folder.join(".minik8s/id.part"), "17\n").unwrap();
    site.step(&mut record, at(2), &[]).await;
    assert_eq!((record.state.clone(), record.facts.id, site.submitted()), (State::Submitted, 17, 0));
    // Not even that: Slurm is asked again once the lock is taken over.
    let site = Site::new();
    let (mut record, folder) = uploaded(&site).await;
    lock(&folder, &this_host(), dead(), 60);
    let asked = r#"case "$*" in *%F*) echo 23;; *) cat "$HOME/jobs";; esac"#;
    site.host.program("squeue", asked);
    site.step(&mut record, at(2), &[]).await;
    assert_eq!((record.state.clone(), record.facts.id, site.submitted()), (State::Submitted, 23, 0));
    assert_eq!(fs::read_to_string(folder.join(".minik8s/id")).unwrap(), "23\n");
}

#[tokio::test]
async fn a_removal_waits_for_a_submission_before_it_asks_slurm() {
    let site = Site::new();
    let (mut record, folder) = uploaded(&site).await;
    lock(&folder, &this_host(), std::process::id(), 0);
    record.state = State::Deleting;
    site.host.program("scancel", r#"echo "$*" >> "$HOME/cancelled""#);
    assert_eq!(site.step(&mut record, at(2), &[]).await, Step::Delete);
    assert_eq!(record.state, State::Deleting, "{record:?}");
    assert!(!site.home().join("cancelled").exists(), "Slurm was asked while sbatch may be under way");
    assert!(!folder.exists(), "another submission could begin");
    // It has ended, with a job.
    let gone = site.home().join(format!("minik8s-jobs/.{}.gone", record.slurm_name()));
    fs::write(gone.join(".minik8s/id"), "1\n").unwrap();
    site.step(&mut record, at(9), &[]).await;
    assert!(record.state == State::Gone && !gone.exists(), "{record:?}");
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
    record.facts = Facts { id: 1, ended: Some(Ended::Completed), ..Facts::default() };
    record.state = State::Fetching;
    site.step(&mut record, at(3), &[]).await;
    assert!(matches!(record.state, State::Ended(_)), "{record:?}");
    let unreadable: Vec<_> =
        record.results.iter().map(|it| (it.path.as_str(), it.unreadable.as_str())).collect();
    assert_eq!(unreadable.len(), 3);
    assert!(
        unreadable.contains(&("out/bad", "denied")) && unreadable.contains(&("out/good", "")),
        "{unreadable:?}"
    );
    // Its files go; that it was submitted stays to be seen.
    fs::create_dir(folder.join(".minik8s")).unwrap();
    fs::write(folder.join(".minik8s/id"), "1\n").unwrap();
    record.order.spec.ttl_seconds_after_finished = Some(0);
    record.ended_at = Some(at(3));
    assert_eq!(site.step(&mut record, at(4), &[]).await, Step::Clean);
    assert!(record.is_cleaned && !folder.join("out").exists() && folder.join(".minik8s/id").exists());
    let mut other = site.record();
    fs::write(site.home().join("jobs"), "").unwrap();
    site.step(&mut other, at(5), &[]).await;
    assert_eq!((other.state.clone(), other.facts.id), (State::Submitted, 1), "{other:?}");
}

#[tokio::test]
async fn the_next_host_of_a_pool_is_used_while_the_first_is_down() {
    let site = Site::new();
    let mut record = site.record();
    record.order.spec.login.login_pool = vec!["login2".into()];
    let down = || Some(SshError::Unreachable("no route".into()));
    site.step(&mut record, at(1), &[down()]).await;
    assert_eq!(record.state, State::Uploading, "{record:?}");
    site.step(&mut record, at(1), &[]).await;
    assert_eq!(
        *site.host.asked.lock().unwrap(),
        ["login", "login2", "login2"],
        "the one that answered goes first"
    );
    // A submission that broke off there is looked for on whichever answers.
    site.step(&mut record, at(1), &[Some(SshError::BrokenOff("cut".into()))]).await;
    site.step(&mut record, at(100), &[down()]).await;
    assert_eq!((record.state.clone(), site.submitted()), (State::Submitted, 1), "{record:?}");
    let mut other = site.record();
    other.order.spec.login.login_pool = vec!["login2".into()];
    site.step(&mut other, at(1), &[down(), down()]).await;
    let why = other.trouble.unwrap().why;
    assert!(why.contains("login2: no route") && why.contains("login: no route"), "{why}");
}
