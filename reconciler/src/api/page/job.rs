//! The parts of a Slurm job's page: its state in Slurm, and its result files.

use askama::Template;
use schema::kinds::Kind;
use schema::meta::{NamespacedName, ObjectRef};
use schema::quantity::Memory;
use schema::records::{JobReport, ResultFile};

use super::parts::{Part, RenderContext, TemplateHelpers};
use crate::api::kinds::results::{display_type, href};
use crate::view::{self, JobDetail};

/// Number of files shown; the listing of the API has all.
const FILES_MAX: usize = 200;

/// Returns the parts of a job; none for objects of other kinds.
pub(super) fn parts(context: &RenderContext<'_>, id: &ObjectRef) -> Vec<Part> {
    let job = NamespacedName::new(&id.namespace, &id.name);
    let detail = (id.kind == Kind::Job).then(|| view::job(context.snapshot, &job, Vec::new(), context.now));
    let Some(detail) = detail.flatten() else { return Vec::new() };
    let base = format!("/v1/jobs/{job}");
    let report = detail.report.clone().unwrap_or_default();
    let output = if report.started_at.is_some() { format!("{base}/output") } else { String::new() };
    let state = JobTemplate { facts: facts(&detail, &report), output, detail };
    vec![Part::new("job", &state), Part::new("results", &ResultsTemplate::new(&base, report))]
}

/// Returns names and values of what is known about a job in Slurm.
fn facts(detail: &JobDetail, report: &JobReport) -> Vec<(&'static str, String)> {
    let (row, status) = (&detail.row, &report.status);
    let tasks = status.tasks.iter().map(|(state, count)| format!("{count} {state}"));
    let facts = [
        ("Reason", row.reason.clone()),
        ("Slurm job", row.slurm_id.map(|id| id.to_string()).unwrap_or_default()),
        ("Slurm state", status.state.clone()),
        ("Tasks", tasks.collect::<Vec<_>>().join(", ")),
        ("Nodes", row.nodes.clone()),
        ("Elapsed", row.elapsed.clone()),
        ("Exit code", status.exit_code.clone().unwrap_or_default()),
        ("Login", row.login.clone()),
        ("Handled by", row.node.clone().unwrap_or_default()),
    ];
    facts.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

#[derive(Template)]
#[template(path = "job.html")]
struct JobTemplate {
    detail: JobDetail,
    facts: Vec<(&'static str, String)>,
    /// Address of the output so far; empty before the job has begun.
    output: String,
}

#[derive(Template)]
#[template(path = "results.html")]
struct ResultsTemplate {
    rows: Vec<FileRow>,
    /// Address of the listing of all files.
    listing: String,
    /// Number of files that are not shown.
    more: usize,
    /// Number of files that exist only on the login host.
    unfetched: u64,
}

/// A result file.
struct FileRow {
    path: String,
    size: String,
    /// Reason that it is not complete; else empty.
    note: String,
    /// Addresses to save it and to display it; empty if that is not possible.
    download: String,
    display: String,
}

impl ResultsTemplate {
    /// `base` is the address of the job in the API.
    fn new(base: &str, report: JobReport) -> Self {
        let more = report.results.len().saturating_sub(FILES_MAX);
        let rows = report.results.into_iter().take(FILES_MAX).map(|file| FileRow::new(base, file)).collect();
        Self { rows, listing: format!("{base}/results"), more, unfetched: report.unfetched.count }
    }
}

impl FileRow {
    fn new(base: &str, file: ResultFile) -> Self {
        let address = Some(href(&file)).filter(|href| !href.is_empty()).map(|href| format!("{base}/{href}"));
        let display = address.as_ref().filter(|_| display_type(&file).is_some());
        let note = match (&address, file.is_truncated) {
            (None, _) => format!("not fetched: {}", file.unreadable),
            (_, true) => "only its beginning".to_owned(),
            _ => String::new(),
        };
        Self {
            size: Memory { bytes: file.size }.readable(),
            note,
            display: display.map(|address| format!("{address}&view=true")).unwrap_or_default(),
            download: address.unwrap_or_default(),
            path: file.path,
        }
    }
}

#[cfg(test)]
mod tests {
    use schema::records::ResultKind;

    use super::*;

    fn row(path: &str, kind: ResultKind, digest: &str) -> FileRow {
        let file = ResultFile {
            path: path.to_owned(),
            size: 2048,
            digest: digest.to_owned(),
            kind,
            is_truncated: path == "cut.csv",
            unreadable: if digest.is_empty() { "denied".to_owned() } else { String::new() },
        };
        FileRow::new("/v1/jobs/default/sum", file)
    }

    #[test]
    fn only_files_that_run_nothing_are_displayed() {
        for (path, kind, is_displayed) in [
            ("a.txt", ResultKind::Output, true),
            ("cut.csv", ResultKind::Output, true),
            ("plot.png", ResultKind::Output, true),
            ("slurm-7", ResultKind::Stdout, true),
            ("page.html", ResultKind::Output, false),
            ("plot.svg", ResultKind::Output, false),
            ("paper.pdf", ResultKind::Output, false),
            ("model.bin", ResultKind::Output, false),
        ] {
            let row = row(path, kind, "ab");
            assert_eq!(row.download, format!("/v1/jobs/default/sum/results/ab?path={path}"));
            assert_eq!(!row.display.is_empty(), is_displayed, "{path}");
        }
        assert_eq!(row("cut.csv", ResultKind::Output, "ab").note, "only its beginning");
        let lost = row("a.txt", ResultKind::Output, "");
        assert_eq!(
            (lost.download.as_str(), lost.display.as_str(), lost.note.as_str()),
            ("", "", "not fetched: denied")
        );
    }
}
