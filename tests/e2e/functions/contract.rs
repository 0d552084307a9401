//! The contract of functions: rights of the code, answers to callers, and limits of the sandbox.

use harness::{eventually, secs};

use super::*;

/// Functions of one folder, and so of one image: name, and further lines of the spec.
const SHARED: &[(&str, &str)] = &[
    ("echo", ""),
    ("raises", ""),
    ("nothing", ""),
    ("slow", "  timeoutSeconds: 1\n"),
    ("dies", ""),
    ("greedy", "  resources: {limits: {memory: 64Mi}}\n"),
    ("prints", ""),
    ("small", "  requestBodyLimit: 1Ki\n  responseBodyLimit: 2Ki\n"),
];

/// Code of these functions.
const CODE: &str = r#"
import os, subprocess, sys, time

def echo(params):
    return {'got': params}

def raises(params):
    return helper(params)

def helper(params):
    raise ValueError('no ' + params['what'])

def nothing(params):
    if params.get('as') == 'list':
        return [1]
    if params.get('as') == 'generator':
        return (n for n in range(3))

def slow(params):
    time.sleep(params.get('for', 0))
    return {'slept': True}

def dies(params):
    if params.get('die'):
        os._exit(3)
    return {'alive': True}

def greedy(params):
    kept = bytearray(int(params.get('bytes', 0)))
    kept[::4096] = b'x' * len(kept[::4096])
    return {'kept': len(kept)}

def prints(params):
    print('told ' + params['word'])
    subprocess.run(['/bin/sh', '-c', 'echo child'], check=False)
    return {}

def small(params):
    return {'text': 'x' * params.get('length', 0)}
"#;

const INSIDE: &str = r#"
import os, errno, shutil, socket, subprocess, sys, resource

def attempt(what):
    try:
        return what() or 'done'
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))

def connect(address, port):
    with socket.create_connection((address, port), timeout=2):
        return 'connected'

def forks():
    children = []
    try:
        while len(children) < 1000:
            child = os.fork()
            if child == 0:
                import time
                time.sleep(20)
                os._exit(0)
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)
    return len(children)

def in_tmp():
    shutil.copy(sys.executable, '/tmp/python')
    subprocess.run(['/tmp/python', '-c', ''], check=True)

def main(params):
    status = dict(line.split(':', 1) for line in open('/proc/self/status') if ':' in line)
    return {
        'uid': os.getuid(),
        'root': attempt(lambda: open('/new', 'w').close()),
        'tmp': attempt(lambda: open('/tmp/new', 'w').close()),
        'executed': attempt(in_tmp),
        'capabilities': status['CapEff'].strip(),
        'noNewPrivs': status['NoNewPrivs'].strip(),
        'files': resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        'docker': os.path.exists('/var/run/docker.sock'),
        'forks': forks(),
        'reached': [attempt(lambda: connect(target, port)) for target, port in params.get('targets', [])],
    }
"#;

/// A function whose handler in the shared folder has the function's name.
pub(super) fn shared(name: &str, spec: &str) -> Change {
    let text = format!(
        "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {{name: {name}}}\nspec:\n  source: code/shared\n  \
         handler: main.{name}\n{spec}"
    );
    Change::write(format!("{name}.yaml"), text)
}

// Seen red with a pod spec without its security context.
#[test]
fn each_outcome_of_a_call_has_its_status_and_the_sandbox_holds() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(1), python: true, ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let plain = Change::write("plain.yaml", harness::manifests::web("plain").to_string());
        let mut changes = vec![other_object(), plain];
        for (name, spec) in SHARED {
            changes.push(shared(name, spec));
        }
        changes.push(code("shared", "main.py", CODE));
        changes
            .extend([manifest("broken", ""), code("broken", "main.py", "def main(params:\n    return {}\n")]);
        let imports = "import not_there\n\n\ndef main(params):\n    return {}\n";
        changes.extend([manifest("imports", ""), code("imports", "main.py", imports)]);
        changes.extend([manifest("inside", ""), code("inside", "func.py", INSIDE)]);
        let package = "  handler: shop.prices.go\n";
        changes.extend([manifest("packaged", package), code("packaged", "main.py", "")]);
        changes.extend([
            code("packaged", "shop/__init__.py", ""),
            code("packaged", "shop/prices.py", "def go(params):\n    return {'price': 7}\n"),
        ]);
        changes.push(refusals::narrow());
        let commit = cluster.push(&changes, "All of it")?;
        cluster.applied(&commit)?;
        // Built one after another: shared, imports, inside and packaged; broken can't be built.
        eventually("all images are built", secs(240), || {
            let images = cluster.etcd.list("/minik8s/status/")?;
            let ready =
                images.iter().filter(|one| one.key.contains("/images/") && one.value.contains("\"ready\""));
            ensure!(ready.count() == 4, "not yet");
            Ok(())
        })?;
        say_what_went_wrong(cluster)?;
        refusals::are_said(cluster)?;
        hold_the_sandbox(cluster)
    })
}

fn ask(cluster: &Cluster, name: &str, body: &str) -> Result<Answer> {
    call(cluster.node(), name, body)
}

fn say_what_went_wrong(cluster: &Cluster) -> Result<()> {
    let ask = |name: &str, body: &str| ask(cluster, name, body);
    let expect = |name: &str, body: &str, status: u16, error: &str| -> Result<Answer> {
        let answer = ask(name, body)?;
        ensure!(answer.status == status && answer.error() == error, "{name} {body}: {answer:?}");
        Ok(answer)
    };
    // Dict in, dict out: nested, unicode, big numbers.
    let body = r#"{"a": {"b": [1, null, true, "ü✓"]}, "n": 123456789012345678901234567890, "f": 0.1}"#;
    let echoed = ask("echo", body)?;
    ensure!(echoed.status == 200, "{echoed:?}");
    let text = echoed.body["got"].to_string();
    ensure!(text.contains("ü✓") && text.contains("0.1"), "{text}");
    ensure!(ask("packaged", "{}")?.body["price"] == 7, "a handler in a package");
    ensure!(ask("echo", "")?.body["got"] == serde_json::json!({}), "no body is an empty object");
    // Errors name their cause.
    expect("echo", "[1]", 400, "NotAnObject")?;
    expect("echo", "{", 400, "NotAnObject")?;
    let raised = expect("raises", r#"{"what": "way"}"#, 500, "ValueError")?;
    ensure!(raised.body["error"]["message"] == "no way", "{raised:?}");
    let trace = raised.body["error"]["stackTrace"].to_string();
    ensure!(trace.contains("main.py") && trace.contains("helper") && !trace.contains("shim.py"), "{trace}");
    for kind in ["none", "list", "generator"] {
        expect("nothing", &format!(r#"{{"as": "{kind}"}}"#), 502, "InvalidResult")?;
    }
    expect("slow", r#"{"for": 30}"#, 504, "Timeout")?;
    ensure!(ask("slow", "{}")?.status == 200, "the next call is answered");
    expect("dies", r#"{"die": true}"#, 502, "Crashed")?;
    ensure!(ask("dies", "{}")?.status == 200, "the next call is answered");
    expect("greedy", r#"{"bytes": 200000000}"#, 502, "OutOfMemory")?;
    eventually("the next call is answered", secs(60), || {
        ensure!(ask("greedy", r#"{"bytes": 1000}"#)?.status == 200, "not yet");
        Ok(())
    })?;
    expect("small", &format!(r#"{{"x": "{}"}}"#, "y".repeat(1024)), 413, "BodyTooLarge")?;
    expect("small", r#"{"length": 5000}"#, 502, "InvalidResult")?;
    let broken = expect("broken", "{}", 500, "FunctionNotRunning")?;
    ensure!(broken.body.to_string().contains("SyntaxError"), "{broken:?}");
    let imports = expect("imports", "{}", 500, "FunctionNotRunning")?;
    ensure!(imports.body.to_string().contains("not_there"), "{imports:?}");
    // Printed lines are kept, each with its call.
    let printed = ask("prints", r#"{"word": "tales"}"#)?;
    ensure!(printed.status == 200, "{printed:?}");
    let log = log_of(cluster, "prints")?;
    ensure!(log.contains("told tales") && log.contains("child"), "{log}");
    Ok(())
}

fn hold_the_sandbox(cluster: &Cluster) -> Result<()> {
    let gateway = cluster.node().address()?.to_owned();
    let etcd = cluster.etcd_for_nodes();
    let port = etcd.rsplit(':').next().unwrap_or_default();
    let host = cluster.slot().underlay(1);
    // Any other pod reaches both.
    let pod = cluster.pod("plain")?;
    for (host, port) in [(gateway.as_str(), "7071"), (&host, port)] {
        let ask = format!("nc -w 5 {host} {port} </dev/null");
        cluster
            .exec(&pod, "web", &["sh", "-c", &ask])
            .with_context(|| format!("a pod does not reach {host}"))?;
    }
    let targets =
        format!(r#"[["{gateway}", 8081], ["{gateway}", 7071], ["{host}", {port}], ["169.254.169.254", 80]]"#);
    let inside = ask(cluster, "inside", &format!(r#"{{"targets": {targets}}}"#))?;
    let found = &inside.body;
    ensure!(found["uid"] == 65532 && found["root"] == "EROFS", "{inside:?}");
    ensure!(found["tmp"] == "done" && found["executed"] == "EACCES", "{inside:?}");
    ensure!(found["capabilities"] == "0000000000000000" && found["noNewPrivs"] == "1", "{inside:?}");
    ensure!(found["files"] == 1024 && found["docker"] == false, "{inside:?}");
    let reached = serde_json::json!(["connected", "timed out", "timed out", "timed out"]);
    ensure!(found["reached"] == reached, "{inside:?}");
    let forks = found["forks"].as_u64().unwrap_or_default();
    ensure!((1..256).contains(&forks), "{inside:?}");
    Ok(())
}

/// Log of a function's replicas.
fn log_of(cluster: &Cluster, name: &str) -> Result<String> {
    let node = cluster.node();
    let mut log = String::new();
    for container in node.docker.containers(&cluster.slot().instance())? {
        if container.label("container") == "function"
            && container.label("pod").starts_with(&format!("{name}-"))
        {
            let said = node.docker.outcome(&["logs", &container.id])?;
            log.push_str(&said.stdout);
            log.push_str(&said.stderr);
        }
    }
    Ok(log)
}
