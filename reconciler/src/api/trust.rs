//! Requests to join, to renew a certificate, to leave, to admit, list and remove others, and to rotate the authority. Access
//! is decided before; a machine that joins has nothing but its token.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Path, Request, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use jiff::Timestamp;
use schema::trust::JoinAnswer;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::app::ApiState;
use super::error::{ApiError, JsonResult};
use crate::listener::{Caller, Peer};
use crate::trust::{
    Admission, AdmissionError, IdentityItem, Refusal, RemovedIdentity, RotationAnswer, TokenAnswer,
};
use crate::view::List;

/// Largest request; a signing request has less than 1 KiB.
const BODY_MAX_BYTES: usize = 64 * 1024;
/// Longest time to read a request's body.
const BODY_WAIT: Duration = Duration::from_secs(5);
/// Remedy where a token or a certificate is of no use.
const NEW_TOKEN: &str = "'minik8s token create' on a reconciler prints a command with a new token";

type AdmissionState = State<Arc<Admission>>;

/// Routes of the admission.
pub(super) fn routes(admission: Arc<Admission>) -> Router<Arc<ApiState>> {
    Router::new()
        .route("/v1/join", post(join))
        .route("/v1/renew", post(renew))
        .route("/v1/leave", post(leave))
        .route("/v1/tokens", post(create_token))
        .route("/v1/users", post(add_user))
        .route("/v1/identities", get(identities))
        .route("/v1/identities/{identity}/remove", post(remove))
        .route("/v1/trust/rotate", post(rotate))
        .route("/v1/trust/etcd-restarted", post(confirm_etcd_restart))
        .layer(DefaultBodyLimit::max(BODY_MAX_BYTES))
        .with_state(admission)
}

async fn join(
    State(admission): AdmissionState,
    peer: Option<Extension<Peer>>,
    request: Request,
) -> JsonResult<JoinAnswer> {
    let request = body(request).await?;
    let from =
        peer.map_or_else(|| "an unknown address".to_owned(), |Extension(Peer(address))| address.to_string());
    Ok(Json(admission.join(&request, &from, Timestamp::now()).await?))
}

async fn renew(State(admission): AdmissionState, request: Request) -> JsonResult<JoinAnswer> {
    let request = body(request).await?;
    Ok(Json(admission.renew(&request, Timestamp::now()).await?))
}

/// Removes the caller itself, a node, and nobody else.
async fn leave(State(admission): AdmissionState, Extension(caller): Extension<Caller>) -> JsonResult<Value> {
    let Caller::Certified(peer) = caller else {
        let help = "run 'minik8s-agent reset --leave' on the node that leaves";
        return Err(ApiError::bad_request("only a node leaves, with its own certificate", help));
    };
    admission.leave(&peer, Timestamp::now()).await?;
    Ok(Json(json!({})))
}

async fn create_token(
    State(admission): AdmissionState,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> JsonResult<TokenAnswer> {
    let request = body(request).await?;
    Ok(Json(admission.create_token(&request, &name_of(&caller), Timestamp::now()).await?))
}

async fn add_user(
    State(admission): AdmissionState,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> JsonResult<JoinAnswer> {
    let request = body(request).await?;
    Ok(Json(admission.add_user(&request, &name_of(&caller), Timestamp::now()).await?))
}

async fn identities(State(admission): AdmissionState) -> JsonResult<List<IdentityItem>> {
    Ok(Json(List { items: admission.identities().await? }))
}

async fn remove(
    State(admission): AdmissionState,
    Extension(caller): Extension<Caller>,
    Path(identity): Path<String>,
) -> JsonResult<RemovedIdentity> {
    Ok(Json(admission.remove(&identity, &name_of(&caller), Timestamp::now()).await?))
}

async fn rotate(
    State(admission): AdmissionState,
    Extension(caller): Extension<Caller>,
) -> JsonResult<RotationAnswer> {
    Ok(Json(admission.rotate(&name_of(&caller), Timestamp::now()).await?))
}

async fn confirm_etcd_restart(
    State(admission): AdmissionState,
    Extension(caller): Extension<Caller>,
) -> JsonResult<Value> {
    admission.confirm_etcd_restart(&name_of(&caller)).await?;
    Ok(Json(json!({})))
}

async fn body<T: DeserializeOwned>(request: Request) -> Result<T, ApiError> {
    let read = timeout(BODY_WAIT, Json::<T>::from_request(request, &())).await;
    let slow =
        |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time", "send it again");
    let Json(body) = read.map_err(slow)?.map_err(|rejection: JsonRejection| {
        let status = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        };
        ApiError::new(status, rejection.body_text(), "both sides should have the same version")
    })?;
    Ok(body)
}

/// Name of the caller for events.
fn name_of(caller: &Caller) -> String {
    match caller {
        Caller::Local { uid } => format!("uid {uid} of the reconciler's machine"),
        Caller::Certified(peer) => peer.identity.to_string(),
        Caller::Anonymous => "nobody known".to_owned(),
    }
}

impl From<AdmissionError> for ApiError {
    fn from(error: AdmissionError) -> Self {
        let text = error.to_string();
        match error {
            AdmissionError::Refused(refusal) => {
                let (status, help) = status_and_help(&refusal);
                Self::new(status, text, help)
            }
            AdmissionError::Invalid(_) => Self::bad_request(text, "correct the request"),
            AdmissionError::Unknown(_) => Self::not_found(
                text,
                "'minik8s user list' and 'minik8s get nodes' show who belongs to the cluster",
            ),
            AdmissionError::RotationUnderWay => {
                Self::new(StatusCode::CONFLICT, text, "'minik8s status' says what it waits for")
            }
            AdmissionError::Alive(_) => {
                Self::new(StatusCode::CONFLICT, text, "stop it, and try again after 15 s")
            }
            AdmissionError::Member { .. } => {
                Self::unavailable(text, "try again once the other members of etcd answer")
            }
            AdmissionError::Starting => {
                Self::unavailable(text, "try again in a second; if it persists, check whether etcd runs")
            }
            AdmissionError::Excluded(_) => Self::unavailable(text, "ask another reconciler"),
            AdmissionError::TooOften(_) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, text, "try again in 10 s").retry_after(10)
            }
            AdmissionError::TooMany(_) => {
                let help = "use one of these; its log says why it asks for so many";
                Self::new(StatusCode::TOO_MANY_REQUESTS, text, help).retry_after(600)
            }
            AdmissionError::Busy => Self::unavailable(text, "try again"),
            AdmissionError::Record { .. } => {
                Self::unavailable(text, "check the value in etcd; only reconcilers write it")
            }
            AdmissionError::Trust(_) => {
                let help = "check the folder reconciler/pki of the reconciler's state directory";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, text, help)
            }
            AdmissionError::Store(error) => error.into(),
        }
    }
}

fn status_and_help(refusal: &Refusal) -> (StatusCode, &'static str) {
    use StatusCode as Status;
    match refusal {
        Refusal::WrongToken
        | Refusal::UsedToken(_)
        | Refusal::LateToken(_)
        | Refusal::Stranger
        | Refusal::OtherKey => (Status::UNAUTHORIZED, NEW_TOKEN),
        Refusal::TooOld(_) | Refusal::Replaced(_) => (Status::FORBIDDEN, NEW_TOKEN),
        Refusal::Gone(_) => (
            Status::FORBIDDEN,
            "remove the annotation minik8s.io/gone in Git, and wait until that is applied",
        ),
        Refusal::UnreadableNode(_) => {
            (Status::FORBIDDEN, "'minik8s status' says what can't be read; push a manifest that can")
        }
        Refusal::OtherInGit { .. } => {
            (Status::FORBIDDEN, "set `identity` of the Node object to this key, if it is the machine's")
        }
        Refusal::Revoked(_) => (
            Status::FORBIDDEN,
            "join again with a new key: first 'minik8s-agent reset' on that machine, or for a reconciler remove \
             <state-dir>/reconciler/pki there",
        ),
        Refusal::NotRenewable(_) => {
            (Status::FORBIDDEN, "'minik8s user add' makes one for a person; a reconciler renews its own")
        }
    }
}
