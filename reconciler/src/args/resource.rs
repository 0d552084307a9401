//! `KIND` or `KIND/NAME` on the command line, with the short names of kubectl.

use std::str::FromStr;

use schema::kinds::Kind;

/// What can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceKind {
    /// Pods.
    Pod,
    /// Nodes.
    Node,
    /// Git repositories that feed the cluster.
    Source,
    /// Applied commits.
    Revision,
    /// Webhooks and syncs that came in.
    Delivery,
    /// What happened.
    Event,
    /// What is behind services.
    Endpoints,
    /// Desired objects of another kind.
    Object(Kind),
    /// Desired objects of every kind.
    All,
}

impl ResourceKind {
    /// Every spelling, the plural first.
    const SPELLINGS: &'static [(ResourceKind, &'static [&'static str])] = &[
        (ResourceKind::Pod, &["pods", "pod", "po"]),
        (ResourceKind::Node, &["nodes", "node", "no"]),
        (ResourceKind::Source, &["sources", "source", "src"]),
        (ResourceKind::Revision, &["revisions", "revision", "rev"]),
        (ResourceKind::Delivery, &["deliveries", "delivery", "dlv"]),
        (ResourceKind::Event, &["events", "event", "ev"]),
        (ResourceKind::Object(Kind::Service), &["services", "service", "svc"]),
        (ResourceKind::Endpoints, &["endpoints", "endpoint", "ep"]),
        (ResourceKind::Object(Kind::ReplicaSet), &["replicasets", "replicaset", "rs"]),
        (
            ResourceKind::Object(Kind::HorizontalPodAutoscaler),
            &["horizontalpodautoscalers", "horizontalpodautoscaler", "hpa"],
        ),
        (ResourceKind::Object(Kind::Dns), &["dns"]),
        (ResourceKind::Object(Kind::Function), &["functions", "function", "fn"]),
        (ResourceKind::Object(Kind::Workflow), &["workflows", "workflow", "wf"]),
        (ResourceKind::Object(Kind::Job), &["jobs", "job"]),
        (ResourceKind::Object(Kind::Cluster), &["clusters", "cluster"]),
        (ResourceKind::All, &["all"]),
    ];

    /// The word before the slash in `-o name`.
    pub fn singular(self) -> &'static str {
        let words = self.words();
        words.get(1).or_else(|| words.first()).copied().unwrap_or_default()
    }

    /// The word for several.
    pub fn plural(self) -> &'static str {
        self.words().first().copied().unwrap_or_default()
    }

    fn words(self) -> &'static [&'static str] {
        let found = Self::SPELLINGS.iter().find(|(kind, _)| *kind == self);
        found.map(|(_, words)| *words).unwrap_or_default()
    }

    /// Its objects belong to namespaces.
    pub fn is_namespaced(self) -> bool {
        match self {
            ResourceKind::Pod | ResourceKind::Endpoints | ResourceKind::Event | ResourceKind::All => true,
            ResourceKind::Object(kind) => !kind.is_cluster_scoped(),
            _ => false,
        }
    }
}

impl FromStr for ResourceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let typed = text.to_ascii_lowercase();
        let all = || Self::SPELLINGS.iter().flat_map(|(kind, words)| words.iter().map(move |w| (*kind, *w)));
        if let Some((kind, _)) = all().find(|(_, word)| *word == typed) {
            return Ok(kind);
        }
        if let Some((kind, help)) = schema::manifest::foreign_kind(&typed) {
            return Err(format!("Minik8s has no {kind}; {help}"));
        }
        // A third of the word may be wrong: `podz` is `pods`, `jib` is nothing.
        let allowed = (typed.chars().count() / 3).max(1);
        let nearest = all()
            .map(|(kind, word)| (strsim::damerau_levenshtein(word, &typed), kind))
            .filter(|(distance, _)| *distance <= allowed && typed.chars().count() > 2)
            .min_by_key(|(distance, _)| *distance);
        let names: Vec<&str> = Self::SPELLINGS.iter().map(|(_, words)| words[0]).collect();
        Err(match nearest {
            Some((_, kind)) => format!("unknown kind `{text}`; did you mean `{}`?", kind.plural()),
            None => format!("unknown kind `{text}`; kinds are {}", names.join(", ")),
        })
    }
}

/// A kind, and a name if one came with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// The kind.
    pub kind: ResourceKind,
    /// What follows the slash.
    pub name: Option<String>,
}

impl FromStr for Resource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            None => Ok(Self { kind: text.parse()?, name: None }),
            Some((_, "")) => Err("a name is missing after the slash".to_owned()),
            Some((kind, name)) => Ok(Self { kind: kind.parse()?, name: Some(name.to_owned()) }),
        }
    }
}
