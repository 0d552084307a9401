//! Jobs from order to end, on a login host that is a folder, with Slurm programs written by the tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use schema::archive::Archive;
use schema::content_refs::{BlobKind, BlobRef};
use schema::control::{Loop as _, Next, Nudge, Observation};
use schema::keys::Key;
use schema::kinds::job::{FailureClass, JobPhase, JobSpec, SlurmLogin};
use schema::kinds::pod::SecretKeyRef;
use schema::meta::NamespacedName;
use schema::records::{FormerJob, JobDependencyState, JobOrder, ResultKind, UnfetchedFiles};
use schema::snapshot::Snapshot;
use schema::store::events::EventRecorder;
use schema::store::reflector::SnapshotReader;
use tokio::sync::watch;

use super::act::Worker;
use super::job_store::JobBook;
use super::machine::{JobRecord, JobState, JobStep, StepResult};
use super::parse::{EndKind, Facts};
use super::plan::{Finding, Observed, TaskSlot, plan};
use super::{SlurmDeps, SlurmLoop, UNWRITTEN_RETRY};
use crate::files::{Keys, PodFiles};
use crate::worlds::blobs::BlobSource;
use crate::worlds::ssh::{FakeLoginHost, SshError};

/// A Slurm made of three programs: `jobs` has a line for each submitted job.
const SBATCH: &str = r#"
name=$(sed -n 's/^#SBATCH --job-name=//p' .minik8s/script.sh)
id=$(( $(wc -l < "$HOME/jobs") + 1 ))
echo "$id|$id|$name|RUNNING|None|0|2026-11-23T15:05:28|0:01|n1|" >> "$HOME/jobs"
echo "$id"
"#;
const SQUEUE: &str = r#"[ ! -e "$HOME/down" ] || exit 1; cat "$HOME/jobs""#;
const SACCT: &str = "echo 'Slurm accounting storage is disabled' >&2; exit 1";
const SCANCEL: &str = r#": > "$HOME/jobs""#;

struct Gives(Vec<u8>);

#[async_trait]
impl BlobSource for Gives {
    async fn fetch(&self, _: &str, _: u64, mut to: fs::File) -> Result<(), String> {
        use std::io::Write as _;
        to.write_all(&self.0).map_err(|error| error.to_string())
    }
}

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_900_000_000 + seconds)
}

fn id() -> NamespacedName {
    NamespacedName::new("default", "sum")
}

fn order(uid: &str) -> JobOrder {
    let login = SlurmLogin {
        host: Some("login".into()),
        username: Some("alice".into()),
        ssh_key: Some(SecretKeyRef { name: "slurm".into(), key: "id".into() }),
        ..SlurmLogin::default()
    };
    JobOrder {
        uid: uid.to_owned(),
        hash: "h".to_owned(),
        spec: JobSpec {
            login,
            run_commands: vec!["true".into()],
            output_file: Some("slurm-%j.out".into()),
            outputs: vec!["out".into()],
            ..JobSpec::default()
        },
        files: BTreeMap::new(),
        created_at: at(0),
        dependency: JobDependencyState::None,
        reached: false,
        former: Vec::new(),
        deleting: false,
    }
}

/// A login host with an agent that may log in to it.
pub(super) struct Site {
    dir: tempfile::TempDir,
    pub(super) host: Arc<FakeLoginHost>,
    pub(super) worker: Worker,
    files: Arc<PodFiles>,
    secret: BlobRef,
}

impl Site {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let host = Arc::new(FakeLoginHost::new(&home));
        for (name, text) in [("sbatch", SBATCH), ("squeue", SQUEUE), ("sacct", SACCT), ("scancel", SCANCEL)] {
            host.program(name, text);
        }
        fs::write(home.join("jobs"), "").unwrap();
        let keys = Keys::open(&dir.path().join("identity")).unwrap();
        let recipient: age::x25519::Recipient = keys.recipient().unwrap().parse().unwrap();
        let ciphertext =
            age::encrypt(&recipient, b"namespace: default\nname: slurm\n---\nid: key\n").unwrap();
        let mut archive = Archive::new(Vec::new());
        archive.file("slurm.age", false, ciphertext.len() as u64, ciphertext.as_slice()).unwrap();
        let made = archive.finish().unwrap();
        let secret = BlobRef {
            digest: made.digest,
            size: made.size,
            kind: BlobKind::Secret,
            texts: Vec::new(),
            source: String::new(),
        };
        let files = Arc::new(PodFiles::new(dir.path(), Arc::new(Gives(made.writer)), keys));
        let book = JobBook::new(dir.path());
        let worker = Worker::new(Arc::clone(&host) as _, Arc::clone(&files), book);
        Self { dir, host, worker, files, secret }
    }

    pub(super) fn record(&self) -> JobRecord {
        let files = BTreeMap::from([("secrets/slurm.age".to_owned(), self.secret.clone())]);
        JobRecord::new(id(), JobOrder { files, ..order("0123456789abcdef") }, at(0))
    }

    pub(super) fn home(&self) -> std::path::PathBuf {
        self.dir.path().join("home")
    }

    pub(super) fn submitted(&self) -> usize {
        fs::read_to_string(self.home().join("jobs")).unwrap().lines().count()
    }

    /// Performs the next step under these connection faults.
    pub(super) async fn step(
        &self,
        record: &mut JobRecord,
        now: Timestamp,
        faults: &[Option<SshError>],
    ) -> JobStep {
        *self.host.faults.lock().unwrap() = faults.iter().rev().cloned().collect();
        let step = record.step(now).unwrap();
        let event = self.worker.perform(record, step).await;
        record.apply(event, now);
        step
    }
}

#[tokio::test]
async fn a_job_is_uploaded_submitted_followed_fetched_and_removed() {
    let site = Site::new();
    let mut record = site.record();
    let mut steps = Vec::new();
    while let Some(step) = record.step(at(1)) {
        steps.push(step);
        site.step(&mut record, at(1), &[]).await;
    }
    assert_eq!(steps, [JobStep::Look, JobStep::Upload, JobStep::Submit], "{record:?}");
    assert_eq!((record.state.clone(), record.facts.id), (JobState::Submitted, 1));
    let folder = site.home().join("minik8s-jobs/default.sum.01234567.1");
    fs::write(folder.join("slurm-1.out"), "hello\n").unwrap();
    fs::create_dir(folder.join("out")).unwrap();
    fs::write(folder.join("out/a b"), "x").unwrap();
    let ended = "1|1|default.sum.01234567.1|FAILED|NonZeroExitCode|768|2026-11-23T15:05:28|0:07|n1|\n";
    fs::write(site.home().join("jobs"), ended).unwrap();
    for Finding { uid, event, .. } in site.worker.poll(&[record.clone()]).await {
        assert_eq!(uid, record.order.uid);
        record.apply(event, at(9));
    }
    assert_eq!(site.step(&mut record, at(9), &[]).await, JobStep::Fetch);
    let report = record.report();
    assert_eq!((report.status.phase, report.status.class), (JobPhase::Failed, Some(FailureClass::ExitCode)));
    assert_eq!(report.status.exit_code.as_deref(), Some("3:0"));
    let found: Vec<_> = report.results.iter().map(|file| (file.path.as_str(), file.kind)).collect();
    assert_eq!(found, [("slurm-1.out", ResultKind::Stdout), ("out/a b", ResultKind::Output)]);
    let kept = site.worker.book.result(&id(), &report.results[0].digest).unwrap();
    assert_eq!(fs::read_to_string(kept).unwrap(), "hello\n");
    record.follow(Some(&JobOrder { deleting: true, ..record.order.clone() }), at(10));
    assert_eq!(site.step(&mut record, at(10), &[]).await, JobStep::Delete);
    assert!(record.report().is_gone && !folder.exists(), "{record:?}");
}

#[tokio::test]
async fn a_submission_whose_answer_is_lost_is_found_and_not_made_again() {
    let broken = || Some(SshError::BrokenOff("cut".into()));
    // Cuts off the submission, and then the look-ups of its job as well.
    for looks in [0, 1, 2] {
        let site = Site::new();
        let mut record = site.record();
        site.step(&mut record, at(1), &[]).await;
        site.step(&mut record, at(1), &[]).await;
        assert_eq!(record.state, JobState::Submitting);
        for look in 0..=looks {
            site.step(&mut record, at(1 + 100 * look), &[broken()]).await;
            assert!(record.trouble.is_some(), "{record:?}");
        }
        // The agent ends here, with the record it wrote before the submission on disk.
        site.worker.book.write(&record).unwrap();
        let mut record = site.worker.book.read().remove(&id()).unwrap();
        site.step(&mut record, at(900), &[]).await;
        assert_eq!((record.state.clone(), record.facts.id), (JobState::Submitted, 1), "{record:?}");
        assert_eq!(site.submitted(), 1);
        // A node that takes over knows only the order.
        let mut other = site.record();
        assert_eq!(site.step(&mut other, at(200), &[]).await, JobStep::Look);
        assert_eq!((other.state.clone(), other.facts.id), (JobState::Submitted, 1), "{other:?}");
    }
}

#[tokio::test]
async fn a_submission_that_slurm_forgot_is_not_made_again() {
    let site = Site::new();
    let mut record = site.record();
    for _ in 0..3 {
        site.step(&mut record, at(1), &[]).await;
    }
    // Purged from the queue, and there is no accounting.
    fs::write(site.home().join("jobs"), "").unwrap();
    let mut other = site.record();
    site.step(&mut other, at(2), &[]).await;
    assert_eq!((other.state.clone(), other.facts.id), (JobState::Submitted, 1), "{other:?}");
    let events = site.worker.poll(&[other.clone()]).await;
    assert_eq!(events[0].event, StepResult::Polled(None));
    other.apply(events[0].event.clone(), at(3));
    assert_eq!(other.report().status.phase, JobPhase::Unknown);
    assert_eq!(site.submitted(), 0);
}

#[tokio::test]
async fn what_does_not_answer_changes_nothing() {
    let site = Site::new();
    let mut record = site.record();
    for _ in 0..3 {
        site.step(&mut record, at(1), &[]).await;
    }
    let running = Facts { phase: JobPhase::Running, state: "RUNNING".into(), ..record.facts.clone() };
    record.apply(StepResult::Polled(Some(running)), at(2));
    fs::write(site.home().join("down"), "").unwrap();
    for Finding { event, .. } in site.worker.poll(&[record.clone()]).await {
        record.apply(event, at(3));
    }
    let report = record.report();
    assert_eq!(
        (report.status.phase, report.status.reason.as_str()),
        (JobPhase::Running, "Slurm does not answer")
    );
    *site.host.faults.lock().unwrap() = vec![Some(SshError::Unreachable("no route".into()))];
    for Finding { event, .. } in site.worker.poll(&[record.clone()]).await {
        record.apply(event, at(4));
    }
    assert_eq!(record.report().status.phase, JobPhase::Running);
    assert_eq!(record.report().unreachable_since, Some(at(4)));
}

#[tokio::test]
async fn what_slurm_refuses_has_failed_and_what_it_cannot_take_now_is_tried_again() {
    let site = Site::new();
    let refusal = "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: \
                   Invalid partition name specified";
    site.host.program("sbatch", &format!("echo '{refusal}' >&2; exit 1"));
    let mut record = site.record();
    for _ in 0..3 {
        site.step(&mut record, at(1), &[]).await;
    }
    let status = record.report().status;
    assert_eq!((status.phase, status.class), (JobPhase::Failed, Some(FailureClass::Submission)));
    assert!(status.reason.contains("invalid partition"), "{status:?}");
    let site = Site::new();
    site.host
        .program("sbatch", "echo 'sbatch: error: Batch job submission failed: Socket timed out' >&2; exit 1");
    let mut record = site.record();
    for _ in 0..3 {
        site.step(&mut record, at(1), &[]).await;
    }
    assert_eq!(record.state, JobState::Submitting);
    assert!(record.report().status.reason.contains("Socket timed out"), "{record:?}");
}

#[test]
fn a_changed_job_is_another_one_only_after_the_former_is_gone() {
    let mut record = JobRecord::new(id(), order("one"), at(0));
    record.apply(StepResult::Found(None), at(1));
    assert!(record.reached);
    record.follow(Some(&order("two")), at(2));
    assert_eq!((record.state.clone(), record.order.uid.as_str()), (JobState::Deleting, "one"));
    // The result of a step already under way comes too late to matter.
    record.apply(StepResult::Uploaded, at(3));
    assert_eq!(record.state, JobState::Deleting);
    record.apply(StepResult::Busy, at(3));
    assert_eq!((record.step(at(4)), record.step(at(5))), (None, Some(JobStep::Delete)));
    record.apply(StepResult::Deleted, at(5));
    record.follow(Some(&order("two")), at(6));
    assert_eq!((record.state.clone(), record.order.uid.as_str()), (JobState::Looking, "two"));
    // A missing order ends nothing.
    record.follow(None, at(7));
    assert_eq!(record.state, JobState::Looking);
}

#[test]
fn a_login_that_never_worked_keeps_no_corrected_one_from_being_used() {
    let wrong = |uid: &str| {
        let mut order = order(uid);
        order.spec.login.host = Some("wrong".into());
        order
    };
    let failed = || StepResult::Failed { why: "no route".into(), unreachable: true };
    let mut record = JobRecord::new(id(), wrong("one"), at(0));
    record.apply(failed(), at(1));
    record.follow(Some(&order("two")), at(2));
    assert_eq!((record.state.clone(), record.order.uid.as_str()), (JobState::Looking, "two"));
    let mut record = JobRecord::new(id(), wrong("one"), at(0));
    record.apply(failed(), at(1));
    record.follow(Some(&JobOrder { deleting: true, ..wrong("one") }), at(2));
    assert!(record.report().is_gone, "{record:?}");
    // Another node has reached a login host, so its submission must go.
    let mut record = JobRecord::new(id(), JobOrder { reached: true, ..wrong("one") }, at(0));
    record.follow(Some(&order("two")), at(2));
    assert_eq!((record.state.clone(), record.order.uid.as_str()), (JobState::Deleting, "one"));
    // For the same account, the former job is deleted with the credential that works now.
    let mut corrected = order("three");
    corrected.spec.login.host = Some("wrong".into());
    corrected.spec.login.port = Some(2222);
    record.follow(Some(&corrected), at(3));
    assert_eq!((record.state.clone(), record.order.spec.login.port), (JobState::Deleting, Some(2222)));
}

#[test]
fn a_node_that_takes_over_removes_what_the_job_was_before_it_begins() {
    let former = ["zero", "one"].map(|uid| FormerJob::from_order(&order(uid))).to_vec();
    let two = JobOrder { former, ..order("two") };
    let mut record = JobRecord::first(id(), &two, Vec::new(), at(0));
    let mut removed = Vec::new();
    while record.order.uid != "two" {
        assert_eq!(record.step(at(1)), Some(JobStep::Delete));
        removed.push(record.slurm_name());
        record.apply(StepResult::Deleted, at(1));
        record.follow(Some(&two), at(2));
    }
    assert_eq!(removed, ["default.sum.zero.1", "default.sum.one.1"]);
    assert_eq!(record.state, JobState::Looking);
}

#[test]
fn a_job_that_has_ended_is_cleaned_once_and_stays_as_it_ended() {
    let mut of_one = order("one");
    of_one.spec.ttl_seconds_after_finished = Some(60);
    let facts = Facts { ended: Some(EndKind::Completed), phase: JobPhase::Succeeded, ..Facts::default() };
    let mut record = JobRecord { state: JobState::Submitted, ..JobRecord::new(id(), of_one, at(0)) };
    record.apply(StepResult::Polled(Some(facts)), at(10));
    record.apply(StepResult::Fetched(Vec::new(), UnfetchedFiles::default()), at(11));
    assert_eq!((record.step(at(69)), record.clean_at()), (None, Some(at(70))));
    assert_eq!(record.step(at(70)), Some(JobStep::Clean));
    record.apply(StepResult::Failed { why: "no route".into(), unreachable: true }, at(70));
    let report = record.report();
    assert_eq!((report.status.phase, report.unreachable_since), (JobPhase::Succeeded, None));
    assert_eq!(report.status.reason, "");
    record.apply(StepResult::Cleaned, at(90));
    assert_eq!((record.step(at(999)), record.clean_at()), (None, None));
}

#[test]
fn a_failed_node_is_answered_with_another_attempt_as_often_as_the_manifest_says() {
    let mut of_one = order("one");
    of_one.spec.node_failure_retries = 1;
    let mut record = JobRecord { state: JobState::Submitted, ..JobRecord::new(id(), of_one, at(0)) };
    let failed = || Facts { ended: Some(EndKind::NodeFailure), phase: JobPhase::Failed, ..Facts::default() };
    record.apply(StepResult::Polled(Some(failed())), at(1));
    assert_eq!(
        (record.state.clone(), record.slurm_name().as_str()),
        (JobState::Uploading, "default.sum.one.2")
    );
    record.state = JobState::Submitted;
    record.apply(StepResult::Polled(Some(failed())), at(2));
    assert_eq!(record.state, JobState::Fetching);
    record.apply(StepResult::Fetched(Vec::new(), UnfetchedFiles::default()), at(3));
    assert_eq!(record.report().status.class, Some(FailureClass::NodeFailure));
}

#[test]
fn all_jobs_of_a_login_host_are_asked_for_at_once_and_less_often_while_nothing_changes() {
    let records: BTreeMap<NamespacedName, JobRecord> = (0..200)
        .map(|number| {
            let id = NamespacedName::new("default", format!("j{number}"));
            let record = JobRecord::new(id.clone(), order(&format!("u{number}")), at(0));
            (id, JobRecord { state: JobState::Submitted, ..record })
        })
        .collect();
    let orders = records.iter().map(|(id, record)| (id.clone(), record.order.clone())).collect();
    let login = order("x").spec.login;
    let mut observed = Observed { orders, records, is_whole: true, ..Observed::default() };
    let first = plan(&observed, at(1));
    assert_eq!((first.polls.len(), first.polls[&login].len(), first.steps.len()), (1, 200, 0));
    for (last, wait) in [(1, 2), (80, 10), (4000, 30)] {
        observed.polled_at = BTreeMap::from([(login.clone(), at(last))]);
        assert!(plan(&observed, at(last + wait - 1)).polls.is_empty(), "{last}");
        assert_eq!(plan(&observed, at(last + wait - 1)).again_at, Some(at(last + wait)));
        assert_eq!(plan(&observed, at(last + wait)).polls.len(), 1, "{last}");
    }
    observed.busy.insert(TaskSlot::Poll(Box::new(login)));
    assert!(plan(&observed, at(9000)).polls.is_empty());
    // Without an order while etcd is complete, a job is another node's or over; otherwise nothing is known.
    observed.orders.clear();
    observed.unordered_since = observed.records.keys().map(|id| (id.clone(), at(9000))).collect();
    let fresh = plan(&observed, at(9029));
    assert_eq!(
        (fresh.forget.len(), fresh.reported.len(), fresh.again_at),
        (0, 200, Some(at(9030))),
        "someone may adopt them"
    );
    assert_eq!(plan(&observed, at(9030)).forget.len(), 200);
    let unsure = Observed { is_whole: false, ..observed };
    assert!(plan(&unsure, at(9000)).forget.is_empty() && plan(&unsure, at(9000)).reported.len() == 200);
}

#[test]
fn a_login_host_that_does_not_answer_leaves_others_their_turn() {
    let mut observed = Observed { is_whole: true, ..Observed::default() };
    for number in 0..40 {
        // All but the last two jobs are on one host, whose steps stay under way forever.
        let mut order = order(&format!("u{number}"));
        order.spec.login.host = Some(if number < 38 { "dead" } else { "well" }.into());
        let id = NamespacedName::new("default", format!("j{number:02}"));
        observed.orders.insert(id.clone(), order.clone());
        observed.records.insert(id.clone(), JobRecord::new(id, order, at(0)));
    }
    let first = plan(&observed, at(1));
    assert_eq!(first.steps.len(), 8, "{:?}", first.steps);
    observed.busy = first.steps.iter().map(|(id, _)| TaskSlot::Job(id.clone())).collect();
    assert!(plan(&observed, at(2)).steps.is_empty());
    let done = NamespacedName::new("default", "j39");
    observed.busy.remove(&TaskSlot::Job(done.clone()));
    assert_eq!(plan(&observed, at(2)).steps, [(done, JobStep::Look)]);
}

// Seen red without the test of `uid`.
#[test]
fn a_finding_changes_the_record_of_its_order_and_is_an_event_once() {
    let record = JobRecord { state: JobState::Submitting, ..JobRecord::new(id(), order("one"), at(0)) };
    let finding = |uid: &str| Finding { id: id(), uid: uid.to_owned(), event: StepResult::Submitted(7) };
    let mut observed = Observed {
        orders: BTreeMap::from([(id(), order("one"))]),
        records: BTreeMap::from([(id(), record)]),
        findings: vec![finding("another"), finding("one"), finding("one")],
        is_whole: true,
        ..Observed::default()
    };
    let planned = plan(&observed, at(1));
    let change = &planned.changes[&id()];
    assert_eq!(change.record.state, JobState::Submitted);
    let reasons: Vec<&str> = change.events.iter().map(|event| event.reason.as_str()).collect();
    assert_eq!(reasons, ["Submitted"]);
    assert_eq!(planned.reported[&id()].status.slurm_id, Some(7));
    assert_eq!((planned.steps.len(), planned.polls.len()), (0, 1), "what follows is of the new record");
    observed.findings = vec![finding("another")];
    assert!(plan(&observed, at(1)).changes.is_empty());
}

// Seen red with the step begun regardless.
#[tokio::test]
async fn a_step_follows_only_from_a_record_that_is_on_the_disk() {
    let site = Site::new();
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    snapshot.put(&Key::Job("n1".to_owned(), id()), &site.record().order, 1);
    let deps = SlurmDeps {
        node: "n1".to_owned(),
        ssh: Arc::clone(&site.host) as _,
        files: Arc::clone(&site.files),
        snapshot: SnapshotReader::fixed(snapshot),
        events: EventRecorder::disabled(),
        nudge: Nudge::new().0,
    };
    let (reports, reported) = watch::channel(None);
    let mut jobs = SlurmLoop::new(deps, site.dir.path(), reports);
    let mut run = async || {
        let Observation::Ready(observed) = jobs.observe().await.unwrap() else { panic!("ready") };
        let plan = SlurmLoop::plan(&observed, Timestamp::now());
        let next = jobs.act(&observed, plan).await;
        (next, jobs.busy.len())
    };
    // A file occupies the folder's name.
    let folder = site.dir.path().join("jobs");
    fs::write(&folder, "").unwrap();
    assert_eq!(run().await, (Next::After(UNWRITTEN_RETRY), 0));
    assert_eq!(reported.borrow().as_ref().map(BTreeMap::len), Some(0));
    fs::remove_file(&folder).unwrap();
    assert_eq!(run().await, (Next::Interval, 1));
    assert!(JobBook::new(site.dir.path()).read_one(&id()).is_some());
    assert_eq!(reported.borrow().as_ref().map(BTreeMap::len), Some(1));
}

#[test]
fn a_record_that_is_damaged_hides_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let book = JobBook::new(dir.path());
    book.write(&JobRecord::new(id(), order("one"), at(0))).unwrap();
    let broken = dir.path().join("jobs/default/other");
    fs::create_dir_all(&broken).unwrap();
    fs::write(broken.join("record.json"), "{").unwrap();
    assert_eq!(book.read().len(), 1);
    assert!(book.result(&id(), "../../record.json").is_none());
    book.forget(&id()).unwrap();
    assert!(!Path::new(&dir.path().join("jobs/default/sum")).exists());
}
