//! Messages for people: the problem, its line, its object, and the remedy. Pure.
//!
//! The rendering library lines carets up under tabs and wide characters and keeps lines within the width. Its input
//! is short and harmless: `excerpt` cuts, `visible` escapes.

use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use schema::violation::{Severity, Violation};

use super::excerpt::Excerpt;
use super::visible;

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
    use crate::diagnostics::excerpt::Lines;

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
