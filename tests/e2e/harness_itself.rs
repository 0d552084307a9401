//! Properties of the harness that the stories rely on: a separate node that outlives its dockerd,
//! and nothing left behind.

use std::sync::Arc;

use harness::{DockerWorld, IMAGE, NetWorld, Node, Result, Slot, Trust, ensure, netns_of};

#[test]
fn a_namespace_node_keeps_its_containers_while_dockerd_is_away_and_leaves_nothing() -> Result<()> {
    let slot = Slot::take()?;
    let instance = slot.instance();
    {
        let trust = Arc::new(Trust::create(slot.dir(), &[])?);
        let mut node = Node::in_namespace(&slot, 1, true, &trust)?;
        node.wait_ready()?;
        node.docker.run(&["run", "-d", "--name", "stays", "--network", "none", IMAGE, "sleep", "1000"])?;
        let before = node.docker.by_filter("name=stays")?;
        ensure!(before.len() == 1 && before[0].running, "{before:?}");
        ensure!(netns_of(before[0].pid)? != netns_of(std::process::id())?);
        ensure!(DockerWorld::of_machine().by_filter(&format!("id={}", before[0].id))?.is_empty());

        node.stop_docker()?;
        ensure!(netns_of(before[0].pid).is_ok(), "the container died with dockerd");
        node.start_docker()?;
        ensure!(node.docker.by_filter("name=stays")? == before);
    }
    drop(slot);
    let ours = |names: Vec<String>| names.into_iter().filter(|n| n.contains(&instance)).collect::<Vec<_>>();
    ensure!(ours(NetWorld::of_machine().links()?).is_empty());
    ensure!(ours(NetWorld::of_machine().rules()?).is_empty());
    Ok(())
}
