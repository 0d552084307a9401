//! Secrets in clear in manifests, for whoever seals them: objects of kind Secret, and passwords of variables. Texts in,
//! texts out; pure. No error quotes a value.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::classify::expand_list;
use super::decode::is_encrypted_by_sops;
use super::load_file;
use super::unsupported::BY_SERVER_FIELDS;
use crate::document;
use crate::document::edit::{entries_mut, items_mut, mapping, text};
use crate::document::nearest::suggestion;
use crate::document::node::{Entry, Mark, Node, PlainScalar, Root, Value, resolve};
use crate::document::{Format, parse};
use crate::file_text::without_mark;
use crate::names::is_key;
use crate::secrets::is_clear_secret;
use crate::violation::Violation;

/// Top-level fields of a Secret.
const SECRET_FIELDS: [&str; 7] =
    ["apiVersion", "kind", "metadata", "type", "immutable", "data", "stringData"];
/// Type of a secret that nothing could use.
const ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";

/// True for Kubernetes' Secret.
fn is_secret(node: &Node) -> bool {
    let text = |key: &str| node.entry(key).and_then(|entry| entry.value.text());
    text("kind") == Some("Secret") && text("apiVersion").is_some()
}

/// A file that may hold objects of kind Secret.
pub struct FileOfSecrets<'t> {
    bytes: &'t [u8],
    documents: Vec<DocumentText<'t>>,
}

/// A part of a file: in YAML usually a document with the `---` before it, in JSON all of it.
struct DocumentText<'t> {
    text: &'t str,
    objects: Vec<Node>,
}

/// A Secret in a file.
pub struct FoundSecret<'f> {
    /// Number of its part of the file, for [`FileOfSecrets::without`].
    pub document: usize,
    text: &'f str,
    node: &'f Node,
}

/// Values of a Secret, and those who may use them.
pub struct SecretObject {
    /// `metadata.namespace`, if it is written.
    pub namespace: Option<String>,
    /// `metadata.name`.
    pub name: String,
    /// `data` and `stringData`.
    pub values: BTreeMap<String, Vec<u8>>,
    /// Fields that a sealed secret does not have.
    pub left_out: Vec<String>,
}

impl<'t> FileOfSecrets<'t> {
    /// Reads a file; its name selects the format, YAML by default.
    pub fn read(name: &str, bytes: &'t [u8]) -> Result<Self, String> {
        let format = Format::from_path(name).unwrap_or(Format::Yaml);
        let text = document::read(bytes).map_err(|problem| problem.message)?;
        let (mut documents, mut line) = (Vec::new(), 0);
        let texts = if format == Format::Yaml { split_documents(text) } else { vec![text] };
        for text in texts {
            let objects =
                objects(format, text).map_err(|(mark, why)| format!("line {}: {why}", line + mark.line))?;
            documents.push(DocumentText { text, objects });
            line += u32::try_from(text.matches('\n').count()).unwrap_or(u32::MAX);
        }
        Ok(Self { bytes, documents })
    }

    /// Iterates over the objects of kind Secret.
    pub fn secrets(&self) -> impl Iterator<Item = FoundSecret<'_>> {
        self.documents.iter().enumerate().flat_map(|(document, part)| {
            let secrets = part.objects.iter().filter(|node| is_secret(node));
            secrets.map(move |node| FoundSecret { document, text: part.text, node })
        })
    }

    /// Returns the file without these documents, everything else byte for byte; `None` if nothing is left. `taken` has
    /// one number for each object that was taken out.
    pub fn without(&self, taken: &[usize]) -> Result<Option<Vec<u8>>, String> {
        let count = |index: usize| taken.iter().filter(|document| **document == index).count();
        let parts = || self.documents.iter().enumerate();
        if parts().any(|(index, part)| count(index) > 0 && count(index) < part.objects.len()) {
            let why = "other objects are in the same document, or a line begins with `%` or `...`; take it out by hand";
            return Err(why.to_owned());
        }
        let is_blank = |part: &str| part.lines().all(|line| matches!(line.trim(), "" | "---"));
        if parts().all(|(index, part)| count(index) > 0 || is_blank(part.text)) {
            return Ok(None);
        }
        let mark = &self.bytes[..self.bytes.len() - without_mark(self.bytes).len()];
        let rest = parts().filter(|(index, _)| count(*index) == 0).map(|(_, part)| part.text.as_bytes());
        Ok(Some(std::iter::once(mark).chain(rest).collect::<Vec<_>>().concat()))
    }
}

/// Splits a text before each line that begins with `---`: nothing within a document can. A text with directives or ends
/// of documents stays whole, because a cut could change what they belong to.
fn split_documents(text: &str) -> Vec<&str> {
    if text.lines().any(|line| line.starts_with('%') || line.starts_with("...")) {
        return vec![text];
    }
    let is_start = |line: &str| {
        line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
    };
    let (mut parts, mut begin, mut at) = (Vec::new(), 0, 0);
    for line in text.split_inclusive('\n') {
        if is_start(line) && at > begin {
            parts.push(&text[begin..at]);
            begin = at;
        }
        at += line.len();
    }
    parts.push(&text[begin..]);
    parts
}

/// Reads the objects of a text, or returns why it can't be read.
fn objects(format: Format, text: &str) -> Result<Vec<Node>, (Mark, String)> {
    let parsed = parse(format, text);
    let roots: Vec<Root> = parsed.roots.into_iter().flat_map(expand_list).collect();
    let of_secrets = roots.iter().filter(|root| is_secret(&root.node)).flat_map(|root| &root.problems);
    let mut problems = parsed.failure.iter().chain(of_secrets);
    if let Some(problem) = problems.next() {
        return Err((problem.mark, problem.message.clone()));
    }
    Ok(roots.into_iter().map(|root| root.node).filter(|node| !node.is_null()).collect())
}

impl FoundSecret<'_> {
    /// Returns the text of its document if SOPS encrypted it.
    pub fn sops_text(&self) -> Option<&str> {
        is_encrypted_by_sops(self.node).then_some(self.text)
    }

    /// Returns `metadata.name`, if it can be read.
    pub fn name(&self) -> Option<&str> {
        self.node.entry("metadata")?.value.entry("name")?.value.text()
    }

    /// Reads its values.
    pub fn read(&self) -> Result<SecretObject, String> {
        read_secret(self.node)
    }
}

impl SecretObject {
    /// Reads a Secret from its JSON.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let mut objects = objects(Format::Json, json).map_err(|(_, why)| why)?;
        objects.pop().ok_or_else(|| "it is empty".to_owned()).and_then(|node| read_secret(&node))
    }
}

fn read_secret(node: &Node) -> Result<SecretObject, String> {
    let text =
        |node: &Node, key: &str| node.entry(key).and_then(|entry| entry.value.text()).map(str::to_owned);
    if text(node, "apiVersion").as_deref() != Some("v1") {
        return Err("apiVersion must be v1".to_owned());
    }
    if let Some(other) =
        node.entries().unwrap_or_default().iter().find(|entry| !SECRET_FIELDS.contains(&entry.key.as_str()))
    {
        return Err(format!("unknown field `{}`; {}", other.key, suggestion(&other.key, SECRET_FIELDS)));
    }
    if text(node, "type").as_deref() == Some(ACCOUNT_TOKEN) {
        return Err(format!(
            "type {ACCOUNT_TOKEN}: there is no API of Kubernetes to log in to; remove the object"
        ));
    }
    let metadata = node.entry("metadata").map_or(&[][..], |entry| entry.value.entries().unwrap_or_default());
    let of_metadata = |key: &str| {
        let found = metadata.iter().find(|entry| entry.key == key && !entry.value.is_null());
        found.and_then(|entry| entry.value.text()).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let mut values = BTreeMap::new();
    for (field, read) in [("data", from_base64 as ReadValue), ("stringData", from_text)] {
        let Some(entry) = node.entry(field).filter(|entry| !entry.value.is_null()) else { continue };
        let entries = entry.value.entries().ok_or_else(|| format!("{field} must be a map"))?;
        for Entry { key, value, .. } in entries {
            if !is_key(key) {
                return Err(format!(
                    "{field} has a key that is no file name: use letters, digits, `-`, `_` and `.`"
                ));
            }
            let bytes = read(value).map_err(|why| format!("{field}.{key} {why}"))?;
            values.insert(key.clone(), bytes);
        }
    }
    if values.is_empty() {
        return Err("it has no values".to_owned());
    }
    let is_kept = |key: &str| ["name", "namespace"].contains(&key) || BY_SERVER_FIELDS.contains(&key);
    let of_metadata_left = metadata.iter().filter(|entry| !is_kept(&entry.key));
    let left_out = of_metadata_left.map(|entry| format!("metadata.{}", entry.key));
    let flags = ["type", "immutable"].into_iter().filter(|key| node.entry(key).is_some()).map(str::to_owned);
    Ok(SecretObject {
        namespace: of_metadata("namespace"),
        name: of_metadata("name").ok_or_else(|| "metadata.name is missing".to_owned())?,
        values,
        left_out: left_out.chain(flags).collect(),
    })
}

type ReadValue = fn(&Node) -> Result<Vec<u8>, &'static str>;

fn from_base64(value: &Node) -> Result<Vec<u8>, &'static str> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    // As Kubernetes does: lines may be broken anywhere.
    let text = value.text().ok_or("is not text")?.replace(['\r', '\n'], "");
    STANDARD.decode(text).map_err(|_| "is not base64; write plain text under stringData")
}

fn from_text(value: &Node) -> Result<Vec<u8>, &'static str> {
    match &value.value {
        Value::Scalar { text, plain: true } => match resolve(text) {
            PlainScalar::Null => Ok(Vec::new()),
            PlainScalar::Text => Ok(text.clone().into_bytes()),
            // As Kubernetes does: whoever wrote `yes` or 0123 may mean another text.
            _ => Err("is a number or a boolean; put it in quotes"),
        },
        Value::Scalar { text, .. } => Ok(text.clone().into_bytes()),
        Value::Sequence(_) | Value::Mapping(_) => Err("is not text"),
    }
}

// Passwords of variables.

/// A manifest whose passwords on one line were replaced by references to a secret.
pub struct SealedLine {
    /// The new text of the file.
    pub text: String,
    /// Namespace of the object, if it is written.
    pub namespace: Option<String>,
    /// Name of the secret.
    pub secret: String,
    /// Values by key.
    pub values: BTreeMap<String, String>,
}

/// A variable with a value.
struct Variable {
    name: String,
    value: String,
    /// Place of the key `value`.
    key: Mark,
}

/// Replaces the passwords of variables (`env`) on this line by references to the secret `named`, by default one with the
/// object's own name, with the variables' names as keys. A value that is alone on its line is taken, whatever it is. The
/// result is the same manifest except for these values, and has no error that was not there before.
pub fn seal_line(path: &str, bytes: &[u8], line: u32, named: Option<&str>) -> Result<SealedLine, String> {
    let format = Format::from_path(path).ok_or("it is neither a .yaml nor a .json file")?;
    let text = document::read(bytes).map_err(|problem| problem.message)?;
    let read = |text: &str| objects(format, text).map_err(|(mark, why)| format!("line {}: {why}", mark.line));
    let mut objects = read(text)?;
    let (object, found) = variables_on(&mut objects, line)?;
    let of_object = |key: &str| object.entry("metadata")?.value.entry(key)?.value.text().map(str::to_owned);
    let (secret, namespace) =
        (named.map(str::to_owned).or_else(|| of_object("name")), of_object("namespace"));
    let secret = secret.ok_or("the object has no name; name the secret")?;
    let mut values = BTreeMap::new();
    for one in &found {
        let value = expanded(&one.value).ok_or_else(|| {
            format!("{} has a $(NAME), which is not expanded in a secret: rewrite it by hand", one.name)
        })?;
        if values.insert(one.name.clone(), value.clone()).is_some_and(|other| other != value) {
            return Err(format!("line {line} has two values of {}: break the line", one.name));
        }
    }
    let is_quoted = format == Format::Json;
    let written = rewritten(text, &found, &secret, is_quoted).ok_or_else(|| {
        format!(
            "the value on line {line} can't be replaced as it is written: put it in quotes, without an anchor"
        )
    })?;
    for object in &mut objects {
        visit_env(object, &mut |item| refer(item, &found, &secret));
    }
    if !objects.iter().map(content).eq(read(&written)?.iter().map(content)) {
        return Err(format!("line {line} can't be replaced without a change elsewhere: rewrite it by hand"));
    }
    check_errors(path, text, &written)?;
    let mark = &bytes[..bytes.len() - without_mark(bytes).len()];
    let text = [&String::from_utf8_lossy(mark), written.as_str()].concat();
    Ok(SealedLine { text, namespace, secret, values })
}

/// Returns the text that a container gets for the `value` of a variable; `None` if it depends on other variables.
fn expanded(value: &str) -> Option<String> {
    let mut parts = value.split("$$");
    let is_literal = |part: &&str| !part.contains("$(");
    let first = parts.next().filter(is_literal)?.to_owned();
    parts.try_fold(first, |text, part| is_literal(&part).then(|| text + "$" + part))
}

/// Returns the object that has variables with values on this line, and those to seal, in order.
fn variables_on(objects: &mut [Node], line: u32) -> Result<(Node, Vec<Variable>), String> {
    let mut found: Vec<(Node, Vec<Variable>)> = Vec::new();
    for object in objects {
        let mut variables = Vec::new();
        visit_env(object, &mut |item| variables.extend(variable(item).filter(|one| one.key.line == line)));
        if !variables.is_empty() {
            found.push((object.clone(), variables));
        }
    }
    let (object, mut variables) = match (found.pop(), found.len()) {
        (Some(found), 0) => found,
        (None, _) => return Err(format!("line {line} has no `value` of a variable in `env`")),
        (Some(_), _) => return Err(format!("line {line} has several objects: break the line")),
    };
    // An alias repeats a variable with its place.
    variables.sort_by_key(|one| one.key);
    variables.dedup_by_key(|one| one.key);
    let is_secret = |one: &Variable| is_clear_secret(&one.name, &one.value);
    if variables.iter().any(is_secret) {
        variables.retain(is_secret);
    } else if variables.len() > 1 {
        return Err(format!(
            "line {line} has several values, and none is known as a password: break the line"
        ));
    }
    Ok((object, variables))
}

/// Visits the items of each list `env`.
fn visit_env(node: &mut Node, visit: &mut dyn FnMut(&mut Node)) {
    match &mut node.value {
        Value::Scalar { .. } => {}
        Value::Sequence(items) => items.iter_mut().for_each(|item| visit_env(item, visit)),
        Value::Mapping(entries) => {
            for entry in entries {
                if entry.key == "env" {
                    items_mut(&mut entry.value).into_iter().flatten().for_each(&mut *visit);
                }
                visit_env(&mut entry.value, visit);
            }
        }
    }
}

fn variable(item: &Node) -> Option<Variable> {
    let value = item.entry("value").filter(|entry| !entry.value.is_null())?;
    let name = item.entry("name")?.value.text()?.to_owned();
    Some(Variable { name, value: value.value.text()?.to_owned(), key: value.mark })
}

/// Replaces the value of a found variable by a reference, in the tree.
fn refer(item: &mut Node, found: &[Variable], secret: &str) {
    let Some(entries) = entries_mut(item) else { return };
    for entry in entries.iter_mut().filter(|entry| entry.key == "value") {
        let Some(one) = found.iter().find(|one| one.key == entry.mark) else { continue };
        let names = [("name", text(entry.mark, secret)), ("key", text(entry.mark, &one.name))];
        let reference = mapping(entry.mark, names);
        entry.value = mapping(entry.mark, [("secretKeyRef", reference)]);
        entry.key = "valueFrom".to_owned();
    }
}

/// Replaces the values by references, in the text; `None` where the end of a value is unclear.
fn rewritten(text: &str, found: &[Variable], secret: &str, is_json: bool) -> Option<String> {
    let mut text = text.to_owned();
    // From the end: the places before stay.
    for one in found.iter().rev() {
        let begin = offset(&text, one.key)?;
        let keys = ["value", "\"value\"", "'value'"];
        let (key, rest) = keys.iter().find_map(|key| Some((key, text[begin..].strip_prefix(key)?)))?;
        let value = rest.trim_start_matches([' ', '\t']).strip_prefix(':')?.trim_start();
        let end = text.len() - value.len() + length(value, one)?;
        let reference = if is_json || key.starts_with('"') {
            let (name, key) = (json!(secret), json!(one.name));
            format!("\"valueFrom\": {{\"secretKeyRef\": {{\"name\": {name}, \"key\": {key}}}}}")
        } else {
            let word = |text: &str| if is_plain(text) { text.to_owned() } else { json!(text).to_string() };
            format!("valueFrom: {{secretKeyRef: {{name: {}, key: {}}}}}", word(secret), word(&one.name))
        };
        text.replace_range(begin..end, &reference);
    }
    Some(text)
}

/// True for a word that YAML reads as itself.
fn is_plain(word: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    word.chars().all(fits)
        && word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && resolve(word) == PlainScalar::Text
}

/// Returns the byte at a place.
fn offset(text: &str, Mark { line, column }: Mark) -> Option<usize> {
    let (line, column) =
        (usize::try_from(line).ok()?.checked_sub(1)?, usize::try_from(column).ok()?.checked_sub(1)?);
    let before: usize = text.split_inclusive('\n').take(line).map(str::len).sum();
    text[before..].char_indices().nth(column).map(|(at, _)| before + at)
}

/// Returns the length of the value that a text begins with.
fn length(text: &str, one: &Variable) -> Option<usize> {
    match text.chars().next()? {
        '"' => {
            let mut is_escaped = false;
            let end = text[1..].find(|c| {
                let ends = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                ends
            });
            Some(end? + 2)
        }
        '\'' => {
            let mut end = 1 + text[1..].find('\'')? + 1;
            // Two stand for one.
            while text[end..].starts_with('\'') {
                end += 1 + text[end + 1..].find('\'')? + 1;
            }
            Some(end)
        }
        '|' | '>' => {
            let (mut end, mut at) = (0, 0);
            for (index, line) in text.split_inclusive('\n').enumerate() {
                let indent = line.len() - line.trim_start_matches(' ').len();
                let is_blank = line.trim().is_empty();
                if index > 0 && !is_blank && indent < usize::try_from(one.key.column).ok()? {
                    break;
                }
                if !is_blank {
                    end = at + line.trim_end_matches(['\r', '\n']).len();
                }
                at += line.len();
            }
            Some(end)
        }
        '&' | '*' | '!' | '#' => None,
        // Without quotes and on one line, a value is what it says.
        _ => text.starts_with(&one.value).then_some(one.value.len()),
    }
}

/// Returns everything of a value but its places.
fn content(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::Scalar { text, plain } => json!([text, *plain && resolve(text) != PlainScalar::Text]),
        Value::Sequence(items) => json!({"items": items.iter().map(content).collect::<Vec<_>>()}),
        Value::Mapping(entries) => {
            json!({"entries": entries.iter().map(|entry| json!([entry.key, content(&entry.value)])).collect::<Vec<_>>()})
        }
    }
}

/// Fails if the file `after` has an error that `before` does not have.
fn check_errors(path: &str, before: &str, after: &str) -> Result<(), String> {
    let errors = |text: &str| {
        let errors = load_file(path, text.as_bytes()).violations.into_iter().filter(Violation::is_error);
        errors.map(|error| (error.rule, error.message)).collect::<BTreeSet<_>>()
    };
    match errors(after).difference(&errors(before)).next() {
        Some((_, message)) => {
            Err(format!("with a reference to a secret, the file has another error: {message}"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
