//! ConfigMaps in real containers: an unchanged Kubernetes manifest, changes that replace only the users, and a
//! megabyte that arrives byte for byte.

use harness::{Change, Cluster, ClusterOptions, IMAGE, PodView, Result, ensure, eventually, secs};

/// A manifest written for Kubernetes; only `IMAGE` is substituted.
const KUBERNETES: &str = r#"apiVersion: v1
kind: ConfigMap
metadata:
  name: game-demo
data:
  player_initial_lives: "3"
  ui_properties_file_name: "user-interface.properties"
  1st: left out
  game.properties: |
    enemy.types=aliens,monsters
    player.maximum-lives=5
binaryData:
  logo.png: iVBORw0KGgo=
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: special
data:
  HOW: very
  player_initial_lives: "9"
---
apiVersion: v1
kind: Pod
metadata:
  name: demo
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: IMAGE
      command: ["sh", "-c", "echo lives $(LIVES) > /tmp/said; sleep 100000"]
      envFrom:
        - configMapRef:
            name: game-demo
        - prefix: SPECIAL_
          configMapRef:
            name: special
        - configMapRef:
            name: special
        - configMapRef:
            name: not-there
            optional: true
      env:
        - name: HOW
          value: own
        - name: LIVES
          valueFrom:
            configMapKeyRef:
              name: game-demo
              key: player_initial_lives
        - name: ABSENT
          valueFrom:
            configMapKeyRef:
              name: game-demo
              key: no-such-key
              optional: true
      volumeMounts:
        - name: config
          mountPath: "/config"
          readOnly: true
        - name: all
          mountPath: /all
        - name: all
          mountPath: /one.properties
          subPath: game.properties
        - name: none
          mountPath: /none
  volumes:
    - name: config
      configMap:
        name: game-demo
        defaultMode: 0440
        items:
          - key: "game.properties"
            path: "deep/game.properties"
          - key: "logo.png"
            path: "logo.png"
            mode: 0755
    - name: all
      configMap:
        name: game-demo
    - name: none
      configMap:
        name: not-there
        optional: true
"#;

fn sleeper(name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         containers:\n  - name: main\n    image: {IMAGE}\n    command: [sleep, '100000']\n{more}"
    )
}

fn map(name: &str, data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {data}\n")
}

fn sh(cluster: &Cluster, pod: &PodView, command: &str) -> Result<String> {
    cluster.node().docker.exec(pod.container("main")?, &["sh", "-c", command])
}

#[test]
fn config_maps_reach_containers() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        a_manifest_of_kubernetes_runs_as_it_is(cluster)?;
        a_megabyte_arrives_byte_for_byte(cluster)
    })
}

fn a_manifest_of_kubernetes_runs_as_it_is(cluster: &Cluster) -> Result<()> {
    cluster.push(&[Change::write("demo.yaml", KUBERNETES.replace("IMAGE", IMAGE))], "Demo")?;
    let demo = cluster.running("demo", &["main"])?;
    for (command, wanted) in [
        // Later sources win, and `env` over all.
        ("echo $player_initial_lives $HOW $SPECIAL_HOW $LIVES", "9 own very 3\n"),
        ("cat /tmp/said", "lives 3\n"),
        ("echo ${ABSENT-unset}; env | grep -c 1st; env | grep -c logo || true", "unset\n0\n0\n"),
        ("cat /config/deep/game.properties", "enemy.types=aliens,monsters\nplayer.maximum-lives=5\n"),
        ("cat /one.properties | head -1", "enemy.types=aliens,monsters\n"),
        ("stat -c %a /config/deep/game.properties /config/logo.png /all/1st", "440\n755\n644\n"),
        ("ls /config /none", "/config:\ndeep\nlogo.png\n\n/none:\n"),
        ("ls /all | wc -l; od -An -tx1 /all/logo.png", "5\n 89 50 4e 47 0d 0a 1a 0a\n"),
        ("echo x 2>&1 > /all/new || true", "sh: can't create /all/new: Read-only file system\n"),
    ] {
        let found = sh(cluster, &demo, command)?;
        ensure!(found == wanted, "{command}: {found:?}, not {wanted:?}");
    }
    let validated = cluster.cli(&["validate", &cluster.repo.work().to_string_lossy()])?;
    ensure!(validated.stdout.contains("skipped-key") && validated.code == 0, "{validated:?}");
    let all = cluster.cli(&["get", "cm"])?.ok()?;
    ensure!(all.contains("game-demo") && all.contains("special"), "{all}");
    let page = cluster.cli(&["describe", "configmap", "game-demo"])?.ok()?;
    for part in ["Pod/default/demo", "logo.png: 8 bytes", "player_initial_lives: 1 bytes"] {
        ensure!(page.contains(part), "{part}: {page}");
    }
    let page = cluster.cli(&["describe", "pod/demo"])?.ok()?;
    ensure!(page.contains("LIVES from key player_initial_lives of ConfigMap game-demo"), "{page}");
    Ok(())
}

#[test]
fn a_changed_value_replaces_just_its_users_and_one_in_use_is_not_removed() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let env = "    env: [{name: COLOUR, valueFrom: {configMapKeyRef: {name: conf, key: colour}}}]\n";
        let mount = "    volumeMounts: [{name: v, mountPath: /conf}]\n  volumes: [{name: v, configMap: {name: conf}}]\n";
        let other = "    envFrom: [{configMapRef: {name: other}}]\n";
        cluster.push(
            &[
                Change::write("conf.yaml", map("conf", "{colour: red}")),
                Change::write("other.yaml", map("other", "{colour: red}")),
                Change::write("env.yaml", sleeper("env", env)),
                Change::write("mount.yaml", sleeper("mount", mount)),
                Change::write("other-user.yaml", sleeper("other-user", other)),
                Change::write("bare.yaml", sleeper("bare", "")),
            ],
            "Red",
        )?;
        let users = ["env", "mount"];
        let others = ["other-user", "bare"];
        let mut before = Vec::new();
        for name in users.into_iter().chain(others) {
            before.push(cluster.running(name, &["main"])?);
        }
        cluster.push(&[Change::write("conf.yaml", map("conf", "{colour: blue}"))], "Blue")?;
        for (name, before) in users.iter().zip(&before) {
            let after = eventually("the pod has the new value", secs(40), || {
                let pod = cluster.running(name, &["main"])?;
                let said = sh(cluster, &pod, "cat /conf/colour 2>/dev/null || echo -n $COLOUR")?;
                ensure!(said == "blue", "{said}");
                Ok(pod)
            })?;
            ensure!(after.container("main")?.id != before.container("main")?.id, "{name}");
        }
        for (name, before) in others.iter().zip(&before[2..]) {
            ensure!(cluster.pod(name)?.lives() == before.lives(), "{name} was touched");
        }

        // Refused at review, so nothing is removed.
        let now = cluster.lives()?;
        cluster.repo.push(&[Change::remove("conf.yaml")], "Remove it")?;
        let work = cluster.repo.work().to_string_lossy().into_owned();
        let plan = cluster.cli(&["plan", "--repo", &work, "--base", "HEAD~1", "--head", "HEAD"])?;
        ensure!(plan.stdout.contains("ConfigMap/default/conf is removed by this commit"), "{plan:?}");
        eventually("the commit is degraded", secs(30), || {
            let said = cluster.cli(&["status"])?.stdout.replace(['\n', ' '], "");
            ensure!(said.contains("isremovedbythiscommit"), "{said}");
            Ok(())
        })?;
        ensure!(cluster.cli(&["get", "cm", "conf"])?.code == 0);
        ensure!(cluster.lives()? == now, "a pod was touched");
        Ok(())
    })
}

fn a_megabyte_arrives_byte_for_byte(cluster: &Cluster) -> Result<()> {
    let big: String = (0..64 * 1024).map(|line| format!("line {line:010}\n")).collect();
    ensure!(big.len() == 1024 * 1024);
    let file = cluster.dir("big");
    std::fs::write(&file, &big)?;
    let sum = harness::run("sha256sum", &[&file.to_string_lossy()])?;
    let text = map("big", "") + "  big.txt: |\n    " + &big.trim_end().replace('\n', "\n    ") + "\n";
    let mount =
        "    volumeMounts: [{name: v, mountPath: /conf}]\n  volumes: [{name: v, configMap: {name: big}}]\n";
    cluster.push(
        &[Change::write("big.yaml", text), Change::write("app.yaml", sleeper("app", mount))],
        "A megabyte",
    )?;
    let app = cluster.running("app", &["main"])?;
    let found = sh(cluster, &app, "sha256sum /conf/big.txt")?;
    ensure!(found.split(' ').next() == sum.split(' ').next(), "{found} is not {sum}");
    Ok(())
}
