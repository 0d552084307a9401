//! Dockerfiles of functions: the checks before a build, and the text that the builder gets. Pure.
//!
//! Reads a Dockerfile as Docker's classic builder does, which knows neither here-documents nor `RUN --mount`. The
//! builder gets each instruction again, on one line, with an image's id in place of its name, so nothing depends on
//! both reading comments, continued lines, variables and quotes alike.

use std::collections::{BTreeMap, BTreeSet};

use crate::file_text::file_text;
use crate::image;

#[cfg(test)]
mod tests;

/// A reason to refuse a Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// 1-based line.
    pub line: u32,
    /// Description of the problem.
    pub message: String,
    /// Advice; empty if the message includes it.
    pub help: &'static str,
}

/// An image on the node, in place of its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PinnedImage {
    /// `sha256:…`.
    pub id: String,
    /// True if the image has labels with the agent's prefix, which the build must not inherit.
    pub has_agent_labels: bool,
}

/// A Dockerfile without faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerfile {
    escape: char,
    instructions: Vec<Instruction>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Instruction {
    parts: Vec<Part>,
    /// True if it may set labels with the agent's prefix.
    resets_labels: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Image(String),
}

/// Prefix of the labels by which agents know their containers.
pub const LABEL_PREFIX: &str = "minik8s.io/";

/// Instructions that are passed on as they are.
const PLAIN: [&str; 10] = [
    "CMD",
    "ENTRYPOINT",
    "EXPOSE",
    "HEALTHCHECK",
    "MAINTAINER",
    "SHELL",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
    "WORKDIR",
];

/// Beginnings of sources that `ADD` fetches.
const REMOTE: [&str; 6] = ["http://", "https://", "git://", "git@", "ssh://", "github.com/"];

/// Parses and checks a Dockerfile.
///
/// # Errors
/// All reasons to refuse it, by line.
pub fn parse(text: &str) -> Result<Dockerfile, Vec<Fault>> {
    let text = file_text(text.as_bytes()).unwrap_or(text);
    let (escape, refused) = directives(text);
    let mut reader = Reader { escape, ..Reader::default() };
    let mut faults: Vec<Fault> = refused.into_iter().collect();
    for (line, text) in logical_lines(text, escape) {
        if let Err((message, help)) = reader.read(&text) {
            faults.push(Fault { line, message, help });
        }
    }
    if faults.is_empty() && reader.stages.is_empty() {
        faults.push(Fault { line: 1, message: "it has no FROM".to_owned(), help: "" });
    }
    let Reader { instructions, .. } = reader;
    if faults.is_empty() { Ok(Dockerfile { escape, instructions }) } else { Err(faults) }
}

impl Dockerfile {
    /// Returns the images that `FROM` and `COPY --from` name, without stages and `scratch`.
    pub fn images(&self) -> BTreeSet<&str> {
        let parts = self.instructions.iter().flat_map(|instruction| &instruction.parts);
        let images = parts.filter_map(|part| match part {
            Part::Image(name) => Some(name.as_str()),
            Part::Text(_) => None,
        });
        images.collect()
    }

    /// Returns the text for the builder, with these images in place of their names. `labels` are emptied wherever
    /// an image or the Dockerfile may have set them. An image without a pin keeps its name.
    pub fn pinned(&self, pins: &BTreeMap<String, PinnedImage>, labels: &[&str]) -> String {
        let mut text =
            if self.escape == '\\' { String::new() } else { format!("# escape={}\n", self.escape) };
        for instruction in &self.instructions {
            let mut resets = instruction.resets_labels;
            for part in &instruction.parts {
                match part {
                    Part::Text(part) => text.push_str(part),
                    Part::Image(name) => {
                        let pin = pins.get(name);
                        text.push_str(pin.map_or(name, |pin| &pin.id));
                        resets |= pin.is_some_and(|pin| pin.has_agent_labels);
                    }
                }
            }
            text.push('\n');
            // A step that copies from an image inherits nothing; the extra instruction does no harm.
            if resets && !labels.is_empty() {
                let empty: Vec<String> = labels.iter().map(|label| format!("{label}=\"\"")).collect();
                text.push_str(&format!("LABEL {}\n", empty.join(" ")));
            }
        }
        text
    }
}

/// Returns the escape character, and the fault of a `syntax` directive: another builder would read the rest.
fn directives(text: &str) -> (char, Option<Fault>) {
    let mut escape = '\\';
    for (line, text) in (1..).zip(text.lines()) {
        let comment = text.trim_start().strip_prefix('#').and_then(|comment| comment.split_once('='));
        let Some((key, value)) = comment else { break };
        match key.trim().to_ascii_lowercase().as_str() {
            "escape" => escape = if value.trim() == "`" { '`' } else { '\\' },
            "syntax" => {
                let message = "`# syntax=` names another program as the builder".to_owned();
                return (escape, Some(Fault { line, message, help: "leave the line out" }));
            }
            key if key.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {}
            _ => break,
        }
    }
    (escape, None)
}

/// Joins continued lines and drops comments. Each has the number of its first line.
fn logical_lines(text: &str, escape: char) -> Vec<(u32, String)> {
    let mut lines = (1..).zip(text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)));
    let is_left_out = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let continued = |line: &str| match line.trim_end_matches([' ', '\t']).strip_suffix(escape) {
        Some(piece) => (piece.to_owned(), true),
        None => (line.to_owned(), false),
    };
    let mut joined = Vec::new();
    while let Some((number, line)) = lines.next() {
        if is_left_out(line) {
            continue;
        }
        let (mut whole, mut goes_on) = continued(line.trim_start());
        while goes_on {
            let Some((_, next)) = lines.next() else { break };
            if !is_left_out(next) {
                let (piece, again) = continued(next);
                whole.push_str(&piece);
                goes_on = again;
            }
        }
        if !whole.trim().is_empty() {
            joined.push((number, whole.trim().to_owned()));
        }
    }
    joined
}

/// Message and advice of a fault.
type Refusal = (String, &'static str);

fn refuse<T>(message: impl Into<String>, help: &'static str) -> Result<T, Refusal> {
    Err((message.into(), help))
}

/// Variables; `None` for one without a value.
type Variables = BTreeMap<String, Option<String>>;

/// The Dockerfile as read so far.
#[derive(Default)]
struct Reader {
    escape: char,
    instructions: Vec<Instruction>,
    /// Names of the stages, in lower case; empty for one without a name.
    stages: Vec<String>,
    /// `ARG` before the first `FROM`.
    global: Variables,
    /// `ARG` and `ENV` of this stage.
    local: Variables,
}

impl Reader {
    fn read(&mut self, text: &str) -> Result<(), Refusal> {
        let is_odd = |c: char| c.is_control() && c != '\t' || c.is_whitespace() && !matches!(c, ' ' | '\t');
        if let Some(odd) = text.chars().find(|c| is_odd(*c)) {
            return refuse(format!("it has the character {}", odd.escape_unicode()), "write a space instead");
        }
        if text.ends_with(self.escape) {
            return refuse(
                format!("it ends with {}, which joins it to the next line", self.escape),
                "leave it out",
            );
        }
        let (name, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
        let (name, rest) = (name.to_ascii_uppercase(), rest.trim());
        match name.as_str() {
            "FROM" => return self.read_from(rest),
            "ARG" => self.read_args(rest),
            other if self.stages.is_empty() => {
                return refuse(format!("{other} is before the first FROM"), "");
            }
            "ENV" => self.read_env(rest),
            "ADD" | "COPY" => return self.read_copy(&name, rest),
            "RUN" => self.check_run(rest)?,
            "LABEL" => {
                let is_own = |word: &String| word.trim_start_matches(['"', '\'']).starts_with(LABEL_PREFIX);
                if words(rest, self.escape).iter().any(is_own) {
                    return refuse(
                        format!("labels that begin with {LABEL_PREFIX} belong to Minik8s"),
                        "choose another name",
                    );
                }
            }
            "ONBUILD" => {
                return refuse(
                    "ONBUILD is not allowed: its instruction would run unchecked",
                    "write the instruction where it is to run",
                );
            }
            other if PLAIN.contains(&other) => {}
            other => return refuse(format!("unknown instruction {other}"), ""),
        }
        // The name of a label may be put together from pieces.
        let resets_labels = name == "LABEL" && rest.contains(['$', '"', '\'', self.escape]);
        self.push(vec![Part::Text(format!("{name} {rest}"))], resets_labels);
        Ok(())
    }

    fn push(&mut self, parts: Vec<Part>, resets_labels: bool) {
        self.instructions.push(Instruction { parts, resets_labels });
    }

    fn read_from(&mut self, rest: &str) -> Result<(), Refusal> {
        let (flags, rest) = flags(rest)?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        let (written, alias) = match words.as_slice() {
            [image] => (*image, String::new()),
            [image, word, alias] if word.eq_ignore_ascii_case("as") => (*image, alias.to_ascii_lowercase()),
            _ => return refuse("write `FROM image` or `FROM image AS stage`", ""),
        };
        let is_name = |alias: &str| {
            alias.starts_with(|c: char| c.is_ascii_lowercase())
                && alias.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        };
        if !alias.is_empty() && !is_name(&alias) {
            return refuse(format!("`{alias}` is not the name of a stage"), "");
        }
        let name = expand(written, self.escape, &self.global).map_err(|why| {
            (
                format!("`{written}`: {why}"),
                "give the ARG before the first FROM a default, or write the image",
            )
        })?;
        let base = match self.stage(&name) {
            Some(stage) => Part::Text(stage),
            None if name == "scratch" => Part::Text(name),
            None => image_part(name)?,
        };
        let mut parts = vec![Part::Text("FROM ".to_owned())];
        parts.extend(flags.into_iter().map(|flag| Part::Text(format!("{flag} "))));
        parts.push(base);
        if !alias.is_empty() {
            parts.push(Part::Text(format!(" AS {alias}")));
        }
        self.push(parts, false);
        self.stages.push(alias);
        self.local = Variables::new();
        Ok(())
    }

    /// Returns the stage with this name, if there is one.
    fn stage(&self, name: &str) -> Option<String> {
        let name = name.to_ascii_lowercase();
        self.stages.iter().find(|stage| **stage == name && !name.is_empty()).cloned()
    }

    /// Returns the earlier stage with this name or number, if there is one.
    fn earlier_stage(&self, name: &str) -> Option<String> {
        let earlier = &self.stages[..self.stages.len().saturating_sub(1)];
        let by_name = earlier.iter().any(|stage| !stage.is_empty() && stage.eq_ignore_ascii_case(name));
        let by_number = is_number(name) && name.parse::<usize>().is_ok_and(|number| number < earlier.len());
        (by_name || by_number).then(|| name.to_ascii_lowercase())
    }

    fn read_args(&mut self, rest: &str) {
        for word in words(rest, self.escape) {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word.as_str(), None),
            };
            let known = if self.stages.is_empty() { &self.global } else { &self.local };
            let value = match value {
                Some(value) => expand(value, self.escape, known).ok(),
                None => self.global.get(name).cloned().flatten(),
            };
            let scope = if self.stages.is_empty() { &mut self.global } else { &mut self.local };
            scope.insert(name.to_owned(), value);
        }
    }

    fn read_env(&mut self, rest: &str) {
        let pairs = words(rest, self.escape);
        let pairs: Vec<(String, String)> = if pairs.first().is_some_and(|first| first.contains('=')) {
            let split = |pair: &String| pair.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
            pairs.iter().filter_map(split).collect()
        } else {
            rest.split_once([' ', '\t'])
                .map(|(k, v)| (k.to_owned(), v.trim().to_owned()))
                .into_iter()
                .collect()
        };
        let known = self.local.clone();
        let values = pairs.into_iter().map(|(name, value)| (name, expand(&value, self.escape, &known).ok()));
        self.local.extend(values);
    }

    fn read_copy(&mut self, name: &str, rest: &str) -> Result<(), Refusal> {
        let (flags, rest) = flags(rest)?;
        check_here_document(rest)?;
        let mut parts = vec![Part::Text(name.to_owned())];
        for flag in flags {
            let Some(from) = flag.strip_prefix("--from=") else {
                parts.push(Part::Text(format!(" {flag}")));
                continue;
            };
            if from.contains('$') {
                return refuse("Docker expands no variables in --from", "name the stage or the image");
            }
            parts.push(Part::Text(" --from=".to_owned()));
            parts.push(match self.earlier_stage(from) {
                Some(stage) => Part::Text(stage),
                None if is_number(from) => return refuse(format!("there is no earlier stage {from}"), ""),
                None => image_part(from.to_owned())?,
            });
        }
        let paths = match name {
            "ADD" => self.local_sources(rest)?,
            _ => rest.to_owned(),
        };
        parts.push(Part::Text(format!(" {paths}")));
        self.push(parts, false);
        Ok(())
    }

    /// Returns the arguments of an `ADD` with sources that begin with `./`: whatever a variable or quotes make of
    /// one, it is no URL.
    fn local_sources(&self, rest: &str) -> Result<String, Refusal> {
        let list = serde_json::from_str::<Vec<String>>(rest).ok();
        let mut paths = match &list {
            Some(list) => list.clone(),
            None => rest.split_whitespace().map(str::to_owned).collect(),
        };
        let Some((_, sources)) = paths.split_last_mut() else { return refuse("ADD names no files", "") };
        for source in sources {
            let expanded = expand(source, self.escape, &self.local).unwrap_or_else(|_| source.clone());
            let lower = expanded.trim_matches(['"', '\'']).to_ascii_lowercase();
            if REMOTE.iter().any(|remote| lower.starts_with(remote)) {
                return refuse(
                    format!("ADD would fetch {expanded} in the node's own network"),
                    "fetch it in a RUN step, or put the file into the folder",
                );
            }
            *source = format!("./{}", source.trim_start_matches('/'));
        }
        Ok(match list {
            Some(_) => serde_json::to_string(&paths).unwrap_or_default(),
            None => paths.join(" "),
        })
    }

    fn check_run(&self, rest: &str) -> Result<(), Refusal> {
        let (flags, command) = flags(rest)?;
        check_here_document(command)?;
        for mount in flags.iter().filter_map(|flag| flag.strip_prefix("--mount=")) {
            let pairs = mount.split(',').filter_map(|option| option.split_once('='));
            for (_, from) in pairs.filter(|(key, _)| key.trim().eq_ignore_ascii_case("from")) {
                if self.earlier_stage(from.trim()).is_none() {
                    return refuse(
                        format!("--mount takes files from {from}, which is no earlier stage"),
                        "add a stage `FROM` that image",
                    );
                }
            }
        }
        Ok(())
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|digit| digit.is_ascii_digit())
}

fn image_part(name: String) -> Result<Part, Refusal> {
    match image::check(&name) {
        Ok(()) => Ok(Part::Image(name)),
        Err(why) => refuse(why, "name an image, or a stage that an earlier FROM began"),
    }
}

/// Splits the leading flags off.
fn flags(rest: &str) -> Result<(Vec<&str>, &str), Refusal> {
    let (mut flags, mut rest) = (Vec::new(), rest);
    while rest.starts_with("--") {
        let (flag, after) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
        if flag == "--" || flag.contains(['"', '\'', '\\', '`']) {
            return refuse(format!("the flag {flag} can't be read"), "write it without quotes and escapes");
        }
        flags.push(flag);
        rest = after.trim_start();
    }
    Ok((flags, rest))
}

/// Refuses a here-document, whose lines the classic builder takes for instructions.
fn check_here_document(command: &str) -> Result<(), Refusal> {
    let begins_one = |word: &str| {
        let delimiter = word.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix("<<");
        delimiter.is_some_and(|delimiter| !delimiter.contains('<') && !delimiter.is_empty())
    };
    if command.split_whitespace().any(begins_one) {
        return refuse("the builder of the nodes reads no here-documents", "copy a script from the folder");
    }
    Ok(())
}

/// Splits at spaces outside of quotes; the quotes stay.
fn words(text: &str, escape: char) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            (' ' | '\t', None) => words.push(std::mem::take(&mut word)),
            (c, _) if c == escape && quote != Some('\'') => {
                word.push(c);
                word.extend(chars.next());
            }
            (c, _) => {
                match quote {
                    None if matches!(c, '"' | '\'') => quote = Some(c),
                    Some(open) if open == c => quote = None,
                    _ => {}
                }
                word.push(c);
            }
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// Expands a word as the builder does: removes quotes and puts in variables. The error says what has no value.
fn expand(word: &str, escape: char, known: &Variables) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = word;
    let mut quote = None;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match (c, quote) {
            ('\'', Some('\'')) | ('"', Some('"')) => quote = None,
            (c, Some('\'')) => expanded.push(c),
            ('\'' | '"', None) => quote = Some(c),
            (c, _) if c == escape => {
                let next = rest.chars().next();
                if quote.is_some() && next.is_some_and(|next| !matches!(next, '"' | '$') && next != escape) {
                    expanded.push(c);
                }
                expanded.extend(next);
                rest = &rest[next.map_or(0, char::len_utf8)..];
            }
            ('$', _) => {
                let (value, after) = variable(rest, known)?;
                expanded.push_str(&value);
                rest = after;
            }
            (c, _) => expanded.push(c),
        }
    }
    if quote.is_some() { Err("a quote is not closed".to_owned()) } else { Ok(expanded) }
}

/// Returns the value of the variable at the beginning of `text`, after its `$`, and what follows it.
fn variable<'t>(text: &'t str, known: &Variables) -> Result<(String, &'t str), String> {
    let name_end =
        |text: &str| text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    let (inner, after) = match text.strip_prefix('{') {
        Some(text) => text.split_once('}').ok_or("a `${` is not closed")?,
        None => text.split_at(name_end(text)),
    };
    let (name, modifier) = inner.split_at(name_end(inner));
    if name.is_empty() || modifier.contains(['$', '{', '"', '\'', '\\', '`']) {
        return Err(format!("`${{{inner}}}` can't be expanded"));
    }
    let value = known.get(name).cloned().flatten();
    let filled = value.clone().filter(|value| !value.is_empty());
    let modified = |mark: &str| modifier.strip_prefix(mark).map(str::to_owned);
    let value = if modifier.is_empty() {
        value
    } else if let Some(instead) = modified(":-") {
        Some(filled.unwrap_or(instead))
    } else if let Some(instead) = modified("-") {
        Some(value.unwrap_or(instead))
    } else if let Some(instead) = modified(":+") {
        Some(filled.map_or_else(String::new, |_| instead))
    } else if let Some(instead) = modified("+") {
        Some(value.map_or_else(String::new, |_| instead))
    } else {
        return Err(format!("`${{{inner}}}` can't be expanded"));
    };
    value.map(|value| (value, after)).ok_or_else(|| format!("the variable {name} has no value"))
}
