//! A push becomes a pod: one network, shared volume, own address, host port, the container's
//! settings as in the manifest.
//!
//! The story about the outside fails without the first rule of `postrouting_rules`.

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context, NetWorld, Outside, Result, ensure, eventually, netns_of, secs,
};

#[test]
fn a_push_becomes_a_pod() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        two_containers_share_network_and_volume_and_the_host_reaches_them(cluster)?;
        a_pod_reaches_the_outside_under_its_nodes_address(cluster)?;
        a_host_port_leads_to_the_pod_and_two_pods_reach_each_other(cluster)?;
        what_the_manifest_says_of_a_container_reaches_docker(cluster)
    })
}

fn two_containers_share_network_and_volume_and_the_host_reaches_them(cluster: &Cluster) -> Result<()> {
    cluster.repo.push(&[Change::write("apps/shop.yaml", web("shop").with_sidecar().to_string())], "Open")?;
    let pod = cluster.running("shop", &["files", "web"])?;
    let (web, files) = (pod.container("web")?, pod.container("files")?);
    let docker = &cluster.node().docker;

    // One network namespace, that of the pause container and not the machine's.
    ensure!(netns_of(web.pid)? == netns_of(pod.pause.pid)?);
    ensure!(netns_of(files.pid)? == netns_of(pod.pause.pid)?);
    ensure!(netns_of(pod.pause.pid)? != netns_of(std::process::id())?);

    // The host reaches the pod's address, which the pod has and which belongs to the cluster's range.
    let pod = cluster.serving("shop", "hello from shop")?;
    let ip = pod.address()?;
    let cluster_net = cluster.slot().cluster_cidr().replace("0.0/16", "");
    ensure!(ip.starts_with(&cluster_net), "{ip} is not in {cluster_net}");
    let addresses = NetWorld::of_process(pod.pause.pid).addresses()?;
    ensure!(addresses.iter().any(|a| a.contains(&format!(" {ip}/"))), "{ip} is not among {addresses:?}");
    let links = NetWorld::of_machine().links()?;
    ensure!(links.contains(&format!("{}0", cluster.slot().instance())), "no bridge in {links:?}");

    // Localhost and the volume are shared, both ways.
    let said = docker.exec(files, &["wget", "-qO-", "http://127.0.0.1:8080/"])?;
    ensure!(said.trim() == "hello from shop", "{said}");
    eventually("the web server serves what its neighbour wrote", secs(10), || {
        let (code, body) = cluster.get_from_node(ip, 8080, "/shared.txt")?;
        ensure!(code == 200 && body == "from the sidecar\n", "{code} {body}");
        Ok(())
    })?;
    ensure!(docker.exec(files, &["cat", "/data/index.html"])?.trim() == "hello from shop");
    Ok(())
}

fn a_host_port_leads_to_the_pod_and_two_pods_reach_each_other(cluster: &Cluster) -> Result<()> {
    let port = cluster.slot().port(7);
    let manifests = [web("front").host_port(port).to_string(), web("back").to_string()];
    cluster.repo.push(&[Change::write("all.yaml", manifests.join("---\n"))], "Two pods")?;
    let back = cluster.serving("back", "hello from back")?;
    let front = cluster.serving("front", "hello from front")?;

    // By the machine's own address and by loopback, as with Docker's published ports.
    for host in [machine_address()?, "127.0.0.1".to_owned()] {
        eventually(&format!("{host}:{port} leads to the pod"), secs(10), || {
            let (code, body) = cluster.get_from_node(&host, port, "/")?;
            ensure!(code == 200 && body.trim() == "hello from front", "{code} {body}");
            Ok(())
        })?;
    }
    let url = format!("http://{}:8080/", back.address()?);
    let said = cluster.node().docker.exec(front.container("web")?, &["wget", "-qO-", &url])?;
    ensure!(said.trim() == "hello from back", "{said}");
    ensure!(front.address()? != back.address()?);
    Ok(())
}

fn a_pod_reaches_the_outside_under_its_nodes_address(cluster: &Cluster) -> Result<()> {
    let outside = Outside::start(cluster.slot())?;
    cluster.push(&[Change::write("guest.yaml", web("guest").to_string())], "Open")?;
    let pod = cluster.serving("guest", "hello from guest")?;
    let docker = &cluster.node().docker;
    let said = docker.exec(pod.container("web")?, &["wget", "-qO-", &outside.url()])?;
    ensure!(said == "from outside\n", "{said:?}");
    let clients = outside.clients();
    ensure!(clients.contains(outside.machine_address()), "{clients}");
    ensure!(!clients.contains(pod.address()?), "the pod's own address left the cluster: {clients}");
    Ok(())
}

#[test]
fn a_pod_that_waited_for_a_node_runs_as_soon_as_there_is_one() -> Result<()> {
    Cluster::prepare(ClusterOptions::default())?.run_story(|cluster| {
        cluster.start_etcd()?;
        cluster.reconcilers[0].start()?;
        cluster.push(&[Change::write("shop.yaml", web("shop").with_sidecar().to_string())], "Open")?;
        eventually("status says what the pod waits for", secs(20), || {
            let said = cluster.cli(&["get", "pods"])?.ok()?;
            ensure!(said.contains("Pending") && said.contains("shop"), "{said}");
            Ok(())
        })?;
        let described = cluster.cli(&["describe", "pod/shop"])?.ok()?;
        ensure!(described.contains("no node has registered"), "{described}");

        cluster.start_agent()?;
        cluster.serving("shop", "hello from shop")?;
        cluster.running("shop", &["files", "web"]).map(|_| ())
    })
}

fn what_the_manifest_says_of_a_container_reaches_docker(cluster: &Cluster) -> Result<()> {
    let outside = cluster.dir("outside");
    std::fs::create_dir_all(&outside)?;
    std::fs::write(outside.join("note.txt"), "from the host\n")?;
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: full}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         volumes:\n  - name: host\n    hostPath: {{path: {}, type: Directory}}\n  containers:\n  \
         - name: main\n    image: {}\n    workingDir: /tmp\n    command: [sh, -c]\n    \
         args: ['pwd > /data/pwd; exec sleep 100000']\n    env:\n    - {{name: PLACE, value: here}}\n    \
         - name: MY_NAME\n      valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}\n    \
         resources: {{limits: {{cpu: 500m, memory: 64Mi}}}}\n    \
         volumeMounts: [{{name: host, mountPath: /outside, readOnly: true}}]\n",
        outside.display(),
        harness::IMAGE,
    );
    cluster.repo.push(&[Change::write("full.yaml", manifest)], "All settings")?;
    let pod = cluster.running("full", &["main"])?;
    let main = pod.container("main")?;
    let docker = &cluster.node().docker;
    ensure!(main.memory == 64 << 20 && main.cpu_quota == 50_000, "{main:?}");
    ensure!(main.env.contains(&"PLACE=here".to_owned()), "{:?}", main.env);
    ensure!(main.env.contains(&"MY_NAME=full".to_owned()), "{:?}", main.env);
    ensure!(main.network_mode == format!("container:{}", pod.pause.id), "{}", main.network_mode);
    ensure!(docker.exec(main, &["cat", "/data/pwd"])?.trim() == "/tmp");
    ensure!(docker.exec(main, &["cat", "/outside/note.txt"])?.trim() == "from the host");
    let denied = docker.outcome(&["exec", &main.id, "touch", "/outside/x"])?;
    ensure!(denied.code != 0, "a read-only mount took a write");
    ensure!(docker.exec(main, &["hostname"])?.trim() == "full");
    Ok(())
}

/// The machine's first address that is not loopback.
fn machine_address() -> Result<String> {
    let addresses = NetWorld::of_machine().addresses()?;
    let of_machine = addresses.iter().filter_map(|line| line.split_once(' '));
    let outward = of_machine.filter(|(link, _)| link.starts_with("eth") || link.starts_with("en"));
    let any = outward.map(|(_, address)| address.split('/').next().unwrap_or_default().to_owned()).next();
    any.with_context(|| format!("no outward address in {addresses:?}"))
}
