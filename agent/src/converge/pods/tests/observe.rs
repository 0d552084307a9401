//! Observation of containers for which Docker does not answer every query.

use std::sync::Arc;

use crate::converge::pods::facts::State;
use crate::converge::pods::observe::ContainerObserver;
use crate::names;
use crate::worlds::docker::{Docker as _, Exit, FakeDocker, NewContainer};

#[tokio::test]
async fn a_container_that_docker_cannot_inspect_hinders_no_other_and_passes_for_no_success() {
    let docker = Arc::new(FakeDocker::with_images(&["app:1"]));
    for name in ["broken", "whole"] {
        ended(&docker, name).await;
    }
    docker.engine().opaque.insert("broken".into());
    let mut looker = ContainerObserver::new(docker, "mk8s".into());
    let pods = looker.observe().await.unwrap();
    assert_eq!(pods["broken"].containers["a"][0].state, State::Removing);
    assert!(matches!(&pods["whole"].containers["a"][0].state, State::Exited(end) if end.code == 0));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_docker_cannot_inspect_is_left_alone_ever_longer() {
    let docker = Arc::new(FakeDocker::with_images(&["app:1"]));
    ended(&docker, "broken").await;
    docker.engine().opaque.insert("broken".into());
    let mut looker = ContainerObserver::new(docker.clone(), "mk8s".into());
    looker.observe().await.unwrap();
    for wait in [10, 20] {
        // A container that would answer by now is not inspected before its retry is due.
        docker.engine().opaque.clear();
        tokio::time::advance(std::time::Duration::from_secs(wait - 1)).await;
        let pods = looker.observe().await.unwrap();
        assert_eq!(pods["broken"].containers["a"][0].state, State::Removing);
        docker.engine().opaque.insert("broken".into());
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        looker.observe().await.unwrap();
    }
    docker.engine().opaque.clear();
    tokio::time::advance(std::time::Duration::from_secs(40)).await;
    let pods = looker.observe().await.unwrap();
    assert!(matches!(pods["broken"].containers["a"][0].state, State::Exited(_)), "{pods:?}");
}

#[tokio::test]
async fn an_end_that_the_listing_does_not_show_yet_is_seen() {
    let docker = Arc::new(FakeDocker::with_images(&["app:1"]));
    ended(&docker, "web").await;
    docker.engine().behind.insert("web".into());
    let mut looker = ContainerObserver::new(docker, "mk8s".into());
    let pods = looker.observe().await.unwrap();
    assert!(matches!(&pods["web"].containers["a"][0].state, State::Exited(_)), "{pods:?}");
}

// Seen red with the log of every ended container.
#[tokio::test]
async fn the_last_lines_of_a_container_that_failed_are_kept() {
    let docker = Arc::new(FakeDocker::with_images(&["app:1"]));
    let long = format!("{}\nline\tone\n\n\u{1b}[31mred\n", "x".repeat(600));
    for (name, code) in [("crashed", 1), ("stopped", 143), ("well", 0)] {
        ended_with(&docker, name, Exit { code, ..Exit::default() }).await;
        docker.engine().written.insert(name.into(), vec![long.clone().into()]);
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

/// Starts and ends a container of the pod `name`.
async fn ended(docker: &FakeDocker, name: &str) {
    ended_with(docker, name, Exit::default()).await;
}

async fn ended_with(docker: &FakeDocker, name: &str, exit: Exit) {
    let labels = [(names::INSTANCE, "mk8s"), (names::UID, name), (names::CONTAINER, "a"), (names::POD, name)];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let new = NewContainer { name: name.into(), image: "app:1".into(), labels, ..NewContainer::default() };
    let id = docker.create(&new).await.unwrap();
    docker.start(&id).await.unwrap();
    docker.end(name, exit);
}
