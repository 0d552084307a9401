use super::*;

fn samples() -> Vec<Key> {
    let pod = NamespacedName::new("default", "web");
    let object = ObjectRef { kind: Kind::Pod, namespace: "default".into(), name: "web".into() };
    vec![
        Key::Leader,
        Key::Event("n1".into(), "default".into(), "0001-ab".into()),
        Key::Join("0a1b2c".into()),
        Key::RunRequest(pod.clone(), "r1".into()),
        Key::RunInput(pod.clone(), "r1".into(), 0),
        Key::RunHead(pod.clone(), "r1".into()),
        Key::RunEntries(pod.clone(), "r1".into(), 1),
        Key::RunPayload(pod.clone(), "r1".into(), "ab12".into(), 0),
        Key::RunDefinition(pod.clone(), "ab12".into()),
        Key::Source("main".into()),
        Key::Revision("main".into(), 7),
        Key::Object(object.clone()),
        Key::Rollout(object.clone()),
        Key::Template(object.clone(), "ab12".into()),
        Key::Scale(object.clone()),
        Key::Autoscaler(pod.clone()),
        Key::Pod(pod.clone()),
        Key::Binding("n1".into(), pod.clone()),
        Key::Settled("n1".into()),
        Key::Settings,
        Key::Service(pod.clone()),
        Key::Route(pod.clone()),
        Key::Function(pod.clone()),
        Key::Build("n1".into(), "ab12".into()),
        Key::NodeImage("n1".into(), "ab12".into()),
        Key::Job("n1".into(), NamespacedName::new("default", "sum")),
        Key::JobReport("n1".into(), NamespacedName::new("default", "sum")),
        Key::Demand("n1".into()),
        Key::Workflow(pod.clone()),
        Key::Trigger(object, "nightly".into()),
        Key::Node("n1".into()),
        Key::Subnet("n1".into()),
        Key::NodeConditions("n1".into()),
        Key::Heartbeat("n1".into()),
        Key::PodStatus("n1".into(), pod),
        Key::Usage("n1".into()),
        Key::Rules("n1".into()),
        Key::Programmed,
        Key::Request("github-1".into()),
        Key::Answer("github-1".into()),
        Key::Outbox("source.main".into(), "nodes".into()),
        Key::Identity("node-n1".into()),
        Key::RevokedIdentity("node-n1".into()),
        Key::Trust,
        Key::Authority("ab12".into()),
        Key::DefragRequest,
        Key::EtcdUpkeep,
    ]
}

#[test]
fn every_key_parses_back_to_itself_and_fits_its_row_alone() {
    assert_eq!(CONTRACT.len(), samples().len());
    for (row, key) in CONTRACT.iter().zip(samples()) {
        let text = key.to_string();
        let rows: Vec<&str> = CONTRACT
            .iter()
            .map(|row| row.pattern)
            .filter(|pattern| matches_pattern(pattern, &text))
            .collect();
        assert_eq!(rows, [row.pattern]);
        assert_eq!(row.writer, key.writer(), "{text}");
        assert_eq!(text.parse::<Key>(), Ok(key));
    }
}

#[test]
fn keys_are_written_as_the_contract_says() {
    let node = ObjectRef { kind: Kind::Node, namespace: "default".into(), name: "n1".into() };
    assert_eq!(Key::Object(node.clone()).to_string(), "/minik8s/objects/Node/default/n1");
    assert_eq!(Key::Object(node.clone()).to_string().parse::<Key>(), Ok(Key::Object(node)));
    let written: Vec<String> = samples().iter().map(|key| key.to_string().replacen(ROOT, "", 1)).collect();
    assert_eq!(
        written,
        [
            "leader",
            "events/n1/default/0001-ab",
            "joins/0a1b2c",
            "/minik8s-runs/requests/default/web/r1",
            "/minik8s-runs/inputs/default/web/r1/0000000000",
            "/minik8s-runs/heads/default/web/r1",
            "/minik8s-runs/journal/default/web/r1/0000000001",
            "/minik8s-runs/payload/default/web/r1/ab12/0000000000",
            "/minik8s-runs/definitions/default/web/ab12",
            "sources/main",
            "revisions/main/0000000007",
            "objects/Pod/default/web",
            "rollouts/Pod/default/web",
            "templates/Pod/default/web/ab12",
            "scale/Pod/default/web",
            "autoscalers/default/web",
            "pods/default/web",
            "bindings/n1/default/web",
            "bindings/n1/settled",
            "settings",
            "services/default/web",
            "routes/default/web",
            "functions/default/web",
            "work/n1/builds/ab12",
            "status/n1/images/ab12",
            "work/n1/jobs/default/sum",
            "status/n1/jobs/default/sum",
            "demand/n1",
            "workflows/default/web",
            "triggers/Pod/default/web/nightly",
            "nodes/n1",
            "subnets/n1",
            "nodestate/n1",
            "heartbeats/n1",
            "status/n1/pods/default/web",
            "usage/n1",
            "rules/n1",
            "programmed",
            "requests/github-1",
            "answers/github-1",
            "outbox/source.main/nodes",
            "identities/node-n1",
            "revoked/node-n1",
            "trust",
            "authorities/ab12",
            "etcd/defrag",
            "etcd/upkeep",
        ]
    );
    assert_eq!((prefix::STATUS, prefix::LEADER), ("/minik8s/status/", "/minik8s/leader"));
}

#[test]
fn strangers_are_no_keys() {
    for text in [
        "/minik8s/",
        "/minik8s/pods/x",
        "/other/pods/a/b",
        "/minik8s/objects/Nope/a/b",
        "/minik8s/pods//x",
        "/minik8s/pods/a/b/",
        "/minik8s/leader/",
        "/minik8s/revisions/main/x",
    ] {
        assert!(text.parse::<Key>().is_err(), "{text}");
    }
}

#[test]
fn a_node_writes_only_what_names_it() {
    let role: Vec<String> = node_role("n1").iter().map(ToString::to_string).collect();
    let (write, read): (Vec<_>, Vec<_>) = role.iter().partition(|line| line.starts_with("readwrite"));
    assert_eq!(
        write,
        [
            "readwrite /minik8s/demand/n1",
            "readwrite /minik8s/events/n1/ --prefix",
            "readwrite /minik8s/heartbeats/n1",
            "readwrite /minik8s/nodes/n1",
            "readwrite /minik8s/rules/n1",
            "readwrite /minik8s/status/n1/ --prefix",
            "readwrite /minik8s/usage/n1",
        ]
    );
    assert_eq!(
        read,
        [
            "read /minik8s/bindings/n1/ --prefix",
            "read /minik8s/etcd/upkeep --prefix",
            "read /minik8s/functions/ --prefix",
            "read /minik8s/heartbeats/ --prefix",
            "read /minik8s/leader --prefix",
            "read /minik8s/nodes/ --prefix",
            "read /minik8s/programmed --prefix",
            "read /minik8s/routes/ --prefix",
            "read /minik8s/services/ --prefix",
            "read /minik8s/settings --prefix",
            "read /minik8s/subnets/ --prefix",
            "read /minik8s/trust --prefix",
            "read /minik8s/work/n1/ --prefix",
        ]
    );
}
