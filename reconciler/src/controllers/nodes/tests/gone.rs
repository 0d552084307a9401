//! Cleanup of a node whose Node object Git marks as gone.

use jiff::Timestamp;
use schema::keys::Key;
use schema::kinds::metadata::GONE_ANNOTATION;
use schema::kinds::node::NodeSpec;
use schema::kinds::pod::PodPhase;
use schema::records::RulesStatus;
use schema::testing::{SnapshotBuilder, instance, object_of, spec};

use crate::controllers::Controller as _;
use crate::controllers::nodes::Nodes;
use crate::controllers::testing::{ApplyPlan as _, seen};

/// Three nodes, with `n1` marked as gone in Git.
fn with_gone_node() -> SnapshotBuilder {
    let mut object = object_of("n1", NodeSpec::default());
    object.metadata.annotations.insert(GONE_ANNOTATION.into(), "true".into());
    SnapshotBuilder::new().nodes(3).object(&object)
}

/// Planned steps for `n1`.
fn planned(builder: &SnapshotBuilder) -> Vec<String> {
    let plan = Nodes::plan(&seen(&builder.snapshot), Timestamp::UNIX_EPOCH).to_string();
    plan.lines().filter(|line| line.contains("n1")).map(str::to_owned).collect()
}

fn settled(builder: SnapshotBuilder) -> SnapshotBuilder {
    let plan = Nodes::plan(&seen(&builder.snapshot), Timestamp::UNIX_EPOCH);
    builder.after(&plan)
}

// Seen red with a `delete` that does not check for bindings.
#[test]
fn all_keys_of_a_gone_node_are_deleted_its_range_once_nothing_is_bound_to_it() {
    let web = instance("web", spec(1, 1));
    let builder = settled(with_gone_node())
        .put(&Key::Rules("n1".into()), &RulesStatus::default())
        .bound("n1", &web)
        .status("n1", &web, PodPhase::Running)
        .delete(&Key::Heartbeat("n1".into()));
    let keys = |lines: Vec<String>| {
        let key = |line: &String| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        lines.iter().map(key).collect::<Vec<_>>()
    };
    assert_eq!(
        keys(planned(&builder)),
        ["delete nodes/n1", "delete nodestate/n1", "delete rules/n1", "delete status/n1/pods/default/web"]
    );
    let builder = settled(builder);
    assert_eq!(planned(&builder), [""; 0], "its range stays while a pod is bound to it");
    let builder = builder.delete(&Key::Binding("n1".into(), web.reference()));
    assert_eq!(keys(planned(&builder)), ["delete subnets/n1"]);
    assert_eq!(planned(&settled(builder)), [""; 0]);
}

// Seen red without the check of the heartbeat.
#[test]
fn a_gone_node_that_beats_keeps_its_keys() {
    let builder = settled(with_gone_node());
    assert_eq!(
        planned(&builder),
        [
            "note Node/n1 GoneButAlive: Git marks the node as gone, but its agent is alive; stop it, or remove \
          the annotation"
        ]
    );
}

#[test]
fn how_a_node_fared_that_left_by_itself_is_forgotten() {
    let builder = settled(SnapshotBuilder::new().nodes(1));
    let builder = builder.delete(&Key::Node("n1".into()));
    assert_eq!(planned(&builder), [""; 0], "its agent is alive");
    let builder = builder.delete(&Key::Heartbeat("n1".into()));
    let [line] = &planned(&builder)[..] else { panic!("one line") };
    assert!(line.starts_with("delete nodestate/n1 if at"), "{line}");
}
