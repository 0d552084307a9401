//! Review as a comment on a pull request. Pure.
//!
//! Reads a review, decides what fits: the essentials first, with every removal and replacement by name, then object
//! by object, the most dangerous first, as long as there is room. All text that a manifest can choose is put into
//! code; see `escape.rs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use schema::object::short_commit;
use schema::violation::{Severity, Violation};

use super::escape::{code, html};
use super::text::field_line;
use super::{Action, Change, Review, digest, short_hash};
use schema::violation::plural;

/// First line of the comment, by which it is found again.
pub const MARKER: &str = "<!-- minik8s-plan -->";
/// Longest comment. GitHub accepts 65,536 characters, others more.
pub const BYTES_MAX: usize = 60_000;
/// Reserve for the note on omitted objects.
const RESERVE_BYTES: usize = 600;
/// Longest text of one value or message.
const TEXT_CHARS_MAX: usize = 300;
/// Limit on the lines shown of one sort.
const LINES_MAX: usize = 50;
/// Limit on the bytes shown of one sort; the head has ten of them and must leave room.
const LIST_BYTES_MAX: usize = 4_000;
/// Limit on named removals, and on named replacements.
const NAMED_MAX: usize = 200;
/// Limit on the bytes of the names of either.
const NAMED_BYTES_MAX: usize = 10_000;

/// Order in which changes should be read.
const BY_DANGER: [Action; 4] = [Action::Delete, Action::Replace, Action::Update, Action::Create];

/// Reports that there is no review, with the reason, in place of an earlier one, which would look valid.
pub fn no_review(why: &str) -> String {
    format!(
        "{MARKER}\n### Minik8s plan: none\n\nThis could not be planned: {}\n",
        code(why, TEXT_CHARS_MAX * 4)
    )
}

/// Formats the review as Markdown, at most [`BYTES_MAX`] bytes.
pub fn markdown(review: &Review) -> String {
    let mut out = head(review);
    let mut missing = BTreeMap::new();
    for action in BY_DANGER {
        for change in review.changes.iter().filter(|change| change.action == action) {
            let section = details(change);
            if out.len() + section.len() + RESERVE_BYTES <= BYTES_MAX {
                out.push_str(&section);
            } else {
                *missing.entry(action).or_insert(0_usize) += 1;
            }
        }
    }
    if !missing.is_empty() {
        let (base, head) = (short_commit(&review.base), short_commit(&review.head));
        let of: Vec<String> = missing.iter().map(|(action, count)| format!("{count} {action}")).collect();
        // Writing to a string can't fail.
        let _ = writeln!(
            out,
            "**{} more objects are not shown here** ({}). All of them: \
             `minik8s plan --base {base} --head {head}`\n",
            missing.values().sum::<usize>(),
            of.join(", ")
        );
    }
    let _ = writeln!(
        out,
        "<sub>Plan hash `{0}`. Add the trailer `Minik8s-Plan: {0}` to the commit, and `minik8s history` shows whether \
         this plan was applied.</sub>",
        short_hash(&review.hash)
    );
    out
}

/// Formats the essentials, which come first.
fn head(review: &Review) -> String {
    let mut out = format!("{MARKER}\n");
    for warning in &review.warnings {
        let _ = writeln!(out, "**⚠ {}**\n", code(warning, TEXT_CHARS_MAX));
    }
    let _ = writeln!(out, "### Minik8s plan: {}\n", review.headline());
    if review.prune.held {
        let _ = writeln!(
            out,
            "**⚠ {} would be held:** {}\n",
            plural(review.prune.deletes, "removal"),
            code(&review.prune.why, TEXT_CHARS_MAX)
        );
        list(&mut out, review.prune.objects.iter().map(|object| code(object, TEXT_CHARS_MAX)));
    }
    let of = |severity| review.violations.iter().filter(move |violation| violation.severity == severity);
    if review.has_errors() {
        let _ = writeln!(out, "**⚠ These files can't be applied; their objects stay as they are:**\n");
        list(&mut out, of(Severity::Error).map(violation));
    }
    let (held, cases) = review.cases();
    if held < cases {
        let _ = writeln!(out, "**⚠ {} of {cases} cases of workflow tests fail:**\n", cases - held);
        list(&mut out, review.case_lines().iter().take(cases - held).map(|line| code(line, TEXT_CHARS_MAX)));
    }
    if !review.capacity.is_empty() {
        let _ = writeln!(out, "**⚠ The nodes have no room for all of it:**\n");
        list(&mut out, review.capacity.iter().map(|line| code(line, TEXT_CHARS_MAX)));
    }
    let summary = &review.summary;
    let _ = writeln!(
        out,
        "| create | update in place | replace | delete | unchanged | quarantined |\n\
         |---|---|---|---|---|---|\n| {} | {} | {} | {} | {} | {} |\n",
        summary.create,
        summary.update,
        summary.replace,
        summary.delete,
        summary.unchanged,
        summary.quarantined
    );
    let _ = writeln!(out, "`{}` → `{}`\n", short_commit(&review.base), short_commit(&review.head));
    list(&mut out, review.notes.iter().map(|note| code(note, TEXT_CHARS_MAX)));
    named(&mut out, review, Action::Delete, "Deleted");
    named(&mut out, review, Action::Replace, "Stopped and restarted");
    if !review.prune.protected.is_empty() {
        let _ = writeln!(out, "**Kept by their annotation, though the repository no longer has them:**\n");
        list(&mut out, review.prune.protected.iter().map(|object| code(object, TEXT_CHARS_MAX)));
    }
    placements(&mut out, review);
    if held > 0 {
        let _ = writeln!(out, "<details><summary>{held} of {cases} cases of workflow tests pass</summary>\n");
        let passed = &review.case_lines()[cases - held..];
        list(&mut out, passed.iter().map(|line| code(line, TEXT_CHARS_MAX)));
        out.push_str("</details>\n\n");
    }
    let warnings = of(Severity::Warning).count();
    if warnings > 0 {
        let _ = writeln!(out, "<details><summary>{warnings} warnings</summary>\n");
        list(&mut out, of(Severity::Warning).map(violation));
        out.push_str("</details>\n\n");
    }
    if !review.prune.held && !review.prune.why.is_empty() {
        let _ = writeln!(out, "Removals: {}\n", code(&review.prune.why, TEXT_CHARS_MAX));
    }
    out
}

/// Adds the nodes that new and moved pods would get.
fn placements(out: &mut String, review: &Review) {
    let placed = digest::lines(&review.placements);
    if !placed.is_empty() {
        let pods = review.placements.len();
        let _ = writeln!(
            out,
            "<details><summary>Where {pods} new and moved pods would go, as the nodes are now</summary>\n"
        );
        list(out, placed.iter().map(|line| code(line, TEXT_CHARS_MAX)));
        out.push_str("</details>\n\n");
    }
}

/// Names every object with this action, whatever becomes of its details.
fn named(out: &mut String, review: &Review, action: Action, what: &str) {
    let objects: Vec<&Change> = review.changes.iter().filter(|change| change.action == action).collect();
    if objects.is_empty() {
        return;
    }
    let _ = writeln!(out, "**{what} ({}):**\n", objects.len());
    let names = objects.iter().map(|change| code(&change.title(), TEXT_CHARS_MAX));
    bounded_list(out, names, NAMED_MAX, NAMED_BYTES_MAX);
}

fn list(out: &mut String, lines: impl Iterator<Item = String>) {
    bounded_list(out, lines, LINES_MAX, LIST_BYTES_MAX);
}

fn bounded_list(
    out: &mut String,
    lines: impl Iterator<Item = String>,
    lines_max: usize,
    mut bytes_left: usize,
) {
    let (mut shown, mut more) = (0, 0);
    for line in lines {
        let line = format!("- {line}\n");
        if shown < lines_max && line.len() <= bytes_left {
            out.push_str(&line);
            bytes_left -= line.len();
            shown += 1;
        } else {
            more += 1;
        }
    }
    if more > 0 {
        let _ = writeln!(out, "- and {more} more");
    }
    if shown + more > 0 {
        out.push('\n');
    }
}

fn violation(violation: &Violation) -> String {
    code(&violation.to_string(), TEXT_CHARS_MAX)
}

/// Formats an object as a collapsed section.
fn details(change: &Change) -> String {
    let place = format!("{}:{}", change.file, change.line);
    let mut out = format!(
        "<details><summary><b>{}</b> {} {}</summary>\n\n",
        change.action,
        html(&change.title(), TEXT_CHARS_MAX),
        html(&place, TEXT_CHARS_MAX)
    );
    let _ = writeln!(out, "Why: {}\n", code(&change.reason, TEXT_CHARS_MAX));
    list(&mut out, change.effects.iter().map(|effect| code(&effect.to_string(), TEXT_CHARS_MAX)));
    if !change.fields.is_empty() {
        out.push_str("Fields:\n\n");
        list(&mut out, change.fields.iter().map(|field| code(&field_line(field), TEXT_CHARS_MAX)));
    }
    out.push_str("</details>\n\n");
    out
}
