//! Request validation: names in paths, queries with known fields only.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use schema::names::{HostNames, RequestOrigin};
use schema::since::Since;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use crate::view::Selector;

const NAME_MAX_CHARS: usize = 253;

/// Paths of calls of triggers, which carry a token and may have a body of any type.
const CALLS: &str = "/v1/calls/";

/// Refuses requests that a browser may have sent for somebody else's page: under a foreign name, from a foreign page, or
/// with a type of body that needs no permission of this API.
pub(super) async fn refuse_foreign(
    State(names): State<Arc<HostNames>>,
    request: Request,
    next: Next,
) -> Response {
    let (headers, uri) = (request.headers(), request.uri());
    let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
    let hosts = headers.get_all(header::HOST).iter().map(|host| host.as_bytes()).chain(authority);
    let content_type = || headers.get(header::CONTENT_TYPE).map_or(&[][..], |value| value.as_bytes());
    let is_json_due = request.method() == Method::POST && !uri.path().starts_with(CALLS);
    let origin = RequestOrigin {
        hosts: hosts.collect(),
        origin: headers.get(header::ORIGIN).map(|value| value.as_bytes()),
        json: is_json_due.then(content_type),
    };
    match names.check(&origin) {
        Ok(()) => next.run(request).await,
        Err(foreign) => {
            let status = StatusCode::from_u16(foreign.status()).unwrap_or(StatusCode::FORBIDDEN);
            ApiError::new(status, foreign.to_string(), foreign.help("minik8s serve")).into_response()
        }
    }
}

/// Query parameters; unknown fields are rejected.
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(query)| Self(query)).map_err(|rejection| {
            ApiError::bad_request(rejection.body_text(), "check the parameters of the query")
        })
    }
}

/// Checks an optional name with [`name`].
pub(super) fn optional_name(what: &str, text: Option<&str>) -> Result<(), ApiError> {
    text.map_or(Ok(()), |text| name(what, text))
}

/// Checks that a name can be part of a key: letters, digits, `-`, `_`, `.`, beginning with a letter or digit.
pub(super) fn name(what: &str, text: &str) -> Result<(), ApiError> {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let fits = text.len() <= NAME_MAX_CHARS
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(inner);
    if fits {
        return Ok(());
    }
    let shown: String = text.chars().take(60).collect();
    Err(ApiError::bad_request(
        format!("`{}` is not a valid {what} name", shown.escape_debug()),
        "use at most 253 letters, digits, '-', '_' and '.', with a letter or digit first",
    ))
}

pub(super) fn selector(text: Option<&str>) -> Result<Option<Selector>, ApiError> {
    let parsed = text.map(str::parse).transpose();
    parsed.map_err(|why| {
        ApiError::bad_request(format!("the selector can't be read: {why}"), "write it as app=web,tier!=back")
    })
}

/// Parses the start of a log: an age or a time.
pub(super) fn since(text: Option<&str>) -> Result<Option<Since>, ApiError> {
    let parsed = text.map(str::parse).transpose();
    parsed.map_err(|why: String| {
        ApiError::bad_request(format!("since: {why}"), "leave it out for the whole log")
    })
}

/// Checks a commit id: 7 to 64 hex digits.
pub(super) fn commit(text: &str) -> Result<(), ApiError> {
    if (7..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    let shown: String = text.chars().take(70).collect();
    Err(ApiError::bad_request(
        format!("`{}` is not a commit id", shown.escape_debug()),
        "write 7 to 64 hex digits, as `git rev-parse HEAD` prints them",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_fit_in_a_key_are_taken() {
        for good in ["web", "Web-1", "a.b_c", "0"] {
            assert!(name("pod", good).is_ok(), "{good}");
        }
        let long = "a".repeat(254);
        for bad in ["", ".", "..", "-a", "a/b", "a b", "ä", "a\n", long.as_str()] {
            assert!(name("pod", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_hex_of_7_digits_or_more_is_a_commit() {
        assert!(commit("abcdef1").is_ok());
        for bad in ["", "abcdef", "main", "HEAD~1234", &"a".repeat(65)] {
            assert!(commit(bad).is_err(), "{bad:?}");
        }
    }
}
