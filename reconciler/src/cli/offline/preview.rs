//! `minik8s plan`: the changes of a revision, offline or against the applied state. Exit codes: 0 no changes,
//! 2 changes, 1 errors, including files of the head that can't be applied.

use std::io::Read as _;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use schema::records::SourceStatus;
use schema::snapshot::VersionedValue;
use serde::Deserialize;

use crate::args::{FindCommentArgs, PlanArgs, PlanFormat};
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::kinds;
use crate::cli::output::{Screen, write_out};
use crate::gitops::apply::record::is_whole;
use crate::gitops::check::{CommitLimits, ReservedAddresses};
use crate::gitops::offline::{LiveState, Request, compare};
use crate::gitops::plan::PruneBaseline;
use crate::gitops::review::{MARKER, NodeRoom, Review, markdown, no_review, text};
use crate::last_known::pod_security_records;
use crate::simulate::placements::Placements;
use crate::view::{List, NodeView, RevisionView, SourceView, StoredObject};

const DEFAULT_SOURCE: &str = "main";

/// Largest list of comments: a page of one hundred.
const COMMENTS_BYTES_MAX: u64 = 32 * 1024 * 1024;

pub(in crate::cli) async fn run(args: &PlanArgs) -> Result<ExitCode, CliError> {
    let client = args.server.as_ref().map(|server| Client::new(server.as_deref())).transpose()?;
    let now = match &client {
        Some(client) => Some(load_live_state(client, args.source.as_deref()).await?),
        None => None,
    };
    let (status, live) = now.unzip();
    let source = status.as_ref().map(|status: &SourceView| status.status.name.clone());
    let strict = args.strict || status.as_ref().is_some_and(|status| status.status.strict);
    let folder = args.path.clone().or_else(|| status.map(|status| status.status.path)).unwrap_or_default();
    let request = Request {
        repo: Path::new(&args.repo),
        base: args.base.as_deref(),
        head: args.head.as_deref().unwrap_or("HEAD"),
        folder: folder.trim_matches('/'),
        source: source.as_deref().or(args.source.as_deref()).unwrap_or(DEFAULT_SOURCE),
        strict,
        in_place: args.in_place,
        live,
        effects: kinds::effects,
    };
    let mut review = match compare(&request) {
        Ok(review) => review,
        Err(error) => {
            let why = error.to_string();
            if let PlanFormat::Comment = args.output {
                write_out(&comment(&no_review(&why)))?;
            }
            return Err(CliError::Plan(why));
        }
    };
    if let Some(client) = client.filter(|_| !review.is_empty()) {
        add_placements(&client, &mut review).await;
    }
    write_out(&printed(&review, args.output)?)?;
    Ok(match (review.has_errors(), review.is_empty()) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(2),
    })
}

/// Adds the predicted nodes of new pods. The plan is valid without them.
async fn add_placements(client: &Client, review: &mut Review) {
    match client.post_json::<_, Placements>(&["placements"], &review.objects).await {
        Ok(Placements { items, complete }) => {
            review.placements = items;
            review.notes.extend((!complete).then(|| {
                "the placement of some new pods is not known: the simulation took too long".to_owned()
            }));
        }
        Err(error) => review.notes.push(format!("the placement of new pods is not known: {error}")),
    }
}

fn printed(review: &Review, format: PlanFormat) -> Result<String, CliError> {
    Ok(match format {
        PlanFormat::Text => text(review, Screen::stdout().color),
        PlanFormat::Markdown => markdown(review),
        PlanFormat::Json => review.json().map_err(|error| CliError::Write(error.into()))?,
        PlanFormat::Comment => comment(&markdown(review)),
    })
}

/// JSON object with the comment in the field `body`, as all three forges accept it.
fn comment(text: &str) -> String {
    serde_json::json!({ "body": text }).to_string() + "\n"
}

/// A comment of a forge. All three forges share these fields, except for the author's.
#[derive(Debug, Deserialize)]
struct Comment {
    id: u64,
    body: Option<String>,
    /// Author in GitHub and Gitea.
    user: Option<Account>,
    /// Author in GitLab.
    author: Option<Account>,
}

/// An account: `login` in GitHub, `username` in GitLab, both in Gitea.
#[derive(Debug, Deserialize)]
struct Account {
    login: Option<String>,
    username: Option<String>,
}

impl Account {
    fn name(&self) -> Option<&str> {
        self.login.as_deref().or(self.username.as_deref()).filter(|name| !name.is_empty())
    }
}

/// Parses a forge's response on stdin, for CI scripts without a JSON parser.
pub(in crate::cli) fn find_comment(args: &FindCommentArgs) -> Result<(), CliError> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(COMMENTS_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| CliError::Plan(format!("cannot read the forge's answer: {error}")))?;
    let found = match &args.by {
        Some(account) => own_comment(&text, account)?.map(|id| id.to_string()),
        None => Some(account_of(&text)?),
    };
    found.map_or(Ok(()), |found| write_out(&format!("{found}\n")))
}

/// Finds the newest comment that begins with the marker and was written by `account`: other authors could edit their
/// comments after review.
fn own_comment(text: &str, account: &str) -> Result<Option<u64>, CliError> {
    let comments: Vec<Comment> = serde_json::from_str(text)
        .map_err(|error| CliError::Plan(format!("the comments are not a list as forges send: {error}")))?;
    let is_own = |comment: &&Comment| {
        let writer = comment.user.as_ref().or(comment.author.as_ref()).and_then(Account::name);
        writer == Some(account) && comment.body.as_deref().is_some_and(|body| body.starts_with(MARKER))
    };
    Ok(comments.iter().filter(is_own).map(|comment| comment.id).max())
}

fn account_of(text: &str) -> Result<String, CliError> {
    let unclear = |why: String| CliError::Plan(format!("the answer names no account: {why}"));
    let account: Account = serde_json::from_str(text).map_err(|error| unclear(error.to_string()))?;
    let name = account.name().ok_or_else(|| unclear("it has neither login nor username".to_owned()))?;
    Ok(name.to_owned())
}

async fn load_live_state(client: &Client, source: Option<&str>) -> Result<(SourceView, LiveState), CliError> {
    let List { items: sources } = client.get::<List<SourceView>>(&["sources"], &[]).await?;
    let replaced: Vec<SourceStatus> = sources.iter().map(|source| source.status.clone()).collect();
    let status = choose_source(sources, source)?;
    let name = status.status.name.clone();
    let List { items: objects } = client.get::<List<StoredObject>>(&["objects"], &[]).await?;
    let List { items: nodes } = client.get::<List<NodeView>>(&["nodes"], &[]).await?;
    let List { items: history } =
        client.get::<List<RevisionView>>(&["history"], &[("source", &name)]).await?;
    let running =
        objects.iter().filter_map(|stored| Some((stored.object.reference(), stored.pods?))).collect();
    let stored = objects.into_iter().map(|stored| {
        let StoredObject { object: value, create_revision, mod_revision, .. } = stored;
        (value.reference(), Arc::new(VersionedValue { value, create_revision, mod_revision }))
    });
    let objects = stored.collect();
    let reserved = reserved_addresses(&nodes);
    let ready = nodes.into_iter().filter(|node| node.is_ready);
    let held = status.status.held_prune.as_ref();
    let live = LiveState {
        limits: CommitLimits {
            pod_security: pod_security_records(&objects, replaced.iter()),
            allow: status.status.allow.clone(),
            reserved,
        },
        objects,
        running,
        applied: status.status.applied_commit.clone(),
        base: history.iter().find(|r| r.revision.counts.held == 0).map(|r| r.revision.commit.clone()),
        whole: history.into_iter().find(|r| is_whole(&r.revision)).map(|r| r.revision.commit),
        held: held.map(|held| PruneBaseline { owned: held.owned, since: held.since }),
        nodes: ready
            .map(|node| NodeRoom {
                name: node.name,
                labels: node.labels,
                cpu: node.cpu,
                memory: node.memory,
                max_pods: u64::from(node.max_pods),
            })
            .collect(),
    };
    Ok((status, live))
}

/// Returns the addresses of nodes and the ranges of their pods; a server does not report that of services.
fn reserved_addresses(nodes: &[NodeView]) -> ReservedAddresses {
    let addresses = nodes.iter().filter_map(|node| match node.address? {
        IpAddr::V4(address) => Some((address, node.name.clone())),
        IpAddr::V6(_) => None,
    });
    let ranges = nodes.iter().filter_map(|node| Some((node.pod_cidr.as_ref()?.parse().ok()?, "pods")));
    ReservedAddresses { nodes: addresses.collect(), ranges: ranges.collect() }
}

/// The source of this name, or the only one.
fn choose_source(sources: Vec<SourceView>, name: Option<&str>) -> Result<SourceView, CliError> {
    let names: Vec<String> = sources.iter().map(|source| source.status.name.clone()).collect();
    let names = names.join(", ");
    let mut found = sources.into_iter().filter(|source| name.is_none_or(|name| source.status.name == name));
    match (found.next(), found.next(), name) {
        (Some(only), None, _) => Ok(only),
        (Some(_), Some(_), _) => {
            Err(CliError::Usage(format!("the server has several sources; name one with --source: {names}")))
        }
        (None, _, Some(name)) => {
            Err(CliError::NotFound(format!("the server has no source {name}; it has {names}")))
        }
        (None, _, None) => {
            Err(CliError::NotFound("the server has no source yet; see 'minik8s status'".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_of_the_own_comments_is_ours() {
        let github = format!(
            r#"[{{"id": 1, "body": "{MARKER} x", "user": {{"login": "mallory"}}}},
                {{"id": 2, "body": "{MARKER} x", "user": {{"login": "bot", "username": "bot"}}}},
                {{"id": 3, "body": "{MARKER} x", "user": {{"login": "bot"}}}},
                {{"id": 4, "body": "see {MARKER}", "user": {{"login": "bot"}}}},
                {{"id": 5, "body": "{MARKER} x", "user": null}}, {{"id": 6, "body": null}}]"#
        );
        assert_eq!(own_comment(&github, "bot").unwrap(), Some(3));
        assert_eq!(own_comment(&github, "ada").unwrap(), None);
        let gitlab = format!(r#"[{{"id": 7, "body": "{MARKER}", "author": {{"username": "bot"}}}}]"#);
        assert_eq!(own_comment(&gitlab, "bot").unwrap(), Some(7));
        assert!(own_comment("{}", "bot").is_err());
    }

    #[test]
    fn an_account_is_read_as_each_forge_names_it() {
        assert_eq!(account_of(r#"{"login": "ada", "id": 1}"#).unwrap(), "ada");
        assert_eq!(account_of(r#"{"username": "ada"}"#).unwrap(), "ada");
        assert_eq!(account_of(r#"{"login": "ada", "username": "ada"}"#).unwrap(), "ada");
        assert!(account_of(r#"{"login": ""}"#).is_err());
    }
}
