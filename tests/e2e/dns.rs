//! Names: the whole table of the specification by `dig` from a pod and from the machine, and short ones by a
//! container's own resolver; the same with etcd and reconciler dead, and again by an agent that starts then.
//! Other names come from a server beyond the cluster. The machine's own resolver, if asked for, survives a
//! crash and comes back.
//!
//! The first story is red when the address goes from the machine: questions then leave it, and whoever
//! answers out there knows no such name.

use std::fs;
use std::net::SocketAddr;

use harness::{
    Change, Cluster, ClusterOptions, Context, Daemon, IMAGE, NetWorld, Result, Upstream, dig, ensure,
    eventually, netns_of, secs, service_address,
};

/// Endpoints of the large service: more than one packet takes.
const LARGE: u8 = 150;

fn manifests() -> String {
    let large: Vec<String> = (0..LARGE).map(|n| format!("198.51.100.{n}")).collect();
    format!(
        r#"apiVersion: v1
kind: Pod
metadata: {{name: web, labels: {{app: web}}}}
spec:
  hostname: web-0
  terminationGracePeriodSeconds: 0
  containers: [{{name: main, image: {IMAGE}, command: [sleep, "100000"]}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: own}}
spec:
  terminationGracePeriodSeconds: 0
  dnsPolicy: None
  dnsConfig: {{nameservers: [192.0.2.3], options: [{{name: ndots, value: "2"}}, {{name: rotate}}]}}
  containers: [{{name: main, image: {IMAGE}, command: [sleep, "100000"]}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: onhost}}
spec:
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  terminationGracePeriodSeconds: 0
  containers: [{{name: main, image: {IMAGE}, command: [sleep, "100000"]}}]
---
apiVersion: v1
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

/// The agent with these variables, from its next start on.
fn with_variables(cluster: &mut Cluster, variables: &[(&str, &str)]) -> Result<()> {
    let dir = cluster.dir("");
    cluster.node_mut().agent.kill()?;
    let fresh = Daemon::new("agent-n0", &dir, Vec::new());
    let agent = variables.iter().fold(fresh, |agent, (name, value)| agent.env(name, value));
    cluster.node_mut().agent = agent;
    cluster.start_agent()
}

struct Asker<'a> {
    name: &'a str,
    net: NetWorld,
    server: String,
}

impl Asker<'_> {
    fn check(&self, name: &str, kind: &str, wanted: &[String]) -> Result<()> {
        let said = dig(&self.net, &self.server, name, kind, &[])?;
        let ours = !name.starts_with("outside.") && !name.starts_with("missing.");
        ensure!(said.gist() == wanted, "{} asks {name} {kind}: {said:?}, not {wanted:?}", self.name);
        ensure!(said.flags.contains(&"aa".to_owned()) == ours, "{} asks {name}: {said:?}", self.name);
        ensure!(!ours || said.ttls.iter().all(|ttl| *ttl == 5), "{said:?}");
        Ok(())
    }

    /// Everything that the specification names.
    fn table(&self, pod: &str, web: &str, dns: &str, gateway: &str) -> Result<()> {
        let zone = "cluster.local";
        let dashed = pod.replace('.', "-");
        let reverse = |address: &str| {
            let parts: Vec<&str> = address.rsplit('.').collect();
            format!("{}.in-addr.arpa", parts.join("."))
        };
        let one = |text: String| vec![text];
        let missing = || one(format!("NXDOMAIN {zone}."));
        let empty = || one(format!("NOERROR {zone}."));
        let svc = format!("default.svc.{zone}");
        for (name, kind, wanted) in [
            (format!("dns-version.{zone}"), "TXT", one("TXT \"1.1.0\"".to_owned())),
            (zone.to_owned(), "NS", one(format!("NS ns.dns.{zone}."))),
            (format!("ns.dns.{zone}"), "A", one(format!("A {dns}"))),
            (format!("web.{svc}"), "A", one(format!("A {web}"))),
            (format!("WEB.Default.svc.{zone}"), "A", one(format!("A {web}"))),
            (format!("web.{svc}"), "AAAA", empty()),
            (format!("_http._tcp.web.{svc}"), "SRV", one(format!("SRV 0 100 80 web.{svc}."))),
            (format!("_udp._udp.web.{svc}"), "SRV", one(format!("SRV 0 100 81 web.{svc}."))),
            (format!("_none._tcp.web.{svc}"), "SRV", missing()),
            (format!("_tcp.web.{svc}"), "A", empty()),
            (reverse(web), "PTR", one(format!("PTR web.{svc}."))),
            (format!("headless.{svc}"), "A", one(format!("A {pod}"))),
            (format!("web-0.headless.{svc}"), "A", one(format!("A {pod}"))),
            (
                format!("_http._tcp.headless.{svc}"),
                "SRV",
                one(format!("SRV 0 100 8080 web-0.headless.{svc}.")),
            ),
            (reverse(pod), "PTR", one(format!("PTR web-0.headless.{svc}."))),
            (format!("none.{svc}"), "A", missing()),
            (format!("outer.{svc}"), "CNAME", one("CNAME outside.example.com.".to_owned())),
            (format!("inner.{svc}"), "CNAME", one(format!("CNAME web.{svc}."))),
            (format!("inner.{svc}"), "A", vec![format!("A {web}"), format!("CNAME web.{svc}.")]),
            (format!("_http._tcp.inner.{svc}"), "SRV", missing()),
            (format!("absent.{svc}"), "A", missing()),
            (format!("svc.{zone}"), "A", empty()),
            (format!("{dashed}.default.pod.{zone}"), "A", one(format!("A {pod}"))),
            (format!("203-0-113-1.default.pod.{zone}"), "A", missing()),
            ("shop.example.com".to_owned(), "A", one(format!("A {gateway}"))),
            ("shop.example.com".to_owned(), "AAAA", one("NOERROR shop.example.com.".to_owned())),
            ("outside.example.com".to_owned(), "A", one("A 192.0.2.77".to_owned())),
            ("missing.example.com".to_owned(), "A", one("NXDOMAIN .".to_owned())),
        ] {
            self.check(&name, kind, &wanted)?;
        }
        // An alias of another's name brings that name's addresses, as its server gives them.
        let said = dig(&self.net, &self.server, &format!("outer.{svc}"), "A", &[])?;
        ensure!(said.answers == ["A 192.0.2.77", "CNAME outside.example.com."], "{said:?}");
        let large = format!("large.{svc}");
        let said = dig(&self.net, &self.server, &large, "A", &[])?;
        ensure!(said.answers.len() == usize::from(LARGE), "{} has {}", self.name, said.answers.len());
        let cut = dig(&self.net, &self.server, &large, "A", &["+notcp", "+ignore"])?;
        ensure!(cut.flags.contains(&"tc".to_owned()), "{cut:?}");
        let small = dig(&self.net, &self.server, &large, "A", &["+notcp", "+ignore", "+noedns"])?;
        ensure!(
            small.answers.len() < cut.answers.len() && small.flags.contains(&"tc".to_owned()),
            "{small:?}"
        );
        let far = dig(&self.net, &self.server, "large.example.com", "A", &[])?;
        ensure!(far.answers.len() == 100, "{far:?}");
        Ok(())
    }
}

#[test]
fn every_name_is_answered_also_with_everything_else_dead() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let upstream = Upstream::serve(SocketAddr::from(([127, 0, 0, 1], cluster.slot().port(9))))?;
        with_variables(cluster, &[("MINIK8S_DNS_UPSTREAM", &upstream.address().to_string())])?;
        let (dns, gateway) =
            (service_address(cluster, 10)?.to_string(), service_address(cluster, 11)?.to_string());
        cluster.push(&[Change::write("all.yaml", manifests())], "Names")?;
        let web = cluster.running("web", &["main"])?;
        let pod = web.address()?.to_owned();

        // What a container sees, whichever network it has.
        let docker = &cluster.node().docker;
        let resolver = |name: &str| -> Result<String> {
            let pod = cluster.running(name, &["main"])?;
            docker.exec(pod.container("main")?, &["cat", "/etc/resolv.conf"])
        };
        let search = "search default.svc.cluster.local svc.cluster.local cluster.local";
        for name in ["web", "onhost"] {
            let text = resolver(name)?;
            let lines: Vec<&str> = text.lines().collect();
            ensure!(lines.contains(&format!("nameserver {dns}").as_str()), "{name}: {text}");
            ensure!(lines.contains(&"options ndots:5"), "{name}: {text}");
            ensure!(lines.iter().any(|line| line.starts_with(search)), "{name}: {text}");
        }
        let own = resolver("own")?;
        ensure!(own.lines().eq(["nameserver 192.0.2.3", "options ndots:2 rotate"]), "{own}");

        let machine = Asker { name: "the machine", net: NetWorld::of_machine(), server: dns.clone() };
        let inside = Asker { name: "the pod", net: NetWorld::of_process(web.pause.pid), server: dns.clone() };
        let service = eventually("the service has an address", secs(45), || {
            let said = dig(&machine.net, &dns, "web.default.svc.cluster.local", "A", &[])?;
            let address = said.answers.first().and_then(|answer| answer.strip_prefix("A "));
            Ok(address.with_context(|| format!("{said:?}"))?.to_owned())
        })?;
        eventually("the whole table is right", secs(45), || {
            machine.table(&pod, &service, &dns, &gateway)?;
            inside.table(&pod, &service, &dns, &gateway)
        })?;
        // By the search list, with the container's own resolver: short names, an alias among them. Whoever
        // is there need not answer: ping says first whom it asks.
        for (name, address) in [
            ("headless", pod.as_str()),
            ("headless.default", &pod),
            ("headless.default.svc", &pod),
            ("headless.default.svc.cluster.local", &pod),
            ("web", &service),
            ("inner", &service),
            ("outer", "192.0.2.77"),
            ("shop.example.com", &gateway),
        ] {
            let ask = format!("ping -c 1 -W 1 {name}; true");
            let said = docker.exec(web.container("main")?, &["sh", "-c", &ask])?;
            ensure!(said.starts_with(&format!("PING {name} ({address})")), "{name}: {said}");
        }
        let listed = cluster.cli(&["get", "services"])?.stdout;
        let row = |line: &&str| line.starts_with("outer ");
        let outer = listed.lines().find(row).map(|line| line.split_whitespace().collect::<Vec<_>>());
        let wanted = ["outer", "ExternalName", "<none>", "outside.example.com", "<none>"];
        ensure!(outer.as_ref().is_some_and(|words| words.starts_with(&wanted)), "{listed}");
        let before = upstream.asked();
        inside.check("outside.example.com", "A", &["A 192.0.2.77".to_owned()])?;
        ensure!(upstream.asked() == before, "an answer that may be kept was asked for again");

        let lives = cluster.lives()?;
        cluster.reconcilers[0].kill()?;
        cluster.etcd.daemon.kill()?;
        machine.table(&pod, &service, &dns, &gateway).context("with etcd and reconciler dead")?;
        inside.table(&pod, &service, &dns, &gateway).context("with etcd and reconciler dead")?;
        cluster.node_mut().agent.kill()?;
        cluster.start_agent()?;
        eventually("an agent that starts alone answers", secs(30), || {
            machine.table(&pod, &service, &dns, &gateway)?;
            inside.table(&pod, &service, &dns, &gateway)
        })?;
        ensure!(cluster.lives()? == lives, "containers were touched");
        ensure!(netns_of(web.pause.pid)? != netns_of(std::process::id())?);
        Ok(())
    })
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
        let both = [dns, "192.0.2.53".to_owned()];
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
