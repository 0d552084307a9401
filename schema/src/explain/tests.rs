//! Output of `explain`.

use super::*;

fn why(path: &str) -> String {
    explain(path, false).unwrap_err().to_string()
}

#[test]
fn kinds_are_known_by_name_short_name_and_plural_in_any_case() {
    for (word, kind) in [
        ("pod", Kind::Pod),
        ("PODS", Kind::Pod),
        ("po", Kind::Pod),
        ("ReplicaSet", Kind::ReplicaSet),
        ("rs", Kind::ReplicaSet),
        ("deployment", Kind::ReplicaSet),
        ("Deployments", Kind::ReplicaSet),
        ("rc", Kind::ReplicaSet),
        ("svc", Kind::Service),
        ("hpa", Kind::HorizontalPodAutoscaler),
        ("HorizontalPodAutoscalers", Kind::HorizontalPodAutoscaler),
        ("dns", Kind::Dns),
        ("fn", Kind::Function),
        ("wf", Kind::Workflow),
        ("jobs", Kind::Job),
        ("no", Kind::Node),
    ] {
        assert_eq!(kind_named(word), Ok(kind), "{word}");
    }
}

#[test]
fn an_unknown_word_is_answered_with_the_nearest() {
    assert_eq!(why("pdo.spec"), "unknown kind `pdo`; did you mean `pod`?");
    assert_eq!(why("pod.spec.contaners"), "`pod.spec` has no field `contaners`; did you mean `containers`?");
    assert!(why("sts").starts_with("`StatefulSet` of Kubernetes does not run here: "), "{}", why("sts"));
    assert!(why("xyzzy").contains("kinds are `Cluster`, `Node`"), "{}", why("xyzzy"));
    assert!(why("pod.spec.xyzzy").contains("known: `affinity`, `containers`"), "{}", why("pod.spec.xyzzy"));
    assert_eq!(why("pod.spec.nodeName.x"), "`pod.spec.nodeName` is a value of type string: it has no fields");
}

#[test]
fn a_field_says_its_type_its_default_and_what_it_may_be() {
    insta::assert_snapshot!(explain("po.spec.restartpolicy", false).unwrap(), @r"
    KIND:        Pod
    API VERSION: v1
    FIELD:       spec.restartPolicy <string>
    DEFAULT:     Always

    Restart policy for containers that have ended.

    VALUES:
      Always               Restart regardless of the exit code.
      OnFailure            Restart if the exit code is not 0.
      Never                Never restart.
    ");
}

#[test]
fn a_kind_that_is_read_as_another_says_so() {
    insta::assert_snapshot!(explain("deploy.spec.replicas", false).unwrap(), @r"
    A Deployment is read as a ReplicaSet.

    KIND:        ReplicaSet
    API VERSION: apps/v1
    FIELD:       spec.replicas <integer>
    DEFAULT:     1

    Number of pods; only the initial number if an autoscaler scales it.
    ");
    let first = |path: &str| explain(path, true).unwrap().lines().next().unwrap().to_owned();
    assert_eq!(first("replicationcontroller"), "A ReplicationController is read as a ReplicaSet.");
    assert_eq!(first("replicaset"), "KIND:        ReplicaSet");
}

#[test]
fn an_object_lists_its_fields() {
    insta::assert_snapshot!(explain("pod.spec.containers[0].ports", false).unwrap(), @r"
    KIND:        Pod
    API VERSION: v1
    FIELD:       spec.containers.ports <[]ContainerPort>

    Ports that the container serves.

    FIELDS:
      containerPort <integer> required
          Port in the pod, 1 to 65535.
      hostIP <string>
          IPv4 address of the node at which `hostPort` answers; all addresses if absent, `0.0.0.0`
          or `::`.
      hostPort <integer>
          Port of the node that leads to the container; 0 picks any free port, which the status
          shows.
      name <string>
          Name that services can use.
      protocol <string>, default TCP
          TCP or UDP. One of TCP, UDP.
    ");
}

#[test]
fn a_tree_has_all_fields_below() {
    insta::assert_snapshot!(explain("pod.spec.dnsConfig", true).unwrap(), @r"
    KIND:        Pod
    API VERSION: v1
    FIELD:       spec.dnsConfig <DnsConfig>

    Changes to the resolver configuration of `dnsPolicy`.

    FIELDS:
      nameservers <[]string>
      options <[]DnsOption>
        name <string> required
        value <string>
      searches <[]string>
    ");
    for kind in Kind::ALL {
        let tree = explain(kind.as_str(), true).unwrap();
        assert!(tree.contains("\n    name <string> required\n"), "{tree}");
    }
}

#[test]
fn every_field_of_every_kind_can_be_asked_for() {
    let mut asked = 0;
    for kind in Kind::ALL {
        let schema = json_schema::for_kind(kind);
        let mut open = vec![(SchemaView::root(&schema), String::new())];
        while let Some((shape, path)) = open.pop() {
            let page = explain_in(&schema, kind, &path, false);
            assert!(page.is_ok(), "{kind} {path}: {page:?}");
            asked += 1;
            if let Some((object, _)) = shape.object().filter(|_| path.matches('.').count() < 6) {
                // A name with a dot is no word of a path.
                let fields = object.fields().into_iter().filter(|field| !field.name.contains('.'));
                open.extend(fields.map(|f| (f.shape, format!("{path}.{}", f.name))));
            }
        }
    }
    assert!(asked > 300, "{asked}");
}

#[test]
fn a_kind_is_shown_in_its_other_spellings_with_an_example_each() {
    let text = explain("workflow", false).unwrap();
    for words in [
        "OTHER SPELLING: Amazon States Language",
        "definitionPath: flows/order.asl.json",
        "entryNodeName: price",
        "nodes:\n",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!explain("workflow.spec.triggers", false).unwrap().contains("OTHER SPELLING"));
    assert!(!explain("pod", false).unwrap().contains("OTHER SPELLING"));
}
