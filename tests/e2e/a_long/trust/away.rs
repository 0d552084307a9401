//! A node is away for twice the lifetime of its certificate, and comes back by itself: its pods were not touched, and it
//! gets more. In a check its certificate is replaced by one that was signed as long ago; in a soak that time passes, and
//! then the node renews once more before the next certificate ends.

use std::time::Instant;

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Result, ensure, eventually, node_is_ready, request_token, secs,
};
use jiff::{SignedDuration, Timestamp};
use schema::trust::{LeafRequest, TrustDir};

use super::is_soak;

/// Lifetime of certificates, as the flag has it.
const LIFETIME: (&str, SignedDuration) = ("10m", SignedDuration::from_mins(10));

#[test]
fn a_node_that_was_away_for_twice_its_lifetime_comes_back_by_itself() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    let node = cluster.node();
    let (name, pki) = (node.name.clone(), TrustDir::new(node.state_dir().join("agent/pki")));
    std::fs::remove_dir_all(node.state_dir())?;
    let mut command = cluster.serve_command(0);
    command.extend(["--certificate-lifetime", LIFETIME.0].map(str::to_owned));
    cluster.reconcilers[0].set_command(command);
    cluster.run_story(|cluster| {
        // Its first request of etcd may be refused.
        cluster.expect_denials();
        cluster.etcd.start()?;
        cluster.reconcilers[0].start()?;
        cluster.wait_reconciler(0)?;
        let token = request_token(cluster, &format!("node-{name}"), 3600)?;
        let mut command = cluster.node().agent_command("join", "");
        command.extend([format!("https://{}", cluster.listen(0)), "--token".to_owned(), token.to_string()]);
        cluster.node_mut().agent.set_command(command);
        cluster.node_mut().agent.start()?;
        eventually("the node is ready", secs(60), || node_is_ready(cluster, &name))?;
        cluster.push(&[Change::write("stays.yaml", web("stays").to_string())], "A pod")?;
        let lives = cluster.running("stays", &["web"])?.lives();

        cluster.node_mut().agent.kill()?;
        passes(cluster, &pki)?;
        let former = pki.certificate()?;
        let refused = cluster.etcd.etcdctl_as(&pki, &["get", "/minik8s/settings"]);
        ensure!(refused.is_err(), "etcd takes a certificate that has ended: {refused:?}");
        let began = Instant::now();
        cluster.node_mut().agent.start()?;
        let second = is_renewed(&pki, &former.serial()?, secs(60))?;
        println!("away: renewed {:.1?} after the start", began.elapsed());
        cluster.push(&[Change::write("more.yaml", web("more").to_string())], "One more")?;
        cluster.running("more", &["web"])?;
        ensure!(cluster.pod("stays")?.lives() == lives, "its pod was touched");
        if is_soak() {
            is_renewed(&pki, &second, LIFETIME.1.unsigned_abs())?;
        }
        node_is_ready(cluster, &name)
    })
}

/// Lets twice the lifetime pass since the node's certificate was signed.
fn passes(cluster: &Cluster, pki: &TrustDir) -> Result<()> {
    let certificate = pki.certificate()?;
    if is_soak() {
        let until = certificate.not_after()? + LIFETIME.1;
        return eventually("its lifetime has passed twice", secs(25 * 60), || {
            ensure!(Timestamp::now() > until, "not before {until}");
            Ok(())
        });
    }
    let (identity, key) = (certificate.identity()?, certificate.public_key()?);
    let leaf = LeafRequest { identity: &identity, key: &key, addresses: &[], lifetime: LIFETIME.1 };
    let aged = cluster.trust.sign_at(&leaf, Timestamp::now() - LIFETIME.1 * 2)?;
    Ok(pki.write_certificate(&aged)?)
}

/// Waits until the node has another certificate, which is valid; returns its serial number.
fn is_renewed(pki: &TrustDir, former: &str, within: std::time::Duration) -> Result<String> {
    eventually("the node has renewed its certificate", within, || {
        let certificate = pki.certificate()?;
        let (serial, end) = (certificate.serial()?, certificate.not_after()?);
        ensure!(serial != former && end > Timestamp::now(), "{serial} until {end}");
        Ok(serial)
    })
}
