//! `minik8s history COMMIT --timeline`: times of the steps of a commit.

use std::fmt::Write as _;

use schema::records::PodTimeline;
use schema::violation::plural;

use super::describe::one_revision;
use super::error::CliError;
use super::output::{Row, TableItem, TableOptions, json, print_list, write_out, yaml};
use crate::args::Format;
use crate::view::{RevisionView, StepView, TimelineView, seconds, short, timeline};

/// Characters of the longest bar.
const BAR_MAX: u64 = 40;

/// Prints the timeline of the commit `wanted`; `HEAD` is the newest one.
pub(super) fn print(items: &[RevisionView], wanted: &str, format: Format) -> Result<(), CliError> {
    let row = match wanted {
        "HEAD" => items.first().ok_or_else(|| CliError::NotFound("no commit is applied yet".to_owned()))?,
        name => one_revision(items, name)?,
    };
    let Some(shown) = timeline(row) else {
        return Err(CliError::NotFound(format!(
            "commit {} has no timeline: it was applied by an older version, or the leader changed in the meantime",
            short(&row.revision.commit)
        )));
    };
    match format {
        Format::Json => write_out(&json(&shown)?),
        Format::Yaml => write_out(&yaml(&shown)?),
        Format::Name => write_out(&format!("revision/{}/{}\n", shown.source, shown.sequence)),
        Format::Table | Format::Wide => {
            write_out(&steps_page(&shown))?;
            if shown.slowest.is_empty() {
                return Ok(());
            }
            write_out("\n")?;
            let shape = TableOptions { wide: format == Format::Wide, ..TableOptions::default() };
            print_list(&shown.slowest, format, shape)?;
            let left = shown.pods.saturating_sub(shown.slowest.len() as u64);
            if left > 0 {
                write_out(&format!("and {} more that became ready sooner\n", plural(left, "pod")))?;
            }
            Ok(())
        }
    }
}

/// Returns the head of the page and a line with a bar for each step.
fn steps_page(shown: &TimelineView) -> String {
    let TimelineView { source, commit, status, seen_at, seen_by, total, steps, .. } = shown;
    let mut text = format!(
        "commit {} of source {source}: {status}\nseen at {seen_at} ({seen_by}), {} until the last step\n\n",
        short(commit),
        seconds(*total)
    );
    let _ = writeln!(text, "{:<12}{:>9}{:>9}", "STEP", "AT", "TOOK");
    for StepView { name, from, to } in steps {
        let position = |at: u64| usize::try_from(at * BAR_MAX / (*total).max(1)).unwrap_or(0);
        let (start, end) = (position(*from), position(*to));
        let bar = format!("{}{}", " ".repeat(start), "#".repeat((end - start).max(1)));
        let _ = writeln!(text, "{name:<12}{:>9}{:>9}  {bar}", seconds(*to), seconds(to - from));
    }
    text
}

fn seconds_of(milliseconds: Option<u64>) -> String {
    milliseconds.map(seconds).unwrap_or_default()
}

impl TableItem for PodTimeline {
    fn id(&self) -> String {
        format!("pod/{}", self.pod)
    }

    fn row(&self, row: Row) -> Row {
        row.col("POD", &self.pod)
            .wide("OBJECT", &self.object)
            .col("NODE", self.node.as_deref().unwrap_or_default())
            .col("BOUND", seconds_of(self.bound))
            .col("IMAGE", plus(self.image))
            .col("CREATED", plus(self.created))
            .col("STARTED", plus(self.started))
            .col("READY", plus(self.ready))
            .col("REPORTED", seconds_of(self.reported))
            .col("PROGRAMMED", seconds_of(self.programmed))
    }
}

/// Formats a duration on the node.
fn plus(milliseconds: Option<u64>) -> String {
    milliseconds.map(|time| format!("+{}", seconds(time))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_a_bar_at_its_place() {
        let step = |name: &str, from, to| StepView { name: name.to_owned(), from, to };
        let shown = TimelineView {
            source: "main".to_owned(),
            sequence: 3,
            commit: "1a2b3c4d5e6f".to_owned(),
            status: "Good".to_owned(),
            seen_at: jiff::Timestamp::from_second(1_800_000_000).unwrap(),
            seen_by: "github".to_owned(),
            total: 2_000,
            steps: vec![
                step("read", 0, 500),
                step("applied", 500, 520),
                step("bound", 510, 510),
                step("ready", 520, 2_000),
            ],
            pods: 1,
            slowest: Vec::new(),
        };
        insta::assert_snapshot!(steps_page(&shown), @r"
        commit 1a2b3c4 of source main: Good
        seen at 2027-01-15T08:00:00Z (github), 2.000 s until the last step

        STEP               AT     TOOK
        read          0.500 s  0.500 s  ##########
        applied       0.520 s  0.020 s            #
        bound         0.510 s  0.000 s            #
        ready         2.000 s  1.480 s            ##############################
        ");
    }
}
