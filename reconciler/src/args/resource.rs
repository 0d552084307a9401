//! `KIND` or `KIND/NAME` on the command line, with the short names of kubectl.

use std::str::FromStr;

use schema::kinds::Kind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceKind {
    /// Git repositories that feed the cluster.
    Source,
    /// Applied commits.
    Revision,
    /// Received webhooks and sync requests.
    Request,
    /// Messages to forges and people, sent and waiting.
    Notification,
    Event,
    /// Runs of workflows.
    Run,
    /// Triggers of runs.
    Trigger,
    /// Backends of services.
    Endpoints,
    /// Objects of a kind: the current state of pods and nodes, the desired state of others.
    Object(Kind),
    /// Desired objects of every kind.
    All,
}

impl ResourceKind {
    /// Resources that are not kinds of manifests, with every spelling, plural first.
    const OTHERS: &'static [(ResourceKind, &'static [&'static str])] = &[
        (ResourceKind::Source, &["sources", "source", "src"]),
        (ResourceKind::Revision, &["revisions", "revision", "rev"]),
        (ResourceKind::Request, &["requests", "request", "req"]),
        (ResourceKind::Notification, &["notifications", "notification", "notif"]),
        (ResourceKind::Event, &["events", "event", "ev"]),
        (ResourceKind::Run, &["runs", "run"]),
        (ResourceKind::Trigger, &["triggers", "trigger"]),
        (ResourceKind::Endpoints, &["endpoints", "endpoint", "ep"]),
        (ResourceKind::All, &["all"]),
    ];

    fn all() -> impl Iterator<Item = ResourceKind> {
        let others = Self::OTHERS.iter().map(|(kind, _)| *kind);
        Kind::ALL.into_iter().map(ResourceKind::Object).chain(others)
    }

    /// Help text that lists every resource with its shortest alias.
    pub fn help() -> String {
        let word = |kind: ResourceKind| {
            let (plural, words) = (kind.plural(), kind.words());
            let short =
                words.iter().min_by_key(|word| word.len()).filter(|short| short.len() < plural.len() / 2 + 1);
            short.map_or(plural.clone(), |short| format!("{plural} ({short})"))
        };
        let all: Vec<String> = Self::all().map(word).collect();
        format!("What to list: {}; or KIND/NAME; several kinds as KIND,KIND", all.join(", "))
    }

    /// The word before the slash in `-o name`.
    pub fn singular(self) -> String {
        let words = self.words();
        words.get(1).or(words.first()).cloned().unwrap_or_default()
    }

    pub fn plural(self) -> String {
        self.words().into_iter().next().unwrap_or_default()
    }

    fn words(self) -> Vec<String> {
        match self {
            ResourceKind::Object(kind) => kind.names().collect(),
            other => {
                let found = Self::OTHERS.iter().find(|(kind, _)| *kind == other);
                found.into_iter().flat_map(|(_, words)| *words).map(|word| (*word).to_owned()).collect()
            }
        }
    }

    pub fn is_namespaced(self) -> bool {
        match self {
            ResourceKind::Endpoints
            | ResourceKind::Event
            | ResourceKind::Run
            | ResourceKind::Trigger
            | ResourceKind::All => true,
            ResourceKind::Object(kind) => !kind.is_cluster_scoped(),
            ResourceKind::Source
            | ResourceKind::Revision
            | ResourceKind::Request
            | ResourceKind::Notification => false,
        }
    }
}

impl FromStr for ResourceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let typed = text.to_ascii_lowercase();
        let all = || Self::all().flat_map(|kind| kind.words().into_iter().map(move |word| (kind, word)));
        if let Some((kind, _)) = all().find(|(_, word)| *word == typed) {
            return Ok(kind);
        }
        if let Some((kind, help)) = schema::manifest::foreign_kind(&typed) {
            return Err(format!("Minik8s has no {kind}; {help}"));
        }
        // A third of the word may be wrong: `podz` is `pods`, `jib` is nothing.
        let allowed = (typed.chars().count() / 3).max(1);
        let nearest = all()
            .map(|(kind, word)| (strsim::damerau_levenshtein(&word, &typed), kind))
            .filter(|(distance, _)| *distance <= allowed && typed.chars().count() > 2)
            .min_by_key(|(distance, _)| *distance);
        let names: Vec<String> = Self::all().map(Self::plural).collect();
        Err(match nearest {
            Some((_, kind)) => format!("unknown kind `{text}`; did you mean `{}`?", kind.plural()),
            None => format!("unknown kind `{text}`; kinds are {}", names.join(", ")),
        })
    }
}

/// A kind, and a name if one came with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub kind: ResourceKind,
    /// Text after the slash.
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

/// Comma-separated kinds, as in `get functions,workflows`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources(pub Vec<Resource>);

impl FromStr for Resources {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = text.split(',').map(str::parse).collect::<Result<Vec<Resource>, _>>()?;
        match all.iter().find(|resource| resource.name.is_some() && all.len() > 1) {
            Some(_) => Err("several kinds are given; write the name after them: KIND,KIND NAME".to_owned()),
            None => Ok(Self(all)),
        }
    }
}
