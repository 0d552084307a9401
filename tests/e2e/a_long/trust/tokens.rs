//! Wrong tokens in number: ids that there are not, wrong secrets, used and late tokens, and those of other names.

use std::collections::BTreeSet;
use std::time::Instant;

use harness::{
    Cluster, ClusterOptions, Context, KeptConnection, Result, ensure, eventually, request_token, rounds, secs,
};
use jiff::Timestamp;
use schema::keys::{Key, prefix};
use schema::records::JoinRecord;
use schema::trust::{Identity, JoinRequest, JoinToken, KeyPair};

/// Wrong tokens of a round: 10,000 in a soak.
const PER_ROUND: usize = 100;
/// Connections on which they are tried at the same time.
const CONNECTIONS: usize = 4;

/// Tokens whose secrets the stranger knows, and a signing request of its own.
struct Stranger {
    unused: JoinToken,
    used: JoinToken,
    late: JoinToken,
    signing_request: String,
}

impl Stranger {
    fn prepare(cluster: &Cluster) -> Result<Self> {
        let wanted: Identity = "node-new".parse()?;
        let stranger = Self {
            unused: request_token(cluster, "node-new", 3600)?,
            used: request_token(cluster, "node-used", 3600)?,
            late: request_token(cluster, "node-late", 1)?,
            signing_request: KeyPair::generate()?.signing_request(&wanted)?,
        };
        let mut connection = connect(cluster)?;
        let (code, said) = stranger.ask(&mut connection, &stranger.used, "node-used")?;
        ensure!(code == 200, "{code} {said}");
        eventually("the late one has ended", secs(10), || {
            let record: JoinRecord = cluster.etcd.value(Key::Join(stranger.late.id.clone()))?;
            ensure!(record.expires_at < Timestamp::now(), "{record:?}");
            Ok(())
        })?;
        Ok(stranger)
    }

    /// Asks for a certificate; returns status code and answer.
    fn ask(
        &self,
        connection: &mut KeptConnection,
        token: &JoinToken,
        identity: &str,
    ) -> Result<(u16, String)> {
        let request = JoinRequest {
            token: token.id.clone(),
            secret: token.secret.clone(),
            identity: identity.to_owned(),
            signing_request: self.signing_request.clone(),
            recipient: None,
            addresses: Vec::new(),
        };
        connection.post("/v1/join", &serde_json::to_string(&request)?)
    }

    /// Tries so many wrong tokens on one connection; returns the different answers.
    fn tries(&self, connection: &mut KeptConnection, count: usize) -> Result<BTreeSet<(u16, String)>> {
        let mut answers = BTreeSet::new();
        for number in 0..count {
            let random = JoinToken::create(&self.unused.pin)?;
            let wrong_secret = JoinToken { id: self.unused.id.clone(), ..random.clone() };
            let (token, identity) = match number % 6 {
                0 => (&random, "node-new"),
                1 => (&wrong_secret, "node-new"),
                2 => (&self.used, "node-used"),
                3 => (&self.late, "node-late"),
                4 => (&self.unused, "node-other"),
                _ => (&self.unused, "reconciler-new"),
            };
            answers.insert(self.ask(connection, token, identity)?);
        }
        Ok(answers)
    }
}

fn connect(cluster: &Cluster) -> Result<KeptConnection> {
    KeptConnection::open(&cluster.listen(0), &cluster.trust.user()?)
}

#[test]
fn of_thousands_of_wrong_tokens_none_lets_anybody_in() -> Result<()> {
    let each = PER_ROUND * rounds(4, 100) / CONNECTIONS;
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.run_story(|cluster| {
        cluster.etcd.start()?;
        cluster.reconcilers[0].start()?;
        cluster.wait_reconciler(0)?;
        let stranger = &Stranger::prepare(cluster)?;
        let began = Instant::now();
        let mut connections =
            (0..CONNECTIONS).map(|_| connect(cluster)).collect::<Result<Vec<KeptConnection>>>()?;
        let mut answers = BTreeSet::new();
        std::thread::scope(|threads| -> Result<()> {
            let tries: Vec<_> = connections
                .iter_mut()
                .map(|connection| threads.spawn(move || stranger.tries(connection, each)))
                .collect();
            for tries in tries {
                answers.extend(tries.join().ok().context("a thread panicked")??);
            }
            Ok(())
        })?;
        let (count, took) = (each * CONNECTIONS, began.elapsed());
        let rate = count as f64 / took.as_secs_f64();
        println!("tokens: {count} wrong ones in {took:.1?}, {rate:.0} a second on {CONNECTIONS} connections");
        // One text for whatever is wrong; only who knows the secret learns that it is used, or late.
        let all_refused = answers.iter().all(|(code, _)| *code == 401);
        ensure!(all_refused && answers.len() == 3, "{answers:?}");
        for words in ["used already at", "ended at"] {
            ensure!(answers.iter().any(|(_, said)| said.contains(words)), "no {words}: {answers:?}");
        }

        // The right one is as good as before, once.
        let nodes = || -> Result<Vec<String>> {
            let all = cluster.etcd.list(prefix::IDENTITIES)?.into_iter();
            let names = all.filter_map(|key| key.key.strip_prefix(prefix::IDENTITIES).map(str::to_owned));
            Ok(names.filter(|name| name.starts_with("node-")).collect())
        };
        ensure!(nodes()? == ["node-used"], "{:?}", nodes()?);
        let mut connection = connect(cluster)?;
        let (code, said) = stranger.ask(&mut connection, &stranger.unused, "node-new")?;
        ensure!(code == 200 && nodes()?.len() == 2, "{code} {said}");
        let (code, said) = stranger.ask(&mut connection, &stranger.unused, "node-new")?;
        ensure!(code == 401, "{code} {said}");
        Ok(())
    })
}
