//! Pages of objects. Kinds with a page of their own implement [`Detail`]; others share one page.

use jiff::Timestamp;
use schema::kinds::Kind;
use schema::kinds::dns::DnsSpec;
use schema::meta::DEFAULT_NAMESPACE;

use super::containers;
use super::page::{Page, indented, pairs};
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::logs::results::{line, unfetched};
use crate::cli::output::{Detail, Layout, Screen, TableOptions, column, cuttable, table, yaml};
use crate::cli::tables::host_ports;
use crate::view::{
    EndpointView, JobDetail, JobView, NodeDetail, NodeRules, ObjectDetail, PodDetail, PodView, ServiceDetail,
    ServiceView,
};

/// Adds the status of a kind to the page of an object.
pub(in crate::cli) type Sections = fn(&mut Page, &ObjectDetail, (Screen, Timestamp));

/// The object to describe.
pub(in crate::cli) struct Subject<'a> {
    pub(in crate::cli) client: &'a Client,
    pub(in crate::cli) kind: Kind,
    pub(in crate::cli) namespace: &'a str,
    pub(in crate::cli) name: &'a str,
    pub(in crate::cli) screen: Screen,
    pub(in crate::cli) now: Timestamp,
}

impl Subject<'_> {
    /// Returns the page of an object whose kind has a page of its own.
    pub(in crate::cli) async fn own<D: Detail>(&self) -> Result<String, CliError> {
        let detail: D = self.client.get(&[D::PLURAL, self.namespace, self.name], &[]).await?;
        detail.page(self.screen, self.now)
    }

    /// Returns the page of any other object; `status` adds what its kind reports.
    pub(in crate::cli) async fn object(&self, status: Sections) -> Result<String, CliError> {
        let path = ["objects", self.kind.as_str(), self.namespace, self.name];
        object_page(&self.client.get(&path, &[]).await?, status, (self.screen, self.now))
    }

    /// Returns the page of a node.
    pub(in crate::cli) async fn node(&self) -> Result<String, CliError> {
        match self.client.get::<NodeDetail>(&["nodes", self.name], &[]).await {
            Ok(detail) => Ok(node_page(&detail, self.screen, self.now)),
            // No agent of this name has registered yet: show the object from Git.
            Err(error) if error.is_not_found() => {
                let wanted = Subject { namespace: DEFAULT_NAMESPACE, ..*self };
                let page = wanted.object(|_, _, _| ()).await;
                page.map_err(|second| if second.is_not_found() { error } else { second })
            }
            Err(error) => Err(error),
        }
    }
}

/// Page of an object: the common fields, plus the status of some kinds.
fn object_page(
    object: &ObjectDetail,
    status: Sections,
    (screen, now): (Screen, Timestamp),
) -> Result<String, CliError> {
    let mut page = Page::default();
    let row = &object.row;
    page.field(0, "Name", &row.name);
    if !row.kind.is_cluster_scoped() {
        page.field(0, "Namespace", &row.namespace);
    }
    page.field(0, "Kind", &format!("{} ({})", row.kind, object.api_version));
    page.state("Health", &row.health, screen);
    page.field(0, "Note", &row.note);
    page.field(0, "Age", &row.age);
    page.field(0, "Set by", &format!("{}:{} of source {}", row.file, row.line, row.source));
    page.field(0, "Commit", &format!("{} by {}", row.commit, row.author));
    page.field(0, "Generation", &object.generation.to_string());
    page.field(0, "Hash", &object.hash);
    page.fields(0, "Labels", pairs(&row.labels));
    page.fields(0, "Annotations", pairs(&object.annotations));
    page.fields(0, "Used by", object.used_by.iter().cloned());
    status(&mut page, object, (screen, now));
    page.block("Spec:", &yaml(&object.spec)?);
    Ok(page.text())
}

/// Adds the paths of a host.
pub(in crate::cli) fn host(page: &mut Page, object: &ObjectDetail, _: (Screen, Timestamp)) {
    if let Ok(dns) = serde_json::from_value::<DnsSpec>(object.spec.clone()) {
        let paths = dns.paths.iter().map(|path| format!("{} leads to {}", path.path, path.in_words()));
        page.fields(0, "Paths", paths);
    }
}

impl Detail for PodDetail {
    type Row = PodView;
    const PLURAL: &str = "pods";

    fn row(&self) -> &PodView {
        &self.row
    }

    fn page(&self, screen: Screen, now: Timestamp) -> Result<String, CliError> {
        Ok(pod_page(self, screen, now))
    }
}

pub(in crate::cli) fn pod_page(pod: &PodDetail, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let row = &pod.row;
    page.field(0, "Name", &row.name);
    page.field(0, "Namespace", &row.namespace);
    page.state("Status", &row.status, screen);
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
        None => page.field(0, "Set by", "no longer in a manifest"),
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
    page.text()
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

pub(in crate::cli) fn node_page(node: &NodeDetail, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let row = &node.row;
    page.field(0, "Name", &row.name);
    page.state("Status", &row.status, screen);
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
    if let (Some(requested), Some(all)) = (row.gpus_requested, row.gpus) {
        page.field(0, "GPUs", &format!("{requested} requested of {all}"));
    }
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
    page.drawn_table("Pod list:", &text);
    page.text()
}

// Page of a service: addresses, endpoints, pods left out with the reason, and the nodes that programmed it.

impl Detail for ServiceDetail {
    type Row = ServiceView;
    const PLURAL: &str = "services";

    fn row(&self) -> &ServiceView {
        &self.row
    }

    fn page(&self, screen: Screen, now: Timestamp) -> Result<String, CliError> {
        Ok(service_page(self, screen, now))
    }
}

pub(in crate::cli) fn service_page(service: &ServiceDetail, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let row = &service.row;
    page.field(0, "Name", &row.name);
    page.field(0, "Namespace", &row.namespace);
    page.field(0, "Type", &row.kind);
    page.state("Health", &row.health, screen);
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
    let endpoint = |one: &EndpointView| vec![one.addresses.join(","), one.pod.clone(), one.node.clone()];
    let endpoints: Vec<_> = service.endpoints.iter().map(endpoint).collect();
    if service.selects_nobody() {
        let why = format!("none: no pod in namespace {} matches the selector", row.namespace);
        page.block("Endpoints:", &why);
    } else if endpoints.is_empty() {
        page.block("Endpoints:", "none");
    }
    page.table("Endpoints:", &[column("ADDRESS"), column("POD"), column("NODE")], &endpoints, screen);
    let left: Vec<_> = service.not_ready.iter().map(|one| vec![one.pod.clone(), one.why.clone()]).collect();
    page.table("Left out:", &[column("POD"), cuttable("WHY")], &left, screen);
    let row = |one: &NodeRules| vec![one.node.clone(), one.age.clone(), one.state.clone()];
    let rules: Vec<_> = service.nodes.iter().map(row).collect();
    let columns = [column("NODE"), column("LAST PROGRAMMED"), cuttable("STATE")];
    page.table("Rules:", &columns, &rules, screen);
    page.events(&service.events, screen, now);
    page.text()
}

// Page of a Slurm job: state, result files and script.

impl Detail for JobDetail {
    type Row = JobView;
    const PLURAL: &str = "jobs";

    fn row(&self) -> &JobView {
        &self.row
    }

    fn page(&self, screen: Screen, now: Timestamp) -> Result<String, CliError> {
        Ok(job_page(self, screen, now))
    }
}

pub(in crate::cli) fn job_page(job: &JobDetail, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let row = &job.row;
    page.field(0, "Name", &row.name);
    page.field(0, "Namespace", &row.namespace);
    page.state("Phase", &row.phase, screen);
    page.field(0, "Reason", &row.reason);
    page.state("Health", &row.health, screen);
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
        page.field(0, "Derived exit", status.derived_exit_code.as_deref().unwrap_or_default());
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
    page.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen red with `selects_nobody` always false.
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
        let says = |page: String| page.contains("no pod in namespace default matches the selector");
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
