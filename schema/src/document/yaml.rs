//! Parses YAML text to trees of nodes: reads parser events, expands aliases and merge keys within the limits on
//! values and text.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, StrInput, Tag};

use super::limits::{DEPTH_MAX, DOCUMENTS_MAX};
use super::node::{Budget, Entry, IGNORE_HELP, Mark, Node, ParsedFile, Problem, Root, Size, Value, cut_key};
use crate::violation::rules;

/// Parses all documents of `text`, up to the first place that is not YAML or exceeds `budget`.
pub(crate) fn parse(text: &str, budget: Budget) -> ParsedFile {
    // The parser checks its own invariants by panicking. None has been seen to break, but one file must never take
    // the reconciler down, so a panic makes the file unreadable.
    std::panic::catch_unwind(|| read_events(text, budget)).unwrap_or_else(|_| {
        let message = "not valid YAML: the parser gave up";
        ParsedFile {
            roots: Vec::new(),
            failure: Some(Problem::new(Mark::default(), &rules::YAML_SYNTAX, message)),
            left: budget,
        }
    })
}

fn read_events(text: &str, budget: Budget) -> ParsedFile {
    let mut indented = IndentedText::new(text);
    loop {
        let (mut parsed, error) = read_once(&indented, budget);
        let Some(error) = error else { return parsed };
        let mark = mark_of(*error.marker());
        if !indented.move_line(&error, mark) {
            let mut problem = syntax_problem(&error, indented.original_mark(mark), text);
            if error.info() == IN_QUOTES
                && problem.help == IGNORE_HELP
                && let Some(ShallowLine { number, missing, .. }) = shallow_line(&indented.text, mark)
            {
                problem.help =
                    format!("indent line {number} by {missing} more, or end the quoted text before it");
            }
            parsed.failure = Some(problem);
            return parsed;
        }
    }
}

/// Reads up to the end or an error; returns the documents before it, and the error.
fn read_once(indented: &IndentedText<'_>, budget: Budget) -> (ParsedFile, Option<ScanError>) {
    let mut builder = Builder::new(budget);
    let mut parser: Parser<'_, StrInput<'_>> = Parser::new_from_str(&indented.text);
    while let Some(event) = parser.next_event() {
        let (event, span) = match event {
            Ok(read) => read,
            Err(error) => return (builder.parsed, Some(error)),
        };
        if let Err(problem) = builder.event(event, indented.original_mark(mark_of(span.start))) {
            builder.parsed.failure = Some(problem);
            break;
        }
    }
    (builder.parsed, None)
}

/// Builds one document at a time from its events.
struct Builder {
    /// Result so far, with the file's remaining budget.
    parsed: ParsedFile,
    problems: Vec<Problem>,
    open: Vec<Frame>,
    root: Option<Node>,
    anchors: BTreeMap<usize, Anchor>,
}

/// A collection that is still open.
struct Frame {
    mark: Mark,
    anchor: usize,
    size: Size,
    height: usize,
    items: Items,
}

enum Items {
    Sequence(Vec<Node>),
    Mapping { entries: Vec<Entry>, key: Option<Key>, merges: Vec<(Mark, Node)> },
}

struct Key {
    text: String,
    mark: Mark,
    is_merge: bool,
}

/// A value that aliases may repeat.
struct Anchor {
    node: Node,
    size: Size,
    height: usize,
}

impl Builder {
    fn new(left: Budget) -> Self {
        let parsed = ParsedFile { roots: Vec::new(), failure: None, left };
        let (problems, open, anchors) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { parsed, problems, open, root: None, anchors }
    }

    fn event(&mut self, event: Event<'_>, mark: Mark) -> Result<(), Problem> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd => Ok(()),
            Event::DocumentStart(_) => {
                // Anchors end with their document.
                self.anchors.clear();
                Ok(())
            }
            Event::DocumentEnd => self.document_end(mark),
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && !self.tag(tag.as_deref(), mark);
                let size = Size::of_text(&text);
                self.parsed.left.spend(size, mark)?;
                let node = Node { mark, value: Value::Scalar { text: text.into_owned(), plain } };
                self.complete(node, anchor, size, 0)
            }
            Event::Alias(anchor) => self.alias(anchor, mark),
            Event::SequenceStart(anchor, tag) => {
                self.tag(tag.as_deref(), mark);
                self.begin(mark, anchor, Items::Sequence(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                self.tag(tag.as_deref(), mark);
                self.begin(
                    mark,
                    anchor,
                    Items::Mapping { entries: Vec::new(), key: None, merges: Vec::new() },
                )
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
        }
    }

    fn document_end(&mut self, mark: Mark) -> Result<(), Problem> {
        let problems = std::mem::take(&mut self.problems);
        let Some(node) = self.root.take() else { return Ok(()) };
        if self.parsed.roots.len() >= DOCUMENTS_MAX {
            let message = format!("the file has more than {DOCUMENTS_MAX} documents");
            return Err(
                Problem::new(mark, &rules::TOO_MANY_DOCUMENTS, message).help("split it into several files")
            );
        }
        self.parsed.roots.push(Root { node, problems });
        Ok(())
    }

    /// Checks a tag. True if the tag makes a plain scalar text.
    fn tag(&mut self, tag: Option<&Tag>, mark: Mark) -> bool {
        let Some(tag) = tag else { return false };
        let is_core = tag.is_yaml_core_schema();
        if !(is_core && matches!(tag.suffix.as_str(), "str" | "map" | "seq")) {
            let shown = if is_core { format!("!!{}", tag.suffix) } else { tag.to_string() };
            let message = format!("the tag `{shown}` has no meaning in a manifest");
            self.problems
                .push(Problem::new(mark, &rules::YAML_TAG, message).help("write the plain value without it"));
        }
        is_core && tag.suffix == "str"
    }

    fn begin(&mut self, mark: Mark, anchor: usize, items: Items) -> Result<(), Problem> {
        if self.open.len() >= DEPTH_MAX {
            return Err(too_deep(mark));
        }
        self.parsed.left.spend(Size::EMPTY, mark)?;
        self.open.push(Frame { mark, anchor, size: Size::EMPTY, height: 0, items });
        Ok(())
    }

    fn alias(&mut self, anchor: usize, mark: Mark) -> Result<(), Problem> {
        let Some(found) = self.anchors.get(&anchor) else {
            // Not complete yet, so it contains itself; or from an earlier document.
            return Err(Problem::new(
                mark,
                &rules::YAML_SYNTAX,
                "the alias has no anchor before it in this document",
            )
            .help("an alias `*name` repeats a value marked `&name` earlier in the same document"));
        };
        if self.open.len() + found.height > DEPTH_MAX {
            return Err(too_deep(mark));
        }
        // Before the copy is made: the limit is about its size.
        self.parsed.left.spend(found.size, mark)?;
        let (node, size, height) = (found.node.clone(), found.size, found.height);
        self.attach(node, size, height)
    }

    fn end(&mut self) -> Result<(), Problem> {
        let frame = self.open.pop().expect("the parser ends only what it began");
        let value = match frame.items {
            Items::Sequence(items) => Value::Sequence(items),
            Items::Mapping { entries, merges, .. } => self.mapping(entries, merges),
        };
        self.complete(Node { mark: frame.mark, value }, frame.anchor, frame.size, frame.height + 1)
    }

    /// Finishes a value, all of whose parts were deducted from the budget.
    fn complete(&mut self, node: Node, anchor: usize, size: Size, height: usize) -> Result<(), Problem> {
        if anchor > 0 {
            // Copies for anchors count as well: they take memory even if no alias follows.
            self.parsed.left.spend(size, node.mark)?;
            self.anchors.insert(anchor, Anchor { node: node.clone(), size, height });
        }
        self.attach(node, size, height)
    }

    /// Adds a finished value to the collection around it; at the top, it is the document.
    fn attach(&mut self, node: Node, size: Size, height: usize) -> Result<(), Problem> {
        let Some(frame) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        frame.size.add(size);
        frame.height = frame.height.max(height);
        match &mut frame.items {
            Items::Sequence(items) => items.push(node),
            Items::Mapping { entries, key, merges } => match key.take() {
                None => {
                    let mut next = key_of(node)?;
                    cut_key(&mut next.text, next.mark, &mut self.problems);
                    *key = Some(next);
                }
                Some(Key { is_merge: true, mark, .. }) => merges.push((mark, node)),
                Some(Key { text, mark, .. }) => entries.push(Entry { key: text, mark, value: node }),
            },
        }
        Ok(())
    }

    /// Checks for duplicate keys and adds the entries merged by `<<`; a written key wins over a merged one.
    fn mapping(&mut self, mut entries: Vec<Entry>, merges: Vec<(Mark, Node)>) -> Value {
        let mut seen: BTreeMap<&str, Mark> = BTreeMap::new();
        for entry in &entries {
            if let Some(first) = seen.insert(&entry.key, entry.mark) {
                let message =
                    format!("`{}` is written twice in one mapping, first on line {}", entry.key, first.line);
                self.problems
                    .push(Problem::new(entry.mark, &rules::DUPLICATE_KEY, message).help("keep one of them"));
            }
        }
        let mut taken: HashSet<String> = entries.iter().map(|entry| entry.key.clone()).collect();
        for (mark, merge) in merges {
            let sources = match merge.value {
                Value::Sequence(items) => items,
                _ => vec![merge],
            };
            for source in sources {
                let Value::Mapping(merged) = source.value else {
                    let message = "`<<` takes a mapping or a list of mappings";
                    self.problems.push(Problem::new(mark, &rules::YAML_SYNTAX, message));
                    continue;
                };
                entries.extend(merged.into_iter().filter(|entry| taken.insert(entry.key.clone())));
            }
        }
        Value::Mapping(entries)
    }
}

/// Reads a key. A list or mapping as a key keeps the file from being read: a stray `?` or `{{` makes one, and what
/// it swallowed may have been the object.
fn key_of(node: Node) -> Result<Key, Problem> {
    match node.value {
        Value::Scalar { text, plain } => Ok(Key { is_merge: plain && text == "<<", mark: node.mark, text }),
        Value::Sequence(_) | Value::Mapping(_) => {
            Err(Problem::new(node.mark, &rules::YAML_SYNTAX, "a key must be text, not a list or mapping")
                .help("a template? put the rendered manifest into the repository"))
        }
    }
}

fn too_deep(mark: Mark) -> Problem {
    Problem::new(mark, &rules::TOO_DEEP, format!("values are nested more than {DEPTH_MAX} levels deep"))
}

fn mark_of(marker: Marker) -> Mark {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Mark { line: count(marker.line()).max(1), column: count(marker.col()).saturating_add(1) }
}

/// Reports the parser's error, with the usual cause where the text shows it.
fn syntax_problem(error: &ScanError, mark: Mark, text: &str) -> Problem {
    if error.info().contains("recursion limit") {
        return too_deep(mark);
    }
    // The parser may stop at the line before or after the one that is wrong.
    let near = usize::try_from(mark.line).unwrap_or(usize::MAX).saturating_sub(2);
    let lines = || (1u32..).zip(text.lines()).skip(near).take(3);
    let tab =
        lines().find(|(_, line)| line.trim_start_matches(' ').starts_with('\t') && !line.trim().is_empty());
    if let Some((number, line)) = tab {
        let spaces = line.len() - line.trim_start_matches(' ').len();
        let mark = Mark { line: number, column: u32::try_from(spaces + 1).unwrap_or(u32::MAX) };
        return Problem::new(mark, &rules::YAML_SYNTAX, "not valid YAML: a tab in the indentation")
            .help("YAML is indented with spaces");
    }
    if let Some((number, column, character)) = lines().find_map(|(number, line)| {
        let (column, character) = invisible(line).filter(|_| !line.trim_start().starts_with('#'))?;
        Some((number, column, character))
    }) {
        let message = format!("not valid YAML: an invisible character, U+{:04X}", u32::from(character));
        return Problem::new(Mark { line: number, column }, &rules::YAML_SYNTAX, message)
            .help("remove it, or write a plain space in its place: editors and copied text bring it along");
    }
    let help = if lines().any(|(_, line)| line.contains("{{")) {
        "this looks like a template: put the rendered manifest into the repository"
    } else {
        IGNORE_HELP
    };
    Problem::new(mark, &rules::YAML_SYNTAX, format!("not valid YAML: {}", error.info())).help(help)
}

/// Finds a character that looks like nothing or like a space where YAML has its structure: in an indentation, after a
/// `-` or a `:`; a byte order mark anywhere. Returns its column.
fn invisible(line: &str) -> Option<(u32, char)> {
    let is_blank =
        |c: char| (c.is_whitespace() && !c.is_ascii()) || matches!(c, '\u{200b}'..='\u{200d}' | '\u{2060}');
    let mut before = '\n';
    for (column, character) in (1u32..).zip(line.chars()) {
        let is_structure = matches!(before, '\n' | ' ' | '-' | ':' | '?');
        if character == '\u{feff}' || (is_blank(character) && is_structure) {
            return Some((column, character));
        }
        before = character;
    }
    None
}

// Accepts lists and mappings in brackets whose later lines are no deeper than their key:
//
// ```yaml
// runCommands: [
//   "./run",
// ]
// ```
//
// The YAML specification wants the last line deeper, and so does our parser; libyaml and with it kubectl, Go and
// Python accept it, and many manifests are written so. The parser reports this only within brackets, where space
// in front of a line means nothing: so the line is moved to the right and the file is read again. Columns are
// reported as they were written. The same goes for the last line of a quoted text, as of `steps: '[` above `]'`.

/// Error of the parser on a quoted text, at its beginning.
const IN_QUOTES: &str = "invalid indentation in quoted scalar";

/// A line of a quoted text that is no deeper than its key.
struct ShallowLine {
    /// 1-based.
    number: u32,
    /// Columns that it lacks.
    missing: usize,
    /// True if it begins with what ends a text or the JSON in it: a line with a key of its own rather shows that a
    /// quote was forgotten.
    is_end: bool,
}

/// Finds the first such line of the quoted text that begins at `at`.
fn shallow_line(text: &str, at: Mark) -> Option<ShallowLine> {
    let mut lines = (1u32..).zip(text.lines()).skip(at.line.saturating_sub(1) as usize);
    let (_, first) = lines.next()?;
    let key = first.chars().take_while(|c| matches!(c, ' ' | '-')).count();
    // On a line of its own, the text is deeper than its key.
    let key = key.min(at.column.saturating_sub(2) as usize);
    lines.find_map(|(number, line)| {
        let rest = line.trim_start_matches(' ');
        let indent = line.len() - rest.len();
        let is_end = rest.starts_with(['\'', '"', ']', '}', ')']);
        let is_shallow = indent <= key && !rest.trim().is_empty();
        is_shallow.then(|| ShallowLine { number, missing: key + 1 - indent, is_end })
    })
}

/// Most lines that are moved in one file; each costs another pass over the file.
const MOVED_MAX: usize = 64;

/// Columns by which lines move: deeper than any key of a manifest that can be loaded, written as people do.
const SHIFT_COLUMNS: usize = 4 * DEPTH_MAX;

/// A text in which some lines may be moved to the right.
pub(super) struct IndentedText<'a> {
    pub(super) text: Cow<'a, str>,
    /// 1-based numbers of the moved lines.
    moved: BTreeSet<u32>,
}

impl<'a> IndentedText<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text: Cow::Borrowed(text), moved: BTreeSet::new() }
    }

    /// Moves the line at which the parser gave up, if that can help; returns whether it did.
    pub(super) fn move_line(&mut self, error: &ScanError, at: Mark) -> bool {
        let line = match error.info() {
            "invalid indentation" | "invalid indentation in flow construct" => Some(at.line),
            IN_QUOTES => shallow_line(&self.text, at).filter(|line| line.is_end).map(|line| line.number),
            _ => None,
        };
        let Some(line) = line.filter(|line| self.moved.len() < MOVED_MAX && self.moved.insert(*line)) else {
            return false;
        };
        let before = self.text.split_inclusive('\n').take(line as usize - 1).map(str::len).sum();
        self.text.to_mut().insert_str(before, &" ".repeat(SHIFT_COLUMNS));
        true
    }

    /// Maps a place of this text to the original text.
    pub(super) fn original_mark(&self, mark: Mark) -> Mark {
        let by = if self.moved.contains(&mark.line) { SHIFT_COLUMNS as u32 } else { 0 };
        Mark { line: mark.line, column: mark.column.saturating_sub(by).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_nobody_sees_are_found_where_they_break_the_structure() {
        for (line, found) in [
            ("  \u{feff}kind: Pod", Some((3, '\u{feff}'))),
            ("\u{a0} b: 2", Some((1, '\u{a0}'))),
            ("a:\u{2003}1", Some((3, '\u{2003}'))),
            ("- \u{200b}a", Some((3, '\u{200b}'))),
            ("text: caf\u{e9}\u{a0}au lait", None),
            ("plain: text", None),
        ] {
            assert_eq!(invisible(line), found, "{line:?}");
        }
    }
}
