//! Probes without containers: the state machine as tables, the runner with a paused clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ProbeKind::{Liveness, PostStart, Readiness, Startup};
use jiff::Timestamp;
use schema::control::Nudge;
use schema::meta::NamespacedName;
use schema::store::Store as _;
use schema::store::events::EventRecorder;
use schema::store::memory::MemoryStore;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::health_store::HealthBook;
use super::machine::{Action, Check, ProbeHealth, ProbeKind, ProbeMachine, ProbeTarget, Targets, Timing};
use super::perform::{ActionRunner, CheckResult};
use super::runner::ProbeRunner;
use crate::worlds::docker::{Docker as _, FakeDocker, FakeExec, NewContainer};
use crate::worlds::prober::{FakeAnswer, FakeProber, HttpRequest};

const SECOND: Duration = Duration::from_secs(1);

fn timing(success_threshold: u32, failure_threshold: u32) -> Timing {
    Timing {
        initial_delay: Duration::ZERO,
        period: SECOND,
        timeout: SECOND,
        success_threshold,
        failure_threshold,
    }
}

fn machine(kinds: &[ProbeKind], former: Option<ProbeHealth>) -> ProbeMachine {
    ProbeMachine::new(kinds.iter().map(|kind| (*kind, timing(1, 3))).collect(), former)
}

/// Formats `started`, `ready` and the failure as letters.
fn word(health: ProbeHealth) -> String {
    let flag = |holds, letter| if holds { letter } else { "-" };
    let failed = health.failed.map_or("", ProbeKind::word);
    format!("{}{}{failed}", flag(health.started, "s"), flag(health.ready, "r"))
}

// Seen red with `started: true` in `ProbeMachine::new` (startup gates nothing).
#[test]
fn what_is_known_at_the_start_follows_from_the_probes_there_are() {
    for (kinds, expected, turn) in [
        (&[][..], "sr", &[][..]),
        (&[Liveness], "sr", &[Liveness]),
        (&[Readiness], "s-", &[Readiness]),
        (&[Readiness, Liveness], "s-", &[Readiness, Liveness]),
        (&[Startup], "--", &[Startup]),
        (&[Startup, Readiness, Liveness], "--", &[Startup]),
        (&[PostStart], "--", &[PostStart]),
        (&[PostStart, Startup, Readiness, Liveness], "--", &[PostStart]),
    ] {
        let machine = machine(kinds, None);
        assert_eq!(
            (word(machine.health()).as_str(), machine.active().as_slice()),
            (expected, turn),
            "{kinds:?}"
        );
    }
}

#[test]
fn startup_lets_the_others_in_and_its_failure_restarts() {
    let mut started = machine(&[Startup, Readiness, Liveness], None);
    started.note(Liveness, false);
    started.note(Readiness, true);
    assert_eq!(word(started.health()), "--", "it is not their turn");
    started.note(Startup, false);
    started.note(Startup, false);
    started.note(Startup, true);
    assert_eq!((word(started.health()).as_str(), started.active()), ("s-", vec![Readiness, Liveness]));
    let mut alone = machine(&[Startup], None);
    alone.note(Startup, true);
    assert_eq!((word(alone.health()).as_str(), alone.active()), ("sr", vec![]));
    let mut failed = machine(&[Startup, Readiness], None);
    (0..3).for_each(|_| failed.note(Startup, false));
    assert_eq!((word(failed.health()).as_str(), failed.active()), ("--startup", vec![]));
}

// Would fail with a hook that gates nothing, and with one that a new agent forgets.
#[test]
fn the_hook_comes_first_and_its_failure_restarts() {
    let all = [PostStart, Startup, Readiness, Liveness];
    let mut hooked = machine(&all, None);
    hooked.note(Startup, true);
    assert_eq!(word(hooked.health()), "--", "it is not its turn");
    hooked.note(PostStart, true);
    assert_eq!((word(hooked.health()).as_str(), hooked.active()), ("--", vec![Startup]));
    let next_agent = machine(&all, Some(hooked.health()));
    assert_eq!(next_agent.active(), [Startup], "the hook is done");
    let interrupted = machine(&all, Some(machine(&all, None).health()));
    assert_eq!(interrupted.active(), [PostStart], "its end is not known, so it runs again");
    for (kinds, then) in [(&[PostStart, Readiness, Liveness][..], "s-"), (&[PostStart], "sr")] {
        let mut hooked = machine(kinds, None);
        hooked.note(PostStart, true);
        assert_eq!(word(hooked.health()), then, "{kinds:?}");
    }
    let mut failed = ProbeMachine::new([(PostStart, Timing::HOOK), (Liveness, timing(1, 3))].into(), None);
    failed.note(PostStart, false);
    assert_eq!((word(failed.health()).as_str(), failed.active()), ("--postStart", vec![]));
}

// Seen red with `<=` for `<` at the threshold.
#[test]
fn only_as_many_in_a_row_as_the_threshold_count() {
    let table = [
        (Readiness, 2, 3, "+", "s-"),
        (Readiness, 2, 3, "++", "sr"),
        (Readiness, 2, 3, "+-+", "s-"),
        (Readiness, 1, 3, "+--", "sr"),
        (Readiness, 1, 3, "+--+--", "sr"),
        (Readiness, 1, 3, "+---", "s-"),
        (Readiness, 1, 3, "+---+", "sr"),
        (Liveness, 1, 3, "--+--", "sr"),
        (Liveness, 1, 3, "---", "s-liveness"),
        (Liveness, 1, 1, "-++", "s-liveness"),
    ];
    for (kind, successes, failures, results, expected) in table {
        let mut machine = ProbeMachine::new([(kind, timing(successes, failures))].into(), None);
        results.chars().for_each(|result| machine.note(kind, result == '+'));
        assert_eq!(word(machine.health()), expected, "{kind} {successes}/{failures} {results}");
    }
}

// Seen red with `ProbeHealth::default()` for the former health.
#[test]
fn a_new_agent_goes_on_with_what_the_former_one_knew() {
    let known = |started, ready, failed| Some(ProbeHealth { hook_done: false, started, ready, failed });
    let all = [Startup, Readiness, Liveness];
    let mut ready = machine(&all, known(true, true, None));
    assert_eq!((word(ready.health()).as_str(), ready.active()), ("sr", vec![Readiness, Liveness]));
    ready.note(Readiness, false);
    assert_eq!(word(ready.health()), "sr", "one failure is below the threshold, also now");
    assert_eq!(word(machine(&all, known(true, false, None)).health()), "s-");
    assert_eq!(word(machine(&all, known(false, false, None)).health()), "--");
    let failed = machine(&all, known(true, true, Some(Liveness)));
    assert_eq!((word(failed.health()).as_str(), failed.active()), ("s-liveness", vec![]));
}

#[test]
fn the_first_check_waits_for_the_delay_and_is_spread_only_when_asked() {
    let slow = Timing { initial_delay: SECOND * 5, period: SECOND * 10, ..timing(1, 3) };
    let machine = ProbeMachine::new([(Liveness, slow)].into(), None);
    assert_eq!(machine.first_delay(Liveness, SECOND * 2, 0.0), SECOND * 3);
    assert_eq!(machine.first_delay(Liveness, SECOND * 60, 0.0), Duration::ZERO);
    assert_eq!(machine.first_delay(Liveness, SECOND * 60, 0.5), SECOND * 5);
}

/// A runner on fakes.
struct Rig {
    docker: Arc<FakeDocker>,
    prober: Arc<FakeProber>,
    book: HealthBook,
    wanted: watch::Sender<Arc<Targets>>,
    _state: tempfile::TempDir,
    shutdown: CancellationToken,
}

impl Rig {
    fn new() -> Self {
        Self::with(EventRecorder::disabled())
    }

    /// Creates a runner whose events are written, and their store.
    fn with_events() -> (Self, Arc<MemoryStore>) {
        let store = Arc::new(MemoryStore::new());
        let (events, writing) =
            EventRecorder::writing(store.clone(), "n1", "agent/n1", CancellationToken::new());
        tokio::spawn(writing);
        (Self::with(events), store)
    }

    fn with(events: EventRecorder) -> Self {
        let (docker, prober) =
            (Arc::new(FakeDocker::with_images(&["app:1"])), Arc::new(FakeProber::default()));
        let state = tempfile::tempdir().unwrap();
        std::fs::create_dir(state.path().join("agent")).unwrap();
        let book = HealthBook::open(state.path(), Nudge::new().0);
        let shutdown = CancellationToken::new();
        tokio::spawn(book.clone().run(shutdown.clone()));
        let asker = ActionRunner { docker: docker.clone(), prober: prober.clone() };
        let (wanted, targets) = watch::channel(Arc::default());
        let runner = ProbeRunner::new(asker, book.clone(), events);
        tokio::spawn(runner.run(targets, shutdown.clone()));
        Self { docker, prober, book, wanted, _state: state, shutdown }
    }

    fn asked(&self, port: u16) -> u32 {
        self.prober.net().asked.get(&format!("h:{port}")).copied().unwrap_or_default()
    }

    fn health(&self, id: &str) -> String {
        self.book.kept().get(id).map_or_else(String::new, |known| word(known.health))
    }
}

fn tcp(port: u16) -> Action {
    Action::TcpSocket { host: "h".into(), port }
}

fn target(checks: &[(ProbeKind, Action)]) -> ProbeTarget {
    let check = |action: &Action| Check { action: action.clone(), timing: timing(1, 3) };
    ProbeTarget {
        pod: NamespacedName::new("default", "web"),
        container: "web".into(),
        started_at: Some(Timestamp::now()),
        checks: checks.iter().map(|(kind, action)| (*kind, check(action))).collect(),
        former: None,
    }
}

// Seen red without the `insert_at` after an answer: each probe runs only once.
#[tokio::test(start_paused = true)]
async fn each_is_asked_once_a_period_until_it_is_not_wanted() {
    let rig = Rig::new();
    let targets: Targets = (0..300)
        .map(|n| (format!("c{n}"), target(&[(Readiness, tcp(n)), (Liveness, tcp(1000 + n))])))
        .collect();
    rig.wanted.send_replace(Arc::new(targets));
    tokio::time::sleep(Duration::from_millis(9500)).await;
    for port in [0, 299, 1000, 1299] {
        // Probes of containers older than the runner are spread over their first period.
        assert!((9..=10).contains(&rig.asked(port)), "{port}: {}", rig.asked(port));
    }
    assert!((0..300).all(|n| rig.health(&format!("c{n}")) == "sr"));
    rig.wanted.send_replace(Arc::default());
    tokio::time::sleep(SECOND * 2).await;
    let asked = rig.asked(7);
    tokio::time::sleep(SECOND * 10).await;
    assert_eq!(rig.asked(7), asked);
    rig.shutdown.cancel();
}

// Seen red with the first target kept, and with answers from the former address counted.
#[tokio::test(start_paused = true)]
async fn a_container_whose_node_moves_is_asked_at_the_new_address_and_stays_what_it_is() {
    let rig = Rig::new();
    let at = |port| {
        Arc::new(Targets::from([("c".to_owned(), target(&[(Readiness, tcp(port)), (Liveness, tcp(port))]))]))
    };
    rig.wanted.send_replace(at(1));
    tokio::time::sleep(SECOND * 5).await;
    assert_eq!(rig.health("c"), "sr");
    // The former address is gone; a probe sent there now gets no answer, or one that comes too late.
    rig.prober.net().answers.insert("h:1".into(), FakeAnswer::Silent);
    tokio::time::sleep(SECOND * 5 / 2).await;
    rig.wanted.send_replace(at(2));
    for _ in 0..20 {
        tokio::time::sleep(SECOND / 2).await;
        assert_eq!(rig.health("c"), "sr");
    }
    assert!(rig.asked(2) >= 16, "{}", rig.asked(2));
    rig.shutdown.cancel();
}

#[tokio::test(start_paused = true)]
async fn commands_that_hang_hold_up_no_request_and_silence_is_a_failure() {
    let rig = Rig::new();
    let hangs = FakeExec { hangs: true, ..FakeExec::default() };
    rig.docker.engine().execs.insert("hang".into(), hangs);
    rig.prober.net().answers.insert("h:1".into(), FakeAnswer::Silent);
    let slow = |mut target: ProbeTarget| {
        for check in target.checks.values_mut() {
            check.timing.timeout = SECOND * 600;
        }
        target
    };
    let mut targets = Targets::new();
    for n in 0..200 {
        let new = NewContainer { name: format!("c{n}"), image: "app:1".into(), ..NewContainer::default() };
        let id = rig.docker.create(&new).await.unwrap();
        rig.docker.start(&id).await.unwrap();
        targets.insert(id, slow(target(&[(Readiness, Action::Exec(vec!["hang".into()]))])));
    }
    targets.insert("silent".into(), target(&[(Liveness, tcp(1))]));
    targets.insert("fine".into(), target(&[(Readiness, tcp(2))]));
    rig.wanted.send_replace(Arc::new(targets));
    tokio::time::sleep(SECOND * 6).await;
    assert_eq!((rig.health("fine"), rig.health("silent")), ("sr".into(), "s-liveness".into()));
    rig.shutdown.cancel();
}

#[tokio::test(start_paused = true)]
async fn after_startup_the_others_are_asked_at_once() {
    let rig = Rig::new();
    rig.prober.net().answers.insert("h:1".into(), FakeAnswer::Refused);
    let mut one = target(&[(Startup, tcp(1)), (Readiness, tcp(2)), (Liveness, tcp(3))]);
    if let Some(startup) = one.checks.get_mut(&Startup) {
        startup.timing.failure_threshold = 30;
    }
    rig.wanted.send_replace(Arc::new([("c".to_owned(), one)].into()));
    tokio::time::sleep(SECOND * 5).await;
    assert_eq!((rig.asked(2), rig.asked(3), rig.health("c")), (0, 0, "--".into()));
    rig.prober.net().answers.clear();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(rig.asked(2) >= 1 && rig.asked(3) >= 1 && rig.health("c") == "sr", "{}", rig.health("c"));
    rig.shutdown.cancel();
}

// Would fail with hooks that take the slots of checks, or that are checked as probes are.
#[tokio::test(start_paused = true)]
async fn probes_wait_for_the_hook_and_a_failed_hook_is_an_event() {
    let (rig, store) = Rig::with_events();
    let hooked = |action: Action, port| {
        let mut one = target(&[(PostStart, action), (Readiness, tcp(port))]);
        one.checks.get_mut(&PostStart).unwrap().timing = Timing::HOOK;
        one
    };
    let mut targets = Targets::new();
    for n in 0..200 {
        targets.insert(format!("slow{n}"), hooked(Action::Sleep { seconds: 7 }, 1));
    }
    let request = |url: &str| Action::HttpGet(HttpRequest { url: url.into(), headers: Vec::new() });
    rig.prober.net().answers.insert("http://any".into(), FakeAnswer::Status(500));
    rig.prober.net().answers.insert("http://none".into(), FakeAnswer::Refused);
    targets.insert("any".into(), hooked(request("http://any"), 2));
    targets.insert("none".into(), hooked(request("http://none"), 3));
    targets.insert("plain".into(), target(&[(Readiness, tcp(4))]));
    rig.wanted.send_replace(Arc::new(targets));
    tokio::time::sleep(SECOND * 5).await;
    assert_eq!((rig.asked(1), rig.asked(3)), (0, 0), "their hooks have not succeeded");
    let health = ["slow0", "any", "none", "plain"].map(|id| rig.health(id));
    assert_eq!(health, ["--", "sr", "--postStart", "sr"]);
    tokio::time::sleep(SECOND * 5).await;
    assert_eq!((rig.health("slow199").as_str(), rig.asked(3)), ("sr", 0));
    let events = store.list("/minik8s/events/").await.unwrap().items;
    let failed: Vec<_> = events
        .iter()
        .map(|kv| String::from_utf8_lossy(&kv.value).into_owned())
        .filter(|text| text.contains("\"FailedPostStartHook\""))
        .collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].contains("PostStartHook failed: http://none: connection refused"), "{failed:?}");
    rig.shutdown.cancel();
}

// Would fail with a hook that counts as failed because the engine was away.
#[tokio::test(start_paused = true)]
async fn a_hook_that_the_engine_could_not_run_is_run_again() {
    let rig = Rig::new();
    let mut one = target(&[(PostStart, Action::Exec(vec!["hello".into()]))]);
    one.checks.get_mut(&PostStart).unwrap().timing = Timing::HOOK;
    let new = NewContainer { name: "c".into(), image: "app:1".into(), ..NewContainer::default() };
    let id = rig.docker.create(&new).await.unwrap();
    rig.wanted.send_replace(Arc::new([(id.clone(), one)].into()));
    tokio::time::sleep(SECOND * 3).await;
    assert_eq!(rig.health(&id), "--");
    rig.docker.start(&id).await.unwrap();
    tokio::time::sleep(SECOND * 2).await;
    assert_eq!(rig.health(&id), "sr");
    rig.shutdown.cancel();
}

#[tokio::test]
async fn answers_become_kubernetes_words() {
    let (docker, prober) = (Arc::new(FakeDocker::default()), Arc::new(FakeProber::default()));
    let answers = [("u:200", 200), ("u:307", 307), ("u:399", 399), ("u:400", 400), ("u:500", 500)];
    prober.net().answers = answers.map(|(url, status)| (url.to_owned(), FakeAnswer::Status(status))).into();
    let asker = ActionRunner { docker, prober };
    let mut found = BTreeMap::new();
    for (url, status) in answers {
        let request = HttpRequest { url: url.into(), headers: Vec::new() };
        found.insert(status, asker.check("c", &Action::HttpGet(request), SECOND).await);
    }
    assert_eq!(found[&200], CheckResult::Success);
    assert!(matches!(found[&307], CheckResult::Warning(_)) && matches!(found[&399], CheckResult::Warning(_)));
    for status in [400, 500] {
        assert_eq!(
            found[&status],
            CheckResult::Failure(format!("HTTP probe failed with statuscode: {status}"))
        );
    }
}

// Seen red with `: {output}` whatever the output is.
#[tokio::test]
async fn a_hook_that_fails_says_what_it_said_if_it_said_anything() {
    let (docker, prober) = (Arc::new(FakeDocker::with_images(&["app:1"])), Arc::new(FakeProber::default()));
    let new = NewContainer { name: "c".into(), image: "app:1".into(), ..NewContainer::default() };
    let id = docker.create(&new).await.unwrap();
    docker.start(&id).await.unwrap();
    let asker = ActionRunner { docker: docker.clone(), prober };
    for (output, said) in [
        ("", "command \"bye now\" ended with code 3"),
        ("no such host\n", "command \"bye now\" ended with code 3: no such host"),
    ] {
        let script = FakeExec { code: 3, output: output.into(), ..FakeExec::default() };
        docker.engine().execs.insert("bye now".into(), script);
        let hook = Action::Exec(vec!["bye".into(), "now".into()]);
        assert_eq!(asker.hook(&id, &hook, SECOND).await, Err(said.to_owned()));
    }
}

// Seen red with `before.ready` ignored (reported at the first failure), and without a separate event.
#[tokio::test(start_paused = true)]
async fn each_time_that_a_container_is_not_ready_any_more_is_reported_anew() {
    let (rig, store) = Rig::with_events();
    rig.wanted.send_replace(Arc::new([("c".to_owned(), target(&[(Readiness, tcp(1))]))].into()));
    let reported = async |part: &str| {
        let events = store.list("/minik8s/events/").await.unwrap().items;
        events.iter().filter(|kv| String::from_utf8_lossy(&kv.value).contains(part)).count()
    };
    // The container was never ready in the first round and ready once in the second, so readiness was lost once.
    for fell in 0..2 {
        rig.prober.net().answers.insert("h:1".into(), FakeAnswer::Refused);
        tokio::time::sleep(SECOND * 5).await;
        assert_eq!(rig.book.failing()["c"], "Readiness probe failed: h:1: connection refused");
        assert_eq!(reported("Container web is not ready since").await, fell);
        rig.prober.net().answers.clear();
        tokio::time::sleep(SECOND * 5).await;
        assert!(rig.health("c") == "sr" && rig.book.failing().is_empty());
    }
    assert_eq!(reported("\"Readiness probe failed: h:1: connection refused\"").await, 1);
    rig.shutdown.cancel();
}

// Seen red without `round`: each return of the pod added a probe within the period.
#[tokio::test(start_paused = true)]
async fn a_container_that_leaves_and_comes_back_is_asked_as_often_as_before() {
    let rig = Rig::new();
    let mut one = target(&[(Readiness, tcp(1))]);
    one.checks.values_mut().for_each(|check| check.timing.period = SECOND * 10);
    let wanted = Arc::new(Targets::from([("c".to_owned(), one)]));
    rig.wanted.send_replace(Arc::clone(&wanted));
    for _ in 0..5 {
        tokio::time::sleep(SECOND).await;
        rig.wanted.send_replace(Arc::default());
        tokio::time::sleep(SECOND).await;
        rig.wanted.send_replace(Arc::clone(&wanted));
    }
    tokio::time::sleep(SECOND * 20).await;
    let before = rig.asked(1);
    tokio::time::sleep(SECOND * 100).await;
    assert_eq!(rig.asked(1) - before, 10);
    rig.shutdown.cancel();
}

// Covers `catch_unwind` in `ask`.
#[tokio::test(start_paused = true)]
async fn a_check_that_panics_is_made_again() {
    let rig = Rig::new();
    rig.prober.net().answers.insert("h:1".into(), FakeAnswer::Panics);
    rig.wanted.send_replace(Arc::new([("c".to_owned(), target(&[(Readiness, tcp(1))]))].into()));
    tokio::time::sleep(SECOND * 5).await;
    assert!(rig.asked(1) >= 4 && rig.health("c") == "s-", "{} {}", rig.asked(1), rig.health("c"));
    rig.prober.net().answers.clear();
    tokio::time::sleep(SECOND * 2).await;
    assert_eq!(rig.health("c"), "sr");
    rig.shutdown.cancel();
}

// Covers the bound in `Timing::of`: the timer queue panics beyond some two years.
#[tokio::test(start_paused = true)]
async fn numbers_beyond_all_reason_stop_no_other_probe() {
    let rig = Rig::new();
    let spec = serde_json::json!({"tcpSocket": {"port": 1}, "initialDelaySeconds": u32::MAX,
        "periodSeconds": u32::MAX, "timeoutSeconds": u32::MAX});
    let endless = Timing::from_probe(&serde_json::from_value(spec).unwrap());
    let (mut never, fine) = (target(&[(Readiness, tcp(1))]), target(&[(Readiness, tcp(2))]));
    never.checks.values_mut().for_each(|check| check.timing = endless);
    rig.wanted.send_replace(Arc::new([("a".to_owned(), never), ("b".to_owned(), fine)].into()));
    tokio::time::sleep(SECOND * 5).await;
    assert_eq!((rig.health("a"), rig.health("b")), ("s-".into(), "sr".into()));
    rig.shutdown.cancel();
}

// Seen red with `continue` for every tracked container: "sr" of the life before, and no startup.
#[tokio::test(start_paused = true)]
async fn a_container_that_is_started_again_under_its_id_begins_anew() {
    let rig = Rig::new();
    let now = Timestamp::now();
    let life = |at: Option<i64>, former| {
        let mut one = target(&[(Startup, tcp(1)), (Readiness, tcp(2)), (Liveness, tcp(3))]);
        one.started_at = at.map(|seconds| now + jiff::SignedDuration::from_secs(seconds));
        one.former = former;
        Arc::new(Targets::from([("c".to_owned(), one)]))
    };
    rig.wanted.send_replace(life(Some(0), None));
    tokio::time::sleep(SECOND * 3).await;
    assert_eq!(rig.health("c"), "sr");
    let kept = |rig: &Rig, at: i64| {
        let started_at = Some(now + jiff::SignedDuration::from_secs(at));
        rig.book.kept()["c"].for_run(started_at).map(word)
    };
    assert_eq!((kept(&rig, 0), kept(&rig, 1)), (Some("sr".into()), None), "another life of it is not known");
    // A failed Docker query is not a new life.
    rig.wanted.send_replace(life(None, None));
    tokio::time::sleep(SECOND).await;
    assert_eq!(kept(&rig, 0), Some("sr".into()));
    // Two failures of three, in a life that ends.
    rig.prober.net().answers.extend((1..=3).map(|port| (format!("h:{port}"), FakeAnswer::Refused)));
    tokio::time::sleep(SECOND * 2).await;
    rig.wanted.send_replace(life(Some(60), None));
    let asked = (rig.asked(2), rig.asked(3));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!((kept(&rig, 60), kept(&rig, 0)), (Some("--".into()), None));
    assert_eq!((rig.asked(2), rig.asked(3)), asked, "startup holds the others back");
    assert!(rig.book.failing()["c"].starts_with("Startup probe failed"), "{:?}", rig.book.failing());
    rig.prober.net().answers.clear();
    tokio::time::sleep(SECOND * 2).await;
    assert_eq!(kept(&rig, 60), Some("sr".into()));
    rig.shutdown.cancel();
}

// Covers the retry in `HealthBook::run`.
#[tokio::test(start_paused = true)]
async fn what_a_full_disk_did_not_take_is_seen_at_once_and_written_later() {
    let state = tempfile::tempdir().unwrap();
    // A file in place of the folder stands for the full disk.
    let in_the_way = state.path().join("agent");
    std::fs::write(&in_the_way, "").unwrap();
    let book = HealthBook::open(state.path(), Nudge::new().0);
    let shutdown = CancellationToken::new();
    tokio::spawn(book.clone().run(shutdown.clone()));
    book.set("c", None, ProbeHealth { hook_done: false, started: true, ready: true, failed: None });
    tokio::time::sleep(SECOND * 30).await;
    assert_eq!(book.kept().get("c").map(|known| word(known.health)), Some("sr".into()));
    std::fs::remove_file(&in_the_way).unwrap();
    tokio::time::sleep(SECOND * 61).await;
    assert_eq!(HealthBook::open(state.path(), Nudge::new().0).kept(), book.kept());
    shutdown.cancel();
}
