//! Review for a terminal. Pure.

use std::fmt::Write as _;

use schema::object::short_commit;
use schema::violation::Severity;

use super::effects::Effect;
use super::escape::plain;
use super::{Action, Change, Field, Review, digest, short_hash};
use crate::gitops::diff::brief;
use schema::violation::plural;

/// Formats the review as text; `colour` for a terminal.
pub fn text(review: &Review, colour: bool) -> String {
    let paint = |code: &str, text: &str| match colour {
        true => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        false => text.to_owned(),
    };
    let mut out = String::new();
    // Writing to a string can't fail.
    for warning in &review.warnings {
        let _ = writeln!(out, "{}", paint("31", &plain(&format!("warning: {warning}"))));
    }
    let _ = writeln!(
        out,
        "plan {} -> {}: {}",
        short_commit(&review.base),
        short_commit(&review.head),
        review.headline()
    );
    let _ = writeln!(out, "hash {}", short_hash(&review.hash));
    for note in &review.notes {
        let _ = writeln!(out, "note {}", plain(note));
    }
    let mut loud = Vec::new();
    if review.prune.held {
        loud.push(format!("held: {}: {}", plural(review.prune.deletes, "removal"), review.prune.why));
        loud.extend(review.prune.objects.iter().map(|object| format!("  {object}")));
    }
    loud.extend(review.capacity.iter().map(|line| format!("no room: {line}")));
    if !loud.is_empty() {
        out.push('\n');
    }
    for line in loud {
        let _ = writeln!(out, "{}", paint("33", &plain(&line)));
    }
    let (problems, notes): (Vec<_>, Vec<_>) =
        review.violations.iter().partition(|violation| violation.severity != Severity::Note);
    if !problems.is_empty() {
        out.push('\n');
    }
    for violation in problems {
        let code = if violation.severity == Severity::Error { "31" } else { "33" };
        let _ = writeln!(out, "{}", paint(code, &plain(&violation.to_string())));
    }
    let (held, cases) = review.cases();
    if cases > 0 {
        let _ = writeln!(out, "\nworkflow tests: {held} of {cases} cases pass");
    }
    for line in review.case_lines().iter().take(cases - held) {
        let _ = writeln!(out, "    {}", paint("31", &plain(line)));
    }
    for change in &review.changes {
        out.push('\n');
        lines_of(&mut out, change, &paint);
    }
    let placed = digest::lines(&review.placements);
    if !placed.is_empty() {
        out.push_str("\nnew and moved pods, as the nodes are now:\n");
    }
    for line in placed {
        let _ = writeln!(out, "    {}", plain(&line));
    }
    out.push('\n');
    for line in last_lines(review, notes.len()) {
        let _ = writeln!(out, "{}", plain(&line));
    }
    out
}

/// Returns the lines that come last: removals, kept objects, `notes` on manifests, and what does not change.
fn last_lines(review: &Review, notes: usize) -> Vec<String> {
    let mut lines = Vec::new();
    if !review.prune.held && !review.prune.why.is_empty() {
        lines.push(format!("removals: {}", review.prune.why));
    }
    lines.extend(review.prune.protected.iter().map(|object| format!("kept by its annotation: {object}")));
    if notes > 0 {
        lines.push(format!("{notes} notes on manifests; see 'minik8s validate'"));
    }
    lines.push(format!("{} unchanged", review.summary.unchanged));
    lines
}

fn lines_of(out: &mut String, change: &Change, paint: &impl Fn(&str, &str) -> String) {
    let (sign, code) = match change.action {
        Action::Create => ("+", "32"),
        Action::Update => ("~", "33"),
        Action::Replace => ("±", "35"),
        Action::Delete => ("-", "31"),
    };
    let title = format!("{sign} {} {}", change.action, plain(&change.title()));
    let _ = writeln!(
        out,
        "{} ({}:{}): {}",
        paint(code, &title),
        plain(&change.file),
        change.line,
        plain(&change.reason)
    );
    for field in &change.fields {
        let _ = writeln!(out, "    {}", plain(&field_line(field)));
    }
    for effect in &change.effects {
        let arrow = if matches!(effect, Effect::Script(_)) { "  " } else { "=>" };
        let _ = writeln!(out, "    {arrow} {}", plain(&effect.to_string()));
    }
}

/// Formats `:12 spec.replicas: 1 -> 2`.
pub(super) fn field_line(field: &Field) -> String {
    let line = field.line.map(|line| format!(":{line} ")).unwrap_or_default();
    if field.hidden {
        return format!("{line}{}: changed, not shown", field.path);
    }
    let files = match field.files.as_slice() {
        [] => String::new(),
        files => format!(" ({})", files.join(", ")),
    };
    format!("{line}{}: {} -> {}{files}", field.path, brief(field.from.as_ref()), brief(field.to.as_ref()))
}
