//! The columns of each kind: kubectl's, and what only Minik8s knows.

use schema::kinds::pod::HostPortStatus;
use schema::records::{ChangeCounts, PlanRecord};

use super::output::{Column, Listed, Shape, column, cuttable};
use crate::view::{
    DeliveryView, EndpointsView, EventView, NodeView, ObjectView, PodView, RevisionView, RouteView,
    ServiceView, SourceView, short,
};

type Cells = Vec<(Column, String)>;

fn some(text: Option<impl ToString>) -> String {
    text.map(|text| text.to_string()).unwrap_or_default()
}

/// `20000->80/TCP` each: the node's port, and the container's that it leads to.
pub(in crate::cli) fn host_ports(ports: &[HostPortStatus]) -> Vec<String> {
    let one = |port: &HostPortStatus| {
        let protocol = format!("{:?}", port.protocol).to_uppercase();
        format!("{}->{}/{protocol}", port.host_port, port.container_port)
    };
    ports.iter().map(one).collect()
}

impl Listed for PodView {
    fn id(&self) -> String {
        format!("pod/{}", self.name)
    }

    fn cells(&self, shape: Shape) -> Cells {
        let mut cells = Cells::new();
        if shape.namespaces {
            cells.push((column("NAMESPACE"), self.namespace.clone()));
        }
        cells.extend([
            (column("NAME"), self.name.clone()),
            (column("READY"), self.ready.clone()),
            (column("STATUS"), self.status.clone()),
            (column("RESTARTS"), self.restarts.to_string()),
            (column("AGE"), self.age.clone()),
        ]);
        if shape.wide {
            cells.extend([
                (column("IP"), some(self.pod_ip.as_ref())),
                (column("HOST-PORTS"), host_ports(&self.host_ports).join(",")),
                (column("NODE"), some(self.node.as_ref())),
                (column("COMMIT"), short(&self.commit).to_owned()),
                (cuttable("FILE"), self.file.clone()),
            ]);
        }
        cells
    }

    fn remark(&self) -> (Column, String) {
        (cuttable("WHY"), self.why.clone())
    }
}

impl Listed for NodeView {
    fn id(&self) -> String {
        format!("node/{}", self.name)
    }

    fn cells(&self, shape: Shape) -> Cells {
        let mut cells = vec![
            (column("NAME"), self.name.clone()),
            (column("STATUS"), self.status.clone()),
            (column("AGE"), self.age.clone()),
            (column("VERSION"), self.version.clone()),
            (column("PODS"), format!("{}/{}", self.pods, self.max_pods)),
            (column("CPU"), format!("{}/{}", self.cpu_requested, self.cpu)),
            (column("MEMORY"), format!("{}/{}", self.memory_requested.readable(), self.memory.readable())),
        ];
        if shape.wide {
            cells.extend([
                (column("ADDRESS"), some(self.address)),
                (column("POD-CIDR"), some(self.pod_cidr.as_ref())),
                (column("DOCKER"), self.docker.clone()),
                (cuttable("OS"), self.os.clone()),
                (cuttable("KERNEL"), self.kernel.clone()),
                (column("ARCH"), self.arch.clone()),
                (column("AGE-RECIPIENT"), some(self.age_recipient.as_ref())),
            ]);
        }
        cells
    }

    fn remark(&self) -> (Column, String) {
        (cuttable("WHY"), self.why.clone())
    }
}

impl Listed for ServiceView {
    fn id(&self) -> String {
        format!("service/{}", self.name)
    }

    fn cells(&self, shape: Shape) -> Cells {
        let mut cells = of_namespace(shape, &self.namespace);
        let mut addresses: Vec<String> = self.external_ips.iter().map(ToString::to_string).collect();
        // An alias has no addresses; its name stands here, as kubectl shows it.
        addresses.extend(Some(self.external_name.clone()).filter(|name| !name.is_empty()));
        cells.extend([
            (column("NAME"), self.name.clone()),
            (column("TYPE"), self.kind.clone()),
            (column("CLUSTER-IP"), or_none(&self.cluster_ip)),
            (column("EXTERNAL-IP"), or_none(&addresses.join(","))),
            (column("PORT(S)"), or_none(&self.ports.join(","))),
            (column("READY"), format!("{}/{}", self.ready, self.ready + self.left_out as usize)),
            (column("AGE"), self.age.clone()),
        ]);
        if shape.wide {
            cells.push((column("HEALTH"), self.health.clone()));
        }
        cells
    }

    fn remark(&self) -> (Column, String) {
        (cuttable("NOTE"), self.note.clone())
    }
}

impl Listed for EndpointsView {
    fn id(&self) -> String {
        format!("endpoints/{}", self.name)
    }

    fn cells(&self, shape: Shape) -> Cells {
        let mut cells = of_namespace(shape, &self.namespace);
        // As kubectl: a few, and how many more.
        let shown = if shape.wide { self.endpoints.len() } else { ENDPOINTS_SHOWN };
        let mut text = self.endpoints.iter().take(shown).cloned().collect::<Vec<_>>().join(",");
        if self.endpoints.len() > shown {
            text.push_str(&format!(" + {} more...", self.endpoints.len() - shown));
        }
        cells.extend([
            (column("NAME"), self.name.clone()),
            (column("ENDPOINTS"), or_none(&text)),
            (column("AGE"), self.age.clone()),
        ]);
        cells
    }

    fn remark(&self) -> (Column, String) {
        (cuttable("NOTE"), String::new())
    }
}

impl Listed for RouteView {
    fn id(&self) -> String {
        format!("dns/{}", self.name)
    }

    fn cells(&self, shape: Shape) -> Cells {
        let mut cells = of_namespace(shape, &self.namespace);
        cells.extend([
            (column("NAME"), self.name.clone()),
            (column("HOST"), self.host.clone()),
            (column("PATHS"), or_none(&self.paths.join(", "))),
            (column("HEALTH"), self.health.clone()),
            (column("AGE"), self.age.clone()),
        ]);
        cells
    }

    fn remark(&self) -> (Column, String) {
        (cuttable("NOTE"), self.note.clone())
    }
}

/// Endpoints of a service in a narrow table, as kubectl shows.
const ENDPOINTS_SHOWN: usize = 3;

fn of_namespace(shape: Shape, namespace: &str) -> Cells {
    match shape.namespaces {
        true => vec![(column("NAMESPACE"), namespace.to_owned())],
        false => Cells::new(),
    }
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text.to_owned() }
}

impl Listed for ObjectView {
    fn id(&self) -> String {
        format!("{}/{}", self.kind.as_str().to_lowercase(), self.name)
    }

    fn cells(&self, shape: Shape) -> Cells {
        let mut cells = Cells::new();
        if shape.namespaces {
            let namespace = if self.kind.is_cluster_scoped() { "" } else { &self.namespace };
            cells.push((column("NAMESPACE"), namespace.to_owned()));
        }
        cells.extend([
            (column("NAME"), if shape.kinds { self.id() } else { self.name.clone() }),
            (column("HEALTH"), self.health.clone()),
            (column("SOURCE"), self.source.clone()),
            (column("COMMIT"), short(&self.commit).to_owned()),
            (cuttable("FILE"), format!("{}:{}", self.file, self.line)),
            (column("AGE"), self.age.clone()),
        ]);
        if shape.wide {
            let labels = self.labels.iter().map(|(key, value)| format!("{key}={value}"));
            cells.extend([
                (cuttable("AUTHOR"), self.author.clone()),
                (cuttable("LABELS"), labels.collect::<Vec<_>>().join(",")),
            ]);
        }
        cells
    }

    fn remark(&self) -> (Column, String) {
        (cuttable("NOTE"), self.note.clone())
    }
}

impl Listed for SourceView {
    fn id(&self) -> String {
        format!("source/{}", self.status.name)
    }

    fn cells(&self, shape: Shape) -> Cells {
        let status = &self.status;
        let mut cells = vec![
            (column("NAME"), status.name.clone()),
            (column("STATE"), format!("{:?}", status.state)),
            (column("COMMIT"), status.applied_commit.as_deref().map(short).unwrap_or_default().to_owned()),
            (cuttable("AUTHOR"), self.author.clone()),
            (column("OBJECTS"), status.objects.to_string()),
            (column("AGE"), self.age.clone()),
        ];
        if shape.wide {
            let observed = status.observed_commit.as_deref().map(short).unwrap_or_default();
            cells.extend([
                (column("OBSERVED"), observed.to_owned()),
                (column("FOLLOWS"), status.reference.clone()),
                (cuttable("URL"), status.url.clone()),
                (cuttable("PATH"), status.path.clone()),
            ]);
        }
        cells
    }

    fn remark(&self) -> (Column, String) {
        let more = self.problems.len().saturating_sub(1);
        let first = self.problems.first().cloned().unwrap_or_default();
        (cuttable("WHY"), if more > 0 { format!("{first} (and {more} more)") } else { first })
    }
}

impl Listed for RevisionView {
    fn id(&self) -> String {
        format!("revision/{}/{}", self.revision.source, self.revision.sequence)
    }

    fn cells(&self, shape: Shape) -> Cells {
        let revision = &self.revision;
        let mut cells = vec![
            (column("REVISION"), revision.sequence.to_string()),
            (column("COMMIT"), short(&revision.commit).to_owned()),
            (column("VERDICT"), self.status.clone()),
            (column("CHANGES"), changes(&revision.counts)),
            (column("PLAN"), plan(revision.plan.as_ref()).to_owned()),
            (column("AGE"), self.age.clone()),
            (cuttable("AUTHOR"), revision.author.clone()),
            (cuttable("SUBJECT"), revision.subject.clone()),
        ];
        if shape.wide {
            cells.extend([
                (column("SOURCE"), revision.source.clone()),
                (column("TOOK"), format!("{}ms", revision.duration_ms)),
            ]);
        }
        cells
    }

    fn remark(&self) -> (Column, String) {
        (cuttable("WHY"), self.why.clone())
    }
}

/// Whether what was applied is what was reviewed; nothing when no review is known.
fn plan(plan: Option<&PlanRecord>) -> &'static str {
    match plan.and_then(|plan| plan.matches) {
        Some(true) => "as reviewed",
        Some(false) => "differs",
        None => "",
    }
}

/// `+1 ~2 -3`: made, changed, removed; `!4` held back.
fn changes(counts: &ChangeCounts) -> String {
    let changed = counts.update + counts.replace;
    let text = format!("+{} ~{changed} -{}", counts.create, counts.delete);
    let back = counts.quarantined + counts.held;
    if back > 0 { format!("{text} !{back}") } else { text }
}

impl Listed for DeliveryView {
    fn id(&self) -> String {
        format!("delivery/{}", self.delivery.id)
    }

    fn cells(&self, shape: Shape) -> Cells {
        let delivery = &self.delivery;
        let commit = self.answer.as_ref().and_then(|answer| answer.commit.as_deref());
        let mut cells = vec![
            (column("ID"), delivery.id.clone()),
            (column("PROVIDER"), delivery.provider.to_string()),
            (column("EVENT"), delivery.event.clone()),
            (column("SOURCE"), delivery.source.clone()),
            (column("AGE"), self.age.clone()),
            (column("OUTCOME"), self.status.clone()),
            (column("COMMIT"), commit.map(short).unwrap_or_default().to_owned()),
        ];
        if shape.wide {
            cells.extend([
                (column("TOOK"), self.took_ms.map(|took| format!("{took}ms")).unwrap_or_default()),
                (column("REPEATS"), delivery.repeats.to_string()),
                (column("BY"), delivery.by.clone()),
                (column("PEER"), delivery.peer.clone()),
                (cuttable("REPOSITORY"), some(delivery.repository.as_ref())),
                (cuttable("REF"), some(delivery.reference.as_ref())),
            ]);
        }
        cells
    }

    fn remark(&self) -> (Column, String) {
        (cuttable("WHY"), self.why.clone())
    }
}

impl Listed for EventView {
    fn id(&self) -> String {
        format!("{}/{}", self.event.object_kind.to_lowercase(), self.event.name)
    }

    fn cells(&self, shape: Shape) -> Cells {
        let event = &self.event;
        let mut cells = Cells::new();
        if shape.namespaces {
            cells.push((column("NAMESPACE"), event.namespace.clone()));
        }
        cells.extend([
            (column("LAST SEEN"), self.age.clone()),
            (column("TYPE"), format!("{:?}", event.kind)),
            (column("REASON"), event.reason.clone()),
            (column("OBJECT"), self.id()),
        ]);
        if shape.wide {
            cells.push((column("FROM"), event.reporter.clone()));
        }
        cells.push((cuttable("MESSAGE"), event.message.clone()));
        cells
    }

    fn remark(&self) -> (Column, String) {
        (cuttable(""), String::new())
    }
}
