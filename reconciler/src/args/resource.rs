//! `KIND` or `KIND/NAME` on the command line, with the short names of kubectl.

use std::str::FromStr;

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
    /// What happened.
    Event,
}

impl ResourceKind {
    /// Every spelling, the plural first.
    const SPELLINGS: [(ResourceKind, &'static [&'static str]); 5] = [
        (ResourceKind::Pod, &["pods", "pod", "po"]),
        (ResourceKind::Node, &["nodes", "node", "no"]),
        (ResourceKind::Source, &["sources", "source", "src"]),
        (ResourceKind::Revision, &["revisions", "revision", "rev"]),
        (ResourceKind::Event, &["events", "event", "ev"]),
    ];

    /// The word before the slash in `-o name`.
    pub fn singular(self) -> &'static str {
        match self {
            ResourceKind::Pod => "pod",
            ResourceKind::Node => "node",
            ResourceKind::Source => "source",
            ResourceKind::Revision => "revision",
            ResourceKind::Event => "event",
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
        // Words as far apart as this are no slip of the finger.
        const SIMILAR_MIN: f64 = 0.7;
        let nearest = all()
            .map(|(kind, word)| (strsim::jaro_winkler(word, &typed), kind))
            .filter(|(similarity, _)| *similarity >= SIMILAR_MIN)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let names: Vec<&str> = Self::SPELLINGS.iter().map(|(_, words)| words[0]).collect();
        Err(match nearest {
            Some((_, kind)) => format!("no kind is called so; did you mean '{}s'?", kind.singular()),
            None => format!("no kind is called so; kinds are {}", names.join(", ")),
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
