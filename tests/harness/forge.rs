//! A forge's API for comments on pull requests in the dialects of GitHub, GitLab and Gitea: the part that the CI
//! script needs, with pages and tokens, and a record of every request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use schema::control::lock;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Forge that is imitated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForgeKind {
    /// api.github.com
    GitHub,
    /// GitLab's v4.
    GitLab,
    /// Gitea's and Forgejo's v1.
    Gitea,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgeComment {
    pub id: u64,
    pub author: String,
    pub body: String,
}

/// A forge with one pull request, number 7 of project 3 or `ada/fleet`.
#[derive(Debug)]
pub struct Forge {
    kind: ForgeKind,
    address: String,
    shared: Arc<Shared>,
    // The server ends with the runtime.
    _runtime: Runtime,
}

#[derive(Debug)]
struct Shared {
    kind: ForgeKind,
    token: String,
    may_write: bool,
    // No comment may be changed, not even by its author.
    frozen: AtomicBool,
    comments: Mutex<Vec<ForgeComment>>,
    asked: Mutex<Vec<String>>,
}

/// Comments per page.
const PAGE: usize = 100;
/// Author of comments by other accounts than the token's.
const STRANGER: &str = "mallory";

impl Forge {
    /// Serves on a free port. Only `token` is valid; `may_write` says if it may write.
    pub fn serve(kind: ForgeKind, token: &str, may_write: bool) -> Result<Self> {
        let runtime = Runtime::new()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?.to_string();
        let (comments, asked, frozen) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { kind, token: token.to_owned(), may_write, frozen, comments, asked });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        runtime.spawn(async move { axum::serve(listener, router).await });
        Ok(Self { kind, address, shared, _runtime: runtime })
    }

    /// Address of the API, as the forge's own CI gives it.
    pub fn api(&self) -> String {
        let path = match self.kind {
            ForgeKind::GitHub => "",
            ForgeKind::GitLab => "/api/v4",
            ForgeKind::Gitea => "/api/v1",
        };
        format!("http://{}{path}", self.address)
    }

    /// Comments on the pull request.
    pub fn comments(&self) -> Vec<ForgeComment> {
        lock(&self.shared.comments).clone()
    }

    /// Adds a comment by another account.
    pub fn say(&self, body: &str) {
        add(&self.shared, STRANGER, body);
    }

    /// Allows only new comments from now on, no changes.
    pub fn freeze(&self) {
        self.shared.frozen.store(true, Ordering::SeqCst);
    }

    /// Account of the token.
    pub fn account(&self) -> &'static str {
        account(self.kind)
    }

    /// `METHOD path` of every request so far.
    pub fn asked(&self) -> Vec<String> {
        lock(&self.shared.asked).clone()
    }
}

fn account(kind: ForgeKind) -> &'static str {
    match kind {
        ForgeKind::GitHub => "github-actions[bot]",
        ForgeKind::GitLab => "project_3_bot_5b1e",
        ForgeKind::Gitea => "reviewer",
    }
}

fn add(shared: &Shared, author: &str, body: &str) -> Value {
    let mut comments = lock(&shared.comments);
    let id = 101 + comments.len() as u64;
    comments.push(ForgeComment { id, author: author.to_owned(), body: body.to_owned() });
    json!({"id": id, "body": body})
}

/// JSON of a user in the forge's format.
fn person(kind: ForgeKind, login: &str) -> Value {
    match kind {
        ForgeKind::GitHub => json!({"login": login, "type": "User"}),
        ForgeKind::GitLab => json!({"username": login, "name": login}),
        ForgeKind::Gitea => json!({"login": login, "username": login}),
    }
}

fn shown(kind: ForgeKind, comment: &ForgeComment) -> Value {
    let who = if kind == ForgeKind::GitLab { "author" } else { "user" };
    json!({"id": comment.id, "body": comment.body, who: person(kind, &comment.author)})
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    lock(&shared.asked).push(format!("{method} {}", uri.path()));
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let token = match shared.kind {
        ForgeKind::GitHub => header("authorization").strip_prefix("Bearer "),
        ForgeKind::GitLab => Some(header("private-token")),
        ForgeKind::Gitea => header("authorization").strip_prefix("token "),
    };
    if token != Some(shared.token.as_str()) {
        return (StatusCode::UNAUTHORIZED, "{\"message\": \"Bad credentials\"}").into_response();
    }
    if method != Method::GET && !shared.may_write {
        return (StatusCode::FORBIDDEN, "{\"message\": \"not accessible\"}").into_response();
    }
    match respond(&shared, &method, &uri, &body) {
        Ok((status, value)) => (status, value.to_string()).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}")).into_response(),
    }
}

fn respond(shared: &Shared, method: &Method, uri: &Uri, body: &[u8]) -> Result<(StatusCode, Value)> {
    let (list, one, change) = match shared.kind {
        ForgeKind::GitHub => {
            ("/repos/ada/fleet/issues/7/comments", "/repos/ada/fleet/issues/comments/", Method::PATCH)
        }
        ForgeKind::GitLab => (
            "/api/v4/projects/3/merge_requests/7/notes",
            "/api/v4/projects/3/merge_requests/7/notes/",
            Method::PUT,
        ),
        ForgeKind::Gitea => (
            "/api/v1/repos/ada/fleet/issues/7/comments",
            "/api/v1/repos/ada/fleet/issues/comments/",
            Method::PATCH,
        ),
    };
    let text = || -> Result<String> {
        let value: Value = serde_json::from_slice(body).context("the body is not JSON")?;
        Ok(value["body"].as_str().context("the body has no text")?.to_owned())
    };
    let user = list.split_once("/repos/").or_else(|| list.split_once("/projects/"));
    if user.is_some_and(|(api, _)| uri.path() == format!("{api}/user")) && method == Method::GET {
        // The token of GitHub Actions belongs to no user.
        return Ok(match shared.kind {
            ForgeKind::GitHub => (StatusCode::FORBIDDEN, json!({"message": "not accessible by integration"})),
            kind => (StatusCode::OK, person(kind, account(kind))),
        });
    }
    if uri.path() == list && method == Method::GET {
        let query = uri.query().unwrap_or_default();
        let page = query.split('&').find_map(|pair| pair.strip_prefix("page=")).unwrap_or("1");
        // Gitea returns every comment of an issue, whatever page is requested.
        let skip =
            if shared.kind == ForgeKind::Gitea { 0 } else { (page.parse::<usize>()?.max(1) - 1) * PAGE };
        let take = if shared.kind == ForgeKind::Gitea { usize::MAX } else { PAGE };
        let comments = lock(&shared.comments);
        let page = comments.iter().skip(skip).take(take);
        return Ok((StatusCode::OK, page.map(|comment| shown(shared.kind, comment)).collect()));
    }
    if uri.path() == list && method == Method::POST {
        return Ok((StatusCode::CREATED, add(shared, account(shared.kind), &text()?)));
    }
    let id = uri.path().strip_prefix(one).filter(|_| *method == change).and_then(|id| id.parse::<u64>().ok());
    let mut comments = lock(&shared.comments);
    let found = id.and_then(|id| comments.iter_mut().find(|comment| comment.id == id));
    match found {
        // GitHub's token may change foreign comments, which is why a wrong choice would do harm.
        Some(comment)
            if shared.frozen.load(Ordering::SeqCst)
                || (shared.kind != ForgeKind::GitHub && comment.author != account(shared.kind)) =>
        {
            Ok((StatusCode::FORBIDDEN, json!({"message": "not yours"})))
        }
        Some(comment) => {
            comment.body = text()?;
            Ok((StatusCode::OK, json!({"id": comment.id})))
        }
        None => Ok((StatusCode::NOT_FOUND, json!({"message": "Not Found"}))),
    }
}
