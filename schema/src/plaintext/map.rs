//! Parses a map from keys to texts in YAML or JSON, event by event: what is refused is never built.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser};

use super::bounds::KEYS_MAX;

/// Error for a text that must not be taken for anything but a map of texts.
#[derive(Debug, thiserror::Error)]
pub(super) enum MapError {
    /// A map that does what no secret may.
    #[error("{0}")]
    Refused(&'static str),
    /// Not YAML. The parser's own message would quote the text.
    #[error("line {0} is not valid YAML")]
    Syntax(usize),
}

/// Returns the values by key as written; `None` if the text is something else: nested, a list, a word.
pub(super) fn parse(text: &str) -> Result<Option<BTreeMap<String, String>>, MapError> {
    // YAML does not know all of JSON's escapes.
    if text.trim_start().starts_with('{')
        && let Ok(texts) = serde_json::from_str::<BTreeMap<String, String>>(text)
    {
        return if texts.len() > KEYS_MAX {
            Err(too_many())
        } else {
            Ok((!texts.is_empty()).then_some(texts))
        };
    }
    let mut events = Parser::new_from_str(text);
    let mut next = || {
        let event = events.next_event().transpose();
        event
            .map_err(|error| MapError::Syntax(error.marker().line()))
            .map(|event| event.map(|(event, _)| event))
    };
    let is_map = loop {
        match next()? {
            Some(Event::StreamStart | Event::DocumentStart(_) | Event::Nothing) => {}
            Some(Event::MappingStart(..)) => break true,
            _ => break false,
        }
    };
    if !is_map {
        return Ok(None);
    }
    let mut texts = BTreeMap::new();
    loop {
        let key = match next()? {
            Some(Event::MappingEnd) => break,
            Some(Event::Scalar(key, ..)) => key.into_owned(),
            Some(Event::Alias(_)) => return Err(ALIAS),
            _ => return Ok(None),
        };
        let value = match next()? {
            Some(Event::Scalar(value, ..)) => value.into_owned(),
            Some(Event::Alias(_)) => return Err(ALIAS),
            _ => return Ok(None),
        };
        if texts.insert(key, value).is_some() {
            return Err(MapError::Refused("a key is there twice"));
        }
        if texts.len() > KEYS_MAX {
            return Err(too_many());
        }
    }
    // A second document may be anything.
    let ends = matches!(next()?, Some(Event::DocumentEnd)) && matches!(next()?, Some(Event::StreamEnd));
    Ok((ends && !texts.is_empty()).then_some(texts))
}

/// An anchor with many aliases expands a few kilobytes to gigabytes.
const ALIAS: MapError =
    MapError::Refused("it has an alias (`*name`), which a secret may not; write the value itself");

fn too_many() -> MapError {
    MapError::Refused("it has more than 1000 keys")
}
