//! Access to the API: what each caller may request. Decided anew for each request, so that a revoked key counts at
//! once, also on a connection that is kept alive.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use schema::trust::{Identity, Role, TrustReader};

use super::error::ApiError;
use crate::listener::Caller;
use crate::trust::admits_or_removes;

/// Reason to refuse a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Refusal {
    /// The caller has no certificate.
    Anonymous,
    /// The key of the caller was revoked.
    Revoked(Identity),
    /// Only users of the reconciler's machine may request this.
    LocalOnly,
    /// A node, or a member of etcd, may request little.
    Role(Identity),
}

/// Refuses requests that their callers may not make. Requests without a [`Caller`] are anonymous.
pub(super) async fn guard(
    State(trust): State<Option<TrustReader>>,
    request: Request,
    next: Next,
) -> Response {
    let caller = request.extensions().get::<Caller>().cloned().unwrap_or(Caller::Anonymous);
    let allowed = match (&caller, trust) {
        (Caller::Certified(peer), Some(trust)) if trust.current().is_revoked(&peer.key) => {
            Err(Refusal::Revoked(peer.identity.clone()))
        }
        _ => may(&caller, request.method(), request.uri().path()),
    };
    match allowed {
        Ok(()) => next.run(request).await,
        Err(refusal) => {
            let closes = matches!(refusal, Refusal::Revoked(_));
            let mut response = ApiError::from(refusal).into_response();
            // It would outlive the list of revoked keys.
            if closes {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
    }
}

/// Decides on a request. The content that a node may read is decided by
/// [`is_named_for`](crate::blobs::is_named_for).
fn may(caller: &Caller, method: &Method, path: &str) -> Result<(), Refusal> {
    // A token or a former certificate in the body is the proof.
    if method == Method::POST && matches!(path, "/v1/join" | "/v1/renew") {
        return Ok(());
    }
    let peer = match caller {
        Caller::Local { .. } => return Ok(()),
        Caller::Anonymous => return Err(Refusal::Anonymous),
        Caller::Certified(peer) => &peer.identity,
    };
    match peer.role() {
        Role::User | Role::Reconciler if admits_or_removes(path) => Err(Refusal::LocalOnly),
        Role::User | Role::Reconciler => Ok(()),
        Role::Node if method == Method::GET && path.starts_with("/v1/blobs/") => Ok(()),
        Role::Node if method == Method::POST && path == "/v1/leave" => Ok(()),
        Role::Node | Role::Etcd => Err(Refusal::Role(peer.clone())),
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let (status, error, help) = match refusal {
            Refusal::Anonymous => (
                StatusCode::UNAUTHORIZED,
                "this API needs a certificate".to_owned(),
                "on this machine use the socket of 'minik8s serve', which the CLI finds by itself; elsewhere \
                 'minik8s user add NAME' on a reconciler prints a certificate",
            ),
            Refusal::Revoked(identity) => (
                StatusCode::UNAUTHORIZED,
                format!("the key of {identity} was revoked"),
                "it was removed from the cluster; with a new key and a new token it can join again",
            ),
            Refusal::LocalOnly => (
                StatusCode::FORBIDDEN,
                "only users of the reconciler's machine may admit and remove others, and rotate the authority".to_owned(),
                "run it on a reconciler, as root or as a member of the group 'minik8s'",
            ),
            Refusal::Role(identity) => (
                StatusCode::FORBIDDEN,
                format!("{identity} may not request this"),
                "use the certificate of a user; 'minik8s user add NAME' on a reconciler prints one",
            ),
        };
        Self::new(status, error, help)
    }
}

#[cfg(test)]
mod tests {
    use schema::trust::Peer;

    use super::*;

    fn certified(identity: &str) -> Caller {
        Caller::Certified(Peer { identity: identity.parse().unwrap(), key: format!("sha256:{identity}") })
    }

    /// The table of `docs/security.md`: method and path, and the status for each caller (0: passed on).
    #[test]
    fn every_caller_may_do_what_the_table_says_and_nothing_else() {
        let callers = [
            Caller::Local { uid: 1_000 },
            certified("user-ada"),
            certified("reconciler-r2"),
            certified("node-n1"),
            certified("etcd"),
            Caller::Anonymous,
        ];
        for (method, path, expected) in [
            ("GET", "/v1/status", [0, 0, 0, 403, 403, 401]),
            ("GET", "/", [0, 0, 0, 403, 403, 401]),
            ("GET", "/metrics", [0, 0, 0, 403, 403, 401]),
            ("GET", "/v1/healthz", [0, 0, 0, 403, 403, 401]),
            ("GET", "/nothing", [0, 0, 0, 403, 403, 401]),
            ("POST", "/v1/sync", [0, 0, 0, 403, 403, 401]),
            ("POST", "/v1/calls/Workflow/default/w/t", [0, 0, 0, 403, 403, 401]),
            ("GET", "/v1/blobs/abc", [0, 0, 0, 0, 403, 401]),
            ("POST", "/v1/blobs/abc", [0, 0, 0, 403, 403, 401]),
            ("GET", "/v1/blobs", [0, 0, 0, 403, 403, 401]),
            ("POST", "/v1/join", [0, 0, 0, 0, 0, 0]),
            ("GET", "/v1/join", [0, 0, 0, 403, 403, 401]),
            ("POST", "/v1/renew", [0, 0, 0, 0, 0, 0]),
            ("POST", "/v1/leave", [0, 0, 0, 0, 403, 401]),
            ("GET", "/v1/leave", [0, 0, 0, 403, 403, 401]),
            ("POST", "/v1/leave/x", [0, 0, 0, 403, 403, 401]),
            ("POST", "/v1/renew/x", [0, 0, 0, 403, 403, 401]),
            ("POST", "/v1/tokens", [0, 403, 403, 403, 403, 401]),
            ("POST", "/v1/tokens/x", [0, 403, 403, 403, 403, 401]),
            ("POST", "/v1/users", [0, 403, 403, 403, 403, 401]),
            ("GET", "/v1/identities", [0, 0, 0, 403, 403, 401]),
            ("POST", "/v1/identities/user-ada/remove", [0, 403, 403, 403, 403, 401]),
            ("POST", "/v1/trust/rotate", [0, 403, 403, 403, 403, 401]),
            ("POST", "/v1/trust/etcd-restarted", [0, 403, 403, 403, 403, 401]),
        ] {
            let method: Method = method.parse().unwrap();
            let found = callers.each_ref().map(|caller| match may(caller, &method, path) {
                Ok(()) => 0,
                Err(refusal) => ApiError::from(refusal).status().as_u16(),
            });
            assert_eq!(found, expected, "{method} {path}");
        }
    }
}
