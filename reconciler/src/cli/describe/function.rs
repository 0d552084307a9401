//! Page of a function: replicas, image, rollout and recent errors.

use jiff::Timestamp;
use schema::kinds::function::ImageState;
use schema::records::{CallFailure, FunctionImage, RegistryCopy};

use super::page::{Page, pairs};
use super::workflow::trigger_line;
use crate::cli::error::CliError;
use crate::cli::output::{Detail, Screen, yaml};
use crate::view::{FunctionDetail, FunctionRevision, FunctionView, age, short};

impl Detail for FunctionDetail {
    type Row = FunctionView;
    const PLURAL: &str = "functions";

    fn row(&self) -> &FunctionView {
        &self.row
    }

    fn page(&self, screen: Screen, now: Timestamp) -> Result<String, CliError> {
        function_page(self, screen, now)
    }
}

fn function_page(function: &FunctionDetail, screen: Screen, now: Timestamp) -> Result<String, CliError> {
    let mut page = Page::default();
    let row = &function.row;
    page.field(0, "Name", &row.name);
    page.field(0, "Namespace", &row.namespace);
    page.field(0, "Called at", &function.called_at());
    page.state("Health", &row.health, screen);
    page.field(0, "Note", &row.note);
    page.field(0, "Source", &row.source);
    page.fields(0, "Images", function.images.iter().map(image));
    page.field(0, "Replicas", &format!("{} ready, {} wanted", row.ready, row.wanted));
    let replicas = function.replicas.iter();
    page.fields(0, "At", replicas.map(|one| format!("{} on {}, {}", one.address, one.node, one.pod)));
    page.field(0, "Calls", &format!("{} in flight, {} waiting", row.in_flight, row.waiting));
    let failures = function.failures.iter();
    page.fields(
        0,
        "Last errors",
        failures.map(|one| {
            let CallFailure { kind, message, count, last } = one;
            format!("{kind}: {message} ({count} times, the last {} ago)", age(*last, now))
        }),
    );
    page.fields(0, "Revisions", function.revisions.iter().map(revision));
    let steps = function.steps.iter();
    page.fields(0, "Rollout", steps.map(|step| format!("{} ago: {}", age(step.at, now), step.message)));
    page.fields(0, "Triggers", function.triggers.iter().map(trigger_line));
    page.field(0, "Age", &row.age);
    page.field(0, "Set by", &function.set_by);
    page.field(0, "Commit", &function.commit);
    page.fields(0, "Labels", pairs(&row.labels));
    page.fields(0, "Annotations", pairs(&function.annotations));
    page.block("Spec:", &yaml(&function.spec)?);
    page.events(&function.events, screen, now);
    Ok(page.text())
}

fn revision(revision: &FunctionRevision) -> String {
    let FunctionRevision { version, commit, image, pods, state } = revision;
    let version = if version.is_empty() { String::new() } else { format!("{version}: ") };
    let pods = if *pods == 1 { "1 pod".to_owned() } else { format!("{pods} pods") };
    format!("{version}{state}, {pods}, commit {}, image {image}", short(commit))
}

fn image(image: &FunctionImage) -> String {
    let state = match &image.state {
        ImageState::Waiting => "waiting for a node to build it".to_owned(),
        ImageState::Building { node } => format!("being built on node {node}"),
        ImageState::Ready if image.nodes.is_empty() => "pulled from its registry".to_owned(),
        ImageState::Ready => format!("on {}", image.nodes.join(", ")),
        ImageState::Failed { .. } => {
            "can't be built, see Note and 'minik8s logs function/NAME --build'".to_owned()
        }
    };
    let registry = match &image.registry {
        None => String::new(),
        Some(RegistryCopy::Pushed { digest }) => format!(", in the registry as {digest}"),
        Some(RegistryCopy::Failed { why }) => format!(", not in the registry: {why}"),
    };
    format!("{}: {state}{registry}", image.reference)
}

#[cfg(test)]
mod tests {
    use schema::kinds::Kind;
    use schema::meta::NamespacedName;
    use schema::records::{NodeDemand, OwnerRef, Rollout};
    use schema::snapshot::Snapshot;

    use super::*;
    use crate::view::testing::*;

    fn put_replica(snapshot: &mut Snapshot, name: &str, hash: char, commit: &str) {
        let object = put_object(snapshot, name, commit);
        let mut pod = put_instance(snapshot, &object);
        pod.owner = OwnerRef { kind: Kind::Function, name: "hello".to_owned() };
        pod.hash = hash.to_string().repeat(64);
        snapshot.pods.insert(NamespacedName::new("default", name), versioned(pod));
    }

    // Seen red without the errors, and without the revisions.
    #[test]
    fn the_page_has_the_last_errors_of_all_nodes_and_the_versions_that_run() {
        let mut snapshot = snapshot();
        put_replica(&mut snapshot, "hello-1", 'a', C1);
        put_replica(&mut snapshot, "hello-2", 'a', C1);
        put_replica(&mut snapshot, "hello-3", 'b', C2);
        let object = put_function(&mut snapshot, "hello");
        let rollout: Rollout = serde_json::from_value(serde_json::json!({
            "objectHash": object.hash, "commit": C2, "wanted": "b".repeat(64),
            "startedAt": at(60), "progressedAt": at(60), "best": {"updated": 0, "available": 0, "old": 0}, "status": {},
        }))
        .unwrap();
        snapshot.rollouts.insert(object.reference(), versioned(rollout));
        let failure = |kind: &str, message: &str, count, last| CallFailure {
            kind: kind.to_owned(),
            message: message.to_owned(),
            count,
            last: at(last),
        };
        let of_nodes = [
            ("n1", vec![failure("ValueError", "no name", 2, 70)]),
            (
                "n2",
                vec![failure("Timeout", "it took too long", 1, 75), failure("ValueError", "no name", 3, 90)],
            ),
        ];
        for (node, failures) in of_nodes {
            let failures = [("default/hello".to_owned(), failures)].into();
            let (functions, beats) = Default::default();
            let demand = NodeDemand { at: None, since: at(0), functions, beats, failures };
            snapshot.demand.insert(node.to_owned(), versioned(demand));
        }
        let id = NamespacedName::new("default", "hello");
        let detail = crate::view::function(&snapshot, &id, Vec::new(), at(100)).unwrap();
        let page = function_page(&detail, Screen { width: None, color: false }, at(100)).unwrap();
        let lines: Vec<&str> =
            page.lines().skip_while(|line| !line.starts_with("Calls:")).skip(1).take(4).collect();
        insta::assert_snapshot!(lines.join("\n"), @r"
        Last errors:   ValueError: no name (5 times, the last 10s ago)
                       Timeout: it took too long (1 times, the last 25s ago)
        Revisions:     bbbbbbbb: newest, 1 pod, commit 2222222, image app:1
                       aaaaaaaa: before, 2 pods, commit 1111111, image app:1
        ");
    }
}
