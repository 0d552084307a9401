//! Page of a Slurm job: state, result files and script.

use jiff::Timestamp;

use super::page::{Page, pairs};
use crate::cli::logs::results::{line, unfetched};
use crate::cli::print::output::Screen;
use crate::view::JobDetail;

pub(in crate::cli) fn job_page(job: &JobDetail, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let row = &job.row;
    page.field(0, "Name", &row.name);
    page.field(0, "Namespace", &row.namespace);
    page.field(0, "Phase", &screen.paint(&row.phase));
    page.field(0, "Reason", &row.reason);
    page.field(0, "Health", &screen.paint(&row.health));
    page.field(0, "Elapsed", &row.elapsed);
    page.field(0, "Login", &row.login);
    page.field(0, "Node", row.node.as_deref().unwrap_or_default());
    if let Some(report) = &job.report {
        let status = &report.status;
        let number = status.slurm_id.map(|number| format!("{number}, {}", report.slurm_name));
        page.field(0, "Slurm job", &number.unwrap_or_default());
        page.field(0, "Slurm state", &status.state);
        page.field(0, "Attempt", &status.attempt.to_string());
        page.field(0, "Submitted", status.submitted.as_deref().unwrap_or_default());
        page.field(0, "Slurm nodes", &status.nodes);
        page.fields(0, "Tasks", status.tasks.iter().map(|(word, count)| format!("{count} {word}")));
        page.field(0, "Exit code", status.exit_code.as_deref().unwrap_or_default());
        page.field(0, "Of a step", status.derived_exit_code.as_deref().unwrap_or_default());
        page.fields(0, "Results", report.results.iter().map(line).chain(unfetched(report)));
        page.field(0, "Folder", &report.folder);
    }
    page.field(0, "Age", &row.age);
    page.field(0, "Set by", &job.set_by);
    page.field(0, "Commit", &job.commit);
    page.fields(0, "Labels", pairs(&row.labels));
    page.fields(0, "Annotations", pairs(&job.annotations));
    page.block("Script:", &job.script);
    page.events(&job.events, screen, now);
    page.0
}
