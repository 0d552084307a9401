//! Observation of containers for which Docker does not answer every query.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use schema::control::lock;
use schema::kinds::pod::PodStatus;
use schema::snapshot::Snapshot;
use schema::testing::{pod_spec, versioned};
use tokio::time::Instant;

use super::{binding, node};
use crate::converge::pods::facts::{Placement, State};
use crate::converge::pods::observe::{ContainerObserver, EventCount, event_count, memory_event};
use crate::converge::pods::{container, is_news, sandbox};
use crate::names;
use crate::testing::own_container;
use crate::worlds::docker::{ContainerEvent, Docker as _, Exit, FakeDocker, NewContainer};

#[tokio::test]
async fn a_container_that_docker_cannot_inspect_hinders_no_other_and_passes_for_no_success() {
    let docker = Arc::new(FakeDocker::with_images(&["app:1"]));
    for name in ["broken", "whole"] {
        ended(&docker, name).await;
    }
    docker.engine().opaque.insert(named("broken"));
    let mut looker = ContainerObserver::new(docker, "mk8s".into());
    let pods = looker.observe().await.unwrap();
    assert_eq!(pods["broken"].containers["a"][0].state, State::Removing);
    assert!(matches!(&pods["whole"].containers["a"][0].state, State::Exited(end) if end.code == 0));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_docker_cannot_inspect_is_left_alone_ever_longer() {
    let docker = Arc::new(FakeDocker::with_images(&["app:1"]));
    ended(&docker, "broken").await;
    docker.engine().opaque.insert(named("broken"));
    let mut looker = ContainerObserver::new(docker.clone(), "mk8s".into());
    looker.observe().await.unwrap();
    for wait in [10, 20] {
        // A container that would answer by now is not inspected before its retry is due.
        docker.engine().opaque.clear();
        tokio::time::advance(Duration::from_secs(wait - 1)).await;
        let pods = looker.observe().await.unwrap();
        assert_eq!(pods["broken"].containers["a"][0].state, State::Removing);
        docker.engine().opaque.insert(named("broken"));
        tokio::time::advance(Duration::from_secs(1)).await;
        looker.observe().await.unwrap();
    }
    docker.engine().opaque.clear();
    tokio::time::advance(Duration::from_secs(40)).await;
    let pods = looker.observe().await.unwrap();
    assert!(matches!(pods["broken"].containers["a"][0].state, State::Exited(_)), "{pods:?}");
}

#[test]
fn a_report_wakes_its_own_loop_only_if_it_is_the_last_on_a_pod() {
    let web = binding("web", pod_spec(&["a"]));
    let key = ("n1".to_owned(), web.pod.reference());
    let mut wanted = Snapshot { synced: true, ..Snapshot::default() };
    wanted.bindings.insert(key.clone(), versioned(web));
    let reported = |reason: &str| {
        let mut snapshot = wanted.clone();
        let status = PodStatus { reason: reason.to_owned(), ..PodStatus::default() };
        snapshot.pod_status.insert(key.clone(), versioned(status));
        snapshot
    };
    let last = reported(PodStatus::TERMINATING);
    assert!(!is_news(&wanted, &reported("")) && is_news(&reported(""), &last));
    assert!(!is_news(&last, &wanted), "its key is gone");
    assert!(
        is_news(&wanted, &Snapshot { synced: true, ..Snapshot::default() }),
        "the pod is no longer wanted"
    );
}

#[test]
fn a_process_killed_for_memory_is_an_event_of_its_pod() {
    let event = |action: &str, labels: &[(&str, &str)]| ContainerEvent {
        id: "1".into(),
        action: action.into(),
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    };
    let labels = [(names::NAMESPACE, "shop"), (names::POD, "web"), (names::CONTAINER, "app")];
    let draft = memory_event(&event("oom", &labels)).unwrap();
    assert_eq!((draft.namespace.as_str(), draft.name.as_str()), ("shop", "web"));
    assert_eq!(draft.reason, "OOMKilling");
    assert!(draft.message.contains("container app"), "{}", draft.message);
    assert_eq!(memory_event(&event("die", &labels)), None);
    assert_eq!(memory_event(&event("oom", &[("image", "x")])), None);
}

// Would fail with the exit code alone, and without the check of the name: labels of an image would make series.
#[test]
fn ends_and_kills_of_a_pods_containers_are_counted_by_their_reason() {
    let mut killed = BTreeSet::new();
    let mut counted = |container: &str, action: &str, more: &[(&str, &str)]| {
        let NewContainer { name, mut labels, .. } = own_container("i", "web-0", "u1", container, 0);
        let more = [("name", name.as_str()), (names::OWNER, "StatefulSet/web")]
            .into_iter()
            .chain(more.iter().copied());
        labels.extend(more.map(|(key, value)| (key.to_owned(), value.to_owned())));
        let event = ContainerEvent { id: container.to_owned(), action: action.to_owned(), labels };
        match event_count(&event, &mut killed)? {
            EventCount::Exit(reason) => Some(reason.to_owned()),
            EventCount::OomKill(workload) => Some(workload.join(" ")),
        }
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(counted("a", "die", &[("exitCode", "0")]), text("Completed"));
    assert_eq!(counted("a", "die", &[("exitCode", "143")]), text("Error"));
    assert_eq!(counted("a", "die", &[]), None, "its start failed");
    assert_eq!(counted("a", "oom", &[]), text("StatefulSet default web"));
    assert_eq!(counted("b", "oom", &[(names::OWNER, "")]), text("Pod default web-0"), "without an owner");
    assert_eq!(counted("a", "die", &[("exitCode", "137")]), text("OOMKilled"));
    assert_eq!(counted("a", "die", &[("exitCode", "137")]), text("Error"), "the next run");
    for (container, action, more) in
        [("a", "start", ("", "")), ("POD", "die", ("exitCode", "0")), ("a", "oom", ("name", "buildx_step"))]
    {
        assert_eq!(counted(container, action, &[more]), None, "{container} {action}");
    }
}

#[tokio::test]
async fn an_end_that_the_listing_does_not_show_yet_is_seen() {
    let docker = Arc::new(FakeDocker::with_images(&["app:1"]));
    ended(&docker, "web").await;
    docker.engine().behind.insert(named("web"));
    let mut looker = ContainerObserver::new(docker, "mk8s".into());
    let pods = looker.observe().await.unwrap();
    assert!(matches!(&pods["web"].containers["a"][0].state, State::Exited(_)), "{pods:?}");
}

#[tokio::test(start_paused = true)]
async fn an_end_is_inspected_while_the_containers_are_listed() {
    let docker = Arc::new(FakeDocker::with_images(&["app:1"]));
    let id = docker.create(&own_container("app:1", "web", "web", "a", 0)).await.unwrap();
    docker.start(&id).await.unwrap();
    let mut looker = ContainerObserver::new(docker.clone(), "mk8s".into());
    looker.observe().await.unwrap();
    docker.engine().query_time = Duration::from_secs(1);
    // An event of a container that still runs is no end of it.
    for (ends, seconds) in [(false, 2), (true, 1)] {
        if ends {
            docker.end(&named("web"), Exit::default());
        }
        lock(&looker.stale).ids.insert(id.clone());
        // The pause after the former listing does not count.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let began = Instant::now();
        let pods = looker.observe().await.unwrap();
        assert_eq!(began.elapsed().as_secs(), seconds);
        let state = &pods["web"].containers["a"][0].state;
        assert_eq!(matches!(state, State::Exited(end) if end.code == 0), ends, "{state:?}");
    }
}

// Seen red with the log of every ended container.
#[tokio::test]
async fn the_last_lines_of_a_container_that_failed_are_kept() {
    let docker = Arc::new(FakeDocker::with_images(&["app:1"]));
    let long = format!("{}\nline\tone\n\n\u{1b}[31mred\n", "x".repeat(600));
    for (name, code) in [("crashed", 1), ("stopped", 143), ("well", 0)] {
        ended_with(&docker, name, Exit { code, ..Exit::default() }).await;
        docker.engine().written.insert(named(name), vec![long.clone().into()]);
    }
    let mut looker = ContainerObserver::new(docker, "mk8s".into());
    let pods = looker.observe().await.unwrap();
    let wrote = |pod: &str| match &pods[pod].containers["a"][0].state {
        State::Exited(end) => end.last_output.clone(),
        other => panic!("{other:?}"),
    };
    assert!(wrote("crashed").starts_with("…xxx") && wrote("crashed").ends_with("xxx | line one | [31mred"));
    assert_eq!((wrote("stopped").as_str(), wrote("well").as_str()), ("", ""));
}

// A step of a build carries the labels that its Dockerfile sets; so does a container of an image with such labels, and
// a later start would take the place of the pod's own. Seen red without `names::is_own` in the listing.
#[tokio::test]
async fn labels_of_a_pod_make_no_container_the_pods_own() {
    let docker = Arc::new(FakeDocker::with_images(&["app:1"]));
    let own = docker.create(&own_container("app:1", "web", "web", "a", 0)).await.unwrap();
    docker.start(&own).await.unwrap();
    for (name, container, attempt) in [
        ("angry_turing", "a", 999),
        ("mk8s_a_web_default_web_1", "POD", 1),
        ("mk8s_a_web_default_web_3", "a", 4),
    ] {
        let forged = own_container("app:1", "web", "web", container, attempt);
        docker.create(&NewContainer { name: name.into(), ..forged }).await.unwrap();
    }
    let mut looker = ContainerObserver::new(docker, "mk8s".into());
    let pods = looker.observe().await.unwrap();
    let ids: Vec<_> = pods.values().flat_map(|facts| facts.all()).map(|one| one.id.as_str()).collect();
    assert_eq!(ids, [own.as_str()]);
}

// Seen red with only those labels set that have a value.
#[test]
fn no_label_of_an_image_passes_for_one_of_ours() {
    let (node, ports) = (node(), Vec::new());
    let binding = binding("web", pod_spec(&["a"]));
    let at = Placement { node: &node, binding: &binding, address: None, ports: &ports };
    let rendered = container::render::container(at, &binding.pod.spec.containers[0], 0, 0).unwrap();
    for new in [sandbox::render::pause(at), rendered.new] {
        for label in names::LABELS {
            assert!(new.labels.contains_key(label), "{label} of {}", new.name);
        }
        assert!(names::is_own(&new.name, &new.labels), "{}", new.name);
    }
}

/// Starts and ends a container of the pod `name`.
async fn ended(docker: &FakeDocker, name: &str) {
    ended_with(docker, name, Exit::default()).await;
}

async fn ended_with(docker: &FakeDocker, name: &str, exit: Exit) {
    let id = docker.create(&own_container("app:1", name, name, "a", 0)).await.unwrap();
    docker.start(&id).await.unwrap();
    docker.end(&named(name), exit);
}

/// Docker's name of that container.
fn named(pod: &str) -> String {
    own_container("app:1", pod, pod, "a", 0).name
}
