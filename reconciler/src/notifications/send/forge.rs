//! Commit status at GitHub, GitLab, Gitea and Forgejo, in the form that each documents.
//!
//! Reads back the forge's state where an earlier delivery may have arrived, so that no state is set twice.

use jiff::Timestamp;
use reqwest::{Method, StatusCode, Url};
use schema::records::MessageState;
use schema::violation::shortened;
use serde::Deserialize;
use serde_json::json;

use super::exchange::{Answer, Delivery, DeliveryError, DeliveryOutcome, Request, Route, below, exchange};
use crate::git::{CommitStatus, Forge, Reference, SourceConfig};

/// Version of GitHub's REST API.
const GITHUB_VERSION: &str = "2022-11-28";
/// Most characters of a description: GitHub refuses longer ones; GitLab takes 255.
const DESCRIPTION_MAX_CHARS: usize = 140;
/// Statuses on a page that is read back. Each has about 2 KiB at GitHub.
const PAGE_SIZE: usize = 10;
/// Most pages that are read back. A status that is not found on them is set again.
const PAGES_MAX: usize = 5;

/// Sets the status of a commit, unless it is set already.
pub(super) async fn deliver(
    config: &SourceConfig,
    status: &CommitStatus,
    token: &str,
    delivery: &Delivery,
    route: &Route<'_>,
) -> Result<DeliveryOutcome, DeliveryError> {
    let wanted = StatusUpdate::new(config, status, token, delivery)?;
    if delivery.may_have_arrived
        && let Some(shown) = read_back(&wanted, route).await?
        && shown.is(&wanted)
    {
        return Ok(DeliveryOutcome::AlreadyThere);
    }
    let answer = exchange(wanted.set(), route).await?;
    if answer.status.is_success() {
        return Ok(DeliveryOutcome::Sent);
    }
    // GitLab refuses to set a state again.
    if wanted.is_refused_transition(&answer)
        && let Some(shown) = read_back(&wanted, route).await?
        && shown.state() == wanted.state()
    {
        return Ok(DeliveryOutcome::AlreadyThere);
    }
    Err(wanted.error(&answer, Timestamp::now()))
}

/// Reads the newest status of this name; `None` if it is not found.
async fn read_back(
    wanted: &StatusUpdate<'_>,
    route: &Route<'_>,
) -> Result<Option<ShownStatus>, DeliveryError> {
    for page in 1..=PAGES_MAX {
        let answer = exchange(wanted.list(page), route).await?;
        if !answer.status.is_success() {
            return Err(wanted.error(&answer, Timestamp::now()));
        }
        let (newest, is_full) = wanted.newest(&answer.body);
        if newest.is_some() || !is_full {
            return Ok(newest);
        }
    }
    Ok(None)
}

/// Status that a commit is to have.
struct StatusUpdate<'w> {
    status: &'w CommitStatus,
    token: &'w str,
    commit: &'w str,
    /// Name of the status, the same for each commit of a source: GitHub counts 1,000 for a commit and a name.
    context: String,
    state: MessageState,
    description: String,
    link: Option<&'w str>,
    /// Branch or tag. GitLab keeps a status for each: without it, one that begins to hold the commit would get the next.
    reference: Option<&'w str>,
}

/// Status that a forge shows: GitHub and Gitea have a context, GitLab a name; GitHub has a state, the others a status.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ShownStatus {
    id: u64,
    context: Option<String>,
    name: Option<String>,
    state: Option<String>,
    status: Option<String>,
    description: Option<String>,
}

impl ShownStatus {
    fn context(&self) -> &str {
        self.context.as_ref().or(self.name.as_ref()).map_or("", String::as_str)
    }

    fn state(&self) -> &str {
        self.state.as_ref().or(self.status.as_ref()).map_or("", String::as_str)
    }

    fn is(&self, wanted: &StatusUpdate<'_>) -> bool {
        self.state() == wanted.state()
            && self.description.as_deref().unwrap_or_default() == wanted.description
    }
}

impl<'w> StatusUpdate<'w> {
    fn new(
        config: &'w SourceConfig,
        status: &'w CommitStatus,
        token: &'w str,
        delivery: &'w Delivery,
    ) -> Result<Self, DeliveryError> {
        let message = &delivery.message;
        let is_id = |id: &&str| id.len() >= 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let commit = message.commit.as_deref().filter(is_id);
        Ok(Self {
            status,
            token,
            commit: commit.ok_or_else(|| DeliveryError::new("the message is about no commit"))?,
            context: format!("minik8s/{}", status.name.as_ref().unwrap_or(&config.name)),
            state: message.state,
            // One character is for the mark of what was left out.
            description: shortened(message.title.clone(), DESCRIPTION_MAX_CHARS - 1),
            link: delivery.link.as_deref(),
            reference: match &config.reference {
                Reference::Branch(name) | Reference::Tag(name) => Some(name.as_str()),
                Reference::Commit(_) => None,
            },
        })
    }

    /// Returns the forge's word for the state.
    fn state(&self) -> &'static str {
        match (self.status.forge, self.state) {
            (Forge::GitLab, MessageState::Failure) => "failed",
            (_, state) => state.as_str(),
        }
    }

    /// Request that sets the status.
    fn set(&self) -> Request {
        let api = &self.status.api;
        let url = match self.status.forge {
            Forge::GitHub => below(api, &["repos", self.owner(), self.name(), "statuses", self.commit]),
            Forge::GitLab => {
                below(api, &["api", "v4", "projects", self.repository(), "statuses", self.commit])
            }
            Forge::Gitea | Forge::Forgejo => self.gitea_statuses(),
        };
        let mut body = json!({"state": self.state(), "description": self.description});
        let context = if self.status.forge == Forge::GitLab { "name" } else { "context" };
        body[context] = self.context.as_str().into();
        if let Some(link) = self.link {
            body["target_url"] = link.into();
        }
        if let (Forge::GitLab, Some(reference)) = (self.status.forge, self.reference) {
            body["ref"] = reference.into();
        }
        self.signed(Request::json(Method::POST, url, &body))
    }

    /// Request for a page of the commit's statuses, from 1.
    fn list(&self, page: usize) -> Request {
        let api = &self.status.api;
        let mut url = match self.status.forge {
            Forge::GitHub => {
                below(api, &["repos", self.owner(), self.name(), "commits", self.commit, "statuses"])
            }
            Forge::GitLab => {
                let path = ["api", "v4", "projects", self.repository(), "repository", "commits", self.commit];
                below(&below(api, &path), &["statuses"])
            }
            Forge::Gitea | Forge::Forgejo => self.gitea_statuses(),
        };
        let (size, page) = (PAGE_SIZE.to_string(), page.to_string());
        let mut query = match self.status.forge {
            Forge::GitHub => vec![("per_page", size.as_str())],
            Forge::GitLab => vec![("name", self.context.as_str()), ("per_page", size.as_str())],
            Forge::Gitea | Forge::Forgejo => vec![("sort", "recentupdate"), ("limit", size.as_str())],
        };
        query.push(("page", page.as_str()));
        if self.status.forge == Forge::GitLab {
            query.extend(self.reference.map(|reference| ("ref", reference)));
        }
        url.query_pairs_mut().extend_pairs(query);
        self.signed(Request { method: Method::GET, url, headers: Vec::new(), body: None })
    }

    fn gitea_statuses(&self) -> Url {
        let path = ["api", "v1", "repos", self.owner(), self.name(), "statuses", self.commit];
        below(&self.status.api, &path)
    }

    /// Adds the token and the headers that each request has.
    fn signed(&self, request: Request) -> Request {
        match self.status.forge {
            Forge::GitHub => request
                .header("accept", "application/vnd.github+json")
                .header("x-github-api-version", GITHUB_VERSION)
                .header("authorization", format!("Bearer {}", self.token)),
            Forge::GitLab => request.header("accept", "application/json").header("private-token", self.token),
            Forge::Gitea | Forge::Forgejo => request
                .header("accept", "application/json")
                .header("authorization", format!("token {}", self.token)),
        }
    }

    /// Finds the newest status of this name on a page; true if another page may follow. Ids grow, also within a second,
    /// and the lists are in different orders. A page that is too large, or cannot be read, has none.
    fn newest(&self, page: &[u8]) -> (Option<ShownStatus>, bool) {
        let shown: Vec<ShownStatus> = serde_json::from_slice(page).unwrap_or_default();
        let is_full = shown.len() >= PAGE_SIZE;
        let own = shown.into_iter().rev().filter(|shown| shown.context().eq_ignore_ascii_case(&self.context));
        (own.max_by_key(|shown| shown.id), is_full)
    }

    fn is_refused_transition(&self, answer: &Answer<'_>) -> bool {
        self.status.forge == Forge::GitLab
            && answer.status == StatusCode::BAD_REQUEST
            && answer.reason().is_some_and(|reason| reason.contains("Cannot transition status"))
    }

    fn error(&self, answer: &Answer<'_>, now: Timestamp) -> DeliveryError {
        let (forge, repository) = (self.status.forge.name(), self.repository());
        let right = match self.status.forge {
            Forge::GitHub => "write access to commit statuses (scope `repo:status`)",
            Forge::GitLab => "the scope `api` with the role Developer or higher",
            Forge::Gitea | Forge::Forgejo => "the scope `write:repository`",
        };
        let error = answer.error(None, now);
        let has_reason = |words: &str| answer.reason().is_some_and(|reason| reason.contains(words));
        let help = match answer.status.as_u16() {
            // A limit, which passes.
            403 if error.retry_after.is_some() => return error,
            401 => format!("the token is not valid at {forge}, or has expired: give a new one"),
            403 => format!("the token lacks {right}"),
            404 => {
                let api = self.status.api.as_str().trim_end_matches('/');
                let enterprise = match self.status.forge {
                    Forge::GitHub => " (Enterprise: https://HOST/api/v3)",
                    Forge::GitLab | Forge::Gitea | Forge::Forgejo => "",
                };
                format!(
                    "{forge} at {api} has no repository {repository} with this commit, or the token lacks {right}, or \
                     this is not {forge}'s API{enterprise}"
                )
            }
            422 if has_reason("No commit found") => {
                format!("push the commit to {repository} at {forge}, or name the repository that has it")
            }
            _ => return error,
        };
        answer.error(Some(&help), now)
    }

    fn repository(&self) -> &str {
        &self.status.repository
    }

    fn owner(&self) -> &str {
        self.repository().split_once('/').map_or("", |(owner, _)| owner)
    }

    fn name(&self) -> &str {
        self.repository().split_once('/').map_or("", |(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use schema::kinds::cluster::NotificationEvent;
    use schema::records::Message;
    use serde_json::Value as Json;

    use super::*;
    use crate::git::CommitStatusFields;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn config(forge: Forge, api: Option<&str>, repository: &str) -> (SourceConfig, CommitStatus) {
        let given = CommitStatusFields {
            forge: Some(forge),
            api: api.map(str::to_owned),
            repository: Some(repository.to_owned()),
            ..CommitStatusFields::default()
        };
        let url = "https://github.com/kim/shop.git";
        (SourceConfig::branch("shop", url, "main"), CommitStatus::new(given, url).unwrap())
    }

    fn delivery(state: MessageState) -> Delivery {
        let message = Message {
            event: NotificationEvent::Verdict,
            state,
            title: "Good: 3 objects".to_owned(),
            text: String::new(),
            page: String::new(),
            source: Some("shop".to_owned()),
            commit: Some(COMMIT.to_owned()),
        };
        Delivery {
            id: "d-1".to_owned(),
            subject: "commit.x".to_owned(),
            message,
            link: Some("https://page.example/revisions/7".to_owned()),
            may_have_arrived: false,
        }
    }

    /// Each request as its documentation has it: method, URL, headers in order, body.
    fn shown(request: &Request) -> (String, Vec<(&str, &str)>, Json) {
        let headers = request.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let body = request.body.as_deref().map_or(Json::Null, |body| serde_json::from_slice(body).unwrap());
        (format!("{} {}", request.method, request.url), headers, body)
    }

    #[test]
    fn each_forge_gets_the_request_that_it_documents() {
        let json_type = ("content-type", "application/json");
        let accept = ("accept", "application/json");
        let github = vec![
            ("accept", "application/vnd.github+json"),
            ("x-github-api-version", "2022-11-28"),
            ("authorization", "Bearer canary"),
        ];
        let gitea = vec![accept, ("authorization", "token canary")];
        for (forge, api, set, list, headers) in [
            (
                Forge::GitHub,
                None,
                "https://api.github.com/repos/kim/shop/statuses/COMMIT",
                "https://api.github.com/repos/kim/shop/commits/COMMIT/statuses?per_page=10&page=3",
                github.clone(),
            ),
            (
                Forge::GitHub,
                Some("https://ghe.example/api/v3"),
                "https://ghe.example/api/v3/repos/kim/shop/statuses/COMMIT",
                "https://ghe.example/api/v3/repos/kim/shop/commits/COMMIT/statuses?per_page=10&page=3",
                github,
            ),
            (
                Forge::GitLab,
                Some("https://git.example/api/v4/"),
                "https://git.example/api/v4/projects/a%2Fb%2Fshop/statuses/COMMIT",
                "https://git.example/api/v4/projects/a%2Fb%2Fshop/repository/commits/COMMIT/statuses\
                 ?name=minik8s%2Fshop&per_page=10&page=3&ref=main",
                vec![accept, ("private-token", "canary")],
            ),
            (
                Forge::Gitea,
                Some("https://git.example/gitea"),
                "https://git.example/gitea/api/v1/repos/kim/shop/statuses/COMMIT",
                "https://git.example/gitea/api/v1/repos/kim/shop/statuses/COMMIT?sort=recentupdate&limit=10&page=3",
                gitea.clone(),
            ),
            (
                Forge::Forgejo,
                Some("https://git.example"),
                "https://git.example/api/v1/repos/kim/shop/statuses/COMMIT",
                "https://git.example/api/v1/repos/kim/shop/statuses/COMMIT?sort=recentupdate&limit=10&page=3",
                gitea,
            ),
        ] {
            let is_gitlab = forge == Forge::GitLab;
            let (config, status) = config(forge, api, if is_gitlab { "a/b/shop" } else { "kim/shop" });
            let delivery = delivery(MessageState::Failure);
            let wanted = StatusUpdate::new(&config, &status, "canary", &delivery).unwrap();
            let mut body = json!({
                "state": if is_gitlab { "failed" } else { "failure" },
                "description": "Good: 3 objects",
                "target_url": "https://page.example/revisions/7",
            });
            if is_gitlab {
                body["name"] = "minik8s/shop".into();
                body["ref"] = "main".into();
            } else {
                body["context"] = "minik8s/shop".into();
            }
            let with_type = [&[json_type][..], &headers[..]].concat();
            let set = format!("POST {}", set.replace("COMMIT", COMMIT));
            assert_eq!(shown(&wanted.set()), (set, with_type, body));
            let list = format!("GET {}", list.replace("COMMIT", COMMIT));
            assert_eq!(shown(&wanted.list(3)), (list, headers, Json::Null));
        }
    }

    // Would fail if the first of a list were the newest: GitLab lists the oldest first.
    #[test]
    fn the_newest_status_of_the_name_counts() {
        let (config, status) = config(Forge::GitHub, None, "kim/shop");
        let delivery = delivery(MessageState::Success);
        let wanted = StatusUpdate::new(&config, &status, "canary", &delivery).unwrap();
        let newest = |list: Json| wanted.newest(list.to_string().as_bytes()).0;
        let good = "Good: 3 objects";
        let github = json!([
            {"id": 9, "context": "ci", "state": "failure"},
            {"id": 8, "context": "Minik8s/shop", "state": "success", "description": good},
            {"id": 7, "context": "minik8s/shop", "state": "pending", "description": null},
        ]);
        assert!(newest(github).unwrap().is(&wanted));
        let gitlab = json!([
            {"id": 7, "name": "minik8s/shop", "status": "success", "description": good},
            {"id": 8, "name": "minik8s/shop", "status": "pending"},
        ]);
        let found = newest(gitlab).unwrap();
        assert!(found.state() == "pending" && !found.is(&wanted));
        let without_ids = json!([
            {"context": "minik8s/shop", "status": "success", "description": good},
            {"context": "minik8s/shop", "status": "pending"},
        ]);
        assert!(newest(without_ids).unwrap().is(&wanted));
        let other_text = json!([{"context": "minik8s/shop", "status": "success", "description": "Good"}]);
        assert!(!newest(other_text).unwrap().is(&wanted));
        assert!(newest(json!([])).is_none());
        assert!(wanted.newest(b"<html>").0.is_none());
        let others = vec![json!({"id": 1, "context": "ci", "state": "success"}); 10];
        assert!(matches!(wanted.newest(json!(others).to_string().as_bytes()), (None, true)));
    }

    #[test]
    fn two_clusters_have_a_status_each() {
        let (config, mut status) = config(Forge::GitHub, None, "kim/shop");
        let delivery = delivery(MessageState::Success);
        status.name = Some("lab".to_owned());
        let wanted = StatusUpdate::new(&config, &status, "canary", &delivery).unwrap();
        assert_eq!(shown(&wanted.set()).2["context"], "minik8s/lab");
    }

    #[test]
    fn descriptions_have_a_length_that_github_accepts() {
        let (config, status) = config(Forge::GitHub, None, "kim/shop");
        let mut delivery = delivery(MessageState::Failure);
        (delivery.message.title, delivery.link) = ("ä".repeat(200), None);
        let wanted = StatusUpdate::new(&config, &status, "canary", &delivery).unwrap();
        assert_eq!(wanted.description.chars().count(), 140);
        assert!(shown(&wanted.set()).2.get("target_url").is_none());
        delivery.message.commit = Some("../../user".to_owned());
        assert!(StatusUpdate::new(&config, &status, "canary", &delivery).is_err());
    }

    #[test]
    fn a_refusal_says_what_the_token_lacks() {
        let (config, status) = config(Forge::GitHub, None, "kim/shop");
        let delivery = delivery(MessageState::Success);
        let wanted = StatusUpdate::new(&config, &status, "canary", &delivery).unwrap();
        let said = |status: u16, body: &str| {
            let status = StatusCode::from_u16(status).unwrap();
            let body = body.as_bytes().to_vec();
            let (place, secrets) = ("https://api.github.com".to_owned(), &Default::default());
            let answer = Answer { place, status, headers: Default::default(), body, secrets };
            wanted.error(&answer, Timestamp::UNIX_EPOCH).message
        };
        for (status, body, part) in [
            (401, r#"{"message": "Bad credentials"}"#, "Bad credentials; the token is not valid at GitHub"),
            (
                403,
                r#"{"message": "Resource not accessible"}"#,
                "the token lacks write access to commit statuses",
            ),
            (
                404,
                "{}",
                "GitHub at https://api.github.com has no repository kim/shop with this commit, or the token",
            ),
            (404, "{}", "or this is not GitHub's API (Enterprise: https://HOST/api/v3)"),
            (422, r#"{"message": "No commit found for SHA: 01"}"#, "push the commit to kim/shop at GitHub"),
            (
                422,
                r#"{"message": "Validation Failed"}"#,
                "the answer is 422 Unprocessable Entity: Validation Failed",
            ),
            (500, "", "the answer is 500 Internal Server Error"),
        ] {
            let said = said(status, body);
            assert!(said.contains(part), "{said}");
        }
    }
}
