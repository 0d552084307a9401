//! `minik8s-agent join`: gets this node a certificate of the cluster by a token.
//!
//! The token's pin names the cluster's authority, so that the first reconciler is known before anything is sent to it.
//! Writes the node's key and certificate and the addresses of the cluster; the certificate last, because with it the node
//! has joined. A node that has joined already only renews its certificate, which tells whether the cluster still knows
//! it.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use jiff::{SignedDuration, Timestamp};
use schema::control::error_chain;
use schema::trust::{
    Certificate, Credentials, Identity, JoinAnswer, JoinRequest, KeyPair, RENEWABLE_DAYS, TrustDir,
    bundle_from_pem,
};
use schema::violation::visible;

use crate::cluster::ClusterAddresses;
use crate::config::JoinConfig;
use crate::converge::trust::{NodeTrust, NodeTrustError, TrustSettings};
use crate::files::Keys;
use crate::locks;
use crate::worlds::admission::{Admission, AllFailed, OnRefusal, RealAdmission, Refusal, ask_in_turn};

/// Joins, unless this node has joined under this name already.
pub async fn run(config: &JoinConfig) -> anyhow::Result<()> {
    let lock = locks::take(&config.machine.agent_dir())?;
    let joined = join(config, Arc::new(RealAdmission)).await;
    if joined.is_err() {
        lock.undo();
    }
    joined
}

async fn join(config: &JoinConfig, admission: Arc<dyn Admission>) -> anyhow::Result<()> {
    let (dir, now) = (config.machine.pki(), Timestamp::now());
    if let Some(found) = usable_identity(&dir, now) {
        let known = dir.authorities().unwrap_or_default();
        let is_same_cluster =
            known.iter().any(|one| one.digest().is_ok_and(|digest| digest == config.token.pin));
        if found != config.identity || !is_same_cluster {
            let whose = if is_same_cluster { "" } else { " another cluster" };
            bail!(
                "this node has joined{whose} as {found}; run 'minik8s-agent reset' first to join as {}",
                config.identity
            );
        }
        return renew(config, admission).await;
    }
    let key = dir.ensure_key()?;
    let keys = Keys::open(&config.age_identity)?;
    let request = JoinRequest {
        token: config.token.id.clone(),
        secret: config.token.secret.clone(),
        identity: config.identity.to_string(),
        signing_request: key.signing_request(&config.identity)?,
        recipient: keys.recipient().map(str::to_owned),
        addresses: Vec::new(),
    };
    let (url, answer) = ask(config, admission.as_ref(), &request).await?;
    let enrollment = Enrollment::check(&answer, &key, config);
    let enrollment = enrollment.with_context(|| format!("cannot use the answer of {url}"))?;
    let known = ClusterAddresses { etcd: Vec::new(), reconcilers: vec![url] };
    let known = enrollment.addresses.or(&known);
    dir.write_authorities(&enrollment.authorities)?;
    let file = ClusterAddresses::file(&config.machine.agent_dir());
    file.write(&known).with_context(|| format!("cannot write {}", file.path().display()))?;
    dir.write_certificate(&enrollment.certificate)?;
    println!("{}", report(config, &request, &enrollment.certificate, &known)?);
    Ok(())
}

/// Renews the certificate of a node that has joined. Without an answer the node starts all the same, and tries again.
async fn renew(config: &JoinConfig, admission: Arc<dyn Admission>) -> anyhow::Result<()> {
    let JoinConfig { identity, machine, urls, .. } = config;
    let given = ClusterAddresses { reconcilers: urls.clone(), ..ClusterAddresses::default() };
    let file = ClusterAddresses::file(&machine.agent_dir());
    let known: ClusterAddresses = file.read_or_warn("the addresses of the cluster").unwrap_or_default();
    let used = given.or(&known);
    let settings =
        TrustSettings { node: identity.name().to_owned(), dir: machine.pki(), given, known, used, file };
    let mut trust = NodeTrust::open(settings, admission)?;
    let joined = format!("this node has joined as {identity} already");
    match trust.renew().await {
        Ok(()) => println!("{joined}; its certificate is renewed, and the token is not used"),
        Err(NodeTrustError::NoneRenews(AllFailed { refusal: Some(Refusal { url, why, .. }), .. })) => {
            bail!(
                "{joined}, but {url} does not renew its certificate: {why}; to join anew, \
                 run 'minik8s-agent reset' first"
            )
        }
        Err(error) => println!("{joined}; the token is not used; {}", visible(&error_chain(&error))),
    }
    Ok(())
}

/// Report of a join for people, and for those who read it over SSH.
fn report(
    config: &JoinConfig,
    request: &JoinRequest,
    certificate: &Certificate,
    known: &ClusterAddresses,
) -> anyhow::Result<String> {
    let JoinConfig { identity, machine, .. } = config;
    let mut lines = vec![
        format!("joined as {identity}, with key {}", certificate.public_key()?.fingerprint()?),
        format!(
            "its certificate, until {:.0}, is in {}; a running agent renews it",
            certificate.not_after()?,
            machine.pki().path().display()
        ),
        format!("the cluster's reconcilers are at {}", known.reconcilers.join(", ")),
    ];
    if let Some(recipient) = &request.recipient {
        lines.push(format!(
            "for secrets, run 'minik8s secrets recipients add {} {recipient}' in the repository, and push",
            identity.name()
        ));
    }
    Ok(lines.iter().map(|line| visible(line)).collect::<Vec<_>>().join("\n"))
}

/// Returns under which name this node has joined, if its certificate can still be used or renewed.
fn usable_identity(dir: &TrustDir, now: Timestamp) -> Option<Identity> {
    let certificate = dir.certificate().ok()?;
    let renewable = SignedDuration::from_hours(24 * i64::from(RENEWABLE_DAYS));
    let is_usable = certificate.not_after().is_ok_and(|end| now < end + renewable);
    certificate.identity().ok().filter(|_| is_usable)
}

/// Sends the request to the first reconciler that can be reached; returns its URL and answer.
async fn ask(
    config: &JoinConfig,
    admission: &dyn Admission,
    request: &JoinRequest,
) -> anyhow::Result<(String, JoinAnswer)> {
    let pin = &config.token.pin;
    match ask_in_turn(&config.urls, OnRefusal::Stop, |url| admission.join(url, pin, request)).await {
        Ok((url, answer)) => Ok((url.to_owned(), answer)),
        Err(AllFailed { refusal: Some(Refusal { url, why, .. }), .. }) => {
            bail!("{url} does not let this node join: {why}")
        }
        Err(failed) => bail!("cannot join: {failed}"),
    }
}

/// An answer that fits this node.
struct Enrollment {
    certificate: Certificate,
    authorities: Vec<Certificate>,
    addresses: ClusterAddresses,
}

impl Enrollment {
    fn check(answer: &JoinAnswer, key: &KeyPair, config: &JoinConfig) -> anyhow::Result<Self> {
        let certificate = Certificate::from_pem(&answer.certificate)?;
        let authorities = bundle_from_pem(&answer.authorities)?;
        let credentials =
            Credentials::new(key, certificate.clone(), authorities.clone(), Default::default())?;
        if *credentials.identity() != config.identity {
            bail!("the certificate is that of {}", credentials.identity());
        }
        let addresses = ClusterAddresses::learned(&answer.etcd, &answer.reconcilers);
        Ok(Self { certificate, authorities, addresses })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use reqwest::StatusCode;
    use schema::control::lock;
    use schema::testing::authority;
    use schema::trust::JoinToken;

    use super::*;
    use crate::config::MachineConfig;
    use crate::worlds::admission::FakeAdmission;

    fn config(state_dir: &Path, identity: &str) -> JoinConfig {
        let docker = "unix:///var/run/docker.sock".to_owned();
        JoinConfig {
            machine: MachineConfig { state_dir: state_dir.to_owned(), instance: "mk8s".into(), docker },
            identity: identity.parse().unwrap(),
            age_identity: state_dir.join("age-identity.txt"),
            urls: vec!["https://r:1".to_owned()],
            token: JoinToken::create(&"ab".repeat(32)).unwrap(),
        }
    }

    fn admission(urls: &[&str]) -> FakeAdmission {
        let admission = FakeAdmission::default();
        *lock(&admission.authority) = Some(authority());
        lock(&admission.addresses).etcd = urls.iter().map(|url| (*url).to_owned()).collect();
        admission
    }

    #[tokio::test]
    async fn a_node_that_joined_has_a_certificate_and_knows_its_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let admission = Arc::new(admission(&["https://e:1"]));
        let pin = lock(&admission.authority).as_ref().unwrap().certificate().digest().unwrap();
        let config = JoinConfig { token: JoinToken::create(&pin).unwrap(), ..config(dir.path(), "node-n1") };
        join(&config, admission.clone()).await.unwrap();
        let credentials = Credentials::load(&config.machine.pki()).unwrap();
        assert_eq!(credentials.identity().node(), Some("n1"));
        let known = ClusterAddresses::file(&config.machine.agent_dir()).read().unwrap();
        let wanted = ClusterAddresses {
            etcd: vec!["https://e:1".to_owned()],
            reconcilers: vec!["https://r:1".to_owned()],
        };
        assert_eq!(known, Some(wanted), "the reconciler that answered is known at least");

        // A join under another name or to another cluster asks no reconciler.
        let elsewhere = JoinConfig { token: JoinToken::create(&"ab".repeat(32)).unwrap(), ..config.clone() };
        let renamed = JoinConfig { identity: "node-n2".parse().unwrap(), ..config };
        for (other, whose) in
            [(elsewhere, "joined another cluster as node-n1"), (renamed, "joined as node-n1")]
        {
            let error = join(&other, admission.clone()).await.unwrap_err().to_string();
            assert!(error.contains(whose) && error.contains("reset"), "{error}");
        }
        assert_eq!(lock(&admission.asked).len(), 1);
    }

    // Would fail by a join that takes the certificate on the disk for one that the cluster still knows.
    #[tokio::test]
    async fn a_second_join_renews_and_one_with_a_revoked_key_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let admission = Arc::new(admission(&[]));
        let pin = lock(&admission.authority).as_ref().unwrap().certificate().digest().unwrap();
        let config = JoinConfig { token: JoinToken::create(&pin).unwrap(), ..config(dir.path(), "node-n1") };
        let serial = || config.machine.pki().certificate().unwrap().serial().unwrap();
        join(&config, admission.clone()).await.unwrap();
        let first = serial();
        join(&config, admission.clone()).await.unwrap();
        let second = serial();
        assert_ne!(first, second);
        // A node that has joined does not need a reconciler to start.
        lock(&admission.refusals).push_back(StatusCode::SERVICE_UNAVAILABLE);
        join(&config, admission.clone()).await.unwrap();
        lock(&admission.refusals).push_back(StatusCode::FORBIDDEN);
        let error = join(&config, admission.clone()).await.unwrap_err().to_string();
        assert!(error.contains("https://r:1") && error.contains("403") && error.contains("reset"), "{error}");
        assert_eq!((serial(), lock(&admission.asked).len()), (second, 4));
    }

    #[tokio::test]
    async fn a_refusal_is_told_in_the_reconcilers_words_and_no_other_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), "node-n1");
        let urls = ["https://r:1", "https://r:2"].map(str::to_owned).to_vec();
        let config = JoinConfig { urls, ..config };
        let admission = Arc::new(FakeAdmission::default());
        let error = join(&config, admission.clone()).await.unwrap_err().to_string();
        assert_eq!(error, "https://r:1 does not let this node join: this token admits nobody");
        assert_eq!(lock(&admission.asked).len(), 1);
        assert!(!config.machine.pki().is_filled());
    }
}
