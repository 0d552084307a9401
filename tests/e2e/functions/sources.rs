//! What a function can be made of: an image, a `Dockerfile`, packages from wheels; and where it is built.

use harness::{IMAGE, NetWorld, eventually, secs};

use super::*;

/// Answers every call with what it is, and keeps no connection.
const ANSWER: &str = "read line\n\
    while read header && [ \"$header\" != \"$(printf '\\r')\" ]; do :; done\n\
    body='{\"made\": \"MADE\"}'\n\
    printf 'HTTP/1.1 200 OK\\r\\nContent-Length: %s\\r\\nConnection: close\\r\\n\\r\\n%s' ${#body} \"$body\"\n";

/// Files of a folder with a Dockerfile whose image answers so.
fn dockerfile(made: &str) -> [(&'static str, String); 2] {
    let text = format!(
        "FROM {IMAGE}\nCOPY answer /answer\nCMD [\"nc\", \"-ll\", \"-p\", \"8080\", \"-e\", \"sh\", \"/answer\"]\n"
    );
    [("Dockerfile", text), ("answer", ANSWER.replace("MADE", made))]
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
        // An image of one's own, on each node.
        let folder = cluster.dir("own");
        std::fs::create_dir_all(&folder)?;
        for (file, text) in dockerfile("by hand") {
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
        let built = cluster.etcd.list(&format!("/minik8s/status/{builder}/images/"))?;
        ensure!(built.len() == 2 && built.iter().all(|one| one.value.contains("\"ready\"")), "{built:?}");
        let log = cluster.cli(&["logs", "function/packed", "--build"])?;
        ensure!(log.stdout.contains("greeter"), "{log:?}");
        Ok(())
    })
}
