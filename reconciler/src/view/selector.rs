//! Label selectors in the syntax of kubectl's `-l`: `app=web,tier!=back,env in (a,b),new,!old`.

use std::str::FromStr;

use schema::meta::StringMap;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    terms: Vec<Term>,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Term {
    In(String, Vec<String>),
    /// The label has none of these values, or is missing.
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

const CHARS_MAX: usize = 1_000;

impl Selector {
    pub fn matches(&self, labels: &StringMap) -> bool {
        self.terms.iter().all(|term| match term {
            Term::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Term::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Term::Exists(key) => labels.contains_key(key),
            Term::Absent(key) => !labels.contains_key(key),
        })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > CHARS_MAX {
            return Err(format!("longer than {CHARS_MAX} characters"));
        }
        let terms = split(text)?.into_iter().map(term).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { terms, text: text.to_owned() })
    }
}

/// Splits at commas outside of parentheses.
fn split(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_u32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1).ok_or("unmatched closing parenthesis")?,
            ',' if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[from..].trim());
    if depth > 0 { Err("unclosed parenthesis".to_owned()) } else { Ok(parts) }
}

fn term(text: &str) -> Result<Term, String> {
    let wrong =
        || format!("`{text}` is none of key=value, key!=value, key in (a,b), key notin (a,b), key, !key");
    let label = |text: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        let text = text.trim();
        if !text.is_empty() && text.chars().all(fits) { Ok(text.to_owned()) } else { Err(wrong()) }
    };
    let value = |text: &str| if text.trim().is_empty() { Ok(String::new()) } else { label(text) };
    let list = |text: &str| -> Result<Vec<String>, String> {
        let inner =
            text.trim().strip_prefix('(').and_then(|text| text.strip_suffix(')')).ok_or_else(wrong)?;
        inner.split(',').map(value).collect()
    };
    if let Some((key, wanted)) = text.split_once("!=") {
        return Ok(Term::NotIn(label(key)?, vec![value(wanted)?]));
    }
    if let Some((key, wanted)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok(Term::In(label(key)?, vec![value(wanted)?]));
    }
    if let Some((key, values)) = text.split_once(" notin ") {
        return Ok(Term::NotIn(label(key)?, list(values)?));
    }
    if let Some((key, values)) = text.split_once(" in ") {
        return Ok(Term::In(label(key)?, list(values)?));
    }
    match text.strip_prefix('!') {
        Some(key) => Ok(Term::Absent(label(key)?)),
        None => Ok(Term::Exists(label(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_choose_as_kubectl_does() {
        let labels: StringMap =
            [("app", "web"), ("tier", "front")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        for (text, chosen) in [
            ("app=web", true),
            ("app==web,tier=front", true),
            ("app=web,tier!=front", false),
            ("other!=x", true),
            ("app in (api, web)", true),
            ("app notin (api,web)", false),
            ("tier", true),
            ("!tier", false),
            ("!other,app", true),
            ("app=", false),
        ] {
            assert_eq!(text.parse::<Selector>().unwrap().matches(&labels), chosen, "{text}");
        }
        for wrong in ["", "=x", "app in web", "a b", "app in (a", "x)", "a,,b"] {
            assert!(wrong.parse::<Selector>().is_err(), "{wrong}");
        }
    }
}
