//! `minik8s tree`: sources, their objects, and what runs for them.

use std::time::Duration;

use schema::meta::DEFAULT_NAMESPACE;
use schema::violation::visible;

use super::client::Client;
use super::error::CliError;
use super::output::{Screen, json, watch, write_out, yaml};
use crate::args::{Format, Resource, ResourceKind, TreeArgs};
use crate::view::{List, Selector, TreeNode};

/// Interval of `-w`.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Branches of a child that others follow, and of the last child; the same below them.
const BRANCHES: [(&str, &str); 2] = [("├─ ", "│  "), ("└─ ", "   ")];

pub(super) async fn run(args: &TreeArgs) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    let format = args.output.output;
    if format == Format::Name {
        return Err(CliError::Usage("a tree has no list of names; write -o table, json or yaml".to_owned()));
    }
    if args.watch {
        return watch(format, WATCH_EVERY, async || Ok(page(&fetch(&client, args).await?, Screen::stdout())))
            .await;
    }
    let nodes = fetch(&client, args).await?;
    match (format, nodes.as_slice()) {
        (Format::Json, [only]) if args.object.is_some() => write_out(&json(only)?),
        (Format::Yaml, [only]) if args.object.is_some() => write_out(&yaml(only)?),
        (Format::Json, _) => write_out(&json(&List { items: nodes })?),
        (Format::Yaml, _) => write_out(&yaml(&List { items: nodes })?),
        _ => write_out(&page(&nodes, Screen::stdout())),
    }
}

async fn fetch(client: &Client, args: &TreeArgs) -> Result<Vec<TreeNode>, CliError> {
    match &args.object {
        None => {
            let selector = args.selector.as_ref().map(Selector::as_str);
            let all = [("namespace", args.namespace.as_deref()), ("selector", selector)];
            let query: Vec<_> = all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
            Ok(client.get::<List<TreeNode>>(&["tree"], &query).await?.items)
        }
        Some(Resource { kind: ResourceKind::Object(kind), name: Some(name) }) => {
            let namespace = args.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
            Ok(vec![client.get(&["tree", kind.as_str(), namespace, name], &[]).await?])
        }
        Some(_) => Err(CliError::Usage("write KIND/NAME of an object or a pod, or nothing".to_owned())),
    }
}

fn page(nodes: &[TreeNode], screen: Screen) -> String {
    let mut lines = Vec::new();
    for node in nodes {
        lines.push(line(node, "", screen));
        below(node, "", screen, &mut lines);
    }
    lines.concat()
}

fn below(node: &TreeNode, indent: &str, screen: Screen, lines: &mut Vec<String>) {
    let count = node.children.len() + usize::from(node.more > 0);
    for (position, child) in node.children.iter().enumerate() {
        let (branch, space) = BRANCHES[usize::from(position + 1 == count)];
        lines.push(line(child, &format!("{indent}{branch}"), screen));
        below(child, &format!("{indent}{space}"), screen, lines);
    }
    if node.more > 0 {
        lines.push(format!("{indent}{}and {} more\n", BRANCHES[1].0, node.more));
    }
}

fn line(node: &TreeNode, indent: &str, screen: Screen) -> String {
    let state = if node.state.is_empty() {
        String::new()
    } else {
        format!("  {}", screen.paint(&visible(&node.state)))
    };
    let note = if node.note.is_empty() {
        String::new()
    } else {
        format!("  {}", visible(&node.note.replace('\n', " ")))
    };
    format!("{indent}{}{state}{note}\n", visible(&node.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, state: &str, children: Vec<TreeNode>) -> TreeNode {
        TreeNode { id: id.to_owned(), state: state.to_owned(), children, ..TreeNode::default() }
    }

    #[test]
    fn branches_lead_to_each_child_and_hostile_text_stays_one_line() {
        let hostile =
            TreeNode { note: "one\ntwo\u{1b}[31m".to_owned(), ..node("Pod/default/b", "Error", vec![]) };
        let web = node(
            "ReplicaSet/default/web",
            "Healthy",
            vec![node("Pod/default/a", "Running", vec![]), hostile],
        );
        let more = TreeNode { more: 3, ..node("Source/main", "Synced", vec![web]) };
        let screen = Screen { width: None, color: false };
        insta::assert_snapshot!(page(&[more], screen), @r"
        Source/main  Synced
        ├─ ReplicaSet/default/web  Healthy
        │  ├─ Pod/default/a  Running
        │  └─ Pod/default/b  Error  one two\u{1b}[31m
        └─ and 3 more
        ");
    }
}
