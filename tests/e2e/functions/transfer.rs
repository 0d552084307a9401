//! Images on their way to nodes: from each other where there is no registry, through the cluster's registry, and
//! removed from both once no function needs them.

use harness::{Registry, RegistryOptions, bail, eventually, recipient_of, secs};
use nix::sys::signal::Signal;
use schema::keys::Key;
use schema::kinds::function::{IMAGE_PREFIX, image_hash};
use schema::meta::NamespacedName;
use schema::records::{FunctionRecord, RegistryCopy};

use super::*;

const LOGIN: (&str, &str) = ("kim", "s3cret");

/// Code that answers with `word`.
fn says(word: &str) -> String {
    format!("def main(params):\n    return {{'word': '{word}'}}\n")
}

fn answers(cluster: &Cluster, node: &Node, name: &str, word: &str) -> Result<()> {
    eventually(&format!("{name} says {word} at {}", node.name), secs(150), || {
        let answer = call(node, name, "{}")?;
        ensure!(answer.status == 200 && answer.body["word"] == word, "{answer:?} {}", said_of(cluster, name));
        Ok(())
    })
}

/// Output of the command line for a function, for messages.
fn said_of(cluster: &Cluster, name: &str) -> String {
    cluster.cli(&["describe", "function", name]).map(|said| said.stdout).unwrap_or_default()
}

fn record(cluster: &Cluster, name: &str) -> Result<FunctionRecord> {
    cluster.etcd.value(Key::Function(NamespacedName::new("default", name)))
}

/// Hash of a function's newest image.
fn hash(cluster: &Cluster, name: &str) -> Result<String> {
    let record = record(cluster, name)?;
    let image = record.image().context("no image")?;
    Ok(image_hash(&image.reference).context("not built here")?.to_owned())
}

/// Docker's id of an image on a node.
fn id_at(node: &Node, image: &str) -> Result<String> {
    let id = node.docker.run(&["image", "inspect", "-f", "{{.Id}}", image])?;
    Ok(id.trim().to_owned())
}

fn runs_at(cluster: &Cluster, node: &Node, name: &str) -> Result<bool> {
    let all = node.docker.containers(&cluster.slot().instance())?;
    let is_it = |pod: &str| pod.starts_with(&format!("{name}-"));
    Ok(all.iter().any(|one| one.running && one.label("container") == "function" && is_it(one.label("pod"))))
}

/// True if a node has built the image, because only then it has the log.
fn built_at(node: &Node, hash: &str) -> bool {
    node.state_dir().join(format!("agent/builds/{hash}.log")).exists()
}

/// Manifest that makes this node the only builder.
fn builds(node: &Node) -> Change {
    let text = format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: {}\n  labels: {{minik8s.io/build: \"true\"}}\n",
        node.name
    );
    Change::write("builder.yaml", text)
}

#[test]
fn without_a_registry_living_nodes_give_the_image_and_it_is_built_again_when_none_has_it() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(4), python: true, ..ClusterOptions::default() };
    let mut cluster = Cluster::prepare(options)?;
    cluster.run_story(|cluster| {
        let late = cluster.nodes.pop().context("four nodes")?;
        cluster.start_all()?;
        cluster.nodes.push(late);
        let settings = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\nspec:\n  nodes: {evictAfterSeconds: 1}\n";
        let spec = "  minScale: 3\n";
        let changes = [
            other_object(),
            Change::write("cluster.yaml", settings),
            builds(&cluster.nodes[0]),
            manifest("trio", spec),
            code("trio", "main.py", &says("one")),
        ];
        cluster.push(&changes, "A function on three nodes")?;
        eventually("each of three nodes runs it", secs(150), || {
            for node in &cluster.nodes[..3] {
                ensure!(runs_at(cluster, node, "trio")?, "not at {}", node.name);
            }
            Ok(())
        })?;
        let hash = hash(cluster, "trio")?;
        let image = format!("{IMAGE_PREFIX}{hash}");
        let id = id_at(&cluster.nodes[0], &image)?;
        for node in &cluster.nodes[1..3] {
            ensure!(id_at(node, &image)? == id && !built_at(node, &hash), "{} has another", node.name);
        }
        ensure!(built_at(&cluster.nodes[0], &hash), "the labelled node built it");
        // The builder dies, another node joins.
        cluster.nodes[0].agent.kill()?;
        cluster.nodes[0].stop_docker()?;
        let etcd = cluster.etcd_for_nodes();
        cluster.nodes[3].start_agent(&etcd)?;
        eventually("the node that joined runs it", secs(120), || {
            ensure!(runs_at(cluster, &cluster.nodes[3], "trio")?, "{}", said_of(cluster, "trio"));
            Ok(())
        })?;
        let fourth = &cluster.nodes[3];
        ensure!(id_at(fourth, &image)? == id && !built_at(fourth, &hash), "it took it as it was built");
        answers(cluster, fourth, "trio", "one")?;
        // Now no living node has the image.
        for node in &cluster.nodes[1..] {
            let listed = node.docker.run(&["images", "--format", "{{.Repository}}:{{.Tag}}"])?;
            for name in listed.lines().filter(|name| name.ends_with(&hash)) {
                node.docker.run(&["rmi", "-f", name])?;
            }
        }
        eventually("a living node has built it again", secs(120), || {
            let of_state = record(cluster, "trio")?;
            let there = of_state.image().context("no image")?.nodes.clone();
            let again = cluster.nodes[1..].iter().find(|node| built_at(node, &hash) && there.contains(&node.name));
            let again = again.with_context(|| said_of(cluster, "trio"))?;
            id_at(again, &image).map(drop)
        })?;
        let killed = cluster.nodes[3].docker.containers(&cluster.slot().instance())?;
        let killed = killed.iter().find(|one| one.running && one.label("container") == "function");
        let killed = killed.context("no replica")?.id.clone();
        cluster.nodes[3].docker.run(&["kill", &killed])?;
        eventually("the replica runs again", secs(60), || {
            ensure!(runs_at(cluster, &cluster.nodes[3], "trio")?, "not yet");
            Ok(())
        })?;
        answers(cluster, &cluster.nodes[3], "trio", "one")
    })
}

/// The Cluster manifest with this registry.
fn with_registry(registry: &Registry) -> Change {
    let text = format!(
        "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {{name: cluster}}\nspec:\n  registry: {{address: '{}', loginSecret: {{name: registry}}}}\n",
        registry.image("team")
    );
    Change::write("cluster.yaml", text)
}

fn login(cluster: &Cluster, registry: &Registry, password: &str) -> Result<Change> {
    let recipients = [recipient_of(cluster, 1)?, recipient_of(cluster, 2)?];
    let (address, user) = (registry.address(), LOGIN.0);
    let plain = format!(
        "namespace: default\nname: registry\n---\nregistry: {address}\nusername: {user}\npassword: {password}\n"
    );
    Ok(Change::write("secrets/default/registry.age", harness::encrypted_to(&recipients, &plain)?))
}

/// True if the registry has the image.
fn has(registry: &Registry, hash: &str) -> Result<bool> {
    let (status, said) = registry.ask("GET", &format!("/v2/team/function/manifests/{hash}"), Some(LOGIN))?;
    ensure!(matches!(status, 200 | 404), "{status} {said}");
    Ok(status == 200)
}

#[test]
fn a_registry_with_a_login_and_a_ca_of_its_own_gets_the_images_gives_them_and_loses_them() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(2), python: true, ..ClusterOptions::default() };
    let mut cluster = Cluster::prepare(options)?;
    cluster.run_story(|cluster| {
        let kind = RegistryOptions { login: Some(LOGIN), is_for_nodes: true, deletes: true };
        let mut registry = Registry::start_with(cluster.slot(), 8, kind)?;
        let ca = registry.ca().context("it speaks TLS")?;
        for node in &mut cluster.nodes {
            node.trust(&registry.address(), &ca)?;
            node.agent.set_env("MINIK8S_FUNCTION_IMAGE_KEEP", "1");
        }
        cluster.start_all()?;
        let changes = [
            other_object(),
            with_registry(&registry),
            login(cluster, &registry, "not-this-one")?,
            builds(&cluster.nodes[0]),
            manifest("pair", "  minScale: 2\n"),
            code("pair", "main.py", &says("one")),
        ];
        cluster.push(&changes, "A registry with a login")?;
        a_wrong_login_keeps_nobody_from_the_image(cluster)?;
        cluster.push(&[login(cluster, &registry, LOGIN.1)?], "The right login")?;
        let first = hash(cluster, "pair")?;
        eventually("it is pushed", secs(60), || {
            ensure!(has(&registry, &first)?, "{}", said_of(cluster, "pair"));
            Ok(())
        })?;
        let pulled = the_other_node_pulls(cluster, &registry)?;
        a_crash_amid_a_push_ends_right(cluster, &mut registry)?;
        let newest = hash(cluster, "pair")?;
        cluster.push(&[Change::remove("pair.yaml"), Change::remove("pulled.yaml")], "Enough")?;
        eventually("their images are gone", secs(120), || {
            for hash in [&first, &newest, &pulled] {
                ensure!(!has(&registry, hash)?, "the registry has {hash}");
                for node in &cluster.nodes {
                    let left = node.docker.run(&["images", "--format", "{{.Repository}}:{{.Tag}}"])?;
                    ensure!(!left.contains(hash.as_str()), "{}: {left}", node.name);
                }
            }
            Ok(())
        })?;
        one_that_permits_no_deletion_is_named(cluster, registry)
    })
}

fn a_wrong_login_keeps_nobody_from_the_image(cluster: &Cluster) -> Result<()> {
    eventually("the push is refused, with what to do", secs(120), || {
        let said = said_of(cluster, "pair");
        ensure!(
            said.contains("not in the registry") && said.contains("correct the login in secret registry"),
            "{said}"
        );
        ensure!(!said.contains("not-this-one"), "{said}");
        Ok(())
    })?;
    for node in &cluster.nodes {
        answers(cluster, node, "pair", "one")?;
    }
    Ok(())
}

/// Pushes another function with a replica on each node: the first one's image went from node to node.
fn the_other_node_pulls(cluster: &Cluster, registry: &Registry) -> Result<String> {
    let changes = [manifest("pulled", "  minScale: 2\n"), code("pulled", "main.py", &says("two"))];
    cluster.push(&changes, "Another function")?;
    let (pulled, digest) = eventually("both nodes run it", secs(150), || {
        let hash = hash(cluster, "pulled")?;
        let record = record(cluster, "pulled")?;
        let image = record.image().context("no image")?;
        let Some(RegistryCopy::Pushed { digest }) = &image.registry else { bail!("{image:?}") };
        for node in &cluster.nodes {
            let id = id_at(node, &image.reference)?;
            ensure!(Some(&id) == image.id.as_ref() && runs_at(cluster, node, "pulled")?, "{}", node.name);
        }
        Ok((hash, digest.clone()))
    })?;
    let from = cluster.nodes[1].address()?;
    let (_, digest) = digest.split_once('@').context("no digest")?;
    let path = format!("/v2/team/function/manifests/{digest}");
    let log = std::fs::read_to_string(registry.daemon.log_path())?;
    let asked = |line: &&str| line.contains(from) && line.contains(&path);
    ensure!(log.lines().any(|line| asked(&line)), "node 2 did not ask the registry");
    answers(cluster, &cluster.nodes[1], "pulled", "two")?;
    Ok(pulled)
}

fn a_crash_amid_a_push_ends_right(cluster: &mut Cluster, registry: &mut Registry) -> Result<()> {
    // It accepts connections but answers none.
    registry.daemon.signal(Signal::SIGSTOP)?;
    let before = hash(cluster, "pair")?;
    cluster.push(&[code("pair", "main.py", &says("three"))], "A third word")?;
    let newest = eventually("the push is under way", secs(120), || {
        let newest = hash(cluster, "pair")?;
        let target = format!("{}:{newest}", registry.image("team/function"));
        ensure!(newest != before && cluster.nodes[0].docker.has_image(&target)?, "not yet");
        Ok(newest)
    })?;
    ensure!(call(cluster.node(), "pair", "{}")?.body["word"] == "one", "the former version answers");
    cluster.nodes[0].agent.kill()?;
    registry.daemon.signal(Signal::SIGCONT)?;
    ensure!(!has(registry, &newest)?, "the push was over before the crash");
    cluster.start_agent()?;
    answers(cluster, &cluster.nodes[1], "pair", "three")?;
    ensure!(has(registry, &newest)?, "it answers, and the registry lacks it: {}", said_of(cluster, "pair"));
    Ok(())
}

fn one_that_permits_no_deletion_is_named(cluster: &Cluster, registry: Registry) -> Result<()> {
    let kind = RegistryOptions { login: Some(LOGIN), is_for_nodes: true, deletes: false };
    let registry = registry.start_as(cluster.slot(), kind)?;
    let changes = [manifest("kept", "  minScale: 1\n"), code("kept", "main.py", &says("kept"))];
    cluster.push(&changes, "Another function")?;
    answers(cluster, cluster.node(), "kept", "kept")?;
    let hash = hash(cluster, "kept")?;
    ensure!(has(&registry, &hash)?, "it is pushed");
    cluster.push(&[Change::remove("kept.yaml")], "Not kept")?;
    eventually("it is said that the image stays", secs(90), || {
        let said = cluster.cli(&["events", "-A", "-o", "json"])?;
        let is_said =
            said.stdout.contains("ImageStaysInRegistry") && said.stdout.contains("does not allow deletion");
        ensure!(is_said, "{said:?}");
        Ok(())
    })?;
    ensure!(has(&registry, &hash)?, "it stays there");
    eventually("and goes here", secs(30), || {
        let left = cluster.node().docker.run(&["images", "--format", "{{.Repository}}:{{.Tag}}"])?;
        ensure!(!left.contains(&hash), "{left}");
        Ok(())
    })
}
