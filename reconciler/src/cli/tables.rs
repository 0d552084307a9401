//! Columns of each kind: those of kubectl and those specific to Minik8s.

use schema::kinds::Kind;
use schema::kinds::pod::HostPortStatus;
use schema::kinds::replica_set::IntOrPercent;
use schema::object::short_commit;
use schema::records::PlanRecord;

use super::output::{Row, TableItem};
use crate::view::{
    AutoscalerView, BudgetView, EndpointsView, EventView, FunctionView, JobView, NodeView, NotificationView,
    ObjectView, PodView, RequestView, RevisionView, RouteView, RunView, ServiceView, SourceView, TriggerView,
    WorkflowView, WorkloadView, changes, short,
};

const ENDPOINTS_SHOWN: usize = 3;

fn some(text: Option<impl ToString>) -> String {
    text.map(|text| text.to_string()).unwrap_or_default()
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

/// The first problem, and the number of others.
fn first(problems: &[String]) -> String {
    match problems {
        [first, _, ..] => format!("{first} (and {} more)", problems.len() - 1),
        all => all.concat(),
    }
}

/// Host ports as `20000->80/TCP` or `192.0.2.1:20000->80/TCP`: the node's port, then the container's.
pub(in crate::cli) fn host_ports(ports: &[HostPortStatus]) -> Vec<String> {
    let one = |port: &HostPortStatus| {
        let protocol = format!("{:?}", port.protocol).to_uppercase();
        let address = port.host_ip.map(|address| format!("{address}:")).unwrap_or_default();
        format!("{address}{}->{}/{protocol}", port.host_port, port.container_port)
    };
    ports.iter().map(one).collect()
}

impl TableItem for PodView {
    fn id(&self) -> String {
        format!("pod/{}", self.name)
    }

    fn row(&self, row: Row) -> Row {
        row.namespace(&self.namespace)
            .col("NAME", &self.name)
            .col("READY", &self.ready)
            .col("STATUS", &self.status)
            .col("RESTARTS", self.restarts)
            .col("AGE", &self.age)
            .wide("IP", some(self.pod_ip.as_ref()))
            .wide("HOST-PORTS", host_ports(&self.host_ports).join(","))
            .wide("NODE", some(self.node.as_ref()))
            .wide("COMMIT", short(&self.commit))
            .wide_cut("FILE", &self.file)
            .remark("WHY", &self.why)
    }
}

impl TableItem for NodeView {
    fn id(&self) -> String {
        format!("node/{}", self.name)
    }

    fn row(&self, row: Row) -> Row {
        row.col("NAME", &self.name)
            .col("STATUS", &self.status)
            .col("AGE", &self.age)
            .col("VERSION", &self.version)
            .col("PODS", format!("{}/{}", self.pods, self.max_pods))
            .col("CPU", format!("{}/{}", self.cpu_requested, self.cpu))
            .col("MEMORY", format!("{}/{}", self.memory_requested.readable(), self.memory.readable()))
            .wide("TAINTS", self.taints.join(","))
            .wide("ADDRESS", some(self.address))
            .wide("POD-CIDR", some(self.pod_cidr.as_ref()))
            .wide("DOCKER", &self.docker)
            .wide_cut("OS", &self.os)
            .wide_cut("KERNEL", &self.kernel)
            .wide("ARCH", &self.arch)
            .wide("AGE-RECIPIENT", some(self.age_recipient.as_ref()))
            .remark("WHY", if self.why.is_empty() { &self.drain } else { &self.why })
    }
}

impl TableItem for ServiceView {
    fn id(&self) -> String {
        format!("service/{}", self.name)
    }

    fn row(&self, row: Row) -> Row {
        let mut addresses: Vec<String> = self.external_ips.iter().map(ToString::to_string).collect();
        // An alias has no addresses; its name is shown instead, as in kubectl.
        addresses.extend(Some(self.external_name.clone()).filter(|name| !name.is_empty()));
        row.namespace(&self.namespace)
            .col("NAME", &self.name)
            .col("TYPE", &self.kind)
            .col("CLUSTER-IP", or_none(&self.cluster_ip))
            .col("EXTERNAL-IP", or_none(&addresses.join(",")))
            .col("PORT(S)", or_none(&self.ports.join(",")))
            .col("READY", format!("{}/{}", self.ready, self.ready + self.left_out as usize))
            .col("AGE", &self.age)
            .wide("HEALTH", &self.health)
            .remark("NOTE", &self.note)
    }
}

impl TableItem for EndpointsView {
    fn id(&self) -> String {
        format!("endpoints/{}", self.name)
    }

    fn row(&self, row: Row) -> Row {
        let shown = if row.shape.wide { self.endpoints.len() } else { ENDPOINTS_SHOWN };
        let mut text = self.endpoints.iter().take(shown).cloned().collect::<Vec<_>>().join(",");
        if self.endpoints.len() > shown {
            text.push_str(&format!(" + {} more...", self.endpoints.len() - shown));
        }
        row.namespace(&self.namespace)
            .col("NAME", &self.name)
            .col("ENDPOINTS", or_none(&text))
            .col("AGE", &self.age)
    }
}

impl TableItem for RouteView {
    fn id(&self) -> String {
        format!("dns/{}", self.name)
    }

    fn row(&self, row: Row) -> Row {
        row.namespace(&self.namespace)
            .col("NAME", &self.name)
            .col("HOST", &self.host)
            .col("PATHS", or_none(&self.paths.join(", ")))
            .col("HEALTH", &self.health)
            .col("AGE", &self.age)
            .remark("NOTE", &self.note)
    }
}

impl TableItem for AutoscalerView {
    fn id(&self) -> String {
        format!("horizontalpodautoscaler/{}", self.name)
    }

    fn row(&self, row: Row) -> Row {
        row.namespace(&self.namespace)
            .col("NAME", &self.name)
            .col("REFERENCE", &self.reference)
            .col("TARGETS", or_none(&self.targets.join(", ")))
            .col("MINPODS", self.min_replicas)
            .col("MAXPODS", self.max_replicas)
            .col("REPLICAS", self.replicas)
            .col("AGE", &self.age)
            .wide("WANTED", some(self.desired_replicas))
            .wide("HEALTH", &self.health)
            .remark("NOTE", &self.note)
    }
}

impl TableItem for FunctionView {
    fn id(&self) -> String {
        format!("function/{}", self.name)
    }

    fn row(&self, row: Row) -> Row {
        row.namespace(&self.namespace)
            .col("NAME", &self.name)
            .col("READY", format!("{}/{}", self.ready, self.wanted))
            .col("IN-FLIGHT", self.in_flight)
            .col("WAITING", self.waiting)
            .col("IMAGE", &self.image)
            .col("HEALTH", &self.health)
            .col("AGE", &self.age)
            .wide("SOURCE", &self.source)
            .remark("NOTE", &self.note)
    }
}

impl TableItem for WorkflowView {
    fn id(&self) -> String {
        format!("workflow/{}", self.name)
    }

    fn row(&self, row: Row) -> Row {
        let last = self.last_run.as_ref();
        row.namespace(&self.namespace)
            .col("NAME", &self.name)
            .col("RUNNING", self.running)
            .col("WAITING", self.waiting)
            .col("LAST-RUN", last.map_or("", |run| &run.id))
            .col("PHASE", last.map(|run| format!("{:?}", run.phase)).unwrap_or_default())
            .col("STATE", last.map_or("", |run| &run.state))
            .col("HEALTH", &self.health)
            .col("AGE", &self.age)
            .remark("NOTE", &self.note)
    }
}

impl TableItem for RunView {
    fn id(&self) -> String {
        format!("run/{}/{}", self.workflow, self.id)
    }

    fn row(&self, row: Row) -> Row {
        let why = if self.error.is_empty() {
            self.cause.clone()
        } else {
            format!("{}: {}", self.error, self.cause)
        };
        row.namespace(&self.namespace)
            .col("WORKFLOW", &self.workflow)
            .col("ID", &self.id)
            .col("PHASE", format!("{:?}", self.phase))
            .col("STATE", &self.state)
            .col("DURATION", &self.duration)
            .col("AGE", &self.age)
            .wide("BEGUN-BY", &self.origin)
            .remark("WHY", why.lines().next().unwrap_or_default())
    }

    fn is_named(&self, name: &str) -> bool {
        name == self.workflow || name == self.id || name == format!("{}/{}", self.workflow, self.id)
    }
}

impl TableItem for JobView {
    fn id(&self) -> String {
        format!("job/{}", self.name)
    }

    fn row(&self, row: Row) -> Row {
        row.namespace(&self.namespace)
            .col("NAME", &self.name)
            .col("PHASE", &self.phase)
            .col("SLURM", some(self.slurm_id))
            .col("ELAPSED", &self.elapsed)
            .col("NODES", &self.nodes)
            .col("AGE", &self.age)
            .wide("LOGIN", &self.login)
            .wide("NODE", some(self.node.as_deref()))
            .remark("REASON", &self.reason)
    }
}

impl TableItem for TriggerView {
    fn id(&self) -> String {
        format!("trigger/{}/{}", self.object, self.name)
    }

    fn row(&self, row: Row) -> Row {
        let last = self.last.as_ref();
        let missed = match (self.skipped, last.map_or(0, |last| last.missed)) {
            (0, 0) => String::new(),
            (0, 1) => "the last run also covers a missed time".to_owned(),
            (0, missed) => format!("the last run also covers {missed} missed times"),
            (1, _) => "1 time was missed since the last run".to_owned(),
            (skipped, _) => format!("{skipped} times were missed since the last run"),
        };
        row.namespace(&self.namespace)
            .col("NAME", &self.name)
            .col("OBJECT", &self.object)
            .col("STARTS-ON", self.starts_on())
            .col("LAST", self.last_at().map(|last| last.to_string()).unwrap_or_default())
            .col("NEXT", self.next.map(|next| next.to_string()).unwrap_or_default())
            .wide("LAST-RUN", last.map_or("", |last| &last.run))
            .remark("NOTE", missed)
    }

    fn is_named(&self, name: &str) -> bool {
        name == self.name || name == format!("{}/{}", self.object, self.name)
    }
}

impl TableItem for ObjectView {
    fn id(&self) -> String {
        format!("{}/{}", self.kind.as_str().to_lowercase(), self.name)
    }

    fn row(&self, row: Row) -> Row {
        match self.kind {
            Kind::ReplicaSet if !row.shape.kinds => return workload(self, row),
            Kind::DaemonSet if !row.shape.kinds => return daemon_set(self, row),
            Kind::PodDisruptionBudget if !row.shape.kinds => return disruption_budget(self, row),
            _ => {}
        }
        let name = if row.shape.kinds { self.id() } else { self.name.clone() };
        let labels = self.labels.iter().map(|(key, value)| format!("{key}={value}"));
        row.namespace(if self.kind.is_cluster_scoped() { "" } else { &self.namespace })
            .col("NAME", name)
            .col("HEALTH", &self.health)
            .col("SOURCE", &self.source)
            .col("COMMIT", short(&self.commit))
            .cut("FILE", format!("{}:{}", self.file, self.line))
            .col("AGE", &self.age)
            .wide_cut("AUTHOR", &self.author)
            .wide_cut("LABELS", labels.collect::<Vec<_>>().join(","))
            .remark("NOTE", &self.note)
    }
}

/// Row of a workload, with the columns that kubectl shows for a Deployment.
fn workload(object: &ObjectView, row: Row) -> Row {
    let WorkloadView { status, .. } = WorkloadView::from_status(&object.status);
    row.namespace(&object.namespace)
        .col("NAME", &object.name)
        .col("READY", format!("{}/{}", status.ready_replicas, status.desired_replicas))
        .col("UP-TO-DATE", status.updated_replicas)
        .col("AVAILABLE", status.available_replicas)
        .col("HEALTH", &object.health)
        .col("AGE", &object.age)
        .wide("SOURCE", &object.source)
        .wide("COMMIT", short(&object.commit))
        .wide_cut("FILE", format!("{}:{}", object.file, object.line))
        .remark("NOTE", &object.note)
}

/// Row of a DaemonSet, with the columns of kubectl and its health.
fn daemon_set(object: &ObjectView, row: Row) -> Row {
    let WorkloadView { status, node_selector, .. } = WorkloadView::from_status(&object.status);
    let labels: Vec<String> = node_selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    row.namespace(&object.namespace)
        .col("NAME", &object.name)
        .col("DESIRED", status.desired_replicas)
        .col("CURRENT", status.replicas)
        .col("READY", status.ready_replicas)
        .col("UP-TO-DATE", status.updated_replicas)
        .col("AVAILABLE", status.available_replicas)
        .col("NODE SELECTOR", or_none(&labels.join(",")))
        .col("HEALTH", &object.health)
        .col("AGE", &object.age)
        .wide("SOURCE", &object.source)
        .wide("COMMIT", short(&object.commit))
        .wide_cut("FILE", format!("{}:{}", object.file, object.line))
        .remark("NOTE", &object.note)
}

/// Row of a PodDisruptionBudget, with the columns of kubectl.
fn disruption_budget(object: &ObjectView, row: Row) -> Row {
    let BudgetView { min_available, max_unavailable, status } = BudgetView::from_status(&object.status);
    let amount = |amount: Option<IntOrPercent>| amount.map_or("N/A".to_owned(), |amount| amount.to_string());
    row.namespace(&object.namespace)
        .col("NAME", &object.name)
        .col("MIN AVAILABLE", amount(min_available))
        .col("MAX UNAVAILABLE", amount(max_unavailable))
        .col("ALLOWED DISRUPTIONS", status.disruptions_allowed)
        .col("AGE", &object.age)
        .wide("CURRENT", status.current_healthy)
        .wide("DESIRED", status.desired_healthy)
        .wide("EXPECTED", status.expected_pods)
        .remark("NOTE", status.trouble())
}

impl TableItem for SourceView {
    fn id(&self) -> String {
        format!("source/{}", self.status.name)
    }

    fn row(&self, row: Row) -> Row {
        let status = &self.status;
        row.col("NAME", &status.name)
            .col("STATE", format!("{:?}", status.state))
            .col("COMMIT", some(status.applied_commit.as_deref().map(short)))
            .cut("AUTHOR", &self.author)
            .col("OBJECTS", status.objects)
            .col("AGE", &self.age)
            .wide("OBSERVED", some(status.observed_commit.as_deref().map(short)))
            .wide("FOLLOWS", &status.reference)
            .wide_cut("URL", &status.url)
            .wide_cut("PATH", &status.path)
            .remark("WHY", first(&self.problems))
    }
}

impl TableItem for RevisionView {
    fn id(&self) -> String {
        format!("revision/{}/{}", self.revision.source, self.revision.sequence)
    }

    /// Matches the number of the revision or the first digits of its commit.
    fn is_named(&self, name: &str) -> bool {
        self.revision.sequence.to_string() == name
            || name.len() >= 4 && self.revision.commit.starts_with(name)
    }

    fn row(&self, row: Row) -> Row {
        let revision = &self.revision;
        row.col("REVISION", revision.sequence)
            .col("COMMIT", short(&revision.commit))
            .col("VERDICT", &self.status)
            .col("CHANGES", changes(&revision.counts))
            .col("PLAN", plan(revision.plan.as_ref()))
            .col("AGE", &self.age)
            .cut("AUTHOR", &revision.author)
            .cut("SUBJECT", &revision.subject)
            .wide("SOURCE", &revision.source)
            .wide("TOOK", format!("{}ms", revision.duration_ms))
            .remark("WHY", &self.why)
    }
}

/// Comparison of the applied plan with the reviewed one; empty if no review is known.
fn plan(plan: Option<&PlanRecord>) -> &'static str {
    match plan.and_then(|plan| plan.matches) {
        Some(true) => "as reviewed",
        Some(false) => "differs",
        None => "",
    }
}

impl TableItem for RequestView {
    fn id(&self) -> String {
        format!("request/{}", self.request.id)
    }

    fn row(&self, row: Row) -> Row {
        let request = &self.request;
        let commit = self.answer.as_ref().and_then(|answer| answer.commit.as_deref());
        row.col("ID", &request.id)
            .col("PROVIDER", request.provider)
            .col("EVENT", &request.event)
            .col("SOURCE", &request.source)
            .col("AGE", &self.age)
            .col("OUTCOME", &self.status)
            .col("COMMIT", some(commit.map(short)))
            .wide("TOOK", some(self.took_ms.map(|took| format!("{took}ms"))))
            .wide("REPEATS", request.repeats)
            .wide("BY", &request.by)
            .wide("PEER", &request.peer)
            .wide_cut("REPOSITORY", some(request.repository.as_ref()))
            .wide_cut("REF", some(request.reference.as_ref()))
            .remark("WHY", &self.why)
    }
}

impl TableItem for NotificationView {
    fn id(&self) -> String {
        format!("notification/{}/{}", self.target, self.subject)
    }

    fn row(&self, row: Row) -> Row {
        row.col("TARGET", &self.target)
            .cut("SUBJECT", shown_subject(&self.subject))
            .col("STATE", &self.state)
            .cut("MESSAGE", &self.message.title)
            .col("SENT", some(self.sent.as_ref()))
            .col("WAITING", some(self.waiting.as_ref()))
            .wide("EVENT", self.message.event.as_str())
            .wide("COMMIT", some(self.message.commit.as_deref().map(short)))
            .remark("ERROR", &self.error)
    }

    /// Matches all messages of a target, or one of them by `TARGET/SUBJECT`, also as the table shows it.
    fn is_named(&self, name: &str) -> bool {
        let subjects = [self.subject.clone(), shown_subject(&self.subject)];
        name == self.target || subjects.iter().any(|subject| name == format!("{}/{subject}", self.target))
    }
}

/// The subject of a message, with a commit's id shortened.
fn shown_subject(subject: &str) -> String {
    let commit = subject.strip_prefix("commit.").map(|id| format!("commit.{}", short_commit(id)));
    commit.unwrap_or_else(|| subject.to_owned())
}

impl TableItem for EventView {
    fn id(&self) -> String {
        format!("{}/{}", self.event.object_kind.to_lowercase(), self.event.name)
    }

    fn row(&self, row: Row) -> Row {
        let event = &self.event;
        row.namespace(&event.namespace)
            .col("LAST SEEN", &self.age)
            .col("TYPE", format!("{:?}", event.kind))
            .col("REASON", &event.reason)
            .col("OBJECT", self.id())
            .wide("FROM", &event.reporter)
            .cut("MESSAGE", &event.message)
    }
}
