//! Objects of every kind on the command line, and spellings known from kubectl.

use schema::keys::Key;
use schema::manifest::load_file;
use schema::object::Provenance;

use super::*;

const SHOP: &str = "\
apiVersion: v1
kind: Service
metadata: {name: shop, labels: {tier: front}}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: store, labels: {tier: back}, annotations: {note: hers}}
spec: {selector: {app: db}, ports: [{port: 81}]}
---
apiVersion: minik8s.io/v1
kind: Function
metadata: {name: greet, namespace: lab}
spec: {source: functions/greet}
---
apiVersion: minik8s.io/v1
kind: Cluster
metadata: {name: cluster}
spec: {schedulerStrategy: spread}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {disk: fast}}
";

/// The common snapshot plus two services, a function in `lab`, the Cluster object, and Nodes of which `n1` is
/// registered.
async fn with_kinds() -> String {
    let mut snapshot = snapshot();
    let loaded = load_file("shop.yaml", SHOP.as_bytes());
    assert!(!loaded.has_errors() && loaded.documents.len() == 6, "{:#?}", loaded.violations);
    for document in loaded.documents {
        let (source, commit, author) = ("main".to_owned(), C2.to_owned(), "Ada <a@b>".to_owned());
        let from = Provenance { source, commit, author, file: "shop.yaml".to_owned(), line: document.line };
        let object = Arc::unwrap_or_clone(document.object).into_object(from, 1);
        let key = Key::Object(object.reference()).to_string();
        put(&mut snapshot, key.strip_prefix("/minik8s/").unwrap(), &serde_json::to_value(&object).unwrap());
    }
    assert!(snapshot.malformed.is_empty(), "{:?}", snapshot.malformed);
    format!("http://{}", serve(snapshot).await)
}

#[tokio::test]
async fn get_lists_every_kind_and_all_of_them() {
    let server = with_kinds().await;
    for (arguments, lines) in [
        (&["get", "svc", "-o", "name"][..], "service/shop\nservice/store\n"),
        (&["get", "services", "store", "-o", "name"], "service/store\n"),
        (&["get", "service/shop", "-o", "name"], "service/shop\n"),
        (&["get", "fn", "-A", "-o", "name"], "function/greet\n"),
        (&["get", "cluster", "-o", "name"], "cluster/cluster\n"),
        (
            &["get", "all", "-o", "name"],
            "cluster/cluster\nnode/n1\nnode/n2\nservice/shop\nservice/store\npod/db\npod/web\n",
        ),
        (&["get", "all", "-n", "lab", "-o", "name"], "cluster/cluster\nnode/n1\nnode/n2\nfunction/greet\n"),
    ] {
        check(&run(&server, arguments).await, 0, lines, "");
    }
    // Several kinds: a table each, and names with their kind, as in kubectl.
    let two = run(&server, &["get", "svc,no", "-o", "name"]).await;
    check(&two, 0, "service/shop\nservice/store\nnode/n1\n", "");
    let two = run(&server, &["get", "no,svc", "n1", "--no-headers"]).await;
    let text = String::from_utf8_lossy(&two.stdout).into_owned();
    assert!(text.starts_with("node/n1 "), "{two:?}");
    let json = run(&server, &["get", "svc,no", "-o", "json"]).await;
    let line = "minik8s: -w, -o json and -o yaml take a single kind; ask for one kind, or leave them out\n";
    check(&json, 2, "", line);
    let line = "minik8s: invalid value 'svc,node/n1' for '<KIND>': several kinds are given; write the name after \
                them: KIND,KIND NAME\n";
    check(&run(&server, &["get", "svc,node/n1"]).await, 2, "", line);
    check(
        &run(&server, &["get", "rs"]).await,
        0,
        "",
        "no replicasets in namespace default; -A shows all namespaces\n",
    );
    let wide = run(&server, &["get", "svc", "-o", "wide"]).await;
    let text = String::from_utf8_lossy(&wide.stdout).into_owned();
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let columns = ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "READY", "AGE", "HEALTH", "NOTE"];
    assert_eq!(header, columns);
    assert!(lines.next().is_some_and(|row| row.contains("80/TCP") && row.contains("Progressing")), "{text}");
    let wide = run(&server, &["get", "fn", "-A", "-o", "wide"]).await;
    let text = String::from_utf8_lossy(&wide.stdout).into_owned();
    for word in ["NAMESPACE", "SOURCE", "WAITING", "Progressing"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[tokio::test]
async fn labels_choose_and_headers_can_be_left_out() {
    let server = with_kinds().await;
    for (labels, lines) in [
        ("tier=front", "service/shop\n"),
        ("tier!=front", "service/store\n"),
        ("tier in (front,back)", "service/shop\nservice/store\n"),
        ("!tier", ""),
    ] {
        check(&run(&server, &["get", "svc", "-l", labels, "-o", "name"]).await, 0, lines, "");
    }
    let wrong = run(&server, &["get", "svc", "-l", "tier in front"]).await;
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    let line = "minik8s: sources have no labels; leave out -l\n";
    check(&run(&server, &["get", "sources", "-l", "a=b"]).await, 2, "", line);

    let with = run(&server, &["get", "svc"]).await;
    let (header, rows) = std::str::from_utf8(&with.stdout).unwrap().split_once('\n').unwrap();
    assert!(header.starts_with("NAME "), "{header}");
    let without = run(&server, &["get", "svc", "--no-headers"]).await;
    let columns = |text: &str| -> Vec<Vec<String>> {
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    assert_eq!(columns(std::str::from_utf8(&without.stdout).unwrap()), columns(rows));
    assert_eq!(columns(rows).len(), 2);
}

#[tokio::test]
async fn describe_has_a_page_for_every_kind() {
    let server = with_kinds().await;
    for (arguments, words) in [
        (
            &["describe", "svc/store"][..],
            &[
                "Name:          store",
                "Type:          ClusterIP",
                "Health:        Progressing",
                "Note:          no cluster IP yet",
                "Set by:        shop.yaml:6 of source main",
                "Labels:        tier=back",
                "Annotations:   note=hers",
                "Selector:      app=db",
                "Endpoints:",
            ][..],
        ),
        (
            &["describe", "fn", "greet", "-n", "lab"],
            &["Namespace:     lab", "Called at:     POST", "Health:        Progressing", "functions/greet"],
        ),
        (&["describe", "cluster", "cluster"], &["schedulerStrategy: spread"]),
    ] {
        let output = run(&server, arguments).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        for word in words {
            assert!(text.contains(word), "{arguments:?}: no {word:?} in {text}");
        }
    }
    let missing = run(&server, &["describe", "svc/nobody"]).await;
    let line = "minik8s: there is no service nobody in namespace default; see 'minik8s get services -A'\n";
    check(&missing, 1, "", line);
    let page = run(&server, &["describe", "sources", "main"]).await;
    check(&page, 2, "", "minik8s: no page for a source; see 'minik8s get sources -o yaml'\n");
}

#[tokio::test]
async fn a_node_that_only_git_knows_is_shown_as_not_registered() {
    let server = with_kinds().await;
    check(&run(&server, &["get", "node/n2", "-o", "name"]).await, 0, "node/n2\n", "");
    for (arguments, words) in [
        (&["get", "node", "n2"][..], &["HEALTH", "Unknown", "no agent with this name has registered"][..]),
        (
            &["describe", "node/n2"],
            &["Kind:          Node (v1)", "no agent with this name has registered", "disk=fast"],
        ),
        (&["get", "node/n1"], &["STATUS", "Ready"]),
        (&["describe", "node/n1"], &["Status:        Ready"]),
    ] {
        let output = run(&server, arguments).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        for word in words {
            assert!(text.contains(word), "{arguments:?}: no {word:?} in {text}");
        }
    }
    for arguments in [["get", "node/n3"], ["describe", "node/n3"]] {
        let line = "minik8s: there is no node n3; see 'minik8s get nodes'\n";
        check(&run(&server, &arguments).await, 1, "", line);
    }
}

#[tokio::test]
async fn flags_may_stand_before_the_subcommand() {
    let server = with_kinds().await;
    for arguments in [
        &["-n", "lab", "get", "fn", "-o", "name"][..],
        &["--namespace=lab", "-o", "name", "get", "fn"],
        &["-A", "get", "fn", "-o=name"],
    ] {
        check(&run(&server, arguments).await, 0, "function/greet\n", "");
    }
    let output = run("http://127.0.0.1:1", &["--server", &server, "-o", "name", "get", "po", "web"]).await;
    check(&output, 0, "pod/web\n", "");
}

#[tokio::test]
async fn verbs_that_change_something_by_hand_say_how_it_is_done_here() {
    for arguments in [
        &["apply", "-f", "web.yaml"][..],
        &["delete", "pod", "web", "--force"],
        &["scale", "--replicas=3", "rs/web"],
        &["edit", "svc/shop"],
        &["rollout", "restart", "rs/web"],
    ] {
        let output = run("http://127.0.0.1:1", arguments).await;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty() && text.contains("commit and push the change"), "{text}");
    }
}

#[tokio::test]
async fn an_autoscaler_has_kubectls_columns_and_a_page_with_its_conditions() {
    let mut snapshot = snapshot();
    let text = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: web}\nspec:\n  \
                scaleTargetRef: {kind: Pod, name: web}\n  maxReplicas: 4\n  metrics:\n  - type: Resource\n    \
                resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}\n";
    let document = load_file("hpa.yaml", text.as_bytes()).documents.remove(0);
    let (source, commit, author) = ("main".to_owned(), C2.to_owned(), "Ada <a@b>".to_owned());
    let from = Provenance { source, commit, author, file: "hpa.yaml".to_owned(), line: 1 };
    let object = Arc::unwrap_or_clone(document.object).into_object(from, 1);
    let key = Key::Object(object.reference()).to_string();
    put(&mut snapshot, key.strip_prefix("/minik8s/").unwrap(), &serde_json::to_value(&object).unwrap());
    let record = json!({
        "observedGeneration": 1, "decidedAt": "2026-01-01T00:00:00Z",
        "target": {"kind": "Pod", "namespace": "default", "name": "web"},
        "status": {
            "currentReplicas": 1, "desiredReplicas": 2, "lastScaleTime": "2026-01-01T00:00:00Z",
            "lastScaleReason": "1 to 2: cpu resource utilization (percentage of request) above target",
            "currentMetrics": [{"name": "cpu", "averageUtilization": 63, "averageValue": "63m"}],
            "conditions": [{
                "type": "AbleToScale", "status": "True", "reason": "SucceededRescale", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        },
    });
    put(&mut snapshot, "autoscalers/default/web", &record);
    assert!(snapshot.malformed.is_empty(), "{:?}", snapshot.malformed);
    let server = format!("http://{}", serve(snapshot).await);
    let table = "NAME   REFERENCE   TARGETS        MINPODS   MAXPODS   REPLICAS   AGE\n\
                 web    Pod/web     cpu: 63%/50%   1         4         1          -\n";
    for arguments in [&["get", "hpa"][..], &["get", "hpa/web"], &["get", "hpa", "-l", "!tier"]] {
        check(&run(&server, arguments).await, 0, table, "");
    }
    check(&run(&server, &["get", "hpa", "-o", "name"]).await, 0, "horizontalpodautoscaler/web\n", "");
    let page = run(&server, &["describe", "hpa/web"]).await;
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    for line in [
        "Reference:     Pod/web",
        "Metrics:       cpu: 63%/50%",
        "Range:         1 to 4 pods",
        "Replicas:      1 now, 2 wanted",
        ", 1 to 2: cpu resource utilization (percentage of request) above target",
        "SucceededRescale",
        "Events:\n  none in the last hour",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
    let gone = "minik8s: there is no horizontalpodautoscaler api in namespace default; see 'minik8s get \
                horizontalpodautoscalers -A'\n";
    check(&run(&server, &["describe", "hpa/api"]).await, 1, "", gone);
}
