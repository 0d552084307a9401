//! A node that is unreachable for a while: its pods keep running, and after its return all names and routes
//! are right within 5 s, without any restart. In a soak (`MINIK8S_ROUNDS` of 100 or more) also for
//! longer than the lease of a heartbeat and the eviction time: then the others send no client to its pods, which are
//! back in service when it returns.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use harness::manifests::web;
use harness::{
    Change, Clients, Cluster, ClusterOptions, Context, Node, Result, Target, Where, dig, ensure, eventually,
    holds, rounds, secs, service_address,
};
use schema::records::ServiceRecord;

use crate::services::record;

const READY: &str = "    readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}\n";
/// Time within which a node must be right again after its return.
const RIGHT_WITHIN: Duration = Duration::from_secs(5);
/// Lease of a heartbeat (design, section 10).
const LEASE: Duration = Duration::from_secs(15);
/// The node that is cut off.
const AWAY: usize = 3;

/// Durations of the successive cuts in seconds.
fn cuts() -> &'static [u64] {
    if rounds(1, 100) >= 100 { &[5, 15, 30, 120] } else { &[5] }
}

fn pod(cluster: &Cluster, name: &str, node: usize) -> Result<Change> {
    let node = &cluster.numbered(node)?.name;
    let text = web(name).greeting("open").label("group", "shop").on(node).container_fields(READY);
    Ok(Change::write(format!("{name}.yaml"), text.to_string()))
}

fn service(name: &str, selector: &str, more: &str) -> Change {
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  selector: {{{selector}}}\n  \
         ports: [{{port: 80, targetPort: 8080}}]\n{more}"
    );
    Change::write(format!("service-{name}.yaml"), text)
}

fn addresses(record: &ServiceRecord) -> BTreeSet<String> {
    record.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect()
}

/// Waits until the service leads to these addresses from everywhere.
fn behind(cluster: &Cluster, name: &str, wanted: &[&str]) -> Result<()> {
    let wanted: BTreeSet<String> = wanted.iter().map(|address| (*address).to_owned()).collect();
    eventually(&format!("{wanted:?} are behind {name}"), secs(45), || {
        let now = addresses(&record(cluster, name)?);
        ensure!(now == wanted, "{now:?}");
        Ok(())
    })
}

/// A node from the point of view of its clients.
struct Look<'a> {
    cluster: &'a Cluster,
    node: &'a Node,
    dns: String,
}

impl Look<'_> {
    fn named(&self, name: &str) -> Result<BTreeSet<String>> {
        let said = dig(&self.node.net, &self.dns, &format!("{name}.default.svc.cluster.local"), "A", &[])?;
        Ok(said.gist().iter().map(|line| line.trim_start_matches("A ").to_owned()).collect())
    }

    /// Targets of its rules.
    fn targets(&self) -> Result<BTreeSet<String>> {
        let rules = self.node.net.rules()?;
        let target = |rule: &String| Some(rule.split_once("--to-destination ")?.1.to_owned());
        Ok(rules.iter().filter_map(target).collect())
    }

    /// Checks that names and routes match etcd, and that packets arrive.
    fn is_right(&self, services: &[String]) -> Result<()> {
        let records = services.iter().map(|name| Ok((name.as_str(), record(self.cluster, name)?)));
        let records = records.collect::<Result<Vec<(&str, ServiceRecord)>>>()?;
        let (mut targets, mut asked) = (BTreeSet::new(), BTreeSet::new());
        for (name, record) in &records {
            let behind = addresses(record);
            let names = record.cluster_ip.map_or_else(|| behind.clone(), |ip| [ip.to_string()].into());
            let named = self.named(name)?;
            ensure!(named == names, "{name} is {named:?}, not {names:?}");
            if let Some(address) = record.cluster_ip {
                asked.insert(format!("{address}:80"));
                targets.extend(behind.iter().map(|address| format!("{address}:8080")));
            }
        }
        let now = self.targets()?;
        ensure!(now == targets, "its rules lead to {now:?}, not {targets:?}");
        for address in asked.union(&targets) {
            self.node.net.run("curl", &["-sf", "-m", "2", &format!("http://{address}/")])?;
        }
        Ok(())
    }
}

// Seen red with a wait of 60 s after a lost watch, in a cut of 15 s.
#[test]
#[expect(clippy::too_many_lines, reason = "a story is read from its beginning to its end")]
fn a_node_that_was_cut_off_is_right_within_seconds_and_nothing_on_it_stops() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let changes = [
            pod(cluster, "stays", AWAY)?,
            pod(cluster, "roams-0", 2)?,
            service("shop", "group: shop", ""),
            service("shops", "group: shop", "  clusterIP: None\n"),
            service("own", "app: stays", ""),
        ];
        cluster.push(&changes, "Open")?;
        let stays = cluster.running("stays", &["web"])?;
        let mut former = cluster.running("roams-0", &["web"])?.address()?.to_owned();
        let mut services: Vec<String> = ["shop", "shops", "own"].map(str::to_owned).into();
        behind(cluster, "shops", &[stays.address()?, &former])?;
        behind(cluster, "own", &[stays.address()?])?;
        let dns = service_address(cluster, 10)?.to_string();
        let look = Look { cluster, node: cluster.numbered(AWAY)?, dns };
        eventually("all is right at first", secs(45), || look.is_right(&services))?;

        let own = record(cluster, "own")?.cluster_ip.context("no address")?;
        let asked = || -> Result<Clients> {
            let mut clients = Clients::on(look.node)?;
            let name = "a client on the node that is cut off".to_owned();
            clients.ask(Target { name, address: format!("{own}:80"), answer: "open".to_owned() })?;
            clients.answered(20)?;
            Ok(clients)
        };

        for (round, cut) in (1..).zip(cuts().iter().map(|cut| secs(*cut))) {
            let before = look.named("shops")?;
            let mut clients = asked()?;
            look.node.cut_off()?;
            let since = Instant::now();
            let (gone, comes) = (format!("roams-{}", round - 1), format!("roams-{round}"));
            let late = format!("late-{round}");
            let changes = [
                Change::remove(format!("{gone}.yaml")),
                pod(cluster, &comes, round % 2 + 1)?,
                service(&late, "group: shop", ""),
            ];
            cluster.push(&changes, "Replace a pod, add a service")?;
            cluster.gone(&gone)?;
            let now = cluster.running(&comes, &["web"])?.address()?.to_owned();
            services.push(late);
            eventually("the new pod is behind the service, the former is not", secs(45), || {
                let there = addresses(&record(cluster, "shop")?);
                ensure!(there.contains(&now) && !there.contains(&former), "{there:?}");
                Ok(())
            })?;
            if cut > LEASE {
                behind(cluster, "shop", &[&now])?;
            }
            let goes_on = || {
                let named = look.named("shops")?;
                ensure!(named == before, "{named:?}, not {before:?}");
                Ok(())
            };
            goes_on()?;
            clients.answered(20)?;
            holds("its names stay", cut.saturating_sub(since.elapsed()), goes_on)?;
            let lives = cluster.lives()?;
            let away = since.elapsed();
            if away > LEASE / 2 {
                // Its heartbeat may have expired: on its return it first learns that no node leads to its pods.
                clients.end()?;
            }
            look.node.reconnect()?;
            let since = Instant::now();
            eventually("names and routes are right", RIGHT_WITHIN, || look.is_right(&services))
                .with_context(|| format!("after {away:?}"))?;
            let right = since.elapsed();
            // A check that began in time may last longer: it makes some ten requests.
            ensure!(right <= RIGHT_WITHIN + secs(2), "right only after {right:?}");
            println!("cut off for {away:?}, right after {right:?}");
            // A node whose heartbeat had expired first reports its return, then its pods get traffic again.
            behind(cluster, "shop", &[stays.address()?, &now])?;
            eventually("with its own pods", RIGHT_WITHIN, || look.is_right(&services))?;
            let whole = since.elapsed();
            ensure!(whole <= RIGHT_WITHIN + secs(2), "with its own pods only after {whole:?}");
            println!("and with its own pods after {whole:?}");
            clients.end()?;
            ensure!(cluster.lives()? == lives, "containers were touched: {:?}", cluster.lives()?);
            ensure!(cluster.pod("stays")?.lives() == stays.lives(), "its pod was started again");
            former = now;
        }
        Ok(())
    })
}
