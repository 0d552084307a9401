//! Parses lines of `NAME=value`. Nothing is substituted: a `$` stands for itself.

use std::collections::BTreeMap;

use super::bounds::KEYS_MAX;

/// Returns the values by name. An error names a line and none of its text.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut values = BTreeMap::new();
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = line.split_once('=').ok_or_else(|| format!("line {number} has no `=`"))?;
        let name = name.trim();
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(fits) {
            return Err(format!("line {number} does not begin with the name of a variable"));
        }
        let value = unquoted(value.trim()).ok_or_else(|| {
            format!("line {number} has a quote that does not end there; values of several lines need a map")
        })?;
        if values.insert(name.to_owned(), value).is_some() {
            return Err(format!("line {number} sets a variable again"));
        }
        if values.len() > KEYS_MAX {
            return Err(format!("it has more than {KEYS_MAX} keys"));
        }
    }
    Ok(values)
}

/// Removes quotes: single quotes keep all as it is, double quotes know `\n`, `\t`, `\r`, `\"`, `\\` and `\$`;
/// without quotes, ` #` begins a comment.
fn unquoted(value: &str) -> Option<String> {
    let is_rest = |rest: &str| rest.trim_start().is_empty() || rest.trim_start().starts_with('#');
    match value.chars().next() {
        Some('\'') => {
            let (inside, rest) = value[1..].split_once('\'')?;
            is_rest(rest).then(|| inside.to_owned())
        }
        Some('"') => {
            let mut inside = String::new();
            let mut chars = value[1..].chars();
            loop {
                match chars.next()? {
                    '"' => break,
                    '\\' => match chars.next()? {
                        'n' => inside.push('\n'),
                        't' => inside.push('\t'),
                        'r' => inside.push('\r'),
                        plain @ ('"' | '\\' | '$') => inside.push(plain),
                        other => inside.extend(['\\', other]),
                    },
                    plain => inside.push(plain),
                }
            }
            is_rest(chars.as_str()).then_some(inside)
        }
        _ => Some(value.split(" #").next().unwrap_or(value).trim_end().to_owned()),
    }
}
