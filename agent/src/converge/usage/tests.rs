//! Usage figures from two readings of counters that the test sets.

use schema::codec::{VALUE_MAX_BYTES, decode};
use schema::meta::NamespacedName;
use schema::records::{DiskSpace, NodeUsage};

use super::plan::{ContainerSample, VolumeSizes, plan};
use super::*;
use crate::metrics::Traffic;
use crate::testing::own_container;
use crate::worlds::cgroups::{FakeCgroups, LinkTraffic, Sample};
use crate::worlds::docker::FakeDocker;
use crate::worlds::host::FakeDisk;
use crate::worlds::netlink::host_link_name;

const MS: u64 = 1_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_900_000_000 + seconds).unwrap()
}

fn counted(pod: &str, container: &str, cpu_ns: u64) -> ContainerSample {
    ContainerSample {
        pod: NamespacedName::new("default", pod),
        uid: format!("uid-{pod}"),
        container: container.into(),
        started_at: Some(at(-1000)),
        sample: Sample { cpu_ns, memory_bytes: 4096, io: None },
    }
}

fn two_looks(former: &[(&str, u64)], containers: Vec<(String, ContainerSample)>) -> Observed {
    let former = PreviousSample {
        machine: 1000 * MS,
        containers: former.iter().map(|(id, cpu)| ((*id).to_owned(), *cpu)).collect(),
    };
    Observed {
        machine: Sample { cpu_ns: 16_000 * MS, memory_bytes: 1 << 30, io: None },
        running: containers.len(),
        uids: containers.iter().map(|(_, counted)| counted.uid.clone()).collect(),
        containers: containers.into_iter().collect(),
        traffic: LinkTraffic::default(),
        volumes: BTreeMap::new(),
        disk: Some(DiskSpace { total_bytes: 100, free_bytes: 9 }),
        former: Some((former, Duration::from_secs(15))),
    }
}

fn written(plan: &UsagePlan) -> NodeUsage {
    let UsagePlan::Write(usage) = plan else { panic!("{plan:?}") };
    let bytes = schema::codec::encode(usage).unwrap();
    assert!(bytes.len() <= VALUE_MAX_BYTES);
    decode(&bytes).unwrap()
}

#[test]
fn cpu_is_the_mean_since_the_look_before() {
    let mut young = counted("young", "app", 1000 * MS);
    young.started_at = Some(at(-4));
    let observed = two_looks(
        &[("a", 500 * MS), ("back", 900 * MS)],
        vec![
            ("a".into(), counted("web", "app", 8000 * MS)),
            ("b".into(), young),
            ("back".into(), counted("odd", "app", 100 * MS)),
        ],
    );
    let usage = written(&plan(&observed, at(0)));
    assert_eq!((usage.cpu, usage.memory, usage.window_seconds), (1000, 1 << 30, 15));
    assert_eq!(usage.pods["default/web"].containers["app"].cpu, 500);
    // One second of CPU in the four seconds since its start. Red when a new container's window is the loop's.
    assert_eq!(usage.pods["default/young"].containers["app"].cpu, 250);
    // A counter never decreases; if it does, no usage is invented.
    assert_eq!(usage.pods["default/odd"].containers["app"].cpu, 0);
    let first = Observed { former: None, ..observed };
    assert_eq!(plan(&first, at(0)), UsagePlan::SecondLook);
}

#[test]
fn of_two_pods_of_one_name_one_is_shown() {
    let mut old = counted("web", "app", 0);
    old.uid = "uid-a".into();
    let observed = two_looks(&[], vec![("a".into(), old), ("b".into(), counted("web", "app", 0))]);
    let usage = written(&plan(&observed, at(0)));
    assert_eq!(usage.pods.len(), 1);
    assert_eq!(usage.pods["default/web"].uid, "uid-web");
}

/// 110 pods of two containers and a volume, with names as long as workloads generate them, fit completely. Larger
/// ones
/// lose volumes first. Red without `without_volumes` in `STEPS`.
#[test]
fn a_full_node_fits_under_its_key() {
    let node = |name: usize, containers: usize, volumes: usize| {
        let mut all = Vec::new();
        let mut sizes = BTreeMap::new();
        for pod in 0..110 {
            let pod = format!("{pod:0>name$}");
            for number in 0..containers {
                let container = format!("{number}-{}", "c".repeat(20));
                all.push((format!("{pod}-{number}"), counted(&pod, &container, 7 * MS)));
            }
            let bytes = (0..volumes).map(|n| (format!("volume-{n:020}"), u64::MAX)).collect();
            sizes.insert(format!("uid-{pod}"), VolumeSizes { bytes, at_least: Vec::new() });
        }
        Observed { volumes: sizes, ..two_looks(&[], all) }
    };
    let whole = written(&plan(&node(60, 2, 1), at(0)));
    assert_eq!((whole.pods.len(), whole.left_out.as_str()), (110, ""));
    let short = written(&plan(&node(60, 3, 10), at(0)));
    assert_eq!(short.pods.len(), 110);
    assert!(short.left_out.contains("volumes are left out"), "{}", short.left_out);
    assert!(short.pods.values().all(|pod| pod.volumes.is_empty() && pod.containers.len() == 3));
    let sums = written(&plan(&node(60, 40, 0), at(0)));
    assert!(sums.left_out.contains("added up"), "{}", sums.left_out);
    assert!(sums.pods.values().all(|pod| pod.containers[""].memory == 40 * 4096));
}

/// A sample of two pods: `web` with these running containers, and one on the host's network.
fn sampled(web: &[(&str, u64, u64)], age: i64) -> Observed {
    let of = |(id, cpu_ns, read): &(&str, u64, u64)| {
        let io = Some(Traffic { input: *read, output: 2 * read });
        let started_at = Some(at(-age));
        let sample = Sample { cpu_ns: *cpu_ns, memory_bytes: 100, io };
        ((*id).to_owned(), ContainerSample { sample, started_at, ..counted("web", id, 0) })
    };
    let other = ("host".to_owned(), counted("host", "app", 7));
    let mut observed = two_looks(&[], web.iter().map(of).chain([other]).collect());
    observed.uids.insert("uid-web".to_owned());
    let link = |name: String, input, output| (name, Traffic { input, output });
    observed.traffic.links = [
        link(host_link_name("mk8s", "uid-web"), 30, 40),
        link("eth0".to_owned(), 50, 60),
        link(host_link_name("mk8s", "uid-former"), 70, 80),
    ]
    .into();
    observed.traffic.uplink = Some("eth0".to_owned());
    let bytes = [("data".to_owned(), 5), ("more".to_owned(), 6)].into();
    observed.volumes.insert("uid-web".to_owned(), VolumeSizes { bytes, at_least: Vec::new() });
    observed
}

// Would fail with the sum of the running containers, which falls when one of them ends.
#[test]
fn the_totals_of_a_pod_never_fall_and_begin_with_the_agent() {
    let mut totals = Totals::default();
    let mut add = |observed: Observed| {
        totals.add(&observed, at(0));
        let resources = totals.resources(&observed, "mk8s", 9);
        resources.pods[&NamespacedName::new("default", "web")].clone()
    };
    let total =
        |of: &crate::metrics::PodResources| (of.cpu_ns, of.disk.map(|disk| (disk.input, disk.output)));
    let old = |web: &[(&str, u64, u64)]| sampled(web, 1000);
    let first = add(Observed { former: None, ..old(&[("a", 1000, 10), ("b", 500, 0)]) });
    assert_eq!(total(&first), (0, Some((0, 0))), "a former agent counted it");
    assert_eq!(total(&add(old(&[("a", 1300, 15), ("b", 500, 0)]))), (300, Some((5, 10))));
    assert_eq!(total(&add(old(&[("b", 600, 1)]))), (400, Some((6, 12))), "one has ended");
    // Its successor has run for 3 s.
    let both = Observed { containers: sampled(&[("c", 50, 4)], 3).containers, ..old(&[]) };
    assert_eq!(total(&add(both)), (450, Some((10, 20))));
    // A container that could not be read for a while.
    assert_eq!(total(&add(old(&[("b", 9000, 90), ("c", 50, 4)]))), (450, Some((10, 20))));
}

// Would fail with totals that end with the last running container.
#[test]
fn a_pod_whose_container_waits_for_its_restart_keeps_its_totals() {
    let mut totals = Totals::default();
    let mut cpu_ns = |observed: Observed| {
        totals.add(&observed, at(0));
        let resources = totals.resources(&observed, "mk8s", 9);
        resources.pods.get(&NamespacedName::new("default", "web")).map(|of| of.cpu_ns)
    };
    assert_eq!(cpu_ns(sampled(&[("a", 1000, 0)], 1000)), Some(0));
    assert_eq!(cpu_ns(sampled(&[("a", 1300, 0)], 1000)), Some(300));
    assert_eq!(cpu_ns(sampled(&[], 0)), None, "nothing runs");
    assert_eq!(cpu_ns(sampled(&[("b", 50, 0)], 3)), Some(350));
    let mut without = sampled(&[], 0);
    without.uids.remove("uid-web");
    assert_eq!(cpu_ns(without), None);
    assert_eq!(cpu_ns(sampled(&[("c", 50, 0)], 3)), Some(50), "the pod was gone");
}

#[test]
fn a_pod_has_the_traffic_of_its_own_link_the_other_way_round() {
    let mut totals = Totals::default();
    let observed = sampled(&[("a", 1, 0), ("b", 2, 0)], 1000);
    totals.add(&observed, at(0));
    let resources = totals.resources(&observed, "mk8s", 9);
    let pods: Vec<_> = resources.pods.iter().map(|(pod, of)| (pod.name.as_str(), of)).collect();
    let [("host", host), ("web", web)] = pods[..] else { panic!("{pods:?}") };
    assert_eq!(web.network, Some(Traffic { input: 40, output: 30 }));
    assert_eq!((web.memory_bytes, web.volume_bytes), (200, Some(11)));
    assert_eq!((host.network, host.disk, host.volume_bytes), (None, None, None));
    assert_eq!(resources.network, Some(Traffic { input: 50, output: 60 }));
    assert_eq!((resources.cpu_ns, resources.memory_total_bytes, resources.containers), (16_000 * MS, 9, 3));
}

struct Rig {
    record: watch::Receiver<Option<NodeUsage>>,
    docker: Arc<FakeDocker>,
    cgroups: Arc<FakeCgroups>,
    state: tempfile::TempDir,
    usage: UsageLoop,
}

impl Rig {
    fn new() -> Self {
        let (records, record) = watch::channel(None);
        let docker = Arc::new(FakeDocker::with_images(&["i"]));
        let cgroups = Arc::new(FakeCgroups::default());
        let state = tempfile::tempdir().unwrap();
        let usage = UsageLoop::new(UsageDeps {
            instance: "mk8s".into(),
            state_dir: state.path().into(),
            docker: docker.clone(),
            disk: Arc::new(FakeDisk::default()),
            cgroups: cgroups.clone(),
            memory_bytes: 0,
            records,
            resources: watch::channel(None).0,
        });
        Self { record, docker, cgroups, state, usage }
    }

    async fn container(&self, name: &str) -> String {
        let id = self.docker.create(&own_container("i", "web", "u1", name, 0)).await.unwrap();
        self.docker.start(&id).await.unwrap();
        id
    }

    async fn run(&mut self) -> Result<Next, LoopError> {
        let Observation::Ready(observed) = self.usage.observe().await? else { panic!("ready") };
        let plan = UsageLoop::plan(&observed, at(0));
        let outcome = self.usage.act(&observed, plan).await;
        self.usage.report(observed, outcome).await
    }

    fn written(&self) -> Option<NodeUsage> {
        self.record.borrow().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn two_looks_make_a_record_and_what_ended_is_not_in_it() {
    let mut rig = Rig::new();
    let (app, pause) = (rig.container("app").await, rig.container("POD").await);
    let other = rig.container("other").await;
    std::fs::create_dir_all(rig.state.path().join("agent/pods/u1/volumes/data")).unwrap();
    for id in ["", &app, &pause, &other] {
        rig.cgroups.set(id, 0, 100);
    }
    assert_eq!(rig.run().await.unwrap(), Next::After(SECOND_LOOK));
    assert_eq!(rig.written(), None);
    tokio::time::advance(Duration::from_secs(10)).await;
    rig.cgroups.set(&app, 2000 * MS, 300);
    rig.cgroups.end(&other);
    assert_eq!(rig.run().await.unwrap(), Next::Interval);
    let usage = rig.written().unwrap();
    let pod = usage.pod(&NamespacedName::new("default", "web"), "u1").unwrap();
    // The pause container does not count as a container of the pod.
    assert_eq!(pod.containers.keys().collect::<Vec<_>>(), ["app"]);
    assert_eq!((pod.containers["app"].cpu, pod.containers["app"].memory), (200, 300));
    assert_eq!(pod.volumes.keys().collect::<Vec<_>>(), ["data"]);
    assert_eq!(usage.pod(&NamespacedName::new("default", "web"), "u2"), None);
}

// Seen red with a `learn` that fails for each of them.
#[tokio::test(start_paused = true)]
async fn a_container_that_cannot_be_inspected_hides_no_other() {
    let mut rig = Rig::new();
    let (app, stuck) = (rig.container("app").await, rig.container("stuck").await);
    rig.docker.engine().opaque.insert(own_container("i", "web", "u1", "stuck", 0).name);
    for id in ["", &app, &stuck] {
        rig.cgroups.set(id, 0, 100);
    }
    rig.run().await.unwrap();
    tokio::time::advance(Duration::from_secs(10)).await;
    rig.run().await.unwrap();
    let seen = async |rig: &Rig| {
        let usage = rig.written().unwrap();
        let pod = usage.pod(&NamespacedName::new("default", "web"), "u1").unwrap();
        pod.containers.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(seen(&rig).await, ["app"]);
    // The container is inspected again later.
    rig.docker.engine().opaque.clear();
    tokio::time::advance(Duration::from_secs(301)).await;
    rig.run().await.unwrap();
    assert_eq!(seen(&rig).await, ["app", "stuck"]);
    // Without Docker there is no list of pods.
    rig.docker.engine().unreachable = true;
    assert!(rig.run().await.is_err());
}
