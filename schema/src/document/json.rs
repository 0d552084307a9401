//! Parses JSON text to trees of nodes. Not read as YAML, though JSON nearly is YAML: tabs, `\/` and surrogate pairs
//! differ, and a comment or a missing quote must be an error here.

use std::collections::BTreeMap;

use super::limits::{DEPTH_MAX, DOCUMENTS_MAX};
use super::node::{Budget, Entry, Mark, Node, ParsedFile, Problem, Root, Size, Value, cut_key};
use crate::violation::rules;

/// Parses the JSON values that follow each other in `text`, up to the first place that is not JSON.
pub(crate) fn parse(text: &str, budget: Budget) -> ParsedFile {
    let mut reader = Reader { rest: text, mark: Mark { line: 1, column: 1 }, budget, problems: Vec::new() };
    let mut parsed = ParsedFile { roots: Vec::new(), failure: None, left: budget };
    reader.skip_space();
    while !reader.rest.is_empty() {
        let outcome = match reader.value(0) {
            Ok(_) if parsed.roots.len() >= DOCUMENTS_MAX => {
                let message = format!("the file has more than {DOCUMENTS_MAX} documents");
                Err(Problem::new(reader.mark, &rules::TOO_MANY_DOCUMENTS, message))
            }
            other => other,
        };
        match outcome {
            Ok(node) => parsed.roots.push(Root { node, problems: std::mem::take(&mut reader.problems) }),
            Err(problem) => {
                parsed.failure = Some(problem);
                break;
            }
        }
        reader.skip_space();
    }
    parsed.left = reader.budget;
    parsed
}

struct Reader<'a> {
    rest: &'a str,
    mark: Mark,
    budget: Budget,
    problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next()?;
        self.rest = chars.as_str();
        if next == '\n' {
            self.mark = Mark { line: self.mark.line + 1, column: 1 };
        } else {
            self.mark.column += 1;
        }
        Some(next)
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|c| matches!(c, ' ' | '\t' | '\n' | '\r')) {
            self.bump();
        }
    }

    fn wrong(&self, wanted: &str) -> Problem {
        let found = match self.peek() {
            Some(c) => format!("found `{c}`"),
            None => "the file ends".to_owned(),
        };
        Problem::new(self.mark, &rules::JSON_SYNTAX, format!("not valid JSON: expected {wanted}, {found}"))
    }

    fn value(&mut self, depth: usize) -> Result<Node, Problem> {
        let mark = self.mark;
        self.budget.spend(Size::EMPTY, mark)?;
        let value = match self.peek() {
            Some('{' | '[') if depth >= DEPTH_MAX => {
                let message = format!("values are nested more than {DEPTH_MAX} levels deep");
                return Err(Problem::new(mark, &rules::TOO_DEEP, message));
            }
            Some('{') => Value::Mapping(self.object(depth)?),
            Some('[') => Value::Sequence(self.array(depth)?),
            Some('"') => Value::Scalar { text: self.string()?, plain: false },
            _ => Value::Scalar { text: self.word()?, plain: true },
        };
        Ok(Node { mark, value })
    }

    fn object(&mut self, depth: usize) -> Result<Vec<Entry>, Problem> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        self.bump();
        self.skip_space();
        if self.peek() == Some('}') {
            self.bump();
            return Ok(entries);
        }
        loop {
            let mark = self.mark;
            if self.peek() != Some('"') {
                return Err(self.wrong("a key in double quotes"));
            }
            let mut key = self.string()?;
            cut_key(&mut key, mark, &mut self.problems);
            if let Some(line) = seen.insert(key.clone(), mark.line) {
                let message = format!("`{key}` is written twice in one mapping, first on line {line}");
                self.problems
                    .push(Problem::new(mark, &rules::DUPLICATE_KEY, message).help("keep one of them"));
            }
            self.skip_space();
            if self.peek() != Some(':') {
                return Err(self.wrong("`:`"));
            }
            self.bump();
            self.skip_space();
            let value = self.value(depth + 1)?;
            entries.push(Entry { key, mark, value });
            if self.ends_with('}')? {
                return Ok(entries);
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Vec<Node>, Problem> {
        let mut items = Vec::new();
        self.bump();
        self.skip_space();
        if self.peek() == Some(']') {
            self.bump();
            return Ok(items);
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.ends_with(']')? {
                return Ok(items);
            }
        }
    }

    /// Reads the delimiter after an item: true at the end of the collection, false at a comma.
    fn ends_with(&mut self, close: char) -> Result<bool, Problem> {
        self.skip_space();
        match self.peek() {
            Some(',') => {
                self.bump();
                self.skip_space();
                Ok(false)
            }
            Some(c) if c == close => {
                self.bump();
                Ok(true)
            }
            _ => Err(self.wrong(&format!("`,` or `{close}`"))),
        }
    }

    /// Reads a string; serde_json decodes its escapes.
    fn string(&mut self) -> Result<String, Problem> {
        let (start, mark) = (self.rest, self.mark);
        self.bump();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.wrong("`\"` at the end of the text")),
                Some('"') => break,
                Some('\\') => {
                    self.bump();
                    self.bump();
                }
                Some(_) => {
                    self.bump();
                }
            }
        }
        self.bump();
        let literal = &start[..start.len() - self.rest.len()];
        self.budget.spend(Size { values: 0, ..Size::of_text(literal) }, mark)?;
        serde_json::from_str(literal)
            .map_err(|error| Problem::new(mark, &rules::JSON_SYNTAX, format!("not valid JSON: {error}")))
    }

    /// Reads a number, `true`, `false` or `null`.
    fn word(&mut self) -> Result<String, Problem> {
        let end = self
            .rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')))
            .unwrap_or(self.rest.len());
        let word: &'a str = &self.rest[..end];
        let is_literal = matches!(word, "true" | "false" | "null");
        if !is_literal && serde_json::from_str::<serde_json::Number>(word).is_err() {
            return Err(self.wrong("a value"));
        }
        for _ in 0..end {
            self.bump();
        }
        Ok(word.to_owned())
    }
}
