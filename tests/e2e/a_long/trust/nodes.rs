//! Nodes whose clocks are as wrong as a certificate allows join. Then Git says that one of them is gone: with all its
//! files it reads, renews and joins nothing more, and the watch that it held open shows nothing more; nor do these files
//! once another machine has its name.

use std::fs;

use harness::manifests::web;
use harness::{Change, Cluster, Daemon, Result, UpCluster, ensure, eventually, holds, secs, tls_get};
use schema::keys::{Key, prefix};
use schema::meta::NamespacedName;
use schema::trust::TrustDir;

use super::{copied, renewed};
use crate::clocks::set_clock;
use crate::services::service;

/// Node number and offset of its clock.
const WRONG: [(usize, &str); 2] = [(2, "-10m"), (3, "+10m")];
/// Request to etcd for the names of all services.
const GETS: [&str; 4] = ["get", "--prefix", "--keys-only", prefix::SERVICES];
/// Number of the node that is removed.
const REMOVED: usize = 3;

#[test]
fn nodes_with_wrong_clocks_join_and_a_removed_one_sees_nothing_more() -> Result<()> {
    UpCluster::run(3, |all| {
        // The authority is some seconds old when the first of them judges it.
        all.start_first()?;
        for (number, offset) in WRONG {
            set_clock(&mut all.cluster.nodes[number - 1].agent, offset)?;
            all.join_node(number)?;
        }
        let pod = |number: usize| -> Result<Change> {
            let node = &all.cluster.numbered(number)?.name;
            Ok(Change::write(
                format!("web-{number}.yaml"),
                web(&format!("web-{number}")).on(node).to_string(),
            ))
        };
        all.cluster.push(&[pod(2)?, pod(3)?], "A pod on each")?;
        for (number, _) in WRONG {
            all.cluster.running(&format!("web-{number}"), &["web"])?;
        }
        let stolen = Stolen::take(all)?;
        stolen.is_of_use(all)?;
        all.cluster.expect_denials();
        is_removed(all)?;
        stolen.is_of_no_use(all)?;
        stolen.is_of_no_use_under_a_name_in_use(all)?;
        all.cluster.running("web-2", &["web"]).map(drop)
    })
}

/// All files of the node, and its watch.
struct Stolen {
    pki: TrustDir,
    watch: Daemon,
}

fn push_service(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.push(&[service(name, "of: nobody", "{port: 80}", "")], name)?;
    eventually("etcd has the service", secs(30), || {
        let found = cluster.etcd.key(Key::Service(NamespacedName::new("default", name)))?;
        ensure!(found.is_some(), "no {name}");
        Ok(())
    })
}

impl Stolen {
    fn take(all: &UpCluster) -> Result<Self> {
        let pki = copied(&all.node_pki(REMOVED)?, all.cluster.dir("stolen"))?;
        let mut command = all.cluster.etcd.etcdctl_command(&pki);
        command.extend(["watch", "--prefix", prefix::SERVICES].map(str::to_owned));
        let mut watch = Daemon::new("stolen-watch", all.cluster.slot().dir(), command);
        watch.start()?;
        Ok(Self { pki, watch })
    }

    fn gets(&self, all: &UpCluster) -> Result<String> {
        all.cluster.etcd.etcdctl_as(&self.pki, &GETS)
    }

    fn has_seen(&self, name: &str) -> Result<bool> {
        Ok(fs::read_to_string(self.watch.log_path())?.contains(&format!("/{name}")))
    }

    /// Answer of another node's agent to a request for an image.
    fn image(&self, all: &UpCluster) -> Result<(u16, String)> {
        tls_get(&all.at(1, UpCluster::AGENT_PORT)?, "/v1/images/0123", &self.pki)
    }

    fn is_of_use(&self, all: &UpCluster) -> Result<()> {
        push_service(&all.cluster, "before")?;
        eventually("the watch shows it", secs(20), || {
            ensure!(self.has_seen("before")?, "{}", self.watch.log_tail());
            Ok(())
        })?;
        ensure!(self.gets(all)?.contains("/before"));
        let (code, said) = self.image(all)?;
        ensure!(!matches!(code, 401 | 403), "{code} {said}");
        let (code, said) = renewed(&all.at(1, UpCluster::API_PORT)?, &self.pki, &all.reconciler_pki(1)?)?;
        ensure!(code == 200, "{code} {said}");
        Ok(())
    }

    fn is_of_no_use(&self, all: &UpCluster) -> Result<()> {
        let node = &all.cluster.numbered(REMOVED)?.name;
        let before = self.watch.log_tail();
        push_service(&all.cluster, "after")?;
        holds("the watch shows nothing", secs(5), || {
            ensure!(!self.has_seen("after")?, "{before:?}, then {:?}", self.watch.log_tail());
            Ok(())
        })?;
        let said = self.gets(all);
        ensure!(said.is_err(), "{said:?}");
        let (code, said) = renewed(&all.at(1, UpCluster::API_PORT)?, &self.pki, &all.reconciler_pki(1)?)?;
        ensure!(code == 403, "{code} {said}");
        let said = all.cluster.cli(&["token", "create", "--node", node])?;
        ensure!(said.code != 0 && said.stderr.contains("gone"), "{said:?}");
        eventually("other nodes refuse it", secs(60), || {
            // Refused in the handshake, or with a reason.
            let said = self.image(all);
            ensure!(!matches!(said, Ok((code, _)) if !matches!(code, 401 | 403)), "{said:?}");
            Ok(())
        })
    }

    /// Gives the name to another machine: etcd has a user of it again.
    fn is_of_no_use_under_a_name_in_use(&self, all: &mut UpCluster) -> Result<()> {
        all.cluster.push(&[Change::remove("gone.yaml")], "A machine in its place")?;
        eventually("its agent says why nobody takes it", secs(60), || {
            let said = fs::read_to_string(all.cluster.nodes[REMOVED - 1].agent.log_path())?;
            ensure!(said.contains("cannot renew") && said.contains("was revoked"), "{said}");
            Ok(())
        })?;
        all.cluster.nodes[REMOVED - 1].agent.kill()?;
        fs::remove_dir_all(all.node_pki(REMOVED)?.path())?;
        eventually("a token is printed", secs(30), || {
            let node = &all.cluster.numbered(REMOVED)?.name;
            all.cluster.cli(&["token", "create", "--node", node])?.ok().map(drop)
        })?;
        all.join_node(REMOVED)?;
        // The list of nodes may still have the former one.
        eventually("the new one reads", secs(60), || {
            let own = all.cluster.etcd.etcdctl_as(&all.node_pki(REMOVED)?, &GETS)?;
            ensure!(own.contains("/after"), "{own}");
            Ok(())
        })?;
        let said = self.gets(all);
        ensure!(said.is_err(), "the former certificate reads: {said:?}");
        Ok(())
    }
}

/// Removes the node in Git, and waits until etcd refuses it and its member was started again.
fn is_removed(all: &UpCluster) -> Result<()> {
    let node = all.cluster.numbered(REMOVED)?.name.clone();
    let former = all.child(1, "etcd")?;
    let text = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {node}, annotations: {{minik8s.io/gone: \"true\"}}}}\n"
    );
    all.cluster.push(&[Change::write("gone.yaml", text)], "It will not come back")?;
    eventually("etcd was started again", secs(120), || {
        ensure!(all.child(1, "etcd")? != former, "it was not");
        ensure!(all.cluster.etcd.key(Key::Identity(format!("node-{node}")))?.is_none(), "it is known");
        Ok(())
    })
}
