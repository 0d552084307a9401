//! Facts of a pod, a service or a function on its page: where it runs, and where it is reached.

use askama::Template;
use schema::kinds::Kind;
use schema::meta::{NamespacedName, ObjectRef};

use super::parts::{Part, RenderContext, TemplateHelpers, object_address};
use crate::view::{self, EndpointView, PodDetail};

/// Maximum number of endpoints named.
const ENDPOINTS_MAX: usize = 50;

/// A fact with its name: texts, some of which are links.
struct Fact {
    name: &'static str,
    values: Vec<Value>,
}

/// A text, with the address that it links to; empty for none.
struct Value {
    text: String,
    address: String,
}

impl Fact {
    fn text(name: &'static str, text: impl Into<String>) -> Self {
        Self { name, values: vec![Value { text: text.into(), address: String::new() }] }
    }

    fn link(name: &'static str, text: impl Into<String>, address: String) -> Self {
        Self { name, values: vec![Value { text: text.into(), address }] }
    }
}

/// Returns the part with the facts; `None` for objects of other kinds. `pod` is the object if it is a pod.
pub(super) fn part(context: &RenderContext<'_>, id: &ObjectRef, pod: Option<&PodDetail>) -> Option<Part> {
    let name = NamespacedName::new(&id.namespace, &id.name);
    let facts = match id.kind {
        Kind::Pod => pod.map(pod_facts),
        Kind::Service => service_facts(context, &name),
        Kind::Function => function_facts(context, &name),
        _ => return None,
    };
    let mut facts = facts.unwrap_or_default();
    facts.retain(|fact| fact.values.iter().any(|value| !value.text.is_empty()));
    Some(Part::new("facts", &FactsTemplate { facts }))
}

fn pod_facts(pod: &PodDetail) -> Vec<Fact> {
    let row = &pod.row;
    let node = row.node.clone().unwrap_or_default();
    let owner = match row.owner.split_once('/') {
        // A bare pod is its own owner.
        Some(("Pod", _)) | None => String::new(),
        Some((kind, name)) => format!("{kind}/{}/{name}", row.namespace),
    };
    vec![
        Fact::text("Status", row.status.clone()),
        Fact::text("Reason", row.why.clone()),
        Fact::text("Containers", format!("{} ready, {} restarts", row.ready, row.restarts)),
        Fact::link("Node", node.clone(), format!("/nodes/{node}")),
        Fact::text("Address", row.pod_ip.clone().unwrap_or_default()),
        Fact::link("Owner", owner.clone(), object_address(&owner)),
        Fact::text("Started", if row.age.is_empty() { String::new() } else { format!("{} ago", row.age) }),
    ]
}

fn service_facts(context: &RenderContext<'_>, name: &NamespacedName) -> Option<Vec<Fact>> {
    let service = view::service(context.snapshot, name, Vec::new(), context.now)?;
    let row = &service.row;
    let all = service.endpoints.iter();
    let mut endpoints: Vec<Value> =
        all.take(ENDPOINTS_MAX).map(|one| endpoint(&row.namespace, one)).collect();
    if service.selects_nobody() {
        let text = format!("none: no pod in namespace {} matches the selector", row.namespace);
        endpoints.push(Value { text, address: String::new() });
    }
    let left = service.endpoints.len().saturating_sub(ENDPOINTS_MAX);
    if left > 0 {
        endpoints.push(Value { text: format!("and {left} more"), address: String::new() });
    }
    let selector = service.selector.iter().map(|(name, value)| format!("{name}={value}"));
    Some(vec![
        Fact::text("Type", row.kind.clone()),
        Fact::text("Address", format!("{}{}", row.cluster_ip, row.external_name)),
        Fact::text("Ports", row.ports.join(", ")),
        Fact::text("Selector", selector.collect::<Vec<_>>().join(", ")),
        Fact { name: "Endpoints", values: endpoints },
    ])
}

fn endpoint(namespace: &str, one: &EndpointView) -> Value {
    let addresses = one.addresses.join(", ");
    match one.pod.as_str() {
        "" => Value { text: addresses, address: String::new() },
        pod => Value {
            text: format!("{addresses}, {pod} on {}", one.node),
            address: format!("/object/Pod/{namespace}/{pod}"),
        },
    }
}

fn function_facts(context: &RenderContext<'_>, name: &NamespacedName) -> Option<Vec<Fact>> {
    let function = view::function(context.snapshot, name, Vec::new(), context.now)?;
    let row = &function.row;
    let replicas = match row.wanted {
        0 => "scaled to zero; the next call starts one".to_owned(),
        wanted => format!("{} of {wanted} ready", row.ready),
    };
    let calls =
        format!("{} in flight, {} waiting, {:.1} a second", row.in_flight, row.waiting, row.calls_per_second);
    Some(vec![
        Fact::text("Called at", function.called_at()),
        Fact::text("Replicas", replicas),
        Fact::text("Calls", calls),
        Fact::text("Image", row.image.clone()),
    ])
}

#[derive(Template)]
#[template(path = "facts.html")]
struct FactsTemplate {
    facts: Vec<Fact>,
}
