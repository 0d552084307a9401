//! Translates etcd's errors into our own: the only place that inspects them.

use etcd_client::Error;

use crate::control::{error_chain, with_causes};
use crate::store::StoreError;

/// True if the requested revision is compacted. The text is etcd's `ErrCompacted`; the code alone (`OutOfRange`)
/// also means "in the future".
pub(super) fn is_compacted(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("has been compacted"))
}

/// True if the lease does not exist (any longer). A keep-alive reports it as an answer, other calls as a status.
pub(super) fn is_lease_not_found(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => status.message().contains("lease not found"),
        Error::LeaseKeepAliveError(message) => message.contains("lease not found"),
        _ => false,
    }
}

/// True if no member was reached, or the member has no leader at the moment.
pub(super) fn is_unavailable(error: &Error) -> bool {
    match error {
        // By the number (14): the type lives in a crate that we do not depend on.
        Error::GRpcStatus(status) => i32::from(status.code()) == 14,
        Error::TransportError(_) => true,
        _ => false,
    }
}

/// True if etcd does not recognize the client: the token or the password is no longer valid, or authentication was
/// switched on after the connection was made.
pub(super) fn is_unauthenticated(error: &Error) -> bool {
    let words = ["invalid auth token", "authentication failed", "user name is empty"];
    matches!(error, Error::GRpcStatus(status) if words.iter().any(|word| status.message().contains(word)))
}

/// True if etcd's authentication is off: no login is possible or needed.
pub(super) fn is_auth_off(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("authentication is not enabled"))
}

/// Converts the error of a refused or lost request.
pub(super) fn request_error(act: &'static str, error: &Error) -> StoreError {
    let message = message_of(error);
    if is_unauthenticated(error) {
        return StoreError::Unauthenticated { act, message };
    }
    StoreError::Request { act, message }
}

/// Formats an error in one line, with its causes: gRPC's own text is often only "transport error".
pub(super) fn message_of(error: &Error) -> String {
    match error {
        Error::GRpcStatus(status) => with_causes(status.message().to_owned(), status),
        Error::TransportError(error) => error_chain(error),
        other => other.to_string(),
    }
}
