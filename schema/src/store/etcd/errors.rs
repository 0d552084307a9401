//! etcd's errors in our words: the only place that looks into them.

use etcd_client::Error;

use crate::control::{error_chain, with_causes};
use crate::store::StoreError;

/// The revision asked for is compacted. The text is etcd's `ErrCompacted`; the code alone
/// (`OutOfRange`) also means "in the future".
pub(super) fn is_compacted(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("has been compacted"))
}

/// The lease is not there (any more). A keep-alive says it as an answer, the rest as a status.
pub(super) fn is_lease_not_found(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => status.message().contains("lease not found"),
        Error::LeaseKeepAliveError(message) => message.contains("lease not found"),
        _ => false,
    }
}

/// No member was reached, or the member has no leader just now.
pub(super) fn is_unavailable(error: &Error) -> bool {
    match error {
        // By the number (14): the type lives in a crate that we do not depend on.
        Error::GRpcStatus(status) => i32::from(status.code()) == 14,
        Error::TransportError(_) => true,
        _ => false,
    }
}

/// etcd does not know who asks: the token or the password is not valid any more, or authentication was
/// switched on since the connection was made.
pub(super) fn is_unauthenticated(error: &Error) -> bool {
    let words = ["invalid auth token", "authentication failed", "user name is empty"];
    matches!(error, Error::GRpcStatus(status) if words.iter().any(|word| status.message().contains(word)))
}

/// Etcd's authentication is off: no login is possible or needed.
pub(super) fn is_auth_off(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("authentication is not enabled"))
}

/// A refused or lost request.
pub(super) fn request_error(act: &'static str, error: &Error) -> StoreError {
    let message = message_of(error);
    if is_unauthenticated(error) {
        return StoreError::Unauthenticated { act, message };
    }
    StoreError::Request { act, message }
}

/// What happened in one line, with its causes: gRPC's own text often says only "transport error".
pub(super) fn message_of(error: &Error) -> String {
    match error {
        Error::GRpcStatus(status) => with_causes(status.message().to_owned(), status),
        Error::TransportError(error) => error_chain(error),
        other => other.to_string(),
    }
}
