//! Registration and heartbeat on the in-memory store.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;

use jiff::SignedDuration;
use schema::codec::{decode, encode};
use schema::control::Plan as _;
use schema::keys::Key;
use schema::quantity::{Cpu, Memory};
use schema::records::{Heartbeat, NodeRecord, NodeVersions};
use schema::store::memory::MemoryStore;
use schema::store::{Op, Store as _, TxnOutcome};
use schema::testing::{authority, enroll};
use schema::trust::{Credentials, TrustDir};

use super::*;
use crate::worlds::host::MachineFacts;

struct FakeMachine(Mutex<MachineFacts>);

#[async_trait]
impl Machine for FakeMachine {
    async fn facts(&self) -> MachineFacts {
        let facts = self.0.lock().unwrap().clone();
        if facts.versions.docker == "hangs" {
            std::future::pending::<()>().await;
        }
        facts
    }
}

struct Rig {
    store: Arc<MemoryStore>,
    machine: Arc<FakeMachine>,
    moves: watch::Sender<Option<IpAddr>>,
    address: NodeAddress,
    reported: watch::Sender<bool>,
    trust: TrustReader,
    /// Digest of the only authority.
    digest: String,
}

impl Rig {
    fn new() -> Self {
        let facts = MachineFacts {
            addresses: vec![Ipv4Addr::new(192, 0, 2, 7).into()],
            cpu: Cpu { millis: 2000 },
            memory: Memory { bytes: 1 << 30 },
            gpus: Some(2),
            versions: NodeVersions { docker: "20.10.24".into(), arch: "amd64".into(), ..Default::default() },
        };
        let (moves, address) = NodeAddress::channel(Some([192, 0, 2, 7].into()));
        let machine = Arc::new(FakeMachine(Mutex::new(facts)));
        let reported = watch::Sender::new(true);
        let (folder, authority) = (tempfile::tempdir().unwrap(), authority());
        let dir = TrustDir::new(folder.path().join("pki"));
        enroll(&dir, &authority, "node-n1", (Timestamp::now(), SignedDuration::from_hours(1)));
        let trust = TrustReader::fixed(Credentials::load(&dir).unwrap());
        let digest = authority.certificate().digest().unwrap();
        Self { store: Arc::new(MemoryStore::new()), machine, moves, address, reported, trust, digest }
    }

    fn agent(&self, since: &str) -> NodeLoop {
        let store: SharedStore = self.store.clone();
        let machine: Arc<dyn Machine> = self.machine.clone();
        NodeLoop::new(NodeDeps {
            node: "n1".into(),
            listen: "0.0.0.0:7071".parse().unwrap(),
            functions_listen: "0.0.0.0:8081".parse().unwrap(),
            address: self.address.clone(),
            age_recipient: Some("age1node".into()),
            cluster_recipient: watch::channel(None).1,
            store,
            machine,
            subnet: watch::channel(None).1,
            vtep: watch::channel(None).1,
            reported: self.reported.subscribe(),
            trust: self.trust.clone(),
            since: since.parse().unwrap(),
        })
    }

    async fn record(&self) -> NodeRecord {
        let pair = self.store.get(&Key::Node("n1".into()).to_string()).await.unwrap().unwrap();
        decode(&pair.value).unwrap()
    }

    async fn heartbeat(&self) -> Option<Heartbeat> {
        let pair = self.store.get(&Key::Heartbeat("n1".into()).to_string()).await.unwrap();
        pair.map(|pair| decode(&pair.value).unwrap())
    }
}

const FIRST: &str = "2026-01-01T00:00:00Z";
const SECOND: &str = "2026-01-02T00:00:00Z";

async fn run(node: &mut NodeLoop, now: &str) -> Result<NodePlan, LoopError> {
    let Observation::Ready(observed) = node.observe().await? else { panic!("always ready") };
    let plan = NodeLoop::plan(&observed, now.parse().unwrap());
    assert!(!plan.is_empty());
    let outcome = node.act(&observed, plan.clone()).await;
    node.report(observed, outcome).await?;
    Ok(plan)
}

#[tokio::test(start_paused = true)]
async fn a_new_node_registers_and_beats() {
    let rig = Rig::new();
    run(&mut rig.agent(FIRST), FIRST).await.unwrap();
    let record = rig.record().await;
    assert_eq!(record.registered_at, FIRST.parse().unwrap());
    assert_eq!((record.max_pods, record.gpus), (110, 2));
    assert_eq!(record.authorities, std::slice::from_ref(&rig.digest));
    assert_eq!(record.labels["kubernetes.io/hostname"], "n1");
    assert_eq!(rig.heartbeat().await.unwrap().since, FIRST.parse().unwrap());
}

/// Seen red without the wait: the record appears before the statuses do.
#[tokio::test(start_paused = true)]
async fn a_node_registers_after_etcd_has_what_runs_on_it() {
    let rig = Rig::new();
    rig.reported.send_replace(false);
    let mut agent = rig.agent(FIRST);
    assert!(matches!(agent.observe().await.unwrap(), Observation::NotReady(_)));
    rig.reported.send_replace(true);
    run(&mut agent, FIRST).await.unwrap();
    rig.record().await;
    // Statuses that miss their deadline do not block registration for good.
    let rig = Rig::new();
    rig.reported.send_replace(false);
    let mut agent = rig.agent(FIRST);
    assert!(matches!(agent.observe().await.unwrap(), Observation::NotReady(_)));
    tokio::time::advance(Duration::from_secs(15)).await;
    run(&mut agent, FIRST).await.unwrap();
    rig.record().await;
}

// Seen red with the URL from the agent's start.
#[tokio::test(start_paused = true)]
async fn the_api_is_where_the_node_is_now() {
    let rig = Rig::new();
    let mut node = rig.agent(FIRST);
    run(&mut node, FIRST).await.unwrap();
    assert_eq!(rig.record().await.api, "https://192.0.2.7:7071");
    rig.moves.send_replace(Some([192, 0, 2, 8].into()));
    run(&mut node, FIRST).await.unwrap();
    let record = rig.record().await;
    assert_eq!(record.api, "https://192.0.2.8:7071");
    // Would fail with the machine's address alone: others connect to the node's own addresses only.
    assert!(record.server(&record.api, false).is_ok(), "{:?}", record.addresses);
}

#[tokio::test(start_paused = true)]
async fn what_did_not_change_is_not_written() {
    let rig = Rig::new();
    let mut node = rig.agent(FIRST);
    run(&mut node, FIRST).await.unwrap();
    let before = rig.store.revision();
    for _ in 0..5 {
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        let plan = run(&mut node, FIRST).await.unwrap();
        assert!(plan.record.is_none() && matches!(plan.beat, HeartbeatAction::KeepAlive(_)), "{plan:?}");
    }
    assert_eq!(rig.store.revision(), before);
    assert!(rig.heartbeat().await.is_some(), "kept alive over 25 s");
}

#[tokio::test(start_paused = true)]
async fn without_signs_the_heartbeat_ends_and_the_record_stays() {
    let rig = Rig::new();
    run(&mut rig.agent(FIRST), FIRST).await.unwrap();
    tokio::time::sleep(HEARTBEAT_TTL + Duration::from_secs(2)).await;
    assert!(rig.heartbeat().await.is_none());
    assert_eq!(rig.record().await.name, "n1");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_keeps_when_it_registered() {
    let rig = Rig::new();
    run(&mut rig.agent(FIRST), FIRST).await.unwrap();
    let plan = run(&mut rig.agent(SECOND), SECOND).await.unwrap();
    assert!(plan.record.is_none(), "{plan:?}");
    assert_eq!(plan.rival_since, None, "its own former self is not a rival");
    assert_eq!(rig.heartbeat().await.unwrap().since, SECOND.parse().unwrap());
    rig.machine.0.lock().unwrap().cpu = Cpu { millis: 4000 };
    run(&mut rig.agent(SECOND), SECOND).await.unwrap();
    let record = rig.record().await;
    assert_eq!((record.cpu.millis, record.registered_at), (4000, FIRST.parse().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn what_is_unknown_for_a_moment_is_kept() {
    let rig = Rig::new();
    let mut node = rig.agent(FIRST);
    run(&mut node, FIRST).await.unwrap();
    rig.machine.0.lock().unwrap().versions.docker.clear();
    rig.machine.0.lock().unwrap().addresses.clear();
    rig.machine.0.lock().unwrap().gpus = None;
    assert!(run(&mut node, FIRST).await.unwrap().record.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_hangs_does_not_cost_the_heartbeat() {
    let rig = Rig::new();
    let mut node = rig.agent(FIRST);
    run(&mut node, FIRST).await.unwrap();
    rig.machine.0.lock().unwrap().versions.docker = "hangs".into();
    let beat = tokio::time::timeout(HEARTBEAT_INTERVAL, run(&mut node, FIRST)).await;
    assert!(beat.expect("in time").unwrap().record.is_none());
    assert!(rig.heartbeat().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_a_lost_key_and_a_wiped_store_are_made_good() {
    let rig = Rig::new();
    let mut node = rig.agent(FIRST);
    run(&mut node, FIRST).await.unwrap();
    // An absence longer than the lease.
    tokio::time::sleep(Duration::from_secs(60)).await;
    run(&mut node, FIRST).await.unwrap();
    assert!(rig.heartbeat().await.is_some());
    for key in [Key::Heartbeat("n1".into()), Key::Node("n1".into())] {
        let _: TxnOutcome = rig.store.txn(vec![], vec![Op::delete(key)]).await.unwrap();
    }
    run(&mut node, FIRST).await.unwrap();
    assert!(rig.heartbeat().await.is_some());
    assert_eq!(rig.record().await.name, "n1");
}

#[tokio::test(start_paused = true)]
async fn with_etcd_gone_it_fails_and_goes_on_afterwards() {
    let rig = Rig::new();
    let mut node = rig.agent(FIRST);
    run(&mut node, FIRST).await.unwrap();
    rig.store.refuse_everything(true);
    assert!(run(&mut node, FIRST).await.is_err());
    rig.store.refuse_everything(false);
    run(&mut node, FIRST).await.unwrap();
    assert!(rig.heartbeat().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_second_agent_of_the_same_name_is_reported() {
    let rig = Rig::new();
    let (mut first, mut second) = (rig.agent(FIRST), rig.agent(SECOND));
    run(&mut first, FIRST).await.unwrap();
    run(&mut second, SECOND).await.unwrap();
    let plan = run(&mut first, FIRST).await.unwrap();
    assert_eq!(plan.rival_since, Some(SECOND.parse().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_is_replaced() {
    let rig = Rig::new();
    let key = Key::Node("n1".into());
    let garbage = encode(&"no record").unwrap();
    let _: TxnOutcome = rig.store.txn(vec![], vec![Op::put(key, garbage)]).await.unwrap();
    run(&mut rig.agent(FIRST), FIRST).await.unwrap();
    assert_eq!(rig.record().await.name, "n1");
}

use super::plan::HeartbeatAction;
