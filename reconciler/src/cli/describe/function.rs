//! The page of a function: its replicas, its image, its rollout, and what is wrong with it.

use jiff::Timestamp;
use schema::kinds::function::ImageState;
use schema::records::{CallFailure, FunctionImage, RegistryCopy};

use super::page::{Page, pairs};
use super::workflow::trigger_line;
use crate::cli::error::CliError;
use crate::cli::print::output::{Screen, yaml};
use crate::view::{FunctionDetail, FunctionRevision, age, short};

pub(in crate::cli) fn function_page(
    function: &FunctionDetail,
    screen: Screen,
    now: Timestamp,
) -> Result<String, CliError> {
    let mut page = Page::default();
    let row = &function.row;
    page.field(0, "Name", &row.name);
    page.field(0, "Namespace", &row.namespace);
    page.field(0, "Called at", &format!("POST http://<any node>:8081{}", function.path));
    page.field(0, "Health", &screen.paint(&row.health));
    page.field(0, "Note", &row.note);
    page.field(0, "Source", &row.source);
    page.fields(0, "Images", function.images.iter().map(image));
    page.field(0, "Replicas", &format!("{} ready, {} wanted", row.ready, row.wanted));
    let replicas = function.replicas.iter();
    page.fields(0, "At", replicas.map(|one| format!("{} on {}, {}", one.address, one.node, one.pod)));
    page.field(0, "Calls", &format!("{} at replicas, {} waiting", row.in_flight, row.waiting));
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
    Ok(page.0)
}

fn revision(revision: &FunctionRevision) -> String {
    let FunctionRevision { version, commit, image, pods, state } = revision;
    let version = if version.is_empty() { String::new() } else { format!("{version}: ") };
    let pods = if *pods == 1 { "1 pod".to_owned() } else { format!("{pods} pods") };
    format!("{version}{state}, {pods}, commit {}, image {image}", short(commit))
}

fn image(image: &FunctionImage) -> String {
    let state = match &image.state {
        ImageState::Waiting => "waits for a node that builds it".to_owned(),
        ImageState::Building { node } => format!("node {node} builds it"),
        ImageState::Ready if image.nodes.is_empty() => "is pulled from its registry".to_owned(),
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
