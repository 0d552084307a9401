//! The cluster as a tree: sources, their objects, what runs for them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schema::kinds::Kind;
use schema::kinds::pod::{ContainerState, ContainerStatus};
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::PodInstance;
use schema::snapshot::Snapshot;
use schema::violation::plural;
use serde::{Deserialize, Serialize};

use super::functions::functions;
use super::jobs::jobs;
use super::objects::{ObjectView, Selection, object, objects, rows_of};
use super::pods::{PodView, pods, pods_where};
use super::sources::sources;
use super::workflows::workflows;

/// Maximum number of children that a node of the tree shows.
const CHILDREN_MAX: usize = 100;

/// A node of the tree.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TreeNode {
    /// `Kind/namespace/name` of an object or pod, `Source/name`, `container/name`, `run/id`.
    pub id: String,
    /// State as one word, as in the lists of `minik8s get`.
    pub state: String,
    /// More about the state, or the reason for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<TreeNode>,
    /// Children that are left out.
    #[serde(default)]
    pub more: usize,
}

/// Returns the selected objects with what runs for them, below their sources.
pub fn tree(snapshot: &Snapshot, selection: &Selection<'_>, now: Timestamp) -> Vec<TreeNode> {
    let mut by_source: BTreeMap<String, Vec<TreeNode>> = BTreeMap::new();
    let rows = objects(snapshot, selection, now);
    let pods = pods(snapshot, selection.namespace, now);
    for (source, node) in object_nodes(snapshot, selection, (rows, pods), now) {
        by_source.entry(source).or_default().push(node);
    }
    let mut out = Vec::new();
    for source in sources(snapshot, now) {
        let children = by_source.remove(&source.status.name).unwrap_or_default();
        let node = TreeNode {
            id: format!("Source/{}", source.status.name),
            state: format!("{:?}", source.status.state),
            note: source.problems.first().cloned().unwrap_or_default(),
            ..TreeNode::default()
        };
        out.push(node.with(children));
    }
    // Objects of a source whose status is gone.
    let rest = by_source.into_iter().map(|(name, children)| {
        TreeNode { id: format!("Source/{name}"), ..TreeNode::default() }.with(children)
    });
    out.extend(rest);
    if selection.kind.is_some() || selection.namespace.is_some() || selection.labels.is_some() {
        out.retain(|source| !source.children.is_empty());
    }
    out
}

/// Returns one object, or one pod, with what runs for it.
pub fn subtree(snapshot: &Snapshot, id: &ObjectRef, now: Timestamp) -> Option<TreeNode> {
    let selection = Selection { kind: Some(id.kind), namespace: Some(&id.namespace), ..Selection::default() };
    let is_owned = |pod: &PodInstance| {
        let itself = id.kind == Kind::Pod && pod.name == id.name;
        pod.namespace == id.namespace && (itself || pod.owner.kind == id.kind && pod.owner.name == id.name)
    };
    let desired = snapshot.pods.values().map(|pod| &pod.value);
    let bound = snapshot.bindings.values().map(|binding| &binding.value.pod);
    let owned: BTreeSet<NamespacedName> =
        desired.chain(bound).filter(|pod| is_owned(pod)).map(PodInstance::reference).collect();
    let is_itself =
        |pod: &NamespacedName| id.kind == Kind::Pod && pod.namespace == id.namespace && pod.name == id.name;
    let pods = pods_where(snapshot, |pod| owned.contains(pod) || is_itself(pod), now);
    match object(snapshot, id, now) {
        Some(found) => {
            let rows = vec![found.row];
            object_nodes(snapshot, &selection, (rows, pods), now).pop().map(|(_, node)| node)
        }
        None => {
            let pod = pods.iter().find(|pod| id.kind == Kind::Pod && pod.name == id.name)?;
            Some(pod_node(snapshot, pod))
        }
    }
}

/// Returns these objects with what runs for them, in their order: the first pods of each, as a page of a list has room
/// for some only.
pub fn branches(snapshot: &Snapshot, ids: &[ObjectRef], pods_max: usize, now: Timestamp) -> Vec<TreeNode> {
    let mut left: BTreeMap<(Kind, &str, &str), usize> = BTreeMap::new();
    left.extend(ids.iter().map(|id| ((id.kind, id.namespace.as_str(), id.name.as_str()), pods_max)));
    let mut more: BTreeMap<(Kind, &str, &str), usize> = BTreeMap::new();
    let mut named = BTreeSet::new();
    for (name, pod) in &snapshot.pods {
        let owner = &pod.value.owner;
        let owner = (owner.kind, name.namespace.as_str(), owner.name.as_str());
        match left.get_mut(&owner) {
            Some(0) => *more.entry(owner).or_default() += 1,
            Some(left) => {
                *left -= 1;
                named.insert(name);
            }
            None => {}
        }
    }
    let pods = pods_where(snapshot, |pod| named.contains(pod), now);
    let rows = rows_of(snapshot, ids, now);
    let nodes = object_nodes(snapshot, &Selection::default(), (rows, pods), now).into_iter();
    let nodes = nodes.zip(ids).map(|((_, node), id)| {
        let more = more.get(&(id.kind, id.namespace.as_str(), id.name.as_str())).copied().unwrap_or_default();
        TreeNode { more: node.more + more, ..node }
    });
    nodes.collect()
}

/// Returns the nodes of these objects, some of those selected, each with the name of its source. `pods` are theirs.
fn object_nodes(
    snapshot: &Snapshot,
    selection: &Selection<'_>,
    (rows, pods): (Vec<ObjectView>, Vec<PodView>),
    now: Timestamp,
) -> Vec<(String, TreeNode)> {
    let mut owned: BTreeMap<(String, String), Vec<PodView>> = BTreeMap::new();
    for pod in pods {
        owned.entry((pod.namespace.clone(), pod.owner.clone())).or_default().push(pod);
    }
    let facts = special_facts(snapshot, selection, now);
    let nodes = rows.into_iter().map(|object| {
        let id =
            ObjectRef { kind: object.kind, namespace: object.namespace.clone(), name: object.name.clone() };
        let pods =
            owned.remove(&(object.namespace.clone(), format!("{}/{}", object.kind.as_str(), object.name)));
        let pods = pods.unwrap_or_default();
        let node = object_node(&object, &id, facts.get(&id));
        let is_itself = |pod: &PodView| object.kind == Kind::Pod && pod.name == object.name;
        let children = match pods.as_slice() {
            // A bare pod is its own object: its containers are the next level.
            [only] if is_itself(only) => container_nodes(snapshot, only),
            all => all.iter().map(|pod| pod_node(snapshot, pod)).collect(),
        };
        let children = [facts.get(&id).map(|facts| facts.1.clone()).unwrap_or_default(), children].concat();
        (object.source, node.with(children))
    });
    nodes.collect()
}

fn object_node(object: &ObjectView, id: &ObjectRef, facts: Option<&(String, Vec<TreeNode>)>) -> TreeNode {
    let fact = facts.map(|(note, _)| note.as_str()).filter(|note| !note.is_empty());
    let all = fact.into_iter().chain(Some(object.note.as_str()).filter(|note| !note.is_empty()));
    TreeNode {
        id: id.to_string(),
        state: object.health.clone(),
        note: all.collect::<Vec<_>>().join("; "),
        ..TreeNode::default()
    }
}

/// Returns notes and children that only some kinds have: calls of functions, runs of workflows, phases of jobs.
fn special_facts(
    snapshot: &Snapshot,
    selection: &Selection<'_>,
    now: Timestamp,
) -> BTreeMap<ObjectRef, (String, Vec<TreeNode>)> {
    let id = |kind: Kind, namespace: &str, name: &str| ObjectRef {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let mut out = BTreeMap::new();
    for one in functions(snapshot, selection, now) {
        let calls = one.in_flight + one.waiting;
        let note = format!(
            "{}/{} replicas, {calls} calls under way, {:.1} calls/s",
            one.ready, one.wanted, one.calls_per_second
        );
        out.insert(id(Kind::Function, &one.namespace, &one.name), (note, Vec::new()));
    }
    for one in workflows(snapshot, selection, now) {
        let note = format!("{} runs under way, {} waiting", one.running, one.waiting);
        let last = one.last_run.as_ref().map(|run| TreeNode {
            id: format!("run/{}", run.id),
            state: format!("{:?}", run.phase),
            note: "started by the last push".to_owned(),
            ..TreeNode::default()
        });
        let runs = last.into_iter().collect();
        out.insert(id(Kind::Workflow, &one.namespace, &one.name), (note, runs));
    }
    for one in jobs(snapshot, selection, now) {
        let slurm = one.slurm_id.map(|id| format!(", Slurm job {id}")).unwrap_or_default();
        let note = format!("{}{slurm}", one.phase);
        out.insert(id(Kind::Job, &one.namespace, &one.name), (note, Vec::new()));
    }
    out
}

fn pod_node(snapshot: &Snapshot, pod: &PodView) -> TreeNode {
    let on = pod.node.as_ref().map(|node| format!("on {node}"));
    let why = Some(pod.why.clone()).filter(|why| !why.is_empty());
    let node = TreeNode {
        id: format!("Pod/{}/{}", pod.namespace, pod.name),
        state: pod.status.clone(),
        note: on.into_iter().chain(why).collect::<Vec<_>>().join("; "),
        ..TreeNode::default()
    };
    node.with(container_nodes(snapshot, pod))
}

fn container_nodes(snapshot: &Snapshot, pod: &PodView) -> Vec<TreeNode> {
    let Some(node) = &pod.node else { return Vec::new() };
    let key = (node.clone(), NamespacedName::new(&pod.namespace, &pod.name));
    let Some(status) = snapshot.pod_status.get(&key).filter(|status| status.value.uid == pod.uid) else {
        return Vec::new();
    };
    let status = &status.value;
    status.init_container_statuses.iter().chain(&status.container_statuses).map(container_node).collect()
}

fn container_node(container: &ContainerStatus) -> TreeNode {
    let (state, note) = match &container.state {
        ContainerState::Running(_) => ("Running".to_owned(), String::new()),
        ContainerState::Waiting(waiting) => (waiting.reason.clone(), waiting.message.clone()),
        ContainerState::Terminated(end) => (end.reason.clone(), format!("exit code {}", end.exit_code)),
    };
    let restarts = (container.restart_count > 0).then(|| plural(container.restart_count, "restart"));
    let note = [container.image.clone(), note].into_iter().chain(restarts);
    TreeNode {
        id: format!("container/{}", container.name),
        state,
        note: note.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; "),
        ..TreeNode::default()
    }
}

impl TreeNode {
    fn with(self, mut children: Vec<TreeNode>) -> Self {
        let more = children.len().saturating_sub(CHILDREN_MAX);
        // Healthy children are left out first.
        if more > 0 {
            children.sort_by_key(|child| is_well(&child.state));
            children.truncate(CHILDREN_MAX);
        }
        Self { children, more, ..self }
    }
}

/// True for the states of objects, pods, sources, nodes and commits that need no attention.
pub fn is_well(state: &str) -> bool {
    let well = ["Healthy", "Good", "Running", "Completed", "Synced", "Ready", "Succeeded"];
    well.contains(&state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::*;

    fn drawn(nodes: &[TreeNode], indent: usize) -> String {
        let each = nodes.iter().map(|node| {
            let more = if node.more > 0 { format!(" +{}", node.more) } else { String::new() };
            format!(
                "{}{} {} ({}){more}\n{}",
                "  ".repeat(indent),
                node.id,
                node.state,
                node.note,
                drawn(&node.children, indent + 1)
            )
        });
        each.collect()
    }

    #[test]
    fn objects_are_below_their_source_and_pods_below_their_objects() {
        let mut snapshot = snapshot();
        let pod = put_pod(&mut snapshot, "web", running());
        let whole = tree(&snapshot, &Selection::default(), at(100));
        insta::assert_snapshot!(drawn(&whole, 0), @r"
        Source/main Synced ()
          Pod/default/web Healthy ()
            container/app Running (app:1)
        ");
        let id = ObjectRef { kind: Kind::Pod, namespace: pod.namespace, name: pod.name };
        assert_eq!(subtree(&snapshot, &id, at(100)).as_ref(), whole[0].children.first());
        assert_eq!(subtree(&snapshot, &ObjectRef { name: "none".to_owned(), ..id }, at(100)), None);
        let elsewhere = Selection { namespace: Some("shop"), ..Selection::default() };
        assert!(tree(&snapshot, &elsewhere, at(100)).is_empty());
    }

    #[test]
    fn of_too_many_children_those_that_need_help_stay() {
        let child = |number: usize| TreeNode {
            id: number.to_string(),
            state: if number == 150 { "Degraded" } else { "Healthy" }.to_owned(),
            ..TreeNode::default()
        };
        let node = TreeNode::default().with((0..200).map(child).collect());
        assert_eq!(
            (node.children.len(), node.more, node.children[0].id.as_str()),
            (CHILDREN_MAX, 100, "150")
        );
    }
}
