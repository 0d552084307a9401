//! Sources of a function: an image, a `Dockerfile`, packages from wheels; and the node that builds it.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use harness::{IMAGE, NetWorld, eventually, recipient_of, sealed, secs};

use super::*;

/// Answers every call with the text for `MADE`, and closes the connection.
const ANSWER: &str = "read line\n\
    while read header && [ \"$header\" != \"$(printf '\\r')\" ]; do :; done\n\
    body='{\"made\": \"MADE\"}'\n\
    printf 'HTTP/1.1 200 OK\\r\\nContent-Length: %s\\r\\nConnection: close\\r\\n\\r\\n%s' ${#body} \"$body\"\n";

/// Files of a folder with a Dockerfile whose image answers `made`.
fn dockerfile(made: &str) -> [(&'static str, String); 2] {
    let text = format!(
        "FROM {IMAGE}\nCOPY answer /answer\nCMD [\"nc\", \"-ll\", \"-p\", \"8080\", \"-e\", \"sh\", \"/answer\"]\n"
    );
    [("Dockerfile", text), ("answer", ANSWER.replace("MADE", made))]
}

/// Like `dockerfile`, with a program that takes a while per call and drops every call on SIGTERM.
fn dies_at_once(made: &str) -> [(&'static str, String); 2] {
    let [(file, text), (answer, script)] = dockerfile(made);
    let (from, _) = text.split_once("CMD").unwrap_or_default();
    let command = "trap 'exit 0' TERM; nc -ll -p 8080 -e sh /answer & wait";
    let text = format!("{from}CMD [\"sh\", \"-c\", \"{command}\"]\n");
    [(file, text), (answer, script.replace("printf 'HTTP", "sleep 1; printf 'HTTP"))]
}

/// Replaces the replicas of a function of a foreign image by a label change while it is called.
fn a_rollout_loses_no_call(cluster: &Cluster, own: &str) -> Result<()> {
    let pods = || -> Result<Vec<String>> {
        let mut pods = Vec::new();
        for node in &cluster.nodes {
            let all = node.docker.containers(&cluster.slot().instance())?;
            let of_own = all.iter().filter(|one| one.running && one.label("pod").starts_with("own-"));
            pods.extend(of_own.map(|one| one.label("pod").to_owned()));
        }
        Ok(pods)
    };
    let stop = AtomicBool::new(false);
    let (replaced, called) = std::thread::scope(|threads| {
        let caller = || -> Result<usize> {
            let mut answered = 0;
            while !stop.load(Ordering::Relaxed) {
                let answer = call(cluster.node(), "own", "{}")?;
                ensure!(answer.status == 200, "after {answered} calls: {answer:?}");
                answered += 1;
            }
            Ok(answered)
        };
        let callers: Vec<_> = (0..2).map(|_| threads.spawn(caller)).collect();
        let replaced = (|| {
            eventually("it is called", secs(60), || {
                ensure!(!pods()?.is_empty(), "it sleeps");
                Ok(())
            })?;
            let before = pods()?;
            cluster.push(
                &[Change::write("own.yaml", own.replace("{name: own}", "{name: own, labels: {a: b}}"))],
                "Label",
            )?;
            eventually("other replicas answer alone", secs(120), || {
                let now = pods()?;
                ensure!(
                    !now.is_empty() && !now.iter().any(|pod| before.contains(pod)),
                    "{before:?}: {now:?}"
                );
                Ok(())
            })
        })();
        stop.store(true, Ordering::Relaxed);
        let called: Vec<_> = callers.into_iter().map(|one| one.join()).collect();
        (replaced, called)
    });
    for answered in called {
        let answered = answered.map_err(|_| harness::Error::msg("a caller panicked"))??;
        ensure!(answered > 0, "nothing was called");
    }
    replaced
}

/// A wheel of one module, as `pip wheel` would make it.
const WHEEL: &str = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + '/greeter-1.0-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('greeter.py', 'def greet(name):\n    return "hello " + name\n')
    info = 'greeter-1.0.dist-info/'
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    wheel.writestr(info + 'RECORD', 'greeter.py,,\n' + info + 'METADATA,,\n' + info + 'WHEEL,,\n' + info + 'RECORD,,\n')
"#;
const GREETS: &str =
    "import greeter\n\n\ndef main(params):\n    return {'made': greeter.greet(params.get('name', 'you'))}\n";

fn says(cluster: &Cluster, name: &str, made: &str) -> Result<()> {
    eventually(&format!("{name} answers"), secs(150), || {
        let answer = call(cluster.node(), name, "{}")?;
        ensure!(answer.status == 200 && answer.body["made"] == made, "{answer:?}");
        Ok(())
    })
}

#[test]
fn functions_are_made_of_images_dockerfiles_and_wheels_on_nodes_that_build() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(2), python: true, ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let builder = cluster.nodes[1].name.clone();
        let node = format!(
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: {builder}\n  labels: {{minik8s.io/build: \"true\"}}\n"
        );
        cluster.push(&[other_object(), Change::write("node.yaml", node)], "One node builds")?;
        // A user's own image, on each node.
        let folder = cluster.dir("own");
        std::fs::create_dir_all(&folder)?;
        for (file, text) in dies_at_once("by hand") {
            std::fs::write(folder.join(file), text)?;
        }
        for node in &cluster.nodes {
            node.docker.run(&["build", "-q", "-t", "minik8s-e2e/own:1", &folder.to_string_lossy()])?;
        }
        let own = "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {name: own}\nspec: {image: 'minik8s-e2e/own:1'}\n";
        let mut changes =
            vec![Change::write("own.yaml", own), manifest("docked", ""), manifest("packed", "")];
        changes.extend(dockerfile("by its Dockerfile").map(|(file, text)| code("docked", file, &text)));
        changes.extend([
            code("packed", "main.py", GREETS),
            code("packed", "requirements.txt", "greeter==1.0\n"),
        ]);
        let wheels = cluster.repo.work().join("code/packed/wheels");
        std::fs::create_dir_all(&wheels)?;
        NetWorld::of_machine().run("python3", &["-c", WHEEL, &wheels.to_string_lossy()])?;
        cluster.push(&changes, "Three ways")?;
        says(cluster, "own", "by hand")?;
        says(cluster, "docked", "by its Dockerfile")?;
        says(cluster, "packed", "hello you")?;
        a_rollout_loses_no_call(cluster, own)?;
        let built = cluster.etcd.list(&format!("/minik8s/status/{builder}/images/"))?;
        ensure!(built.len() == 2 && built.iter().all(|one| one.value.contains("\"ready\"")), "{built:?}");
        let log = cluster.cli(&["logs", "function/packed", "--build"])?;
        ensure!(log.stdout.contains("greeter"), "{log:?}");
        let wheel = std::fs::read(wheels.join("greeter-1.0-py3-none-any.whl"))?;
        from_an_index_with_a_login(cluster, wheel)
    })
}

const PASSWORD: &str = "sesame-4713-index";

/// Serves an index with this wheel to clients that send the login, until the test ends.
fn index(cluster: &Cluster, wheel: Vec<u8>) -> Result<String> {
    let listener = TcpListener::bind((cluster.slot().underlay(1), 0))?;
    let address = listener.local_addr()?.to_string();
    let shown = format!("Authorization: Basic {}", STANDARD.encode(format!("kim:{PASSWORD}"))).to_lowercase();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut asked = Vec::new();
            let mut piece = [0; 4096];
            while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
                match client.read(&mut piece) {
                    Ok(read) if read > 0 => asked.extend(&piece[..read]),
                    _ => break,
                }
            }
            let asked = String::from_utf8_lossy(&asked).into_owned();
            let name = "greeter-1.0-py3-none-any.whl";
            let (status, body) = match asked.split_whitespace().nth(1) {
                _ if !asked.to_lowercase().contains(&shown) => ("401 Unauthorized", Vec::new()),
                Some("/simple/greeter/") => {
                    ("200 OK", format!("<a href=\"/{name}\">{name}</a>").into_bytes())
                }
                Some(path) if path.ends_with(name) => ("200 OK", wheel.clone()),
                _ => ("404 Not Found", Vec::new()),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nWWW-Authenticate: Basic realm=\"index\"\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            // A client that hangs up tries again.
            let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(&body));
        }
    });
    Ok(format!("http://{address}/simple"))
}

/// A package that can't be installed is reported with a remedy.
fn one_that_is_away_is_named(cluster: &Cluster, settings: &str, url: &str) -> Result<()> {
    let nobody = format!("http://{}:1/simple", cluster.slot().underlay(1));
    let changes = [
        Change::write("cluster.yaml", settings.replace(url, &nobody)),
        manifest("away", ""),
        code("away", "main.py", GREETS),
        code("away", "requirements.txt", "greeter==1.0\n"),
    ];
    cluster.push(&changes, "An index that is away")?;
    let said = format!("if this node cannot reach {nobody}, put the wheels into a `wheels` folder");
    eventually("what to do is said", secs(240), || {
        let described = cluster.cli(&["describe", "function/away"])?.ok()?;
        ensure!(described.contains(&said), "{described}");
        Ok(())
    })
}

/// Checks that the login is in no layer, history, log or record.
fn from_an_index_with_a_login(cluster: &Cluster, wheel: Vec<u8>) -> Result<()> {
    let url = index(cluster, wheel)?;
    let settings = format!(
        "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {{name: cluster}}\nspec:\n  functions: {{packageIndex: '{url}', packageIndexLogin: {{name: index}}}}\n"
    );
    let login = format!("username: kim\npassword: {PASSWORD}\n");
    let login = sealed(&recipient_of(cluster, 2)?, "default", "index", &login)?;
    let changes = [
        Change::write("cluster.yaml", &settings),
        Change::write("secrets/default/index.age", login),
        manifest("indexed", ""),
        code("indexed", "main.py", &GREETS.replace("'made'", "'again': 1, 'made'")),
        code("indexed", "requirements.txt", "greeter==1.0\n"),
    ];
    cluster.push(&changes, "From an index")?;
    says(cluster, "indexed", "hello you")?;
    let builder = &cluster.nodes[1];
    let build = cluster.cli(&["logs", "function/indexed", "--build"])?.ok()?;
    ensure!(build.contains("/simple") && !build.contains(PASSWORD), "{build}");
    let docker = format!("docker --host {}", builder.docker.host());
    let all = format!(
        "set -e; ids=$({docker} images -aq --no-trunc | sort -u); {docker} inspect $ids; \
         for id in $ids; do {docker} history --no-trunc $id; done; {docker} save $ids"
    );
    let count =
        NetWorld::of_machine().run("sh", &["-c", &format!("({all}) | grep -a -c -e {PASSWORD} || true")])?;
    ensure!(count.trim() == "0", "an image has the password: {count}");
    for daemon in [&builder.agent, &cluster.reconcilers[0]] {
        let log = std::fs::read_to_string(daemon.log_path())?;
        ensure!(!log.contains(PASSWORD), "the log of {} has the password", daemon.name());
    }
    for record in cluster.etcd.list("/minik8s")? {
        ensure!(!record.value.contains(PASSWORD), "{} has the password", record.key);
    }
    one_that_is_away_is_named(cluster, &settings, &url)
}
