//! `minik8s describe`: one object in full, as a page.

mod containers;
mod function;
mod page;
mod workflow;
mod workloads;

use jiff::Timestamp;
use schema::kinds::Kind;
use schema::kinds::dns::DnsSpec;
use schema::meta::DEFAULT_NAMESPACE;

use super::client::Client;
use super::error::CliError;
use super::logs::results::{line, unfetched};
use super::print::output::{
    Layout, Screen, TableItem as _, TableOptions, column, cuttable, format_rows, table, write_out, yaml,
};
use super::print::tables::host_ports;
use crate::args::{DescribeArgs, PageFormat, ResourceKind};
use crate::kinds;
use crate::view::{
    JobDetail, KindPage, List, NodeDetail, NodeRules, ObjectDetail, PodDetail, PodView, RevisionView,
    RunDetail, ServiceDetail, TriggerView, WaitState, WorkflowDetail, WorkloadView, mermaid,
};
use page::{Page, indented, pairs};

pub(super) async fn run(args: &DescribeArgs) -> Result<(), CliError> {
    let client = Client::new(&args.server.server)?;
    let name = match (&args.resource.name, &args.name) {
        (Some(name), None) | (None, Some(name)) => name,
        (Some(_), Some(second)) => {
            return Err(CliError::Usage(format!("two names are given; leave out {second}")));
        }
        (None, None) => {
            let kind = args.resource.kind.singular();
            return Err(CliError::Usage(format!("a name is missing; write {kind}/NAME")));
        }
    };
    let (screen, now) = (Screen::stdout(), Timestamp::now());
    if args.output == PageFormat::Mermaid {
        if args.resource.kind != ResourceKind::Object(Kind::Workflow) {
            return Err(CliError::Usage("only workflows have a flowchart; leave out -o mermaid".to_owned()));
        }
        let detail: WorkflowDetail = client.get(&["workflows", &args.namespace, name], &[]).await?;
        return write_out(&mermaid(&detail.spec));
    }
    match args.resource.kind {
        ResourceKind::Object(kind) => object(&client, kind, &args.namespace, name, (screen, now)).await,
        ResourceKind::Run => {
            let Some((workflow, id)) = name.split_once('/') else {
                return Err(CliError::Usage(format!("write run/WORKFLOW/{name}; see 'minik8s get runs'")));
            };
            let run: RunDetail = client.get(&["runs", &args.namespace, workflow, id], &[]).await?;
            write_out(&workflow::run_page(&run, screen))
        }
        ResourceKind::Trigger => {
            let query = [("namespace", args.namespace.as_str())];
            let List { items } = client.get::<List<TriggerView>>(&["triggers"], &query).await?;
            let found: Vec<_> = items.iter().filter(|trigger| trigger.is_named(name)).collect();
            if found.is_empty() {
                return Err(CliError::NotFound(format!(
                    "trigger {name} not found; see 'minik8s get triggers'"
                )));
            }
            found.into_iter().try_for_each(|trigger| write_out(&workflow::trigger_page(trigger)))
        }
        ResourceKind::Revision => {
            let List { items } = client.get::<List<RevisionView>>(&["history"], &[]).await?;
            let row = one_revision(&items, name)?;
            let undecided = match row.revision.decided_at {
                Some(_) => String::new(),
                None => {
                    let commit = [("commit", row.revision.commit.as_str())];
                    undecided_reason(&client.get(&["wait-state"], &commit).await?)
                }
            };
            write_out(&revision_page(row, &undecided, screen))
        }
        kind => {
            let (kind, plural) = (kind.singular(), kind.plural());
            Err(CliError::Usage(format!("no page for a {kind}; see 'minik8s get {plural} -o yaml'")))
        }
    }
}

async fn object(
    client: &Client,
    kind: Kind,
    namespace: &str,
    name: &str,
    (screen, now): (Screen, Timestamp),
) -> Result<(), CliError> {
    let of = |plural: &'static str| [plural, namespace, name];
    let page = match kinds::descriptor(kind).page {
        KindPage::Pod => pod_page(&client.get(&of("pods"), &[]).await?, screen, now),
        KindPage::Node => {
            let path = ["objects", Kind::Node.as_str(), DEFAULT_NAMESPACE, name];
            match client.get::<NodeDetail>(&["nodes", name], &[]).await {
                Ok(detail) => node_page(&detail, screen, now),
                // No agent of this name has registered yet: show the object from Git.
                Err(error) if error.is_not_found() => match client.get::<ObjectDetail>(&path, &[]).await {
                    Ok(wanted) => object_page(&wanted, KindPage::Object, (screen, now))?,
                    Err(second) => return Err(if second.is_not_found() { error } else { second }),
                },
                Err(error) => return Err(error),
            }
        }
        KindPage::Service => service_page(&client.get(&of("services"), &[]).await?, screen, now),
        KindPage::Autoscaler => {
            workloads::autoscaler_page(&client.get(&of("autoscalers"), &[]).await?, screen, now)
        }
        KindPage::Function => {
            function::function_page(&client.get(&of("functions"), &[]).await?, screen, now)?
        }
        KindPage::Workflow => {
            workflow::workflow_page(&client.get(&of("workflows"), &[]).await?, screen, now)?
        }
        KindPage::Job => job_page(&client.get(&of("jobs"), &[]).await?, screen, now),
        page @ (KindPage::Host | KindPage::Workload | KindPage::Object) => {
            let path = ["objects", kind.as_str(), namespace, name];
            object_page(&client.get(&path, &[]).await?, page, (screen, now))?
        }
    };
    write_out(&page)
}

/// Finds a revision by name, as accepted by `get revision NAME`, or by `SOURCE/NUMBER`.
fn one_revision<'a>(all: &'a [RevisionView], name: &str) -> Result<&'a RevisionView, CliError> {
    let is_it = |row: &&RevisionView| {
        let full = || format!("{}/{}", row.revision.source, row.revision.sequence);
        row.is_named(name) || full() == name
    };
    let mut found = all.iter().filter(is_it);
    let first = found
        .next()
        .ok_or_else(|| CliError::NotFound(format!("revision {name} not found; see 'minik8s history'")))?;
    // A branch may return to an old commit: the newest revision counts.
    match found.find(|other| other.revision.source != first.revision.source) {
        None => Ok(first),
        Some(other) => {
            let [one, two] = [first, other].map(|row| (&row.revision.source, row.revision.sequence));
            let why = format!(
                "{name} is a revision of several sources; write revision/{}/{} or revision/{}/{}",
                one.0, one.1, two.0, two.1
            );
            Err(CliError::Usage(why))
        }
    }
}

/// Reason that a commit has no verdict yet.
fn undecided_reason(state: &WaitState) -> String {
    match state.why.as_str() {
        "" => "not yet: its objects are healthy, and must stay so for a moment".to_owned(),
        why => format!("not yet: {why}"),
    }
}

/// Page of a revision. `undecided` is the reason for a missing verdict.
pub(super) fn revision_page(row: &RevisionView, undecided: &str, screen: Screen) -> String {
    let mut page = Page::default();
    let revision = &row.revision;
    page.field(0, "Revision", &revision.sequence.to_string());
    page.field(0, "Source", &revision.source);
    page.field(0, "Commit", &revision.commit);
    page.field(0, "Author", &revision.author);
    page.field(0, "Subject", &revision.subject);
    page.field(0, "Committed", &revision.committed_at.to_string());
    page.field(
        0,
        "Applied",
        &format!("{}, {} ago, in {}ms", revision.applied_at, row.age, revision.duration_ms),
    );
    page.field(0, "Status", &screen.paint(&row.status));
    page.field(0, "Why", &row.why);
    let decided = revision.decided_at.map(|at| at.to_string());
    page.field(0, "Decided", decided.as_deref().unwrap_or(undecided));
    let counts = &revision.counts;
    let counts = [
        (counts.create, "created"),
        (counts.update, "updated"),
        (counts.replace, "replaced"),
        (counts.delete, "removed"),
        (counts.unchanged, "unchanged"),
        (counts.waiting, "waiting"),
        (counts.held, "held"),
        (counts.quarantined, "files quarantined"),
    ];
    page.fields(0, "Changes", counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    if let Some(plan) = &revision.plan {
        page.field(0, "Plan", &plan.hash);
        page.field(0, "Reviewed", plan.reviewed.as_deref().unwrap_or_default());
    }
    page.0
}

/// Page of an object: the common fields, plus the status of some kinds.
fn object_page(
    object: &ObjectDetail,
    kind: KindPage,
    (screen, now): (Screen, Timestamp),
) -> Result<String, CliError> {
    let mut page = Page::default();
    let row = &object.row;
    page.field(0, "Name", &row.name);
    if !row.kind.is_cluster_scoped() {
        page.field(0, "Namespace", &row.namespace);
    }
    page.field(0, "Kind", &format!("{} ({})", row.kind, object.api_version));
    page.field(0, "Health", &screen.paint(&row.health));
    page.field(0, "Note", &row.note);
    page.field(0, "Age", &row.age);
    page.field(0, "Set by", &format!("{}:{} of source {}", row.file, row.line, row.source));
    page.field(0, "Commit", &format!("{} by {}", row.commit, row.author));
    page.field(0, "Generation", &object.generation.to_string());
    page.field(0, "Hash", &object.hash);
    page.fields(0, "Labels", pairs(&row.labels));
    page.fields(0, "Annotations", pairs(&object.annotations));
    page.fields(0, "Used by", object.used_by.iter().cloned());
    if kind == KindPage::Workload {
        workloads::sections(&mut page, &WorkloadView::from_status(&row.status), screen, now);
    }
    if let (KindPage::Host, Ok(dns)) = (kind, serde_json::from_value::<DnsSpec>(object.spec.clone())) {
        let paths = dns.paths.iter().map(|path| format!("{} leads to {}", path.path, path.in_words()));
        page.fields(0, "Paths", paths);
    }
    page.block("Spec:", &yaml(&object.spec)?);
    Ok(page.0)
}

pub(super) fn pod_page(pod: &PodDetail, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let row = &pod.row;
    page.field(0, "Name", &row.name);
    page.field(0, "Namespace", &row.namespace);
    page.field(0, "Status", &screen.paint(&row.status));
    page.field(0, "Why", &row.why);
    page.field(0, "Ready", &row.ready);
    page.field(0, "Age", &row.age);
    let host = pod.host_ip.as_ref().map(|ip| format!(" ({ip})")).unwrap_or_default();
    let node = row.node.as_ref().map(|node| format!("{node}{host}")).unwrap_or_default();
    page.field(0, "Node", &node);
    page.field(0, "Chosen for", &pod.binding_reason);
    page.field(0, "IP", row.pod_ip.as_deref().unwrap_or_default());
    page.fields(0, "Host ports", host_ports(&row.host_ports));
    page.field(0, "Uses", &uses(pod));
    page.field(0, "Owner", &row.owner);
    match &pod.provenance {
        Some(from) => {
            page.field(0, "Set by", &from.set_by());
            page.field(0, "Commit", &from.commit_by());
        }
        None => page.field(0, "Set by", "no manifest any more"),
    }
    let grace = pod.spec.as_ref().map(|spec| format!("{} s", spec.termination_grace_period_seconds));
    page.field(0, "Grace period", &grace.unwrap_or_default());
    page.field(0, "Hash", &pod.hash);
    page.field(0, "UID", &row.uid);
    page.fields(0, "Labels", pairs(&pod.labels));
    page.fields(0, "Annotations", pairs(&pod.annotations));
    containers::containers(&mut page, pod, now);
    containers::volumes(&mut page, pod);
    page.conditions(&pod.conditions, screen, now);
    page.events(&pod.events, screen, now);
    page.0
}

fn uses(pod: &PodDetail) -> String {
    let (used, why) = (&pod.usage.total, &pod.usage.why);
    match (used.cpu, used.memory) {
        (Some(cpu), Some(bytes)) => {
            let remark = if why.is_empty() { String::new() } else { format!(" ({why})") };
            format!("cpu {}m, memory {}, {} ago{remark}", cpu.millis, bytes.readable(), pod.usage.sample_age)
        }
        _ => String::new(),
    }
}

pub(super) fn node_page(node: &NodeDetail, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let row = &node.row;
    page.field(0, "Name", &row.name);
    page.field(0, "Status", &screen.paint(&row.status));
    page.field(0, "Why", &row.why);
    page.field(0, "Age", &row.age);
    page.fields(0, "Addresses", node.addresses.iter().map(ToString::to_string));
    page.field(0, "Pod CIDR", row.pod_cidr.as_deref().unwrap_or_default());
    page.field(0, "Agent", &format!("{} at {}", row.version, node.api));
    page.field(0, "Age recipient", row.age_recipient.as_deref().unwrap_or_default());
    page.field(0, "Cluster recipient", row.cluster_recipient.as_deref().unwrap_or_default());
    page.field(0, "Docker", &row.docker);
    page.field(0, "System", &format!("{}, Linux {}, {}", row.os, row.kernel, row.arch));
    page.field(0, "Pods", &format!("{} of {}", row.pods, row.max_pods));
    page.field(0, "CPU", &format!("{} requested of {}", row.cpu_requested, row.cpu));
    let (requested, all) = (row.memory_requested.readable(), row.memory.readable());
    page.field(0, "Memory", &format!("{requested} requested of {all}"));
    page.fields(0, "Labels", pairs(&row.labels));
    page.fields(0, "Taints", row.taints.iter().cloned());
    page.field(0, "Drain", &row.drain);
    page.conditions(&node.conditions, screen, now);
    let pods: Vec<&PodView> = node.pod_list.iter().collect();
    let text = table(
        &pods,
        TableOptions { wide: false, namespaces: true, ..TableOptions::default() },
        indented(screen),
        &mut Layout::default(),
    );
    page.block("Pod list:", &text);
    page.0
}

// Page of a service: addresses, endpoints, pods left out with the reason, and the nodes that programmed it.

pub(in crate::cli) fn service_page(service: &ServiceDetail, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let row = &service.row;
    page.field(0, "Name", &row.name);
    page.field(0, "Namespace", &row.namespace);
    page.field(0, "Type", &row.kind);
    page.field(0, "Health", &screen.paint(&row.health));
    page.field(0, "Note", &row.note);
    page.field(0, "Cluster IP", &row.cluster_ip);
    page.fields(0, "External IPs", row.external_ips.iter().map(ToString::to_string));
    page.field(0, "External name", &row.external_name);
    page.fields(0, "Ports", row.ports.iter().cloned());
    page.field(0, "Age", &row.age);
    page.field(0, "Set by", &service.set_by);
    page.field(0, "Commit", &service.commit);
    page.fields(0, "Selector", pairs(&service.selector));
    page.fields(0, "Labels", pairs(&row.labels));
    page.fields(0, "Annotations", pairs(&service.annotations));
    let block = |columns: &[_], rows: Vec<Vec<String>>| match rows.is_empty() {
        true => "none".to_owned(),
        false => format_rows(columns, &rows, indented(screen), &mut Layout::default()),
    };
    let endpoints = service
        .endpoints
        .iter()
        .map(|one| vec![one.addresses.join(","), one.pod.clone(), one.node.clone()])
        .collect();
    let columns = [column("ADDRESS"), column("POD"), column("NODE")];
    let endpoints = match selector_matches_no_pod(service) {
        true => format!("none: no pod of namespace {} has the labels of the selector", row.namespace),
        false => block(&columns, endpoints),
    };
    page.block("Endpoints:", &endpoints);
    if !service.not_ready.is_empty() {
        let left = service.not_ready.iter().map(|one| vec![one.pod.clone(), one.why.clone()]).collect();
        page.block("Left out:", &block(&[column("POD"), cuttable("WHY")], left));
    }
    if !service.nodes.is_empty() {
        let row = |one: &NodeRules| vec![one.node.clone(), one.age.clone(), one.state.clone()];
        let columns = [column("NODE"), column("LAST PROGRAMMED"), cuttable("STATE")];
        page.block("Rules:", &block(&columns, service.nodes.iter().map(row).collect()));
    }
    page.events(&service.events, screen, now);
    page.0
}

/// True if the service has no endpoints because no pod has the labels of its selector.
fn selector_matches_no_pod(service: &ServiceDetail) -> bool {
    !service.selector.is_empty()
        && service.row.external_name.is_empty()
        && service.endpoints.is_empty()
        && service.not_ready.is_empty()
}

// Page of a Slurm job: state, result files and script.

pub(in crate::cli) fn job_page(job: &JobDetail, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let row = &job.row;
    page.field(0, "Name", &row.name);
    page.field(0, "Namespace", &row.namespace);
    page.field(0, "Phase", &screen.paint(&row.phase));
    page.field(0, "Reason", &row.reason);
    page.field(0, "Health", &screen.paint(&row.health));
    page.field(0, "Elapsed", &row.elapsed);
    page.field(0, "Login", &row.login);
    page.field(0, "Node", row.node.as_deref().unwrap_or_default());
    if let Some(report) = &job.report {
        let status = &report.status;
        let number = status.slurm_id.map(|number| format!("{number}, {}", report.slurm_name));
        page.field(0, "Slurm job", &number.unwrap_or_default());
        page.field(0, "Slurm state", &status.state);
        page.field(0, "Attempt", &status.attempt.to_string());
        page.field(0, "Submitted", status.submitted.as_deref().unwrap_or_default());
        page.field(0, "Slurm nodes", &status.nodes);
        page.fields(0, "Tasks", status.tasks.iter().map(|(word, count)| format!("{count} {word}")));
        page.field(0, "Exit code", status.exit_code.as_deref().unwrap_or_default());
        page.field(0, "Of a step", status.derived_exit_code.as_deref().unwrap_or_default());
        page.fields(0, "Results", report.results.iter().map(line).chain(unfetched(report)));
        page.field(0, "Folder", &report.folder);
    }
    page.field(0, "Age", &row.age);
    page.field(0, "Set by", &job.set_by);
    page.field(0, "Commit", &job.commit);
    page.fields(0, "Labels", pairs(&row.labels));
    page.fields(0, "Annotations", pairs(&job.annotations));
    page.block("Script:", &job.script);
    page.events(&job.events, screen, now);
    page.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::ServiceView;

    // Seen red with `nobody_is_selected` always false.
    #[test]
    fn the_page_says_that_no_pod_has_the_labels_and_only_then() {
        let page = |selector: serde_json::Value, left_out: &[&str]| {
            let left: Vec<_> = left_out
                .iter()
                .map(|pod| serde_json::json!({"pod": pod, "why": "it is not ready"}))
                .collect();
            let service: ServiceDetail = serde_json::from_value(serde_json::json!({
                "namespace": "default", "name": "web", "type": "ClusterIP", "clusterIP": "10.96.0.20",
                "externalIPs": [], "ports": ["80/TCP"], "ready": 0, "leftOut": left.len(), "health": "Healthy",
                "note": "", "age": "5m", "labels": {}, "selector": selector, "endpoints": [], "notReady": left,
                "nodes": [], "setBy": "", "commit": "", "annotations": {}, "events": [],
            }))
            .unwrap();
            service_page(&service, Screen { width: None, color: false }, Timestamp::UNIX_EPOCH)
        };
        let says = |page: String| page.contains("no pod of namespace default has the labels of the selector");
        assert!(says(page(serde_json::json!({"app": "web"}), &[])));
        assert!(!says(page(serde_json::json!({"app": "web"}), &["web-1"])), "one is left out");
        assert!(!says(page(serde_json::json!({}), &[])), "its addresses are given");
    }

    #[test]
    fn the_page_says_which_node_has_programmed_it_and_when() {
        let node = |node: &str, age: &str, state: &str| NodeRules {
            node: node.to_owned(),
            state: state.to_owned(),
            programmed_at: None,
            age: age.to_owned(),
        };
        let row: ServiceView = serde_json::from_value(serde_json::json!({
            "namespace": "default", "name": "web", "type": "ClusterIP", "clusterIP": "10.96.0.20",
            "externalIPs": [], "ports": ["80/TCP"], "ready": 0, "leftOut": 0, "health": "Healthy",
            "note": "", "age": "5m", "labels": {},
        }))
        .unwrap();
        let service = ServiceDetail {
            row,
            selector: Default::default(),
            endpoints: Vec::new(),
            not_ready: Vec::new(),
            nodes: vec![node("n1", "12s", "programmed"), node("n22", "", "nothing yet")],
            set_by: String::new(),
            commit: String::new(),
            annotations: Default::default(),
            events: Vec::new(),
        };
        let page = service_page(&service, Screen { width: None, color: false }, Timestamp::UNIX_EPOCH);
        let rules = page.split_once("Rules:\n").unwrap().1.split_once("Events:").unwrap().0;
        insta::assert_snapshot!(rules, @r"
        NODE   LAST PROGRAMMED   STATE
        n1     12s               programmed
        n22    -                 nothing yet
        ");
    }
}
