//! The pod loop compared with the bare engine, in one run. Prints, asserts nothing; run with `--ignored --nocapture`.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use agent::worlds::docker::{Namespaces, NewContainer};
use agent::worlds::pause;
use futures::StreamExt;
use support::{IMAGE, Node, pod, shell};

async fn bare_pair(node: &Node, name: &str) {
    let labels: BTreeMap<String, String> = [("minik8s.io/instance".to_owned(), node.instance.clone())].into();
    let new = NewContainer {
        name: format!("{}-{name}-pause", node.instance),
        image: pause::image_reference(),
        labels: labels.clone(),
        ..NewContainer::default()
    };
    let id = node.docker.create(&new).await.unwrap();
    node.docker.start(&id).await.unwrap();
    let new = NewContainer {
        name: format!("{}-{name}-app", node.instance),
        image: IMAGE.into(),
        labels,
        command: vec!["sleep".into(), "1000".into()],
        namespaces: Namespaces::Join { pause: id, pid: false, host_network: false },
        ..NewContainer::default()
    };
    let id = node.docker.create(&new).await.unwrap();
    node.docker.start(&id).await.unwrap();
}

async fn clean(node: &Node) {
    for name in node.containers().into_keys() {
        let _ = node.docker.remove(&name).await;
    }
}

fn median(mut list: Vec<Duration>) -> Duration {
    list.sort();
    list[list.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints numbers; asserts nothing"]
async fn one_pod_and_fifty() {
    let mut node = Node::new().await;
    let _ = node.docker.load(pause::image_tar()).await;
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for round in 0..10 {
        let began = Instant::now();
        bare_pair(&node, &round.to_string()).await;
        bare.push(began.elapsed());
        clean(&node).await;
        node.start().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let name = format!("one{round}");
        node.bind(&name, pod(vec![shell("a", "sleep 1000")]));
        ours.push(node.until_ready(&name).await);
        node.unbind(&name);
        node.until_gone(&name).await;
        node.kill().await;
    }
    println!("one pod: bare {:?}, ours {:?}", median(bare), median(ours));

    let began = Instant::now();
    let node_ref = &node;
    futures::stream::iter(0..50)
        .for_each_concurrent(4, |n| async move { bare_pair(node_ref, &format!("x{n}")).await })
        .await;
    let bare = began.elapsed();
    clean(&node).await;
    node.start().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let began = Instant::now();
    for n in 0..50 {
        node.bind(&format!("many{n}"), pod(vec![shell("a", "sleep 1000")]));
    }
    for n in 0..50 {
        node.until_ready(&format!("many{n}")).await;
    }
    println!("fifty pods: bare {bare:?}, ours {:?}", began.elapsed());
    let began = Instant::now();
    for n in 0..50 {
        node.unbind(&format!("many{n}"));
    }
    for n in 0..50 {
        node.until_gone(&format!("many{n}")).await;
    }
    println!("fifty pods gone after {:?}", began.elapsed());
}
