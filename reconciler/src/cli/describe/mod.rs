//! `minik8s describe`: one object in full, as a page.

mod containers;
mod function;
pub(super) mod objects;
mod page;
mod workflow;
pub(super) mod workloads;

use jiff::Timestamp;
use schema::kinds::Kind;

use super::client::Client;
use super::error::CliError;
use super::kinds;
use super::output::{Screen, TableItem as _, write_out};
use crate::args::{DescribeArgs, PageFormat, ResourceKind};
use crate::view::{List, RevisionView, RunDetail, TriggerView, WaitState, WorkflowDetail, mermaid};
use objects::Subject;
use page::Page;

pub(super) async fn run(args: &DescribeArgs) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    let name = match (&args.resource.name, &args.name) {
        (Some(name), None) | (None, Some(name)) => name,
        (Some(_), Some(second)) => {
            return Err(CliError::Usage(format!("two names are given; leave out {second}")));
        }
        (None, None) => {
            let kind = args.resource.kind.singular();
            return Err(CliError::Usage(format!("a name is missing; write {kind}/NAME")));
        }
    };
    let (screen, now) = (Screen::stdout(), Timestamp::now());
    if args.output == PageFormat::Mermaid {
        if args.resource.kind != ResourceKind::Object(Kind::Workflow) {
            return Err(CliError::Usage("only workflows have a flowchart; leave out -o mermaid".to_owned()));
        }
        let detail: WorkflowDetail = client.get(&["workflows", &args.namespace, name], &[]).await?;
        return write_out(&mermaid(&detail.spec));
    }
    match args.resource.kind {
        ResourceKind::Object(kind) => {
            let namespace = &args.namespace;
            let subject = Subject { client: &client, kind, namespace, name, screen, now };
            let page = match (kinds::of(kind).describe)(&subject).await {
                Err(error) if !error.is_not_found() => return Err(error),
                answer => answer,
            };
            // An older reconciler does not know.
            let path = ["objects", kind.as_str(), namespace, name, "quarantine"];
            let lines = client.get::<List<String>>(&path, &[]).await.map(|list| list.items);
            write_out(&with_quarantine(page, lines.unwrap_or_default())?)
        }
        ResourceKind::Run => {
            let Some((workflow, id)) = name.split_once('/') else {
                return Err(CliError::Usage(format!("write run/WORKFLOW/{name}; see 'minik8s get runs'")));
            };
            let run: RunDetail = client.get(&["runs", &args.namespace, workflow, id], &[]).await?;
            write_out(&workflow::run_page(&run, screen))
        }
        ResourceKind::Trigger => {
            let query = [("namespace", args.namespace.as_str())];
            let List { items } = client.get::<List<TriggerView>>(&["triggers"], &query).await?;
            let found: Vec<_> = items.iter().filter(|trigger| trigger.is_named(name)).collect();
            if found.is_empty() {
                return Err(CliError::NotFound(format!(
                    "trigger {name} not found; see 'minik8s get triggers'"
                )));
            }
            found.into_iter().try_for_each(|trigger| write_out(&workflow::trigger_page(trigger)))
        }
        ResourceKind::Revision => {
            let List { items } = client.get::<List<RevisionView>>(&["history"], &[]).await?;
            let row = one_revision(&items, name)?;
            let undecided = match row.revision.decided_at {
                Some(_) => String::new(),
                None => {
                    let commit = [("commit", row.revision.commit.as_str())];
                    undecided_reason(&client.get(&["wait-state"], &commit).await?)
                }
            };
            write_out(&revision_page(row, &undecided, screen))
        }
        kind => {
            let (kind, plural) = (kind.singular(), kind.plural());
            Err(CliError::Usage(format!("no page for a {kind}; see 'minik8s get {plural} -o yaml'")))
        }
    }
}

/// Adds the lines about an object's quarantined file to its page, or to the error that there is no such object.
fn with_quarantine(page: Result<String, CliError>, lines: Vec<String>) -> Result<String, CliError> {
    match page {
        Err(error) if error.is_not_found() && !lines.is_empty() => {
            Err(CliError::NotFound(format!("{error}; {}", lines.join("; "))))
        }
        Err(error) => Err(error),
        Ok(text) => {
            let mut head = Page::default();
            head.fields(0, "Quarantined", lines);
            Ok(head.text() + &text)
        }
    }
}

/// Finds a revision by name, as accepted by `get revision NAME`, or by `SOURCE/NUMBER`.
pub(super) fn one_revision<'a>(all: &'a [RevisionView], name: &str) -> Result<&'a RevisionView, CliError> {
    let is_it = |row: &&RevisionView| {
        let full = || format!("{}/{}", row.revision.source, row.revision.sequence);
        row.is_named(name) || full() == name
    };
    let mut found = all.iter().filter(is_it);
    let first = found
        .next()
        .ok_or_else(|| CliError::NotFound(format!("revision {name} not found; see 'minik8s history'")))?;
    // A branch may return to an old commit: the newest revision counts.
    match found.find(|other| other.revision.source != first.revision.source) {
        None => Ok(first),
        Some(other) => {
            let [one, two] = [first, other].map(|row| (&row.revision.source, row.revision.sequence));
            let why = format!(
                "{name} is a revision of several sources; write revision/{}/{} or revision/{}/{}",
                one.0, one.1, two.0, two.1
            );
            Err(CliError::Usage(why))
        }
    }
}

/// Reason that a commit has no verdict yet.
fn undecided_reason(state: &WaitState) -> String {
    match state.why.as_str() {
        "" => "not yet: its objects are healthy, and must stay so for a moment".to_owned(),
        why => format!("not yet: {why}"),
    }
}

/// Page of a revision. `undecided` is the reason for a missing verdict.
pub(super) fn revision_page(row: &RevisionView, undecided: &str, screen: Screen) -> String {
    let mut page = Page::default();
    let revision = &row.revision;
    page.field(0, "Revision", &revision.sequence.to_string());
    page.field(0, "Source", &revision.source);
    page.field(0, "Commit", &revision.commit);
    page.field(0, "Author", &revision.author);
    page.field(0, "Subject", &revision.subject);
    page.field(0, "Committed", &revision.committed_at.to_string());
    page.field(
        0,
        "Applied",
        &format!("{}, {} ago, in {}ms", revision.applied_at, row.age, revision.duration_ms),
    );
    page.state("Status", &row.status, screen);
    page.field(0, "Why", &row.why);
    let decided = revision.decided_at.map(|at| at.to_string());
    page.field(0, "Decided", decided.as_deref().unwrap_or(undecided));
    let counts = &revision.counts;
    let counts = [
        (counts.create, "created"),
        (counts.update, "updated"),
        (counts.replace, "replaced"),
        (counts.delete, "removed"),
        (counts.unchanged, "unchanged"),
        (counts.waiting, "waiting"),
        (counts.held, "held"),
        (counts.quarantined, "files quarantined"),
    ];
    page.fields(0, "Changes", counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    if let Some(plan) = &revision.plan {
        page.field(0, "Plan", &plan.hash);
        page.field(0, "Reviewed", plan.reviewed.as_deref().unwrap_or_default());
    }
    page.text()
}
