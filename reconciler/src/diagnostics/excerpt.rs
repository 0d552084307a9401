//! The line that a message refers to, and the part of it to underline. Pure.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use schema::violation::{Severity, Violation, is_invisible, visible};

use super::redact::redacted;

/// Longest line shown whole; longer ones are cut around the underlined part, as a file may be one line of a megabyte.
const LINE_CHARS_MAX: usize = 1_000;
const AROUND_CHARS: usize = 400;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    /// The line, or the part kept of a long one.
    pub line: String,
    pub span: Range<usize>,
    /// Set if the line is incomplete, so that columns can't be counted in it.
    pub is_cut: bool,
}

/// A text split into lines, so that many messages about one file read it once.
#[derive(Debug)]
pub struct Lines<'a> {
    lines: Vec<&'a str>,
    /// The last line shown, without possible secrets: a file of one line has many messages.
    last: RefCell<Option<(usize, Cow<'a, str>)>>,
}

impl<'a> Lines<'a> {
    /// Splits a text into lines as YAML does: a lone carriage return also ends a line.
    pub fn of(text: &'a str) -> Self {
        let parts = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
        Self { lines: parts.flat_map(|line| line.split('\r')).collect(), last: RefCell::new(None) }
    }

    /// Returns the excerpt for a 1-based line and column; column 0 is the whole line. Omits values that may be
    /// secret.
    pub fn excerpt(&self, line: u32, column: u32) -> Option<Excerpt> {
        let index = usize::try_from(line).ok()?.checked_sub(1)?;
        self.lines.get(index)?;
        let mut last = self.last.borrow_mut();
        let known = last.take().filter(|(at, _)| *at == index);
        let (_, text) = last.insert(known.unwrap_or_else(|| (index, redacted(&self.lines, index))));
        let is_hidden = matches!(text, Cow::Owned(_));
        let excerpt = excerpt(text, usize::try_from(column).ok()?);
        Some(Excerpt { is_cut: excerpt.is_cut || is_hidden, ..excerpt })
    }
}

fn excerpt(line: &str, column: usize) -> Excerpt {
    // Cut before measuring: the work below grows with the length of the line.
    let skipped = if column > AROUND_CHARS { column - AROUND_CHARS - 1 } else { 0 };
    let kept: usize = AROUND_CHARS * 2;
    let is_long = line.len() > LINE_CHARS_MAX && line.chars().nth(LINE_CHARS_MAX).is_some();
    if !is_long {
        let line = pictured(line);
        return Excerpt { span: span(&line, column), line, is_cut: false };
    }
    let start = byte_of(line, skipped);
    let end = start + byte_of(&line[start..], kept);
    let middle = pictured(&line[start..end]);
    let mut part = String::from(if start > 0 { "…" } else { "" });
    let shift = part.len();
    part.push_str(&middle);
    let marked = span(&middle, column.saturating_sub(skipped));
    if end < line.len() {
        part.push('…');
    }
    Excerpt { line: part, span: marked.start + shift..marked.end + shift, is_cut: true }
}

/// Replaces each character that would control a terminal by a picture, one for one, so that columns stay.
fn pictured(line: &str) -> String {
    let picture = |c: char| match c {
        '\t' => '\t',
        '\u{0}'..='\u{1f}' => char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'),
        c if is_invisible(c) => '\u{fffd}',
        c => c,
    };
    line.chars().map(picture).collect()
}

/// Byte offset of the character with this index; the end if there are fewer.
fn byte_of(text: &str, index: usize) -> usize {
    text.char_indices().nth(index).map_or(text.len(), |(at, _)| at)
}

/// Span of the key or value that begins at the 1-based column; for 0, of the whole line without its indentation.
fn span(line: &str, column: usize) -> Range<usize> {
    let Some(index) = column.checked_sub(1) else {
        return line.len() - line.trim_start().len()..line.trim_end().len().max(1).min(line.len());
    };
    let start = byte_of(line, index);
    let rest = &line[start..];
    let end = match rest.chars().next() {
        Some(quote @ ('"' | '\'')) => quoted_end(rest, quote),
        Some('[' | ']' | '{' | '}' | ',') => 1,
        _ => plain_end(rest),
    };
    start..start + end
}

fn quoted_end(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && quote == '"' && !escaped;
    }
    rest.trim_end().len()
}

/// End of a plain key or value: at `: `, ` #`, a delimiter within brackets, or the end of the line.
fn plain_end(rest: &str) -> usize {
    let mut end = rest.len();
    let mut before = ' ';
    for (at, c) in rest.char_indices() {
        let next = rest[at + c.len_utf8()..].chars().next();
        let ends = match c {
            ':' => next.is_none_or(char::is_whitespace),
            '#' => before.is_whitespace() && at > 0,
            ',' | ']' | '}' => at > 0,
            _ => false,
        };
        if ends {
            end = at;
            break;
        }
        before = c;
    }
    rest[..end].trim_end().len()
}

// Messages for people: the problem, its line, its object, and the remedy. Pure.
//
// The rendering library lines carets up under tabs and wide characters and keeps lines within the width. Its input
// is short and harmless: `excerpt` cuts, `visible` escapes.

const WIDTH: usize = 120;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    pub width: usize,
    pub colour: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self { width: WIDTH, colour: false }
    }
}

/// Renders a message, with a line break at its end.
pub fn render(violation: &Violation, excerpt: Option<&Excerpt>, style: Style) -> String {
    let renderer = if style.colour { Renderer::styled() } else { Renderer::plain() };
    let level = match violation.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    };
    let (file, message) = (visible(&violation.file), visible(&violation.message));
    let line = usize::try_from(violation.line).unwrap_or(usize::MAX);
    let mut origin = Origin::path(&*file);
    if line > 0 {
        origin = origin.line(line);
        if violation.column > 0 {
            origin = origin.char_column(usize::try_from(violation.column).unwrap_or(usize::MAX));
        }
    }
    let rule = visible(&violation.rule);
    let title = level.primary_title(&*message).id(&*rule);
    let mut group = match excerpt {
        Some(Excerpt { line: text, span, is_cut }) => {
            let snippet = Snippet::source(text.as_str())
                .line_start(line)
                .annotation(AnnotationKind::Primary.span(span.clone()));
            // The library's own column is right only for a whole line and a violation with a column.
            if *is_cut || violation.column == 0 {
                title.element(snippet).element(origin)
            } else {
                title.element(snippet.path(&*file))
            }
        }
        None => title.element(origin),
    };
    let object = violation.object.as_deref().map(visible);
    if let Some(object) = &object {
        group = group.element(Level::NOTE.with_name("object").message(&**object));
    }
    let help = visible(&violation.help);
    if !help.is_empty() {
        group = group.element(Level::HELP.message(&*help));
    }
    renderer.term_width(style.width).render(&[group]) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line with the underlined part in brackets.
    fn marked(line: &str, column: usize) -> String {
        let Excerpt { line, span, .. } = excerpt(line, column);
        format!("{}⟦{}⟧{}", &line[..span.start], &line[span.clone()], &line[span.end..])
    }

    #[test]
    fn the_key_or_value_at_the_column_is_underlined() {
        for (line, column, wanted) in [
            ("  imagee: nginx", 3, "  ⟦imagee⟧: nginx"),
            ("  image: nginx:1.2 # old", 10, "  image: ⟦nginx:1.2⟧ # old"),
            ("  - a b  ", 5, "  - ⟦a b⟧  "),
            ("{\"a b\": [1, 22]}", 2, "{⟦\"a b\"⟧: [1, 22]}"),
            ("{\"a\": [1, 22]}", 11, "{\"a\": [1, ⟦22⟧]}"),
            ("x: \"a\\\"b\" # c", 4, "x: ⟦\"a\\\"b\"⟧ # c"),
            ("x: 'a", 4, "x: ⟦'a⟧"),
            ("x: [", 4, "x: ⟦[⟧"),
            ("ä: ö", 4, "ä: ⟦ö⟧"),
            ("ab", 3, "ab⟦⟧"),
            ("ab", 99, "ab⟦⟧"),
            ("  whole line ", 0, "  ⟦whole line⟧ "),
            ("a: \u{1b}[3\u{9b}x", 4, "a: ⟦␛[3\u{fffd}x⟧"),
            ("", 0, "⟦⟧"),
            ("", 1, "⟦⟧"),
        ] {
            assert_eq!(marked(line, column), wanted, "{line:?} {column}");
        }
    }

    #[test]
    fn a_long_line_is_cut_around_the_column() {
        let line = format!("{}key: value{}", "ü".repeat(5_000), " z".repeat(500_000));
        let excerpt = excerpt(&line, 5_001);
        assert!(excerpt.is_cut && excerpt.line.chars().count() <= 2 * AROUND_CHARS + 2);
        assert_eq!(&excerpt.line[excerpt.span.clone()], "key");
        assert!(excerpt.line.starts_with("…ü") && excerpt.line.ends_with('…'));
        assert!(super::excerpt(&line, 1).line.starts_with('ü'));
    }

    #[test]
    fn lines_are_counted_as_yaml_counts_them() {
        let lines = Lines::of("a\r\nb\rc\nd");
        let line = |number| lines.excerpt(number, 1).map(|excerpt| excerpt.line);
        assert_eq!([line(1), line(2), line(3), line(4)], ["a", "b", "c", "d"].map(|l| Some(l.to_owned())));
        assert_eq!((line(0), line(5)), (None, None));
    }

    proptest::proptest! {
        #[test]
        fn any_line_and_column_has_an_excerpt(line in "\\PC{0,1500}", column in 0usize..2000) {
            let excerpt = excerpt(&line, column);
            proptest::prop_assert!(excerpt.line.get(excerpt.span).is_some());
        }
    }

    #[test]
    fn a_line_that_may_hold_a_secret_is_shown_without_its_values() {
        const CANARY: &str = "canary";
        for text in [
            "spec:\n  password: canary12345678",
            "spec:\n  pass: canary12345678",
            "spec:\n  Pass: canary12345678",
            "spec:\n  passwd: canary12345678",
            "spec:\n  DB_PASS: canary12345678",
            "spec:\n  Passphrase:\n    canary12345678",
            "spec:\n  pass:\n    canary12345678",
            "spec:\n  states:\n    a:\n      token:\n        text: canary12345678",
            "spec:\n  states:\n    args:\n    - canary12345678",
            "token:\n  text: canary12345678",
            "spec:\n  run: login --pass canary12345678",
            "spec:\n  run: login pass canary12345678",
            "spec:\n  sshKey: |\n    canary12345678",
            "spec:\n  env:\n  - name: A\n    vlaue: canary12345678",
            "spec:\n  env:\n    - {name: DB_PASSWORD, value: canary12345678}",
            "spec:\n  env:\n    - {name: A, vlaue: canary12345678}",
            "spec:\n  args:\n  - --pin\n  # shown\n\n  - canary12345678",
            "spec:\n  command: [sh, -c, canary12345678]",
            "spec:\n  env:\n  - name: DB_PASSWORD\n    value: canary",
            "  \"password\": \"canary12345678\",",
            "{\"env\":[{\"name\":\"A\",\"value\":\"canary12345678\"}]}",
            "spec:\n  image: postgres://app:canary12345678@db/x",
        ] {
            let lines = Lines::of(text);
            let last = u32::try_from(text.lines().count()).unwrap();
            for column in 0..60 {
                let excerpt = lines.excerpt(last, column).unwrap();
                assert!(!excerpt.line.contains(CANARY), "{text}\n{excerpt:?}");
                assert!(excerpt.is_cut, "its columns are not those of the file: {text}");
                assert!(excerpt.line.get(excerpt.span.clone()).is_some(), "{excerpt:?}");
            }
        }
    }

    #[test]
    fn what_may_not_be_a_secret_is_shown() {
        for text in [
            "spec:\n  env:\n  - name: A\n    value: x\n  image: nginx",
            "spec:\n  containers:\n  - name: auth-token\n    imagee: nginx",
            "spec:\n  password: x\nkind: Pod",
            "spec:\n  env:\n  - name: DB PASSWORD",
            "spec:\n  env:\n  - nmae:",
            "spec:\n  ports: [{port: 80}]",
            "  imagee: nginx # later",
            "spec:\n  states:\n    a: {type: Pass, end: yes}",
            "spec:\n  startAt: Pass",
            "  \"Type\": \"Pass\",",
            "{\"StartAt\":\"a\",\"States\":{\"a\":{\"Type\":\"Pass\",\"End\":true}}}",
            "{\"States\": {\n  \"Pass\": {\"Type\": \"Pass\"},\n  \"PassState\": {\n    \"Nxt\": \"Pass State\"",
            "spec:\n  states:\n    Pass:\n      type: Pass\n      nxt: b",
            "spec:\n  states:\n    pass:\n      type: Wait\n      seconds: abc",
            "{\"States\": {\n  \"check-token\": {\n    \"Type\": \"Wat\"",
            "  comment: Pass it on",
            "  errorEquals: [States.Passed]",
            "  passed: \"passed\"",
        ] {
            let last = u32::try_from(text.lines().count()).unwrap();
            let line = Lines::of(text).excerpt(last, 3).map(|excerpt| excerpt.line);
            assert_eq!(line.as_deref(), text.lines().last());
        }
    }
}

#[cfg(test)]
mod text_tests {
    use super::Lines;
    use super::*;

    fn violation(line: u32, column: u32) -> Violation {
        Violation {
            file: "apps/web.yaml".to_owned(),
            line,
            column,
            severity: Severity::Error,
            rule: "unknown-field".to_owned(),
            message: "spec.imagee: unknown field `imagee`".to_owned(),
            help: "did you mean `image`?".to_owned(),
            object: Some("Pod/default/web".to_owned()),
        }
    }

    fn drawn(text: &str, line: u32, column: u32) -> String {
        let excerpt = Lines::of(text).excerpt(line, column);
        render(&violation(line, column), excerpt.as_ref(), Style::default())
    }

    #[test]
    fn a_message_shows_the_line_the_object_and_what_to_do() {
        insta::assert_snapshot!(drawn("kind: Pod\nspec:\n  imagee: nginx # later\n", 3, 3), @r"
        error[unknown-field]: spec.imagee: unknown field `imagee`
         --> apps/web.yaml:3:3
          |
        3 |   imagee: nginx # later
          |   ^^^^^^
          |
          = object: Pod/default/web
          = help: did you mean `image`?
        ");
    }

    #[test]
    fn carets_stand_under_tabs_and_wide_characters() {
        insta::assert_snapshot!(drawn("\t名前: imagee\u{1b}[31m", 1, 6), @r"
        error[unknown-field]: spec.imagee: unknown field `imagee`
         --> apps/web.yaml:1:6
          |
        1 |     名前: imagee␛[31m
          |           ^^^^^^^^^^^
          |
          = object: Pod/default/web
          = help: did you mean `image`?
        ");
    }

    #[test]
    fn a_message_about_a_whole_file_has_no_line() {
        let mut whole = violation(0, 0);
        whole.object = None;
        whole.help = String::new();
        insta::assert_snapshot!(render(&whole, None, Style::default()), @r"
        error[unknown-field]: spec.imagee: unknown field `imagee`
        --> apps/web.yaml
        ");
    }

    #[test]
    fn a_line_of_a_megabyte_is_cut_to_the_width() {
        let line =
            format!("{{{}\"imagee\": 1, {}}}", "\"a\": 1, ".repeat(60_000), "\"b\": 1,".repeat(60_000));
        let text = drawn(&line, 1, 480_002);
        assert!(text.contains("apps/web.yaml:1:480002") && text.contains("\"imagee\""), "{text}");
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(WIDTH + 10), "{longest:?} columns:\n{text}");
    }

    #[test]
    fn nothing_of_a_repository_drives_the_terminal() {
        let mut hostile = violation(1, 1);
        for text in [&mut hostile.file, &mut hostile.message, &mut hostile.help, &mut hostile.rule] {
            text.push_str("\u{1b}]0;x\u{7}\r\u{9b}31m");
        }
        hostile.object = Some("Pod/\u{1b}[2J".to_owned());
        let excerpt = Lines::of("\u{1b}[31m\u{202e}: \u{9b}x").excerpt(1, 1);
        let text = render(&hostile, excerpt.as_ref(), Style::default());
        let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(bad), "{text:?}");
    }
}
