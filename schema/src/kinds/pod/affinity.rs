//! Affinity: the nodes that a pod may run on, and the pods that it must or must not share its node with. Fields,
//! matching and messages are those of Kubernetes (core/v1). Only requirements have fields: a preference keeps no pod
//! from any node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::PodSpec;
use crate::kinds::replica_set::LabelSelector;
use crate::meta::StringMap;
use crate::names::{DNS_LABEL, check_qualified_name, is_dns_label, is_label_value};
use crate::violation::{Findings, Path, rules};

/// Reason why a wish to spread pods changes nothing.
pub(crate) const SPREAD: &str =
    "pods of a workload are spread over the nodes that have room, unless schedulerStrategy says otherwise";

/// The only topology in which pods can be kept together or apart: each node is a domain of its own.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The only field of a node that a term can match.
const NODE_NAME: &str = "metadata.name";

/// Advice for a topology of several nodes.
const ONLY_NODES: &str = "rules over groups of nodes can't be kept here: choose the nodes with nodeAffinity, for \
example in one workload for each zone";

/// Requirements on the node of a pod.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Affinity {
    /// Nodes that the pod may run on.
    pub node_affinity: Option<NodeAffinity>,
    /// Pods that the pod must share its node with.
    pub pod_affinity: Option<PodAffinity>,
    /// Pods that the pod must not share its node with.
    pub pod_anti_affinity: Option<PodAntiAffinity>,
}

/// Nodes that a pod may run on.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct NodeAffinity {
    /// Requirement on the node. A pod that runs already stays when labels of its node change.
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelector>,
}

/// Nodes that match at least one term.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct NodeSelector {
    /// Terms of which the node must match one.
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Requirements that a node must all meet. A term without requirements matches no node.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct NodeSelectorTerm {
    /// Requirements on the node's labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<NodeSelectorRequirement>,
    /// Requirements on the node's name, under the key `metadata.name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_fields: Vec<NodeSelectorRequirement>,
}

/// A requirement on a label or the name of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct NodeSelectorRequirement {
    /// Key of the label, or `metadata.name`.
    pub key: String,
    /// Comparison with the value.
    pub operator: NodeSelectorOperator,
    /// Values for `In` and `NotIn`; one integer for `Gt` and `Lt`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Comparison with the value of a node's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum NodeSelectorOperator {
    /// The value is among the values of the requirement.
    In,
    /// The value is not among the values of the requirement, or the label is missing.
    NotIn,
    /// The label exists.
    Exists,
    /// The label does not exist.
    DoesNotExist,
    /// The value is an integer greater than that of the requirement.
    Gt,
    /// The value is an integer less than that of the requirement.
    Lt,
}

/// Pods that a pod must share its node with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct PodAffinity {
    /// Terms; a pod that matches all of them must be on the node. The first pod that matches its own terms may go
    /// anywhere.
    #[serde(
        default,
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub required: Vec<PodAffinityTerm>,
}

/// Pods that a pod must not share its node with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct PodAntiAffinity {
    /// Terms; no pod that matches one of them may be on the node. They keep such pods away later on, too.
    #[serde(
        default,
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub required: Vec<PodAffinityTerm>,
}

/// A set of pods, and what counts as the same place.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct PodAffinityTerm {
    /// Labels of the pods. An empty selector matches all pods, a missing one none.
    pub label_selector: Option<LabelSelector>,
    /// Namespaces of the pods; defaults to the pod's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Label of nodes whose value tells places apart: `kubernetes.io/hostname`.
    pub topology_key: String,
}

/// A wish to spread pods evenly. The scheduler's own spread stands in for it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct TopologySpreadConstraint {
    /// Most pods by which one place may exceed another.
    #[schemars(range(min = 1))]
    pub max_skew: u32,
    /// Label of nodes whose value tells places apart.
    pub topology_key: String,
    /// Effect of a spread that is not possible.
    pub when_unsatisfiable: UnsatisfiableAction,
    /// Labels of the pods to spread.
    pub label_selector: Option<LabelSelector>,
}

/// Effect of a spread constraint that no node satisfies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnsatisfiableAction {
    /// The pod waits.
    DoNotSchedule,
    /// The pod goes where it disturbs the spread least.
    ScheduleAnyway,
}

// Evaluation.

impl PodSpec {
    /// Returns the nodes that the pod requires, beside `nodeSelector`.
    pub fn required_nodes(&self) -> Option<&NodeSelector> {
        self.affinity.as_ref()?.node_affinity.as_ref()?.required.as_ref()
    }

    /// Returns the terms that a pod on its node must all match.
    pub fn required_pods(&self) -> &[PodAffinityTerm] {
        let affinity = self.affinity.as_ref().and_then(|affinity| affinity.pod_affinity.as_ref());
        affinity.map_or(&[], |affinity| &affinity.required)
    }

    /// Returns the terms of which no pod on its node may match any.
    pub fn excluded_pods(&self) -> &[PodAffinityTerm] {
        let affinity = self.affinity.as_ref().and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        affinity.map_or(&[], |affinity| &affinity.required)
    }
}

impl NodeSelector {
    /// True if the node with this name and these labels matches a term.
    pub fn matches(&self, node: &str, labels: &StringMap) -> bool {
        self.node_selector_terms.iter().any(|term| {
            let has_requirements = !term.match_expressions.is_empty() || !term.match_fields.is_empty();
            has_requirements
                && term
                    .match_expressions
                    .iter()
                    .all(|one| one.is_met(labels.get(&one.key).map(String::as_str)))
                && term.match_fields.iter().all(|one| one.is_met(Some(node)))
        })
    }
}

impl NodeSelectorRequirement {
    fn is_met(&self, value: Option<&str>) -> bool {
        use NodeSelectorOperator as O;
        let is_listed = |value: &str| self.values.iter().any(|listed| listed == value);
        let integer = |text: &str| text.parse::<i64>().ok();
        let bound = self.values.first().and_then(|value| integer(value));
        let numbers = value.and_then(integer).zip(bound);
        match self.operator {
            O::In => value.is_some_and(is_listed),
            // A missing label has none of the values.
            O::NotIn => value.is_none_or(|value| !is_listed(value)),
            O::Exists => value.is_some(),
            O::DoesNotExist => value.is_none(),
            O::Gt => numbers.is_some_and(|(value, bound)| value > bound),
            O::Lt => numbers.is_some_and(|(value, bound)| value < bound),
        }
    }
}

impl PodAffinityTerm {
    /// True if the term of a pod in the namespace `own` matches a pod in `namespace` with these labels.
    pub fn matches(&self, own: &str, namespace: &str, labels: &StringMap) -> bool {
        let is_in_scope = match &self.namespaces[..] {
            [] => own == namespace,
            namespaces => namespaces.iter().any(|one| one == namespace),
        };
        is_in_scope && selects(self.label_selector.as_ref(), labels)
    }
}

/// True if the selector of a term matches: unlike that of a workload, an empty one matches everything.
fn selects(selector: Option<&LabelSelector>, labels: &StringMap) -> bool {
    selector.is_some_and(|selector| selector.is_empty() || selector.matches(labels))
}

// One spelling for equal meanings.

impl Affinity {
    /// Removes empty parts and orders what has no order. Idempotent.
    pub(super) fn normalize(&mut self) {
        let nodes = self.node_affinity.as_mut().and_then(|affinity| affinity.required.as_mut());
        for term in nodes.into_iter().flat_map(|nodes| &mut nodes.node_selector_terms) {
            for requirement in &mut term.match_expressions {
                requirement.values.sort_unstable();
                requirement.values.dedup();
            }
        }
        let together = self.pod_affinity.iter_mut().flat_map(|affinity| &mut affinity.required);
        let apart = self.pod_anti_affinity.iter_mut().flat_map(|affinity| &mut affinity.required);
        for term in together.chain(apart) {
            term.namespaces.sort_unstable();
            term.namespaces.dedup();
            term.label_selector.iter_mut().for_each(LabelSelector::normalize);
        }
        self.node_affinity.take_if(|affinity| affinity.required.is_none());
        self.pod_affinity.take_if(|affinity| affinity.required.is_empty());
        self.pod_anti_affinity.take_if(|affinity| affinity.required.is_empty());
    }
}

// Checks beyond the schema, in Kubernetes' wording.

impl Affinity {
    /// Checks the requirements at `at`.
    pub(super) fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
        if let Some(nodes) = self.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref()) {
            let here = at.field("nodeAffinity");
            nodes.validate(&here.field(REQUIRED), findings);
        }
        let together = self.pod_affinity.as_ref().map_or(&[][..], |affinity| &affinity.required);
        let apart = self.pod_anti_affinity.as_ref().map_or(&[][..], |affinity| &affinity.required);
        for (field, terms) in [("podAffinity", together), ("podAntiAffinity", apart)] {
            let here = at.field(field);
            let here = here.field(REQUIRED);
            for (index, term) in terms.iter().enumerate() {
                term.validate(&here.index(index), findings);
            }
        }
    }
}

impl NodeSelector {
    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        let terms = at.field("nodeSelectorTerms");
        if self.node_selector_terms.is_empty() {
            let message = "Required value: must have at least one node selector term";
            findings.add(&rules::SELECTOR, &terms, message);
        }
        for (index, term) in self.node_selector_terms.iter().enumerate() {
            let here = terms.index(index);
            let expressions = here.field("matchExpressions");
            for (index, requirement) in term.match_expressions.iter().enumerate() {
                requirement.validate_label(&expressions.index(index), findings);
            }
            let fields = here.field("matchFields");
            for (index, requirement) in term.match_fields.iter().enumerate() {
                requirement.validate_field(&fields.index(index), findings);
            }
        }
    }
}

impl NodeSelectorRequirement {
    fn validate_label(&self, at: &Path<'_>, findings: &mut Findings) {
        use NodeSelectorOperator as O;
        if let Err(why) = check_qualified_name(&self.key) {
            let message = format!("Invalid value: `{}`: {why}", self.key);
            findings.add(&rules::INVALID_LABEL, &at.field("key"), message);
        }
        let values = at.field("values");
        let fault = match (self.operator, &self.values[..]) {
            (O::In | O::NotIn, []) => "Required value: must be specified when `operator` is 'In' or 'NotIn'",
            (O::Exists | O::DoesNotExist, [_, ..]) => {
                "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            }
            (O::Gt | O::Lt, [one]) if one.parse::<i64>().is_err() => {
                "Invalid value: for 'Gt', 'Lt' operators, the value must be an integer"
            }
            (O::Gt | O::Lt, [] | [_, _, ..]) => {
                "Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"
            }
            _ => {
                let is_wrong = |(_, value): &(usize, &String)| !is_label_value(value);
                for (index, value) in self.values.iter().enumerate().filter(is_wrong) {
                    let message = format!("Invalid value: `{value}`: not a valid label value");
                    findings.add(&rules::INVALID_LABEL, &values.index(index), message);
                }
                return;
            }
        };
        findings.add(&rules::SELECTOR, &values, fault).on_key();
    }

    fn validate_field(&self, at: &Path<'_>, findings: &mut Findings) {
        use NodeSelectorOperator as O;
        if self.key != NODE_NAME {
            let message = format!("Invalid value: `{}`: not a valid field selector key", self.key);
            findings
                .add(&rules::SELECTOR, &at.field("key"), message)
                .help(format!("write `key: {NODE_NAME}`, or match labels with matchExpressions"));
        }
        if !matches!(self.operator, O::In | O::NotIn) {
            let message = "Invalid value: not a valid selector operator";
            findings.add(&rules::SELECTOR, &at.field("operator"), message).help("use In or NotIn");
        } else if self.values.len() != 1 {
            let message = "Required value: must be only one value when `operator` is 'In' or 'NotIn' for node field \
selector";
            findings
                .add(&rules::SELECTOR, &at.field("values"), message)
                .on_key()
                .help(format!("write one term for each node, or match the label {HOSTNAME}"));
        }
    }
}

impl PodAffinityTerm {
    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        if let Some(selector) = &self.label_selector {
            selector.validate(&at.field("labelSelector"), findings);
        }
        let namespaces = at.field("namespaces");
        for (index, namespace) in self.namespaces.iter().enumerate().filter(|(_, name)| !is_dns_label(name)) {
            let message = format!("Invalid value: `{namespace}`: {DNS_LABEL}");
            findings.add(&rules::INVALID_NAME, &namespaces.index(index), message);
        }
        topology_key(&self.topology_key, &at.field("topologyKey"), findings);
    }
}

/// Checks the topology key of a requirement.
fn topology_key(key: &str, at: &Path<'_>, findings: &mut Findings) {
    if key.is_empty() {
        let message = "Required value: can not be empty";
        findings.add(&rules::REQUIRED, at, message).help(format!("write `topologyKey: {HOSTNAME}`"));
    } else if key != HOSTNAME {
        let message = format!("Unsupported value: `{key}`: supported values: `{HOSTNAME}`");
        findings.add(&rules::UNKNOWN_VALUE, at, message).help(ONLY_NODES);
    }
}

impl PodSpec {
    /// Notes the spread constraints of a pod with these labels, and rejects those that are not kept without them.
    pub(in crate::kinds) fn validate_spread(
        &self,
        labels: &StringMap,
        at: &Path<'_>,
        findings: &mut Findings,
    ) {
        let list = at.field("topologySpreadConstraints");
        for (index, constraint) in self.topology_spread_constraints.iter().enumerate() {
            let here = list.index(index);
            let before = findings.count();
            if constraint.when_unsatisfiable == UnsatisfiableAction::DoNotSchedule {
                topology_key(&constraint.topology_key, &here.field("topologyKey"), findings);
                // Without a selector a constraint counts no pods.
                let selector = constraint.label_selector.as_ref();
                if selector.is_some() && !selects(selector, labels) {
                    let message = "Invalid value: does not match the pod's own labels";
                    findings
                        .add(&rules::SELECTOR, &here.field("labelSelector"), message)
                        .help("a spread over other pods can't be kept here: use podAntiAffinity");
                }
            }
            if findings.count() == before {
                findings.left_out(&here, SPREAD);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> StringMap {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn spec(affinity: &str) -> PodSpec {
        let affinity: Affinity = serde_json::from_str(affinity).unwrap();
        PodSpec { affinity: Some(Box::new(affinity)), ..PodSpec::default() }
    }

    /// The tables of `TestNodeSelectorMatch` and `TestPodMatchesNodeSelectorAndAffinityTerms` in
    /// staging/src/k8s.io/component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity_test.go: terms, name and labels
    /// of the node, and the verdict.
    #[test]
    fn nodes_match_as_in_kubernetes() {
        let label = |operator: &str, key: &str, values: &str| {
            format!(r#"{{"matchExpressions":[{{"key":"{key}","operator":"{operator}","values":{values}}}]}}"#)
        };
        let named = |operator: &str, node: &str| {
            format!(
                r#"{{"matchFields":[{{"key":"metadata.name","operator":"{operator}","values":["{node}"]}}]}}"#
            )
        };
        // The requirements of both kinds in one term.
        let both = |one: &str, other: &str| format!("{},{}", one.trim_end_matches('}'), &other[1..]);
        let both = both(&(label("In", "label_1", r#"["label_1_val"]"#)), &named("In", "host_1"));
        let two = |one: &str, other: &str| format!("{one},{other}");
        let (bar, none): (&[_], &[_]) = (&[("foo", "bar")], &[]);
        let host_1 = [("label_1", "label_1_val")];
        type Row<'a> = (String, &'a str, &'a [(&'a str, &'a str)], bool);
        let table: Vec<Row<'_>> = vec![
            (both.clone(), "host_1", none, false),
            (both.clone(), "host_1", &host_1, true),
            (both, "host_2", &host_1, false),
            (
                two(&label("In", "label_1", r#"["label_1_val"]"#), &named("In", "host_1")),
                "host_1",
                none,
                true,
            ),
            (label("In", "foo", r#"["bar","value2"]"#), "n", bar, true),
            (label("Gt", "kernel-version", r#"["0204"]"#), "n", &[("kernel-version", "0206")], true),
            (label("NotIn", "mem-type", r#"["DDR","DDR2"]"#), "n", &[("mem-type", "DDR3")], true),
            (label("Exists", "GPU", "[]"), "n", &[("GPU", "NVIDIA-GRID-K1")], true),
            (label("In", "foo", r#"["value1","value2"]"#), "n", bar, false),
            (String::new(), "n", bar, false),
            ("{}".to_owned(), "n", bar, false),
            (r#"{"matchExpressions":[]}"#.to_owned(), "n", bar, false),
            (two("{}", &label("Exists", "foo", "[]")), "n", bar, true),
            (
                label("In", "foo", r#"["bar"]"#).replace("}]", r#"},{"key":"a","operator":"Exists"}]"#),
                "n",
                bar,
                false,
            ),
            (label("NotIn", "foo", r#"["bar"]"#), "n", bar, false),
            (label("NotIn", "gone", r#"["bar"]"#), "n", bar, true),
            (label("DoesNotExist", "gone", "[]"), "n", bar, true),
            (label("DoesNotExist", "foo", "[]"), "n", bar, false),
            (label("Lt", "cores", r#"["7"]"#), "n", &[("cores", "8")], false),
            (label("Lt", "cores", r#"["9"]"#), "n", &[("cores", "8")], true),
            (label("Gt", "cores", r#"["7"]"#), "n", &[("cores", "many")], false),
            (label("Gt", "cores", r#"["7"]"#), "n", none, false),
            (named("In", "n"), "n", none, true),
            (named("In", "m"), "n", none, false),
            (named("NotIn", "n"), "n", none, false),
            (named("NotIn", "m"), "n", none, true),
        ];
        for (terms, node, has, matches) in table {
            let spec = spec(&format!(
                r#"{{"nodeAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":{{"nodeSelectorTerms":[{terms}]}}}}}}"#
            ));
            let found = spec.required_nodes().unwrap().matches(node, &labels(has));
            assert_eq!(found, matches, "{terms} on {node} with {has:?}");
        }
        assert_eq!(PodSpec::default().required_nodes(), None);
    }

    #[test]
    fn a_term_matches_pods_of_its_namespaces() {
        let term = |term: &str| -> PodAffinityTerm { serde_json::from_str(term).unwrap() };
        let web = labels(&[("app", "web")]);
        let own =
            term(r#"{"labelSelector":{"matchLabels":{"app":"web"}},"topologyKey":"kubernetes.io/hostname"}"#);
        let others =
            term(r#"{"labelSelector":{},"namespaces":["b","c"],"topologyKey":"kubernetes.io/hostname"}"#);
        let nobody = term(r#"{"topologyKey":"kubernetes.io/hostname"}"#);
        for (term, namespace, labels, matches) in [
            (&own, "a", &web, true),
            (&own, "b", &web, false),
            (&own, "a", &labels(&[("app", "api")]), false),
            (&others, "b", &web, true),
            (&others, "c", &labels(&[]), true),
            (&others, "a", &web, false),
            (&nobody, "a", &web, false),
        ] {
            assert_eq!(term.matches("a", namespace, labels), matches, "{term:?} {namespace} {labels:?}");
        }
    }

    // A preference must not change the hash of a template.
    #[test]
    fn what_requires_nothing_is_as_if_it_were_not_there() {
        let empty = r#"{"nodeAffinity":{},"podAffinity":{},"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[]}}"#;
        let mut spec = spec(empty);
        spec.fill_defaults();
        assert_eq!(spec.affinity, None);
    }
}
