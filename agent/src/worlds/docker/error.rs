//! What Docker refuses, in words the agent acts on. Status codes are translated here and nowhere else.

use std::time::Duration;

/// Why Docker did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DockerError {
    /// No such container.
    #[error("Docker has no container {id}")]
    NotFound {
        /// Id or name asked for.
        id: String,
    },
    /// A container of that name exists.
    #[error("the container name {name} is taken")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The image is not on this node.
    #[error("image {image} is not on this node")]
    NoSuchImage {
        /// The image asked for.
        image: String,
    },
    /// A pull did not go through.
    #[error("cannot pull {image}: {message}")]
    Pull {
        /// The image asked for.
        image: String,
        /// What the registry or Docker said.
        message: String,
    },
    /// The registry wants a login, or another one.
    #[error("cannot pull {image}: {message}")]
    LoginRefused {
        /// The image asked for.
        image: String,
        /// What the registry said.
        message: String,
    },
    /// What was asked for is no image reference.
    #[error("{image} is not an image reference: {message}; write [registry/]name[:tag][@digest]")]
    InvalidImageName {
        /// What was asked for.
        image: String,
        /// Docker's words.
        message: String,
    },
    /// A container or another image needs the image.
    #[error("image {image} is in use: {message}")]
    ImageInUse {
        /// The image.
        image: String,
        /// Docker's words.
        message: String,
    },
    /// Nobody answers at the socket.
    #[error("cannot reach Docker: {message}; check that dockerd runs and that its socket is readable")]
    Unreachable {
        /// What the connection said.
        message: String,
    },
    /// No answer in time.
    #[error("Docker did not answer {act} within {after:?}")]
    Timeout {
        /// Which request.
        act: &'static str,
        /// How long it waited.
        after: Duration,
    },
    /// Docker says no.
    #[error("Docker refused {act}: {message}")]
    Refused {
        /// Which request.
        act: &'static str,
        /// Its status code, 0 when there is none.
        status: u16,
        /// Its words.
        message: String,
    },
}

impl DockerError {
    /// Translates what the client library says of one request.
    pub(super) fn from_client(act: &'static str, error: &bollard::errors::Error) -> Self {
        use bollard::errors::Error;
        match error {
            Error::DockerResponseServerError { status_code, message } => {
                Self::Refused { act, status: *status_code, message: message.trim().to_owned() }
            }
            Error::DockerStreamError { error } => {
                Self::Refused { act, status: 0, message: error.trim().to_owned() }
            }
            Error::JsonDataError { .. } | Error::JsonSerdeError { .. } | Error::StrParseError { .. } => {
                Self::Refused { act, status: 0, message: error.to_string() }
            }
            Error::RequestTimeoutError => Self::Timeout { act, after: Duration::ZERO },
            other => Self::Unreachable { message: chain(other) },
        }
    }

    /// The same, for a request about container `id`.
    pub(super) fn about(self, id: &str) -> Self {
        match self {
            Self::Refused { status: 404, message, .. } if message.contains("No such container") => {
                Self::NotFound { id: id.to_owned() }
            }
            other => other,
        }
    }

    /// What a failed pull says: registries have no codes that Docker passes on, only words.
    pub(crate) fn of_pull(image: &str, message: String) -> Self {
        let image = image.to_owned();
        let lower = message.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        if says(&["invalid reference format", "invalid repository name", "must be lowercase"]) {
            return Self::InvalidImageName { image, message };
        }
        let login = ["unauthorized", "authentication required", "no basic auth credentials", "denied"];
        if says(&login) || says(&["incorrect username or password", "insufficient_scope", "401 ", "403 "]) {
            return Self::LoginRefused { image, message };
        }
        Self::Pull { image, message }
    }

    /// Docker as a whole is not there, so that nothing is wrong with this one request.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. })
    }
}

/// An error with all its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_registries_become_reasons() {
        let kind = |message: &str| match DockerError::of_pull("app", message.to_owned()) {
            DockerError::LoginRefused { .. } => "login",
            DockerError::InvalidImageName { .. } => "name",
            DockerError::Pull { .. } => "pull",
            other => panic!("{other:?}"),
        };
        for (message, expected) in [
            ("Get \"http://127.0.0.1:5000/v2/app/manifests/1\": no basic auth credentials", "login"),
            ("pull access denied for app, repository does not exist or may require 'docker login'", "login"),
            ("unauthorized: authentication required", "login"),
            ("Head \"https://h/v2/a/manifests/1\": unauthorized: incorrect username or password", "login"),
            ("manifest for 127.0.0.1:5000/app:2 not found: manifest unknown", "pull"),
            ("dial tcp 127.0.0.1:1: connect: connection refused", "pull"),
            ("invalid reference format", "name"),
        ] {
            assert_eq!(kind(message), expected, "{message}");
        }
    }
}
