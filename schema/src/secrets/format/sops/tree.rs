//! Parses a YAML or JSON document, keeping its order, which the MAC needs; no aliases, bounded depth.

use saphyr_parser::{Event, Parser, ScalarStyle};

/// Depth that a SOPS file needs and more: `sops`, a list, a recipient, a field.
const DEPTH_MAX: usize = 8;
/// More than all keys and recipients of a secret.
const NODES_MAX: usize = 10_000;

#[derive(Debug)]
pub(super) enum Node {
    Text(String),
    /// `true` or `false`, not encrypted.
    Bool(bool),
    Null,
    Map(Vec<(String, Node)>),
    List(Vec<Node>),
}

/// Returns the map that is the document.
pub(super) fn parse(text: &str) -> Result<Vec<(String, Node)>, SopsError> {
    let mut reader = Reader { parser: Parser::new_from_str(text), nodes: 0 };
    let wrong = || SopsError::Syntax("it is not a single map from keys to text".to_owned());
    let top = loop {
        match reader.next()? {
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
            Event::MappingStart(..) => break reader.map(1)?,
            _ => return Err(wrong()),
        }
    };
    // A second document may be anything.
    match (reader.next()?, reader.next()?) {
        (Event::DocumentEnd, Event::StreamEnd) => Ok(top),
        _ => Err(wrong()),
    }
}

struct Reader<'t> {
    parser: Parser<'t, saphyr_parser::StrInput<'t>>,
    nodes: usize,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<Event<'t>, SopsError> {
        self.nodes += 1;
        match self.parser.next_event() {
            _ if self.nodes > NODES_MAX => Err(SopsError::Syntax("it has too many values".to_owned())),
            Some(Ok((Event::Alias(_), _))) => {
                Err(SopsError::Syntax("it has an alias (`*name`), not allowed in a secret".to_owned()))
            }
            Some(Ok((event, _))) => Ok(event),
            // The parser's own message would quote the text.
            Some(Err(error)) => {
                Err(SopsError::Syntax(format!("line {} is not valid YAML", error.marker().line())))
            }
            None => Err(SopsError::Syntax("it ends too early".to_owned())),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(String, Node)>, SopsError> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        loop {
            let key = match self.next()? {
                Event::MappingEnd => return Ok(entries),
                Event::Scalar(key, ..) => key.into_owned(),
                _ => return Err(SopsError::Syntax("a key is not text".to_owned())),
            };
            let event = self.next()?;
            let value = self.node(event, depth + 1)?;
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(SopsError::Syntax("a key occurs twice".to_owned()));
            }
            entries.push((key, value));
        }
    }

    fn node(&mut self, event: Event<'t>, depth: usize) -> Result<Node, SopsError> {
        if depth > DEPTH_MAX {
            return Err(SopsError::Syntax("it is nested too deeply".to_owned()));
        }
        match event {
            Event::Scalar(text, ScalarStyle::Plain, ..) if matches!(&*text, "" | "~" | "null") => {
                Ok(Node::Null)
            }
            Event::Scalar(text, ScalarStyle::Plain, ..)
                if matches!(&*text, "true" | "True" | "TRUE" | "false" | "False" | "FALSE") =>
            {
                Ok(Node::Bool(text.starts_with(['t', 'T'])))
            }
            Event::Scalar(text, ..) => Ok(Node::Text(text.into_owned())),
            Event::MappingStart(..) => self.map(depth).map(Node::Map),
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => return Ok(Node::List(items)),
                        event => items.push(self.node(event, depth + 1)?),
                    }
                }
            }
            _ => Err(SopsError::Syntax("a value is not text".to_owned())),
        }
    }
}

// Errors of SOPS files.

/// Error that makes a SOPS file unusable. No error holds any of its values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SopsError {
    /// The file is not YAML, or not what a secret may be.
    #[error("{0}")]
    Syntax(String),
    /// The file was not encrypted by SOPS.
    #[error("has no `sops.{0}`, so it is not encrypted with SOPS; run 'sops encrypt -i'")]
    NotEncrypted(&'static str),
    /// No recipient is an age key, so nobody here can decrypt the file.
    #[error("has no age recipient; 'sops rotate -i --add-age age1…' adds one")]
    NoAge,
    /// The names in the file are not covered by the MAC.
    #[error("has a MAC over its encrypted values only; encrypt it without mac_only_encrypted")]
    PartialMac,
    /// A whole object of Kubernetes: its name may be in clear, where anybody could change it.
    #[error("is a Kubernetes object: 'minik8s secrets seal --from FILE --remove' makes it a sealed secret")]
    Object,
    /// A value can't become a text under a key.
    #[error("`{0}` is not text: write each value as text at the top level of the file")]
    Nested(String),
    /// A value is readable by every reader of the repository.
    #[error("`{0}` is not encrypted: remove it from the file, or from the rule that leaves it unencrypted")]
    Clear(String),
    /// Without a header in it, the file could be a copy from anywhere.
    #[error("lacks the encrypted top-level key `{0}` (which pods may use it); 'sops edit' adds it")]
    Unbound(&'static str),
    /// The key, or the content it decrypts, was changed.
    #[error("`{0}` can't be decrypted: it was changed or moved after encryption")]
    Value(String),
    /// The file was changed after it was encrypted.
    #[error("has a MAC that does not match its values: it was changed by something other than SOPS")]
    Mac,
}
