//! Callers of a function: identity, tokens and rate limits.

use std::io::{Read, Write};

use harness::{Trust, eventually, recipient, sealed, secs};

use super::*;

const WHO: &str = "import os\n\n\ndef main(params):\n    return {'word': os.environ.get('WORD', '')}\n";
/// A number in the nodes' network for an otherwise unused address of the machine.
const OUTSIDE: u8 = 200;
const TOKEN: &str = "open-sesame-4711";

/// Status and head of the answer to a caller that is neither pod nor node nor reconciler.
fn from_outside(cluster: &Cluster, name: &str, more: &[&str]) -> Result<(u16, String)> {
    from_machine(cluster, name, &[&["--interface", &cluster.slot().underlay(OUTSIDE)], more].concat())
}

/// Calls in clear from the reconciler's address, unless `more` says otherwise.
fn from_machine(cluster: &Cluster, name: &str, more: &[&str]) -> Result<(u16, String)> {
    let url = format!("http://{}:8081/default/{name}", cluster.node().address()?);
    let mut args = vec!["-s", "-i", "-m", "100", "-d", "{}", &url];
    args.extend(more);
    let said = NetWorld::of_machine().run("curl", &args)?;
    let status = said.split_whitespace().nth(1).context("no status")?.parse()?;
    Ok((status, said))
}

fn expect(cluster: &Cluster, name: &str, more: &[&str], status: u16, word: &str) -> Result<()> {
    let (found, said) = from_outside(cluster, name, more)?;
    ensure!(found == status && said.contains(word), "{name} {more:?}: {said}");
    Ok(())
}

fn secret(cluster: &Cluster, token: &str) -> Result<Change> {
    let text = sealed(&recipient(cluster)?, "default", "door", &format!("token: {token}\nword: hidden\n"))?;
    Ok(Change::write("secrets/default/door.age", text))
}

#[test]
fn callers_from_outside_need_leave_or_the_token_and_none_may_call_too_often() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(1), python: true, ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        stand_outside(cluster)?;
        let auth =
            "  scaleToZeroAfterSeconds: 600\n  auth: {tokenFrom: {secretKeyRef: {name: door, key: token}}}\n";
        let env = "  env: [{name: WORD, valueFrom: {secretKeyRef: {name: door, key: word}}}]\n";
        let specs = [("closed", env), ("open", "  public: true\n"), ("door", auth)];
        let mut changes = vec![other_object(), secret(cluster, TOKEN)?];
        for (name, spec) in specs {
            changes.extend([manifest(name, spec), code(name, "main.py", WHO)]);
        }
        let commit = cluster.push(&changes, "Doors")?;
        cluster.applied(&commit)?;
        // The node may call every function; the first call waits for the image.
        for (name, _) in specs {
            eventually("it answers the node", secs(120), || {
                let answer = call(cluster.node(), name, "{}")?;
                ensure!(answer.status == 200, "{name}: {answer:?}");
                Ok(())
            })?;
        }
        ensure!(call(cluster.node(), "closed", "{}")?.body["word"] == "hidden", "the secret is a variable");
        // The same as for a name that there is not.
        expect(cluster, "closed", &[], 404, "NotFound")?;
        expect(cluster, "nobody", &[], 404, "NotFound")?;
        let page = ["-H", "Origin: http://evil.example"];
        let reconciler = cluster.trust.reconciler("r0")?;
        let said = call_as(&reconciler, cluster.node(), "closed", &page)?;
        ensure!(said.0 == 403 && said.1.contains("ForeignOrigin"), "{said:?}");
        let said = call_as(&reconciler, cluster.node(), "open", &page)?;
        ensure!(said.0 == 200, "every page may call a public function: {said:?}");
        expect(cluster, "open", &[], 200, "word")?;
        expect(cluster, "door", &[], 401, "TokenMissing")?;
        expect(cluster, "door", &["-H", "Authorization: Bearer open-sesame"], 401, "TokenWrong")?;
        let (_, said) = from_outside(cluster, "door", &[])?;
        ensure!(said.to_lowercase().contains("www-authenticate: bearer") && !said.contains(TOKEN), "{said}");
        let shown = format!("Authorization: Bearer {TOKEN}");
        expect(cluster, "door", &["-H", &shown], 200, "word")?;
        expect(cluster, "closed", &["-H", &shown], 404, "NotFound")?;
        through_a_host(cluster)?;
        with_certificates(cluster)?;
        by_the_cli(cluster)?;
        another_token(cluster, &shown)?;
        not_too_often(cluster)
    })
}

/// Gives the machine a second address in the nodes' network, next to the reconciler's; it is removed with that
/// network.
fn stand_outside(cluster: &Cluster) -> Result<()> {
    let (bridge, slot) = (format!("{}h", cluster.slot().instance()), cluster.slot());
    let address = format!("{}/24", slot.underlay(OUTSIDE));
    NetWorld::of_machine().run("ip", &["addr", "add", &address, "dev", &bridge]).map(drop)
}

/// The hosts of a Dns object give nobody access to a closed function: neither by route nor by name.
fn through_a_host(cluster: &Cluster) -> Result<()> {
    let path = |name: &str| format!("  - {{path: /{name}, backends: [{{function: {name}}}]}}\n");
    let paths = ["closed", "open", "door"].map(path).concat();
    let dns = format!(
        "apiVersion: minik8s.io/v1\nkind: Dns\nmetadata: {{name: doors}}\nspec:\n  host: doors.example\n  paths:\n{paths}"
    );
    cluster.push(&[Change::write("dns.yaml", dns)], "A host")?;
    let gateway = schema::records::gateway_address(cluster.slot().service_cidr().parse()?);
    // Only a node and its pods have a route to it of their own.
    let (node, route) = (cluster.node().address()?.to_owned(), format!("{gateway}/32"));
    NetWorld::of_machine().run("ip", &["route", "add", &route, "via", &node])?;
    let from = cluster.slot().underlay(OUTSIDE);
    for (name, status, word) in
        [("open", 200, "word"), ("closed", 404, "NotFound"), ("door", 401, "TokenMissing")]
    {
        let url = format!("http://{gateway}/{name}");
        let ask =
            ["-s", "-i", "-m", "100", "--interface", &from, "-H", "Host: doors.example", "-d", "{}", &url];
        eventually(&format!("{name} is answered with {status}"), secs(60), || {
            let said = NetWorld::of_machine().run("curl", &ask)?;
            let found: u16 = said.split_whitespace().nth(1).context("no status")?.parse()?;
            ensure!(found == status && said.contains(word), "{said}");
            Ok(())
        })?;
    }
    let inside =
        ["-s", "-m", "100", "-H", "Host: doors.example", "-d", "{}", &format!("http://{gateway}/closed")];
    let said = cluster.node().net.run("curl", &inside)?;
    ensure!(said.contains("hidden"), "the node may: {said}");
    NetWorld::of_machine().run("ip", &["route", "del", &route]).map(drop)
}

/// A certificate gives leave to call every function, and an address does not.
fn with_certificates(cluster: &Cluster) -> Result<()> {
    let trust = &cluster.trust;
    for known in [trust.reconciler("r0")?, trust.node("other")?, trust.user()?] {
        let (status, said) = call_as(&known, cluster.node(), "closed", &[])?;
        ensure!(status == 200, "{known:?} is refused: {said}");
    }
    let (status, said) = from_machine(cluster, "closed", &[])?;
    ensure!(status == 404, "the reconciler's address is enough: {said}");
    let stranger = Trust::create(&cluster.dir("strangers"), &[])?.reconciler("r0")?;
    ensure!(call_as(&stranger, cluster.node(), "open", &[]).is_err(), "of another authority");
    Ok(())
}

/// The program sends the token of `--token-file`.
fn by_the_cli(cluster: &Cluster) -> Result<()> {
    let file = cluster.dir("token");
    std::fs::write(&file, format!("{TOKEN}\n"))?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let gateway = format!("http://{}", listener.local_addr()?);
    let heard = std::thread::spawn(move || -> Result<String> {
        let (mut stream, _) = listener.accept()?;
        let mut said = [0; 4096];
        let length = stream.read(&mut said)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")?;
        Ok(String::from_utf8_lossy(&said[..length]).into_owned())
    });
    let file = file.to_string_lossy();
    let said = cluster.cli(&["invoke", "door", "--gateway", &gateway, "--token-file", &file])?;
    ensure!(said.stdout.trim() == "{}", "{said:?}");
    let heard = heard.join().map_err(|_| harness::Error::msg("the listener panicked"))??;
    ensure!(heard.contains(&format!("authorization: Bearer {TOKEN}\r\n")), "{heard}");
    Ok(())
}

/// A changed token needs no new replica.
fn another_token(cluster: &Cluster, former: &str) -> Result<()> {
    let before = cluster.node().docker.containers(&cluster.slot().instance())?;
    cluster.push(&[secret(cluster, "another-4712")?], "Another token")?;
    let shown = "Authorization: Bearer another-4712";
    eventually("the new token holds", secs(30), || expect(cluster, "door", &["-H", shown], 200, "word"))?;
    expect(cluster, "door", &["-H", former], 401, "TokenWrong")?;
    let ids: Vec<_> = cluster.node().docker.containers(&cluster.slot().instance())?;
    let of_door = |all: &[harness::ContainerView]| -> Vec<String> {
        let found = all.iter().filter(|one| one.label("pod").starts_with("door-"));
        let mut found: Vec<String> = found.map(|one| one.id.clone()).collect();
        found.sort();
        found
    };
    ensure!(of_door(&before) == of_door(&ids), "its replica was replaced");
    Ok(())
}

fn not_too_often(cluster: &Cluster) -> Result<()> {
    let bounded = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\nspec:\n  functions: {callsPerMinute: 3}\n";
    cluster.push(&[Change::write("cluster.yaml", bounded)], "Three a minute")?;
    eventually("calls are too many", secs(30), || expect(cluster, "open", &[], 429, "TooManyCalls"))?;
    let (_, said) = from_outside(cluster, "open", &[])?;
    let after =
        said.lines().find_map(|line| line.to_lowercase().strip_prefix("retry-after: ").map(str::to_owned));
    let after: u64 = after.context("no Retry-After")?.trim().parse()?;
    ensure!((1..=61).contains(&after), "{said}");
    Ok(())
}
