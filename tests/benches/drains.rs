//! Time from the push that removes a pod to the end of its container, for pods of a service, which nodes must stop
//! leading clients to first, and for pods of none.

use std::time::SystemTime;

use harness::{Change, Cluster, ClusterOptions, IMAGE, Result, Where, ensure, eventually, secs};

use crate::Scale;
use crate::engine::Engine;
use crate::figures::{Row, Series, Table, ms, ratio};
use crate::pods::sync;

/// A service of all pods with the label `app: web`.
const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n\
                       spec: {selector: {app: web}, ports: [{port: 80}]}\n";

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    for nodes in [1, 3] {
        let place = Where::Namespaces(nodes);
        let options = ClusterOptions { place, poll: "1h", ..ClusterOptions::default() };
        Cluster::run(options, |cluster| on_nodes(cluster, scale, table))?;
    }
    Ok(())
}

/// A pod that exits immediately on SIGTERM.
fn pod(name: &str, app: &str) -> Change {
    let command = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {app}}}}}\nspec:\n  containers:\n  \
         - {{name: main, image: {IMAGE}, command: [sh, -c, {command:?}]}}\n"
    );
    Change::write(format!("{name}.yaml"), text)
}

fn on_nodes(cluster: &Cluster, scale: Scale, table: &mut Table) -> Result<()> {
    let engines = cluster.nodes.iter().map(|node| Engine::of(cluster, node)).collect::<Result<Vec<_>>>()?;
    let names: Vec<_> = (0..scale.pushes).flat_map(|i| [format!("web-{i}"), format!("alone-{i}")]).collect();
    let mut changes = vec![Change::write("web.yaml", SERVICE), pod("web-stays", "web")];
    changes.extend(names.iter().map(|name| pod(name, name.split('-').next().unwrap_or_default())));
    cluster.repo.push(&changes, "Pods")?;
    sync(cluster)?;
    let nodes = cluster.nodes.len();
    eventually("all pods run", secs(180), || {
        let running = cluster.containers()?.iter().filter(|container| container.running).count();
        ensure!(running == 2 * names.len() + 2, "{running} containers run");
        Ok(())
    })?;
    let (mut web, mut alone) = (Series::default(), Series::default());
    for name in &names {
        let node = cluster.pod(name)?;
        let node = cluster.node_of(&node)?.name.clone();
        let at = cluster.nodes.iter().position(|one| one.name == node).unwrap_or_default();
        cluster.repo.push(&[Change::remove(format!("{name}.yaml"))], "One fewer")?;
        let since = SystemTime::now();
        sync(cluster)?;
        let took = engines[at].died(std::slice::from_ref(name), since)?;
        if name.starts_with("web") { web.add(took) } else { alone.add(took) }
    }
    let of = if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
    let what = format!(
        "removal of a service's pod → its end, {of}, n={}; beside it a pod of no service",
        web.count()
    );
    for percent in [50, 99] {
        let (us, them) = (web.percentile(percent), alone.percentile(percent));
        let what = &format!("{what}, p{percent}");
        table.add(Row { what, ours: ms(us), bare: ms(them), ratio: ratio(us, them), budget: "" });
    }
    Ok(())
}
