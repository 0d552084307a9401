//! Images from a real registry: tags that move, digests that do not, registries that are away or require
//! a login, one pull for many pods, and a pull that no pod needs any longer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context, Gate, Registry, Result, ensure, eventually, recipient, sealed,
    secs,
};
use schema::keys::Key;
use schema::kinds::pod::{ContainerState, PodStatus};
use schema::meta::NamespacedName;

const ALWAYS: &str = "    imagePullPolicy: Always\n";

fn status(cluster: &Cluster, pod: &str) -> Result<PodStatus> {
    let node = cluster.node().name.clone();
    cluster.etcd.value(Key::PodStatus(node, NamespacedName::new("default", pod)))
}

/// Reason and message of the pod's waiting container.
fn waits(cluster: &Cluster, pod: &str) -> Result<(String, String)> {
    let status = status(cluster, pod)?;
    match &status.container_statuses.first().context("no container")?.state {
        ContainerState::Waiting(waiting) => Ok((waiting.reason.clone(), waiting.message.clone())),
        other => harness::bail!("{other:?}"),
    }
}

/// Output of `/version` of the pod's running container.
fn version(cluster: &Cluster, pod: &str) -> Result<String> {
    let pod = cluster.pod(pod)?;
    Ok(cluster.node().docker.exec(pod.container("web")?, &["cat", "/version"])?.trim().to_owned())
}

/// Kills the pod's container and waits until the next one returns `expected`.
fn restarted_as(cluster: &Cluster, pod: &str, expected: &str) -> Result<()> {
    let former = cluster.pod(pod)?.container("web")?.id.clone();
    cluster.node().docker.run(&["kill", &former])?;
    eventually(&format!("{pod} runs again, as {expected}"), secs(40), || {
        ensure!(cluster.pod(pod)?.container("web")?.id != former, "not restarted");
        let version = version(cluster, pod)?;
        ensure!(version == expected, "it is {version}");
        Ok(())
    })
}

// Seen red when `asked_for` in the agent's docker/image.rs keeps the tag and drops the digest.
#[test]
fn a_moved_tag_is_followed_with_always_and_a_digest_never_moves() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let registry = Registry::start(cluster.slot(), 8, None)?;
        let docker = cluster.node().docker.clone();
        let one = registry.publish(&docker, "team/app:1", "first", 1)?;
        let pinned = registry.image(&format!("team/app:1@{one}"));
        let follow = web("follow").image(&registry.image("team/app:1")).container_fields(ALWAYS);
        let files = [
            Change::write("follow.yaml", follow.to_string()),
            Change::write("pinned.yaml", web("pinned").image(&pinned).to_string()),
        ];
        cluster.push(&files, "Two pods of one image")?;
        for pod in ["follow", "pinned"] {
            cluster.running(pod, &["web"])?;
            ensure!(version(cluster, pod)? == "first");
            eventually("the status names the registry's digest", secs(20), || {
                let id = status(cluster, pod)?.container_statuses[0].image_id.clone();
                ensure!(id == registry.image(&format!("team/app@{one}")), "{id}");
                Ok(())
            })?;
        }
        let two = registry.publish(&docker, "team/app:1", "second", 1);
        // The tag is in use here, so Docker may refuse to remove it: it is pushed anyway.
        if let Err(error) = &two {
            ensure!(format!("{error:#}").contains("rmi"), "{error:#}");
        }
        restarted_as(cluster, "follow", "second")?;
        restarted_as(cluster, "pinned", "first")
    })
}

#[test]
fn a_registry_that_is_away_is_waited_for() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let mut registry = Registry::start(cluster.slot(), 8, None)?;
        registry.publish(&cluster.node().docker, "app:1", "late", 1)?;
        registry.daemon.kill()?;
        let app = web("app").image(&registry.image("app:1"));
        cluster.push(&[Change::write("app.yaml", app.to_string())], "A pod")?;
        for expected in ["ErrImagePull", "ImagePullBackOff"] {
            eventually(expected, secs(30), || {
                let (reason, message) = waits(cluster, "app")?;
                ensure!(
                    reason == expected && message.contains("check the image's name"),
                    "{reason}: {message}"
                );
                Ok(())
            })?;
        }
        registry.start_again()?;
        cluster.running("app", &["web"]).map(|_| ())
    })
}

#[test]
fn a_registry_that_asks_for_a_login_is_reported_with_what_to_do() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let open = Registry::start(cluster.slot(), 8, None)?;
        let closed = Registry::start(cluster.slot(), 9, Some(("kim", "s3cret")))?;
        open.publish(&cluster.node().docker, "app:1", "closed", 1)?;
        let app = web("app").image(&closed.image("app:1"));
        cluster.push(&[Change::write("app.yaml", app.to_string())], "A pod without a login")?;
        eventually("the pod says that a login is missing", secs(30), || {
            let (reason, message) = waits(cluster, "app")?;
            ensure!(matches!(reason.as_str(), "ErrImagePull" | "ImagePullBackOff"), "{reason}");
            ensure!(
                message.contains("requires a login") && message.contains("imagePullSecrets"),
                "{message}"
            );
            Ok(())
        })?;
        // In the format of `docker login`; a wrong password first.
        let config = |password: &str| -> Result<String> {
            let auth = STANDARD.encode(format!("kim:{password}"));
            let config = format!(
                r#"{{"auths": {{"{}": {{"auth": "{auth}"}}}}}}"#,
                closed.image("").trim_end_matches('/')
            );
            sealed(&recipient(cluster)?, "*", "registry", &config)
        };
        let app = format!("{app}  imagePullSecrets: [{{name: registry}}]\n");
        let secret = |password: &str| {
            Ok::<_, harness::Error>(Change::write("secrets/registry.age", config(password)?))
        };
        cluster.push(&[Change::write("app.yaml", app), secret("not-this-one")?], "Another password")?;
        eventually("the registry refuses it", secs(40), || {
            let (reason, message) = waits(cluster, "app")?;
            ensure!(matches!(reason.as_str(), "ErrImagePull" | "ImagePullBackOff"), "{reason}");
            ensure!(!message.contains("not-this-one"), "{message}");
            Ok(())
        })?;
        cluster.push(&[secret("s3cret")?], "The right one")?;
        cluster.running("app", &["web"])?;
        ensure!(version(cluster, "app")? == "closed");
        // The image is on the node now, for those who have the login.
        let other = web("other").image(&closed.image("app:1"));
        cluster.push(&[Change::write("other.yaml", other.to_string())], "Another pod without the login")?;
        eventually("it may not use what another pod's login pulled", secs(30), || {
            let (reason, message) = waits(cluster, "other")?;
            ensure!(message.contains("requires a login"), "{reason}: {message}");
            Ok(())
        })?;
        restarted_as(cluster, "app", "closed")
    })
}

// Seen red when the tasks of pulls are not cancelled (`cancel_pulls` in plan.rs).
#[test]
fn six_pods_make_one_pull_and_it_ends_with_the_last_of_them() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let registry = Registry::start(cluster.slot(), 8, None)?;
        let gate = Gate::before(&registry, cluster.slot(), 9)?;
        registry.publish(&cluster.node().docker, "one:1", "one", 2)?;
        registry.publish(&cluster.node().docker, "six:1", "six", 2)?;
        let one = web("one").image(&registry.image("one:1"));
        cluster.push(&[Change::write("one.yaml", one.to_string())], "One pod")?;
        cluster.running("one", &["web"])?;
        let for_one = registry.asked_for("one", "1")?;
        ensure!(for_one > 0, "the registry's log names no pull");
        // Publishing requested it, too.
        let before = registry.asked_for("six", "1")?;

        let pod = |index: u8| web(&format!("six{index}")).image(&gate.image("six:1")).to_string();
        let files: Vec<_> = (0..6).map(|i| Change::write(format!("six{i}.yaml"), pod(i))).collect();
        cluster.push(&files, "Six pods")?;
        eventually("a pull is under way", secs(30), || {
            ensure!(gate.held() > 0);
            Ok(())
        })?;
        for index in 0..6 {
            eventually("all six wait for it, and say how far it is", secs(30), || {
                let (reason, message) = waits(cluster, &format!("six{index}"))?;
                ensure!(reason == "ContainerCreating" && message.contains(" MiB, "), "{reason}: {message}");
                Ok(())
            })?;
        }
        let published_one = registry.asked_for("one", "1")? - for_one;
        ensure!(published_one == 0, "no agent asks for it again");
        let for_six = registry.asked_for("six", "1")? - before;
        ensure!(for_six <= for_one, "{for_six} requests, and {for_one} for one pod");
        ensure!(gate.held() == 1 && gate.given_up() == 0, "{} held, {}", gate.held(), gate.given_up());

        let gone: Vec<_> = (0..6).map(|i| Change::remove(format!("six{i}.yaml"))).collect();
        cluster.push(&gone, "No pods after all\n\nMinik8s-Allow-Prune: true")?;
        eventually("Docker hangs up", secs(20), || {
            ensure!(gate.given_up() == 1, "{}", gate.given_up());
            Ok(())
        })?;
        ensure!(!cluster.node().docker.has_image(&gate.image("six:1"))?);

        // The next pull starts again and succeeds.
        gate.open();
        cluster.push(&[Change::write("six0.yaml", pod(0))], "One of them again")?;
        cluster.running("six0", &["web"])?;
        ensure!(version(cluster, "six0")? == "six");
        Ok(())
    })
}
