//! Workflows whose state machine is another file of the repository, and case files next to a workflow in a plan.

use schema::kinds::Resource;
use schema::records::SourceState;
use schema::violation::rules;

use crate::gitops::offline::compare;
use crate::gitops::review::{markdown, text};
use crate::gitops::tests::kit::{Cluster, Repo, merge_of, pods};

const FLOW: &str = "apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {name: order, namespace: shop}\nspec:\n  \
                    definitionPath: ./flows/order.asl.json\n  params: {n: 1}\n";

fn machine(next: &str) -> String {
    format!(
        "{{\n  \"StartAt\": \"a\",\n  \"States\": {{\n    \"a\": {{\"Type\": \"Pass\", \"Next\": \"{next}\"}},\n    \"b\": \
         {{\"Type\": \"Succeed\"}}\n  }}\n}}\n"
    )
}

fn repo() -> Repo {
    let mut repo = Repo::new(pods(["a"]));
    repo.set("apps/order.yaml", FLOW).set("flows/order.asl.json", machine("b"));
    repo.commit("A workflow and its definition");
    repo
}

// Seen red without `with_definitions` when a commit is read.
#[tokio::test]
async fn the_definition_is_the_other_file_whatever_becomes_of_it() {
    let mut repo = repo();
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let spec = |resource: Resource| match resource {
        Resource::Workflow(spec) => spec,
        other => panic!("{other:?}"),
    };
    let first = cluster.objects().await.remove("order").unwrap();
    assert_eq!((spec(first.resource.clone()).states.len(), first.generation), (2, 1));

    repo.set("flows/order.asl.json", machine("b").replace("\"a\"", "\"first\""));
    repo.commit("Only the definition");
    cluster.settle().await;
    let second = cluster.objects().await.remove("order").unwrap();
    assert_ne!(second.hash, first.hash);
    assert_eq!(spec(second.resource.clone()).start_at, "first");

    repo.set("flows/order.asl.json", machine("c"));
    repo.commit("It leads nowhere");
    cluster.settle().await;
    let status = cluster.status().await;
    assert_eq!(status.state, SourceState::Degraded);
    let [quarantined] = &status.quarantined[..] else { panic!("{:?}", status.quarantined) };
    assert_eq!(quarantined.file, "apps/order.yaml");
    let reported: Vec<_> =
        quarantined.violations.iter().map(|v| (v.file.as_str(), v.line, v.rule.as_str())).collect();
    assert!(reported.contains(&("flows/order.asl.json", 4, rules::NOT_FOUND.id)), "{reported:?}");
    assert_eq!(cluster.objects().await["order"].hash, second.hash, "it stays as it was");

    repo.remove("flows/order.asl.json");
    repo.commit("It is gone");
    cluster.settle().await;
    let status = cluster.status().await;
    let [violation] = &status.quarantined[0].violations[..] else { panic!("{status:?}") };
    assert_eq!((violation.rule.as_str(), violation.line), (rules::REPO_FILE.id, 5));

    repo.set("flows/order.asl.json", machine("b"));
    repo.commit("It is back");
    cluster.settle().await;
    assert_eq!(cluster.objects().await["order"].hash, first.hash);
}

#[test]
fn a_plan_says_which_cases_beside_a_workflow_hold() {
    let mut repo = repo();
    let base = repo.commit("Base");
    let cases =
        "cases:\n- {name: all is well, output: {n: 1}}\n- {name: two, output: {n: 2}}\n- {path: [a, b]}\n";
    repo.set("apps/order.tests.yaml", cases).set("flows/order.asl.json", machine("b") + "\n");
    let head = repo.commit("Cases");
    let review = compare(&merge_of(&repo.path(), &base, &head)).unwrap();
    let said = text(&review, false);
    assert!(said.contains("workflow tests: 2 of 3 cases pass"), "{said}");
    let failing = "FAIL Workflow/shop/order case two: expected output {\"n\":2}, found {\"n\":1}";
    assert!(said.contains(failing), "{said}");
    let comment = markdown(&review);
    let (top, _) = comment.split_once("| create |").unwrap();
    assert!(top.contains("1 of 3 cases of workflow tests fail") && top.contains(failing), "{comment}");
    assert!(comment.contains("2 of 3 cases of workflow tests pass"), "{comment}");
    assert!(comment.contains("pass Workflow/shop/order case all is well"), "{comment}");
}
