//! Names on three nodes: the whole table of the specification with `dig` from each node and from a pod on each,
//! and short names with the containers' own resolvers; the same with etcd and reconciler dead, and again with agents
//! started then. The targets of the names and the clients are on all three nodes. Other names come from a
//! server outside the cluster, configured in the Cluster object. A machine's own resolver, if requested, survives a
//! crash and is restored. Settings of the Cluster object come and go with a push.
//!
//! The first story fails when the address disappears from a node: queries then leave it, and the server outside
//! knows no such name. It was seen red with a pod's `hostname` in every service, with the addresses of other nodes
//! missing from the zone, with the node's own address not read from the disk, and with the host name alone in
//! `/etc/hosts`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context, Daemon, IMAGE, NetWorld, PodView, Result, Upstream, Where, dig,
    ensure, eventually, netns_of, secs, service_address, vip,
};

use crate::gateway::curl_by;

/// Endpoints of the large service: more than fit into one packet.
const LARGE: u8 = 150;
const ZONE: &str = "cluster.local";
const SVC: &str = "default.svc.cluster.local";

/// A pod that sleeps on node number `node`, with this `app` label and further fields.
fn sleeper(cluster: &Cluster, name: &str, node: usize, app: &str, more: &str) -> Result<String> {
    let node = &cluster.numbered(node)?.name;
    Ok(format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {app}}}}}\nspec:\n  \
         nodeName: {node}\n  terminationGracePeriodSeconds: 0\n{more}  \
         containers: [{{name: main, image: {IMAGE}, command: [sleep, \"100000\"]}}]\n---\n"
    ))
}

/// Endpoints on each node: one with a host name, one with a host name in one service only, one without.
fn pods(cluster: &Cluster) -> Result<String> {
    let own = "  dnsPolicy: None\n  \
               dnsConfig: {nameservers: [192.0.2.3], options: [{name: ndots, value: \"2\"}, {name: rotate}]}\n";
    let on_host = "  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet\n";
    let pods = [
        sleeper(cluster, "first", 1, "web", "  hostname: web-0\n")?,
        sleeper(cluster, "second", 2, "web", "  hostname: web-1\n  subdomain: headless\n")?,
        sleeper(cluster, "third", 3, "web", "")?,
        sleeper(cluster, "own", 3, "own", own)?,
        sleeper(cluster, "onhost", 2, "onhost", on_host)?,
    ];
    Ok(pods.concat())
}

fn others() -> String {
    let large: Vec<String> = (0..LARGE).map(|n| format!("198.51.100.{n}")).collect();
    format!(
        r#"apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  selector: {{app: web}}
  ports: [{{name: http, port: 80, targetPort: 8080}}, {{name: udp, port: 81, protocol: UDP}}]
---
apiVersion: v1
kind: Service
metadata: {{name: headless}}
spec:
  clusterIP: None
  selector: {{app: web}}
  ports: [{{name: http, port: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: other}}
spec:
  clusterIP: None
  selector: {{app: web}}
---
apiVersion: v1
kind: Service
metadata: {{name: none}}
spec:
  clusterIP: None
  selector: {{app: nobody}}
  ports: [{{name: http, port: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: outer}}
spec:
  type: ExternalName
  externalName: outside.example.com
---
apiVersion: v1
kind: Service
metadata: {{name: inner}}
spec:
  type: ExternalName
  externalName: web.default.svc.cluster.local
---
apiVersion: v1
kind: Service
metadata: {{name: large}}
spec:
  clusterIP: None
  addresses: [{}]
  ports: [{{name: http, port: 80}}]
---
apiVersion: minik8s.io/v1
kind: Dns
metadata: {{name: shop}}
spec:
  host: shop.example.com
  paths: [{{path: /, service: {{name: web, port: http}}}}]
"#,
        large.join(", ")
    )
}

/// Gives the agents these environment variables from their next start on.
fn with_variables(cluster: &mut Cluster, variables: &[(&str, &str)]) -> Result<()> {
    let dir = cluster.dir("");
    for node in &mut cluster.nodes {
        node.agent.kill()?;
        let fresh = Daemon::new(node.agent.name(), &dir, Vec::new());
        node.agent = variables.iter().fold(fresh, |agent, (name, value)| agent.env(name, value));
    }
    restart_agents(cluster)
}

fn restart_agents(cluster: &mut Cluster) -> Result<()> {
    let etcd = cluster.etcd_for_nodes();
    for node in &mut cluster.nodes {
        node.agent.kill()?;
        node.begin_agent(&etcd)?;
    }
    cluster.nodes.iter().try_for_each(|node| {
        node.wait_agent().with_context(|| node.agent.log_tail())?;
        // Until then the standby processes answer.
        let (address, agent) = (vip(cluster, 10)?, format!("pid={},", node.agent.pid()?));
        eventually("the agent itself has the name server's socket", secs(30), || {
            let sockets = node.net.run("ss", &["-Hlunp", "src", &format!("{address}:53")])?;
            ensure!(sockets.contains(&agent), "{sockets}");
            Ok(())
        })
    })
}

/// A Cluster object.
fn settings(spec: &str) -> String {
    format!("apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {{name: cluster}}\nspec:\n  {spec}\n")
}

/// Name, type, and answer: `TYPE data` sorted, or the status and the zone that returned it.
type Row = (String, &'static str, Vec<String>);

/// Addresses that the names resolve to.
struct Known {
    /// Addresses of the pods behind the services, by node.
    pods: [String; 3],
    /// Addresses of the nodes; a pod on one of them uses the node's address.
    nodes: Vec<String>,
    /// Address of the service.
    web: String,
    dns: String,
    gateway: String,
}

impl Known {
    /// Every name in the specification.
    fn table(&self) -> Vec<Row> {
        let Self { pods, nodes, web, dns, gateway } = self;
        let [_, second, third] = pods;
        let reverse = |address: &str| {
            let parts: Vec<&str> = address.rsplit('.').collect();
            format!("{}.in-addr.arpa", parts.join("."))
        };
        let dashed = |address: &str| address.replace('.', "-");
        let sorted = |mut lines: Vec<String>| {
            lines.sort();
            lines
        };
        let one = |text: String| vec![text];
        let missing = || one(format!("NXDOMAIN {ZONE}."));
        let empty = || one(format!("NOERROR {ZONE}."));
        // Names of the pods in either service.
        let named = [
            ("web-0".to_owned(), "web-0".to_owned()),
            ("web-1".to_owned(), dashed(second)),
            (dashed(third), dashed(third)),
        ];
        let targets = named.iter().map(|(name, _)| format!("SRV 0 100 8080 {name}.headless.{SVC}."));
        let mut rows = vec![
            (format!("dns-version.{ZONE}"), "TXT", one("TXT \"1.1.0\"".to_owned())),
            (ZONE.to_owned(), "NS", one(format!("NS ns.dns.{ZONE}."))),
            (format!("ns.dns.{ZONE}"), "A", one(format!("A {dns}"))),
            (format!("web.{SVC}"), "A", one(format!("A {web}"))),
            (format!("WEB.Default.svc.{ZONE}"), "A", one(format!("A {web}"))),
            (format!("web.{SVC}"), "AAAA", empty()),
            (format!("_http._tcp.web.{SVC}"), "SRV", one(format!("SRV 0 100 80 web.{SVC}."))),
            (format!("_udp._udp.web.{SVC}"), "SRV", one(format!("SRV 0 100 81 web.{SVC}."))),
            (format!("_none._tcp.web.{SVC}"), "SRV", missing()),
            (format!("_tcp.web.{SVC}"), "A", empty()),
            (reverse(web), "PTR", one(format!("PTR web.{SVC}."))),
            (format!("headless.{SVC}"), "A", sorted(pods.iter().map(|pod| format!("A {pod}")).collect())),
            (format!("_http._tcp.headless.{SVC}"), "SRV", sorted(targets.collect())),
            (format!("other.{SVC}"), "A", sorted(pods.iter().map(|pod| format!("A {pod}")).collect())),
            (format!("web-1.other.{SVC}"), "A", missing()),
            (format!("second.headless.{SVC}"), "A", missing()),
            (format!("none.{SVC}"), "A", missing()),
            (format!("outer.{SVC}"), "CNAME", one("CNAME outside.example.com.".to_owned())),
            // An alias of an outside name returns that name's addresses as well, as its server gives them.
            (
                format!("outer.{SVC}"),
                "A",
                vec!["A 192.0.2.77".to_owned(), "CNAME outside.example.com.".to_owned()],
            ),
            (format!("inner.{SVC}"), "CNAME", one(format!("CNAME web.{SVC}."))),
            (format!("inner.{SVC}"), "A", vec![format!("A {web}"), format!("CNAME web.{SVC}.")]),
            (format!("_http._tcp.inner.{SVC}"), "SRV", missing()),
            (format!("absent.{SVC}"), "A", missing()),
            (format!("svc.{ZONE}"), "A", empty()),
            (format!("203-0-113-1.default.pod.{ZONE}"), "A", missing()),
            ("shop.example.com".to_owned(), "A", one(format!("A {gateway}"))),
            ("shop.example.com".to_owned(), "AAAA", one("NOERROR shop.example.com.".to_owned())),
            ("outside.example.com".to_owned(), "A", one("A 192.0.2.77".to_owned())),
            ("missing.example.com".to_owned(), "A", one("NXDOMAIN .".to_owned())),
        ];
        for (pod, (in_headless, in_other)) in pods.iter().zip(&named) {
            let names = [format!("{in_headless}.headless.{SVC}"), format!("{in_other}.other.{SVC}")];
            let pointers = names.iter().map(|name| format!("PTR {name}."));
            rows.push((reverse(pod), "PTR", sorted(pointers.collect())));
            rows.extend(names.map(|name| (name, "A", one(format!("A {pod}")))));
            rows.push((format!("{}.default.pod.{ZONE}", dashed(pod)), "A", one(format!("A {pod}"))));
        }
        for node in nodes {
            rows.push((format!("{}.default.pod.{ZONE}", dashed(node)), "A", one(format!("A {node}"))));
        }
        rows
    }
}

struct Asker<'a> {
    name: String,
    net: NetWorld,
    server: &'a str,
}

impl Asker<'_> {
    fn check(&self, (name, kind, wanted): &Row) -> Result<()> {
        let said = dig(&self.net, self.server, name, kind, &[])?;
        // The target of an alias outside the cluster is answered by another server.
        let alias = name.starts_with("outer.") && *kind == "A";
        let ours = !alias && !name.starts_with("outside.") && !name.starts_with("missing.");
        ensure!(said.gist() == *wanted, "{} asks {name} {kind}: {said:?}, not {wanted:?}", self.name);
        ensure!(
            alias || said.flags.contains(&"aa".to_owned()) == ours,
            "{} asks {name}: {said:?}",
            self.name
        );
        ensure!(!ours || said.ttls.iter().all(|ttl| *ttl == 5), "{said:?}");
        Ok(())
    }

    fn checks(&self, table: &[Row]) -> Result<()> {
        let wrong: Vec<String> =
            table.iter().filter_map(|row| self.check(row).err()).map(|e| e.to_string()).collect();
        ensure!(wrong.is_empty(), "{wrong:#?}");
        let large = format!("large.{SVC}");
        let said = dig(&self.net, self.server, &large, "A", &[])?;
        ensure!(said.answers.len() == usize::from(LARGE), "{} has {}", self.name, said.answers.len());
        let cut = dig(&self.net, self.server, &large, "A", &["+notcp", "+ignore"])?;
        ensure!(cut.flags.contains(&"tc".to_owned()), "{cut:?}");
        let small = dig(&self.net, self.server, &large, "A", &["+notcp", "+ignore", "+noedns"])?;
        ensure!(
            small.answers.len() < cut.answers.len() && small.flags.contains(&"tc".to_owned()),
            "{small:?}"
        );
        let far = dig(&self.net, self.server, "large.example.com", "A", &[])?;
        ensure!(far.answers.len() == 100, "{far:?}");
        Ok(())
    }
}

/// Resolves names through the search list, with the container's own resolver. The host need not answer: ping first
/// prints the address that it asks, which must be one of `wanted`.
fn resolves(cluster: &Cluster, pod: &PodView, names: &[(&str, &[String])]) -> Result<()> {
    let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    let ask = format!("for name in {}; do ping -c 1 -W 1 $name 2>&1 | head -n 1 & done; wait", all.join(" "));
    let said = cluster.exec(pod, "main", &["sh", "-c", &ask])?;
    for (name, wanted) in names {
        let first = |address: &String| format!("PING {name} ({address})");
        let right = said.lines().any(|line| wanted.iter().any(|address| line.starts_with(&first(address))));
        ensure!(right, "{name} in {}: {said}, not {wanted:?}", pod.pause.name);
    }
    Ok(())
}

/// Checks the resolver settings of containers on every kind of network.
fn resolvers_are_set(cluster: &Cluster, dns: &str) -> Result<()> {
    let resolver = |name: &str| -> Result<String> {
        let pod = cluster.running(name, &["main"])?;
        cluster.exec(&pod, "main", &["cat", "/etc/resolv.conf"])
    };
    let search = format!("search {SVC} svc.{ZONE} {ZONE}");
    for name in ["first", "third", "onhost"] {
        let text = resolver(name)?;
        let lines: Vec<&str> = text.lines().collect();
        ensure!(lines.contains(&format!("nameserver {dns}").as_str()), "{name}: {text}");
        ensure!(lines.contains(&"options ndots:5"), "{name}: {text}");
        ensure!(lines.iter().any(|line| line.starts_with(&search)), "{name}: {text}");
    }
    let own = resolver("own")?;
    ensure!(own.lines().eq(["nameserver 192.0.2.3", "options ndots:2 rotate"]), "{own}");
    Ok(())
}

#[test]
#[expect(clippy::too_many_lines, reason = "a story is read from its beginning to its end")]
fn every_name_is_answered_on_three_nodes_also_with_everything_else_dead() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let outside: Ipv4Addr = cluster.slot().underlay(1).parse()?;
        let upstream = Upstream::serve(SocketAddr::from((outside, 53)))?;
        let settings = Change::write("cluster.yaml", settings(&format!("dns: {{upstreams: [{outside}]}}")));
        let (dns, gateway) =
            (service_address(cluster, 10)?.to_string(), service_address(cluster, 11)?.to_string());
        cluster.push(&[settings, Change::write("all.yaml", pods(cluster)? + &others())], "Names")?;
        let views = ["first", "second", "third"].map(|name| cluster.running(name, &["main"]));
        let views = views.into_iter().collect::<Result<Vec<_>>>()?;
        let addresses = views.iter().map(|pod| Ok(pod.address()?.to_owned())).collect::<Result<Vec<_>>>()?;
        let pods: [String; 3] = addresses.try_into().ok().context("three pods")?;
        resolvers_are_set(cluster, &dns)?;

        let server = dns.as_str();
        let hosts = cluster.nodes.iter().map(|node| (node.name.clone(), node.net.clone()));
        let inside = views.iter().map(|pod| (pod.pause.name.clone(), Cluster::net_of(pod)));
        let askers: Vec<Asker<'_>> =
            hosts.chain(inside).map(|(name, net)| Asker { name, net, server }).collect();
        let web = eventually("the service has an address", secs(45), || {
            let said = dig(&askers[0].net, &dns, &format!("web.{SVC}"), "A", &[])?;
            let address = said.answers.first().and_then(|answer| answer.strip_prefix("A "));
            Ok(address.with_context(|| format!("{said:?}"))?.to_owned())
        })?;
        let nodes = cluster.nodes.iter().map(|node| Ok(node.address()?.to_owned())).collect::<Result<_>>()?;
        let known = Known { pods, nodes, web, dns: dns.clone(), gateway };
        let table = known.table();
        let right = || askers.iter().try_for_each(|asker| asker.checks(&table));
        eventually("the whole table is right everywhere", secs(60), right)?;

        // Short names, an alias among them, on another node than most of their targets.
        let on_host = cluster.running("onhost", &["main"])?;
        let (web, gateway) = ([known.web.clone()], [known.gateway.clone()]);
        for pod in [&views[0], &views[2], &on_host] {
            resolves(
                cluster,
                pod,
                &[
                    ("headless", &known.pods),
                    ("headless.default", &known.pods),
                    ("headless.default.svc", &known.pods),
                    ("headless.default.svc.cluster.local", &known.pods),
                    ("web-0.headless", &known.pods[..1]),
                    ("web-1.headless", &known.pods[1..2]),
                    ("web", &web),
                    ("inner", &web),
                    ("outer", &["192.0.2.77".to_owned()]),
                    ("shop.example.com", &gateway),
                ],
            )?;
        }
        let full = format!("web-1.headless.{SVC}");
        let said = cluster.exec(&views[1], "main", &["sh", "-c", "hostname; hostname -f; cat /etc/hosts"])?;
        let line = format!("{} {full} web-1", known.pods[1]);
        let words = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let words: Vec<String> = words.collect();
        ensure!(words.starts_with(&["web-1".to_owned(), full]) && words.contains(&line), "{said}");
        let listed = cluster.cli(&["get", "services"])?.stdout;
        let row = |line: &&str| line.starts_with("outer ");
        let outer = listed.lines().find(row).map(|line| line.split_whitespace().collect::<Vec<_>>());
        let wanted = ["outer", "ExternalName", "<none>", "outside.example.com", "<none>"];
        ensure!(outer.as_ref().is_some_and(|words| words.starts_with(&wanted)), "{listed}");
        let far = ("outside.example.com".to_owned(), "A", vec!["A 192.0.2.77".to_owned()]);
        askers[3].check(&far)?;
        let before = upstream.asked();
        askers[3].check(&far)?;
        ensure!(upstream.asked() == before, "an answer that may be kept was asked for again");

        let lives = cluster.lives()?;
        cluster.reconcilers[0].kill()?;
        cluster.etcd.daemon.kill()?;
        right().context("with etcd and reconciler dead")?;
        restart_agents(cluster)?;
        eventually("agents that start alone answer", secs(45), right)?;
        ensure!(cluster.lives()? == lives, "containers were touched");
        for pod in &views {
            ensure!(netns_of(pod.pause.pid)? != netns_of(std::process::id())?);
        }
        Ok(())
    })
}

/// Name of a host that leads to a pod.
const HELLO: &str = "hello.example";

fn hello() -> Change {
    let pod = web("hello").label("app", "hello").greeting("hello").to_string();
    let text = format!(
        "{pod}---\napiVersion: v1\nkind: Service\nmetadata: {{name: hello}}\nspec:\n  selector: {{app: hello}}\n  \
         ports: [{{port: 80, targetPort: 8080}}]\n---\n\
         apiVersion: minik8s.io/v1\nkind: Dns\nmetadata: {{name: hello}}\nspec:\n  host: {HELLO}\n  \
         paths: [{{path: /deep/page, service: {{name: hello, port: 80}}, rewrite: /}}]\n"
    );
    Change::write("hello.yaml", text)
}

/// Zone, upstream servers and default resources are set by a push and removed by another, while everything that
/// runs stays untouched. Seen red with an agent that does not watch `settings`.
fn settings_follow_the_cluster_object(cluster: &Cluster, dns: &str) -> Result<()> {
    let [high, low] = cluster.slot().port(9).to_be_bytes();
    let address = Ipv4Addr::new(127, 53, high, low);
    let upstream = Upstream::serve(SocketAddr::from((address, 53)))?;
    let ask = |name: &str| dig(&cluster.node().net, dns, name, "A", &[]);
    let answers = |name: &str, wanted: &[String]| {
        eventually(&format!("{name} is {wanted:?}"), secs(30), || {
            let said = ask(name)?;
            ensure!(said.gist() == wanted, "{said:?}");
            Ok(())
        })
    };
    let (before, after) = ("hello.default.svc.cluster.local", "hello.default.svc.mini.lan");
    let (hello, lives) = (ask(before)?.gist(), cluster.lives()?);
    let spec = format!(
        "dns: {{zone: mini.lan, upstreams: [{address}]}}\n  defaults: {{resources: {{limits: {{memory: 64Mi}}}}}}"
    );
    let pod = Change::write("later.yaml", sleeper(cluster, "later", 1, "later", "")?);
    cluster.push(&[Change::write("cluster.yaml", settings(&spec)), pod], "Settings")?;
    answers(after, &hello)?;
    answers("far.example.com", &["A 192.0.2.77".to_owned()])?;
    let later = cluster.running("later", &["main"])?;
    ensure!(later.container("main")?.memory == 64 << 20, "{:?}", later.containers);

    cluster.push(&[Change::remove("cluster.yaml")], "Back")?;
    answers(before, &hello)?;
    eventually("the upstream server is asked no more", secs(30), || {
        let asked = upstream.asked();
        // The machine's own server does not answer.
        let _ = ask(&format!("n{asked}.example.com"));
        ensure!(upstream.asked() == asked);
        Ok(())
    })?;
    cluster.push(&[Change::write("new.yaml", web("new").to_string())], "Another pod")?;
    ensure!(cluster.running("new", &["web"])?.container("web")?.memory == 0);
    let now = cluster.lives()?;
    ensure!(lives.iter().all(|one| now.get(one.0) == Some(one.1)), "what ran was touched: {now:?}");
    ensure!(later.lives().iter().all(|one| now.get(one.0) == Some(one.1)), "the pod was touched: {now:?}");
    Ok(())
}

#[test]
fn the_machines_own_resolver_is_changed_on_request_and_comes_back() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let (dns, path) = (service_address(cluster, 10)?.to_string(), cluster.dir("resolv.conf"));
        let former = "# of the machine\nnameserver 192.0.2.53\nsearch lan\n";
        fs::write(&path, former)?;
        let file = path.to_string_lossy().into_owned();
        let servers = || -> Result<Vec<String>> {
            let text = fs::read_to_string(&path)?;
            Ok(text.lines().filter_map(|line| line.strip_prefix("nameserver ")).map(str::to_owned).collect())
        };
        let both = [dns.clone(), "192.0.2.53".to_owned()];
        let changed = |what: &str| {
            eventually(what, secs(30), || {
                let servers = servers()?;
                ensure!(servers == both, "{servers:?}");
                Ok(())
            })
        };
        let came_back = |what: &str| {
            eventually(what, secs(30), || {
                let text = fs::read_to_string(&path)?;
                ensure!(text == former, "{text}");
                Ok(())
            })
        };
        with_variables(cluster, &[("MINIK8S_RESOLV_CONF", &file), ("MINIK8S_NODE_DNS", "true")])?;
        changed("the machine asks the cluster's server first")?;
        cluster.push(&[hello()], "A host")?;
        eventually("the machine finds the host by that", secs(60), || {
            let url = format!("http://{HELLO}/deep/page");
            let said = curl_by(&cluster.node().net, &path, &[url])?;
            ensure!(said.trim() == "hello", "{said}");
            Ok(())
        })?;
        settings_follow_the_cluster_object(cluster, &dns)?;
        cluster.node_mut().agent.kill()?;
        ensure!(servers()? == both, "the file went with the agent");
        fs::write(&path, former)?;
        cluster.start_agent()?;
        changed("a file that somebody else wrote is changed again")?;
        with_variables(cluster, &[("MINIK8S_RESOLV_CONF", &file)])?;
        came_back("the former file is back without the flag")?;
        with_variables(cluster, &[("MINIK8S_RESOLV_CONF", &file), ("MINIK8S_NODE_DNS", "true")])?;
        changed("the machine asks the cluster's server again")?;
        cluster.node_mut().agent.kill()?;
        let said = cluster.node().reset()?;
        ensure!(said.code == 0, "{}", said.stderr);
        ensure!(said.stdout.contains(&file), "{}", said.stdout);
        came_back("the former file is back after reset")
    })
}
