//! Parses a YAML or JSON document, keeping its order, which the MAC needs; no aliases, bounded depth.

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::error::SopsError;

/// Depth that a SOPS file needs and more: `sops`, a list, a recipient, a field.
const DEPTH_MAX: usize = 8;
/// More than all keys and recipients of a secret.
const NODES_MAX: usize = 10_000;

pub(super) enum Node {
    Text(String),
    Null,
    Map(Vec<(String, Node)>),
    List(Vec<Node>),
}

/// Returns the map that is the document.
pub(super) fn parse(text: &str) -> Result<Vec<(String, Node)>, SopsError> {
    let mut reader = Reader { parser: Parser::new_from_str(text), nodes: 0 };
    let wrong = || SopsError::Syntax("it is not one map from keys to texts".to_owned());
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
                Err(SopsError::Syntax("it has an alias (`*name`), which a secret may not".to_owned()))
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
                return Err(SopsError::Syntax("a key is there twice".to_owned()));
            }
            entries.push((key, value));
        }
    }

    fn node(&mut self, event: Event<'t>, depth: usize) -> Result<Node, SopsError> {
        if depth > DEPTH_MAX {
            return Err(SopsError::Syntax("it is nested too deep".to_owned()));
        }
        match event {
            Event::Scalar(text, ScalarStyle::Plain, ..) if matches!(&*text, "" | "~" | "null") => {
                Ok(Node::Null)
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
