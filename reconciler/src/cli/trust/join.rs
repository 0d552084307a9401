//! `minik8s join`: makes this machine a reconciler of a cluster.
//!
//! Sends a signing request and its age recipient to a reconciler that the token's pin identifies; writes the certificate
//! and the authority that come back to `reconciler/pki` of the state directory. Starts nothing.

use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use reqwest::{StatusCode, Url};
use schema::trust::{
    Authority, Certificate, Credentials, Identity, JoinAnswer, JoinRequest, JoinToken, KeyPair, Role,
    TrustDir, bundle_from_pem,
};
use tokio::time::timeout;

use crate::args::JoinArgs;
use crate::cli::output::write_lines;
use crate::config::{DEFAULT_STATE_DIR, host_name, identity_file};
use crate::trust::{AUTHORITY_KEY_FILE, AuthorityText, EtcdMembership, pki_dir, write_authority};
use crate::view::Problem;
use crate::{crypt, outgoing};

/// Longest time for one reconciler to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

pub(in crate::cli) async fn run(args: &JoinArgs) -> anyhow::Result<ExitCode> {
    let token: JoinToken = args.token.parse()?;
    let name =
        args.name.clone().or_else(host_name).context("this machine has no name; give one with --name")?;
    let identity = Identity::new(Role::Reconciler, &name)?;
    let servers = servers(&args.servers)?;
    let dir = pki_dir(&args.state_dir);
    if has_joined(&dir, &identity, &token.pin)? {
        write_lines(&format!("{identity} has joined already: {} is complete\n", dir.path().display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let what = "This reconciler's age identity: it decrypts credentials of sources and of notifications.";
    let identity_file = identity_file(&args.state_dir);
    let recipient = crypt::ensure_identity(&identity_file, what)?;
    let key = dir.ensure_key()?;
    let joining = Joining { token: &token, identity: &identity, key: &key, recipient: &recipient, args };
    let (answer, own) = joining.ask(&servers).await?;
    let sealed = answer.sealed_authority.as_deref();
    let sealed = sealed.context("the cluster sent no authority; is the token one for a reconciler?")?;
    let opened = crypt::open_sealed(sealed, &identity_file).context("cannot decrypt the authority")?;
    let membership = Membership::new(&answer, &opened, &identity, &key)?;
    let address = args.address.first().cloned().unwrap_or_else(|| own.to_string());
    let etcd = EtcdMembership {
        name: identity.name().to_owned(),
        address: args.etcd_member.then(|| address.clone()),
        join: answer.etcd.clone(),
        initial_cluster: None,
        rolled: 0,
    };
    etcd.save(&args.state_dir)?;
    membership.write(&dir)?;
    write_lines(&next_steps(args, &identity, &answer, &address))?;
    Ok(ExitCode::SUCCESS)
}

fn servers(typed: &[String]) -> anyhow::Result<Vec<Url>> {
    let url = |typed: &String| {
        let url: Option<Url> = typed.parse().ok().filter(|url: &Url| url.scheme() == "https");
        let mut url = url.with_context(|| format!("{typed:?} is not https://HOST:PORT"))?;
        url.set_path("/v1/join");
        Ok(url)
    };
    typed.iter().map(url).collect()
}

/// True if the folder is this reconciler's, in the cluster of this authority. One of another cluster, or of another
/// name, is an error: its authority's key may be the only one.
fn has_joined(dir: &TrustDir, identity: &Identity, pin: &str) -> anyhow::Result<bool> {
    if !dir.is_filled() && !dir.path().join(AUTHORITY_KEY_FILE).exists() {
        return Ok(false);
    }
    let own = dir.certificate().and_then(|certificate| certificate.identity()).ok();
    let authorities = dir.authorities().unwrap_or_default();
    let is_pinned = authorities.iter().any(|one| one.digest().is_ok_and(|digest| digest == pin));
    match (&own, is_pinned) {
        (Some(own), true) if own == identity => return Ok(true),
        // An earlier join was interrupted before its last file.
        (None, true) => return Ok(false),
        _ => {}
    }
    let whose = own.map_or_else(|| "a cluster of its own".to_owned(), |own| format!("a cluster as {own}"));
    bail!(
        "this machine belongs to {whose} already: to leave that for good, stop its reconciler and remove {}",
        dir.path().display()
    );
}

/// Request to join, for any of the reconcilers.
struct Joining<'a> {
    token: &'a JoinToken,
    identity: &'a Identity,
    key: &'a KeyPair,
    recipient: &'a str,
    args: &'a JoinArgs,
}

impl Joining<'_> {
    /// Asks the reconcilers one after the other, until one answers; returns this machine's address towards it, too.
    async fn ask(&self, servers: &[Url]) -> anyhow::Result<(JoinAnswer, IpAddr)> {
        let signing_request = self.key.signing_request(self.identity)?;
        let mut failures = Vec::new();
        for server in servers {
            let mut address = IpAddr::from([127, 0, 0, 1]);
            let body = |own: IpAddr| {
                address = own;
                self.body(own, signing_request.clone())
            };
            let asked = outgoing::post_pinned(server, &self.token.pin, body);
            let server = server.as_str().trim_end_matches("/v1/join");
            match timeout(ANSWER_TIMEOUT, asked).await {
                Ok(Ok((status, body))) => return Ok((read_answer(server, status, &body)?, address)),
                Ok(Err(error)) => failures.push(format!("{server}: {error:#}")),
                Err(_) => failures.push(format!("{server}: no answer within {}s", ANSWER_TIMEOUT.as_secs())),
            }
        }
        bail!("cannot join: {}", failures.join("; "))
    }

    fn body(&self, own: IpAddr, signing_request: String) -> Vec<u8> {
        let addresses = match self.args.address.is_empty() {
            true => vec![own.to_string()],
            false => self.args.address.clone(),
        };
        let request = JoinRequest {
            token: self.token.id.clone(),
            secret: self.token.secret.clone(),
            identity: self.identity.to_string(),
            signing_request,
            recipient: Some(self.recipient.to_owned()),
            addresses,
        };
        serde_json::to_vec(&request).unwrap_or_default()
    }
}

fn read_answer(server: &str, status: StatusCode, body: &[u8]) -> anyhow::Result<JoinAnswer> {
    if status.is_success() {
        return serde_json::from_slice(body).with_context(|| format!("cannot read the answer of {server}"));
    }
    match serde_json::from_slice::<Problem>(body) {
        Ok(Problem { error, help }) if help.is_empty() => bail!("{server} refuses: {error}"),
        Ok(Problem { error, help }) => bail!("{server} refuses: {error}; {help}"),
        Err(_) => bail!("{server} refuses: its status is {status}"),
    }
}

/// Membership of a reconciler in the cluster: certificates and keys, checked.
struct Membership {
    certificate: Certificate,
    authorities: Vec<Certificate>,
    authority: Authority,
}

impl Membership {
    fn new(answer: &JoinAnswer, opened: &str, identity: &Identity, key: &KeyPair) -> anyhow::Result<Self> {
        let certificate = Certificate::from_pem(&answer.certificate)?;
        let authorities = bundle_from_pem(&answer.authorities)?;
        let authority =
            AuthorityText::parse(opened).context("the sealed authority is not what it should be")?;
        // Fails unless all of them belong together.
        Credentials::new(key, certificate.clone(), authorities.clone(), Default::default())?;
        let digest = authority.certificate().digest()?;
        ensure!(
            authorities.iter().any(|one| one.digest().is_ok_and(|own| own == digest)),
            "the sealed authority is not one that the cluster trusts"
        );
        let found = certificate.identity()?;
        ensure!(found == *identity, "the certificate is that of {found}, not of {identity}");
        Ok(Self { certificate, authorities, authority })
    }

    /// Writes the certificate last: with it the folder is complete.
    fn write(&self, dir: &TrustDir) -> anyhow::Result<()> {
        dir.write_authorities(&self.authorities)?;
        write_authority(dir, &self.authority)?;
        dir.write_certificate(&self.certificate)?;
        Ok(())
    }
}

fn next_steps(args: &JoinArgs, identity: &Identity, answer: &JoinAnswer, address: &str) -> String {
    let name = identity.name();
    let state_dir = match args.state_dir == Path::new(DEFAULT_STATE_DIR) {
        true => String::new(),
        false => format!(" --state-dir {}", args.state_dir.display()),
    };
    let etcd = match answer.etcd.is_empty() {
        true => "URL".to_owned(),
        false => answer.etcd.join(","),
    };
    if args.etcd_member {
        return format!(
            "{identity} has joined; start it, its etcd and an agent with the repository that the other reconcilers \
             follow:\nminik8s up --advertise {address}{state_dir} --repo URL\n"
        );
    }
    format!(
        "{identity} has joined; start it with the repository that the other reconcilers follow:\nminik8s serve --name \
         {name} --etcd {etcd} --listen 0.0.0.0:7070{state_dir} --repo URL\n"
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use jiff::{SignedDuration, Timestamp};
    use schema::trust::LeafRequest;

    use super::*;
    use crate::args::{Cli, Command};

    const WEEK: SignedDuration = SignedDuration::from_hours(7 * 24);

    fn authority() -> Authority {
        Authority::create(WEEK, Timestamp::now()).unwrap()
    }

    fn opened(authority: &Authority) -> String {
        let certificate = authority.certificate().to_pem().unwrap();
        serde_json::json!({"certificate": certificate, "key": authority.key_pem().unwrap()}).to_string()
    }

    fn answer(authority: &Authority, identity: &Identity, key: &KeyPair) -> JoinAnswer {
        let public = key.public_key().unwrap();
        let leaf = LeafRequest { identity, key: &public, addresses: &[], lifetime: WEEK };
        JoinAnswer {
            certificate: authority.sign(&leaf, Timestamp::now()).unwrap().to_pem().unwrap(),
            authorities: authority.certificate().to_pem().unwrap(),
            etcd: vec!["https://10.0.0.5:2379".to_owned()],
            reconcilers: Vec::new(),
            sealed_authority: None,
        }
    }

    #[test]
    fn a_reconciler_that_joined_has_the_authority_and_its_own_certificate_and_joins_no_other_cluster() {
        let root = tempfile::tempdir().unwrap();
        let dir = TrustDir::new(root.path().join("pki"));
        let (own, other) = (authority(), authority());
        let identity: Identity = "reconciler-r2".parse().unwrap();
        let pin = own.certificate().digest().unwrap();
        let joined = |identity: &str, pin: &str| has_joined(&dir, &identity.parse().unwrap(), pin);
        assert!(!joined("reconciler-r2", &pin).unwrap());
        let key = dir.ensure_key().unwrap();
        assert!(!joined("reconciler-r2", &pin).unwrap(), "a key alone is of no cluster");

        let answer = answer(&own, &identity, &key);
        Membership::new(&answer, &opened(&own), &identity, &key).unwrap().write(&dir).unwrap();
        assert!(joined("reconciler-r2", &pin).unwrap());
        let read = |name: &str| dir.read(name).unwrap();
        let authority = Authority::from_pem(&read("authority.pem"), &read("authority-key.pem")).unwrap();
        assert_eq!(authority.certificate().digest().unwrap(), pin);
        assert_eq!(Credentials::load(&dir).unwrap().identity(), &identity);

        let foreign = other.certificate().digest().unwrap();
        for (identity, pin) in [("reconciler-r2", &foreign), ("reconciler-r3", &pin)] {
            let error = joined(identity, pin).unwrap_err().to_string();
            assert!(error.contains("a cluster as reconciler-r2 already"), "{error}");
        }
    }

    #[test]
    fn an_answer_whose_parts_do_not_belong_together_is_not_written() {
        let (own, other) = (authority(), authority());
        let identity: Identity = "reconciler-r2".parse().unwrap();
        let key = KeyPair::generate().unwrap();
        let right = answer(&own, &identity, &key);
        let named = |name: &str| answer(&own, &name.parse().unwrap(), &key);
        let of_other_key = answer(&own, &identity, &KeyPair::generate().unwrap());
        for (what, answer, opened) in [
            ("another authority", &right, opened(&other)),
            ("no authority", &right, "{}".to_owned()),
            ("another name", &named("reconciler-r3"), opened(&own)),
            ("a node", &named("node-r2"), opened(&own)),
            ("another key", &of_other_key, opened(&own)),
        ] {
            assert!(Membership::new(answer, &opened, &identity, &key).is_err(), "{what}");
        }
        assert!(Membership::new(&right, &opened(&own), &identity, &key).is_ok());
    }

    // Would fail with a reconciler on loopback, at which nobody else could join.
    #[test]
    fn the_next_command_starts_a_reconciler_that_others_reach() {
        let key = KeyPair::generate().unwrap();
        let identity: Identity = "reconciler-r2".parse().unwrap();
        let answer = answer(&authority(), &identity, &key);
        let steps = |flags: &[&str]| {
            let line = ["minik8s", "join", "https://r1:7070", "--token", "a.b.c"];
            let Command::Join(args) = Cli::try_parse_from(line.iter().chain(flags)).unwrap().command else {
                panic!("{flags:?}")
            };
            next_steps(&args, &identity, &answer, "10.0.0.6")
        };
        let serve = "minik8s serve --name r2 --etcd https://10.0.0.5:2379 --listen 0.0.0.0:7070 --repo URL";
        assert_eq!(steps(&[]).lines().last(), Some(serve));
        let up = "minik8s up --advertise 10.0.0.6 --repo URL";
        assert_eq!(steps(&["--etcd-member"]).lines().last(), Some(up));
    }

    #[test]
    fn a_refusal_is_repeated_with_its_remedy() {
        let status = StatusCode::UNAUTHORIZED;
        let refused =
            |body: &str| read_answer("https://r1", status, body.as_bytes()).unwrap_err().to_string();
        assert_eq!(
            refused(r#"{"error": "wrong token", "help": "create another"}"#),
            "https://r1 refuses: wrong token; create another"
        );
        assert_eq!(refused(r#"{"error": "wrong token"}"#), "https://r1 refuses: wrong token");
        assert_eq!(refused("<html>"), "https://r1 refuses: its status is 401 Unauthorized");
    }

    #[test]
    fn only_addresses_with_tls_are_asked() {
        let typed = ["https://r1:7070/".to_owned(), "https://[::1]:7070".to_owned()];
        let urls: Vec<String> = servers(&typed).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(urls, ["https://r1:7070/v1/join", "https://[::1]:7070/v1/join"]);
        for wrong in ["http://r1:7070", "r1:7070", ""] {
            assert!(servers(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
