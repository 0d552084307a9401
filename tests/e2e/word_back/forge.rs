//! Forges: the commit-status API of GitHub, GitLab, Gitea and Forgejo. What their documentation does not allow is
//! refused and recorded, and dice lose some of the answers.
//!
//! After each of our statuses another system sets some of its own, so ours is never the newest of its commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness::{HttpAnswer, HttpRequest, HttpServer, Result, bail, ensure};
use jiff::Timestamp;
use schema::control::lock;
use serde_json::{Map, Value, json};
use url::Url;

use super::dice::{self, Dice};

/// Forge that is imitated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    GitHub,
    GitLab,
    Gitea,
    Forgejo,
}

impl Dialect {
    pub(super) const ALL: [Self; 4] = [Self::GitHub, Self::GitLab, Self::Gitea, Self::Forgejo];

    /// Name in configuration.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::GitHub => "github",
            Self::GitLab => "gitlab",
            Self::Gitea => "gitea",
            Self::Forgejo => "forgejo",
        }
    }

    /// Project that holds the commits. One at GitLab may be in a group of a group.
    pub(super) fn project(self) -> &'static str {
        if self == Self::GitLab { "lab/infra/fleet" } else { "lab/fleet" }
    }

    /// Path of the API.
    pub(super) fn api(self) -> &'static str {
        match self {
            Self::GitHub => "",
            Self::GitLab => "/api/v4",
            Self::Gitea | Self::Forgejo => "/api/v1",
        }
    }

    /// State of a commit with this verdict, as `minik8s history` has it.
    pub(super) fn state_of(self, verdict: &str) -> Result<&'static str> {
        match verdict {
            "Applied" => Ok("pending"),
            "Good" | "Superseded" => Ok("success"),
            "Bad" | "Degraded" => Ok(self.failure()),
            other => bail!("unknown verdict {other}"),
        }
    }

    fn failure(self) -> &'static str {
        if self == Self::GitLab { "failed" } else { "failure" }
    }

    /// Statuses of the other system after each of ours: more than a page of the list where the newest are first.
    fn others(self) -> usize {
        if self == Self::GitHub { 12 } else { 1 }
    }

    fn states(self) -> &'static [&'static str] {
        match self {
            Self::GitHub => &["error", "failure", "pending", "success"],
            Self::GitLab => &["pending", "running", "success", "failed", "canceled", "skipped"],
            Self::Gitea | Self::Forgejo => &["pending", "success", "error", "failure", "warning"],
        }
    }

    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::GitLab => &["state", "ref", "name", "context", "target_url", "description"],
            _ => &["state", "target_url", "description", "context"],
        }
    }

    /// Fields of the query of a list.
    fn filters(self) -> &'static [&'static str] {
        match self {
            Self::GitHub => &["per_page", "page"],
            Self::GitLab => &["ref", "stage", "name", "all", "per_page", "page"],
            Self::Gitea | Self::Forgejo => &["sort", "state", "limit", "page"],
        }
    }

    /// Most characters of a description and of a link.
    fn longest(self) -> (usize, usize) {
        match self {
            Self::GitHub => (140, usize::MAX),
            Self::GitLab => (255, 255),
            Self::Gitea | Self::Forgejo => (usize::MAX, usize::MAX),
        }
    }
}

/// A status as it was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) sha: String,
    pub(super) context: String,
    pub(super) state: String,
    pub(super) description: String,
    pub(super) target_url: String,
    second: i64,
}

/// A forge with one project.
#[derive(Debug)]
pub(super) struct Forge {
    pub(super) dialect: Dialect,
    server: HttpServer,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    dialect: Dialect,
    token: String,
    dice: Dice,
    /// Statuses in the order in which they were set.
    kept: Mutex<Vec<Status>>,
    complaints: Mutex<Vec<String>>,
    /// Time before which nobody may ask about a commit.
    quiet_until: Mutex<BTreeMap<String, Instant>>,
    hasty: Mutex<Vec<String>>,
    /// Number of states that GitLab's state machine refused.
    refused: AtomicUsize,
}

struct Refusal {
    status: u16,
    why: String,
}

fn refuse<T>(status: u16, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { status, why: why.into() })
}

/// A call of the API, about the commit of this id.
enum Call<'r> {
    Set(&'r str),
    List(&'r str),
    /// The newest status of each context.
    Combined(&'r str),
}

/// Context of the other system.
const FOREIGN: &str = "ci/build";
/// Time that a client's clock may differ within a pause.
const TOLERANCE: Duration = Duration::from_millis(50);
/// Description of a status from an earlier life of the cluster.
pub(super) const EARLIER: &str = "from an earlier life";

impl Forge {
    /// Serves a project to clients with this token.
    pub(super) fn serve(dialect: Dialect, token: &str, dice: &Dice) -> Result<Self> {
        let shared = Arc::new(Shared {
            dialect,
            token: token.to_owned(),
            dice: dice.clone(),
            kept: Mutex::default(),
            complaints: Mutex::default(),
            quiet_until: Mutex::default(),
            hasty: Mutex::default(),
            refused: AtomicUsize::new(0),
        });
        let served = Arc::clone(&shared);
        let server = HttpServer::serve(move |request| served.answer(request))?;
        Ok(Self { dialect, server, shared })
    }

    /// Address without the path of the API.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// Sets a status as an earlier life of the cluster would have.
    pub(super) fn preset(&self, sha: &str, context: &str, state: &str) {
        self.shared.keep(Status {
            sha: sha.to_owned(),
            context: context.to_owned(),
            state: state.to_owned(),
            description: EARLIER.to_owned(),
            target_url: String::new(),
            second: Timestamp::now().as_second(),
        });
    }

    /// Our statuses of a commit, in the order in which they were set.
    pub(super) fn statuses(&self, sha: &str) -> Vec<Status> {
        let kept = lock(&self.shared.kept);
        kept.iter().filter(|status| status.sha == sha && status.context != FOREIGN).cloned().collect()
    }

    /// Commits with a status.
    pub(super) fn commits(&self) -> BTreeSet<String> {
        lock(&self.shared.kept).iter().map(|status| status.sha.clone()).collect()
    }

    /// Number of states that GitLab's state machine refused.
    pub(super) fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// Requests that came too early after a 429.
    pub(super) fn hasty(&self) -> Vec<String> {
        lock(&self.shared.hasty).clone()
    }

    /// Checks that every request was as documented, and that no commit was set to one state twice in a row.
    pub(super) fn is_content(&self) -> Result<()> {
        let name = self.dialect.name();
        let complaints = lock(&self.shared.complaints).clone();
        ensure!(complaints.is_empty(), "{name}: {complaints:#?}");
        for sha in self.commits() {
            let all = self.statuses(&sha);
            let contexts: BTreeSet<&str> = all.iter().map(|status| status.context.as_str()).collect();
            ensure!(contexts.len() == 1, "{name}: {sha} has statuses of {contexts:?}");
            let twice = all.windows(2).find(|pair| pair[0].state == pair[1].state);
            ensure!(twice.is_none(), "{name}: {sha} was set to one state twice in a row: {all:#?}");
        }
        Ok(())
    }
}

impl Shared {
    fn answer(&self, request: &HttpRequest) -> Option<HttpAnswer> {
        let line = format!("{} {}", request.method, request.path);
        let sha = self.call(request).map(|call| match call {
            Call::Set(sha) | Call::List(sha) | Call::Combined(sha) => sha.to_owned(),
        });
        let until = sha.as_ref().and_then(|sha| lock(&self.quiet_until).get(sha).copied());
        if until.is_some_and(|until| Instant::now() < until) {
            lock(&self.hasty).push(line.clone());
        }
        let subject = format!("{} {}", self.dialect.name(), sha.as_deref().unwrap_or_default());
        let answer = self.dice.play(&subject, request, || {
            self.respond(request).unwrap_or_else(|Refusal { status, why }| {
                lock(&self.complaints).push(format!("{line}: {status} {why}"));
                dice::json(status, &json!({"message": why}))
            })
        });
        if let (Some(sha), Some(429)) = (sha, answer.as_ref().map(|answer| answer.status)) {
            lock(&self.quiet_until).insert(sha, Instant::now() + dice::PAUSE.saturating_sub(TOLERANCE));
        }
        answer
    }

    /// The call of a request; `None` if the API has no such method and path.
    fn call<'r>(&self, request: &'r HttpRequest) -> Option<Call<'r>> {
        let base = match self.dialect {
            Dialect::GitLab => format!("/projects/{}/", self.dialect.project().replace('/', "%2F")),
            _ => format!("/repos/{}/", self.dialect.project()),
        };
        let path = request.path.strip_prefix(self.dialect.api())?.strip_prefix(&base)?;
        let parts: Vec<&str> = path.split('/').collect();
        match (self.dialect, request.method.as_str(), parts.as_slice()) {
            (_, "POST", ["statuses", sha]) => Some(Call::Set(sha)),
            (Dialect::GitLab, "GET", ["repository", "commits", sha, "statuses"]) => Some(Call::List(sha)),
            (Dialect::GitLab, _, _) => None,
            (_, "GET", ["commits", sha, "statuses"]) => Some(Call::List(sha)),
            (Dialect::Gitea | Dialect::Forgejo, "GET", ["statuses", sha]) => Some(Call::List(sha)),
            (_, "GET", ["commits", sha, "status"]) => Some(Call::Combined(sha)),
            _ => None,
        }
    }

    fn respond(&self, request: &HttpRequest) -> Result<HttpAnswer, Refusal> {
        self.check_headers(request)?;
        let Some(call) = self.call(request) else { return refuse(404, "Not Found") };
        let (Call::Set(sha) | Call::List(sha) | Call::Combined(sha)) = call;
        if sha.len() != 40 || !sha.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return refuse(422, format!("No commit found for SHA: {sha}"));
        }
        match call {
            Call::Set(_) => self.set(sha, request),
            Call::List(_) => {
                let shown = self.list(sha, &self.filters(request)?)?;
                Ok(dice::json(200, &Value::Array(shown)))
            }
            Call::Combined(_) => {
                self.filters(request)?;
                let kept = lock(&self.kept);
                let mut newest: BTreeMap<&str, (usize, &Status)> = BTreeMap::new();
                for (index, status) in kept.iter().enumerate().filter(|(_, status)| status.sha == sha) {
                    newest.insert(&status.context, (index, status));
                }
                let shown: Vec<Value> = newest.values().map(|found| self.shown(*found)).collect();
                let count = shown.len();
                Ok(dice::json(200, &json!({"sha": sha, "statuses": shown, "total_count": count})))
            }
        }
    }

    fn check_headers(&self, request: &HttpRequest) -> Result<(), Refusal> {
        let header = |name: &str| request.header(name).unwrap_or_default();
        let login = header("authorization");
        let token = match self.dialect {
            Dialect::GitHub => login.strip_prefix("Bearer ").or_else(|| login.strip_prefix("token ")),
            Dialect::GitLab => request.header("private-token").or_else(|| login.strip_prefix("Bearer ")),
            Dialect::Gitea | Dialect::Forgejo => login.strip_prefix("token "),
        };
        if token != Some(self.token.as_str()) {
            return refuse(401, "Bad credentials");
        }
        let accept = header("accept");
        if self.dialect != Dialect::GitHub {
            return match accept {
                "application/json" | "*/*" | "" => Ok(()),
                _ => refuse(406, format!("Accept: {accept}")),
            };
        }
        if header("user-agent").is_empty() {
            return refuse(403, "Request forbidden by administrative rules: no User-Agent");
        }
        if !matches!(request.header("x-github-api-version"), None | Some("2022-11-28")) {
            return refuse(400, format!("X-GitHub-Api-Version: {}", header("x-github-api-version")));
        }
        match accept {
            "application/vnd.github+json" => Ok(()),
            _ => refuse(415, format!("Unsupported 'Accept' header: {accept}")),
        }
    }

    fn filters(&self, request: &HttpRequest) -> Result<BTreeMap<String, String>, Refusal> {
        let pairs = url::form_urlencoded::parse(request.query.as_bytes()).into_owned();
        let filters: BTreeMap<String, String> = pairs.collect();
        match filters.keys().find(|name| !self.dialect.filters().contains(&name.as_str())) {
            Some(name) => refuse(400, format!("{name} is no filter")),
            None => Ok(filters),
        }
    }

    fn set(&self, sha: &str, request: &HttpRequest) -> Result<HttpAnswer, Refusal> {
        let media = request.header("content-type").unwrap_or_default();
        if media.split(';').next() != Some("application/json") {
            return refuse(415, format!("Content-Type: {media}"));
        }
        let Ok(fields) = serde_json::from_slice::<Map<String, Value>>(&request.body) else {
            return refuse(400, "Problems parsing JSON");
        };
        if let Some((name, value)) = fields
            .iter()
            .find(|(name, value)| !self.dialect.fields().contains(&name.as_str()) || !value.is_string())
        {
            return refuse(422, format!("{name}: {value}"));
        }
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let status = Status {
            sha: sha.to_owned(),
            context: [text("name"), text("context")]
                .into_iter()
                .find(|name| !name.is_empty())
                .unwrap_or_default(),
            state: text("state"),
            description: text("description"),
            target_url: text("target_url"),
            second: Timestamp::now().as_second(),
        };
        if let Some(why) = self.mistake(&status) {
            return refuse(if self.dialect == Dialect::GitLab { 400 } else { 422 }, why);
        }
        if self.dialect == Dialect::GitLab
            && let Some(why) = self.cannot_follow(&status)
        {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Ok(dice::json(400, &json!({"message": why})));
        }
        let index = self.keep(status.clone());
        Ok(dice::json(201, &self.shown((index, &status))))
    }

    fn mistake(&self, status: &Status) -> Option<String> {
        let Status { context, state, description, target_url, .. } = status;
        let (words, link) = self.dialect.longest();
        if !self.dialect.states().contains(&state.as_str()) {
            return Some(format!("state does not have a valid value: {state:?}"));
        }
        if context.is_empty() || context == FOREIGN || context.chars().count() > 255 {
            return Some(format!("context {context:?}"));
        }
        if description.chars().count() > words {
            return Some(format!("description is too long (maximum is {words} characters)"));
        }
        let is_web = Url::parse(target_url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
        if !(is_web || target_url.is_empty()) || target_url.chars().count() > link {
            return Some(format!("target_url must use http(s) scheme and be short: {target_url:?}"));
        }
        None
    }

    /// Error of GitLab's state machine: it updates a status that is not finished, and adds another after one that is.
    fn cannot_follow(&self, status: &Status) -> Option<String> {
        let kept = lock(&self.kept);
        let last =
            kept.iter().rev().find(|one| (&one.sha, &one.context) == (&status.sha, &status.context))?;
        let event = match (last.state.as_str(), status.state.as_str()) {
            ("pending" | "running", "pending") => "enqueue",
            ("running", "running") => "run",
            _ => return None,
        };
        let from = &last.state;
        Some(format!(
            "Cannot transition status via :{event} from :{from} (Reason(s): Status cannot transition via \"{event}\")"
        ))
    }

    /// Keeps a status, and those of the other system after it; returns its index.
    fn keep(&self, status: Status) -> usize {
        let mut kept = lock(&self.kept);
        let is_good = status.state == "success";
        let other = if is_good { self.dialect.failure() } else { "success" };
        let foreign = Status { context: FOREIGN.to_owned(), state: other.to_owned(), ..status.clone() };
        let index = kept.len();
        kept.push(status);
        kept.extend(vec![foreign; self.dialect.others()]);
        index
    }

    /// A page of the statuses of a commit, in the forge's order.
    fn list(&self, sha: &str, filters: &BTreeMap<String, String>) -> Result<Vec<Value>, Refusal> {
        let kept = lock(&self.kept);
        let mut found: Vec<(usize, &Status)> =
            kept.iter().enumerate().filter(|(_, status)| status.sha == sha).collect();
        let filter = |name: &str| filters.get(name).map(String::as_str);
        match (self.dialect, filter("sort")) {
            (Dialect::GitHub, _) => found.reverse(),
            (Dialect::GitLab, _) => {
                if filter("all") != Some("true") {
                    let newest: BTreeMap<&str, usize> =
                        found.iter().map(|(index, status)| (status.context.as_str(), *index)).collect();
                    let newest: BTreeSet<usize> = newest.into_values().collect();
                    found.retain(|(index, _)| newest.contains(index));
                }
                found.retain(|(_, status)| filter("name").is_none_or(|name| name == status.context));
            }
            // As in Gitea's source, the names of the two mean the opposite.
            (_, Some("leastindex")) => found.reverse(),
            (_, Some("highestindex" | "oldest" | "leastupdate")) => {}
            // By the second: within one, in any order.
            (_, None | Some("recentupdate")) => {
                found.sort_by_key(|(index, status)| (std::cmp::Reverse(status.second), *index));
            }
            (_, Some(other)) => return refuse(422, format!("sort={other}")),
        }
        let number = |name: &str, default: usize| match filter(name).map(str::parse) {
            None => Ok(default),
            Some(Ok(number)) => Ok(number),
            Some(Err(_)) => refuse(400, format!("{name} is no number")),
        };
        let size = match self.dialect {
            Dialect::GitHub => number("per_page", 30)?.min(100),
            Dialect::GitLab => number("per_page", 20)?.min(100),
            Dialect::Gitea | Dialect::Forgejo => number("limit", 30)?.min(50),
        };
        let page = number("page", 1)?.max(1);
        Ok(found.into_iter().skip((page - 1) * size).take(size).map(|found| self.shown(found)).collect())
    }

    fn shown(&self, (index, status): (usize, &Status)) -> Value {
        let Status { sha, context, state, description, target_url, .. } = status;
        let id = index + 1;
        match self.dialect {
            Dialect::GitHub => json!({
                "id": id, "state": state, "context": context, "description": description, "target_url": target_url,
            }),
            Dialect::GitLab => json!({
                "id": id, "sha": sha, "ref": "main", "status": state, "name": context, "description": description,
                "target_url": target_url,
            }),
            Dialect::Gitea | Dialect::Forgejo => json!({
                "id": id, "status": state, "context": context, "description": description, "target_url": target_url,
            }),
        }
    }
}
