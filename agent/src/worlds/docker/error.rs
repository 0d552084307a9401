//! Docker's errors in terms that the agent acts on. Status codes are translated here and nowhere else.

use std::time::Duration;

use schema::control::error_chain;

/// Failure of a request to Docker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DockerError {
    #[error("Docker has no container {id}")]
    NotFound { id: String },
    #[error("the container name {name} is taken")]
    NameTaken { name: String },
    #[error("container {id} is being removed")]
    BeingRemoved { id: String },
    #[error("image {image} is not on this node")]
    NoSuchImage { image: String },
    #[error("cannot pull {image}: {message}")]
    Pull { image: String, message: String },
    #[error("cannot push {image}: {message}")]
    Push { image: String, message: String },
    #[error("cannot pull {image}: {message}")]
    LoginRefused { image: String, message: String },
    #[error("{image} is not an image reference: {message}; write [registry/]name[:tag][@digest]")]
    InvalidImageName { image: String, message: String },
    #[error("image {image} is in use: {message}")]
    ImageInUse { image: String, message: String },
    #[error("cannot reach Docker: {message}; check that dockerd runs and that its socket is readable")]
    Unreachable { message: String },
    #[error("Docker did not answer the request {act} within {after:?}")]
    Timeout { act: &'static str, after: Duration },
    /// `status` is 0 if there was no status code.
    #[error("Docker refused {act}: {message}")]
    Refused { act: &'static str, status: u16, message: String },
}

impl DockerError {
    /// Translates the client library's error of a request.
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
            other => Self::Unreachable { message: error_chain(other) },
        }
    }

    /// Refines the error of a request about container `id`.
    pub(super) fn for_container(self, id: &str) -> Self {
        match self {
            Self::Refused { status: 404, message, .. } if message.contains(NO_CONTAINER) => {
                // A start may fail to find the container whose namespaces it joins.
                let missing = message.split(NO_CONTAINER).nth(1).unwrap_or_default();
                let missing = missing.trim_start_matches(':').trim();
                Self::NotFound { id: if missing.is_empty() { id.to_owned() } else { missing.to_owned() } }
            }
            Self::Refused { status: 409, message, .. } if is_being_removed(&message) => {
                Self::BeingRemoved { id: id.to_owned() }
            }
            other => other,
        }
    }

    /// Refines the error of creating a container called `name` from `image`. Only the text distinguishes: 409 also
    /// stands for options that exclude one another, and 404 for a container or network to join.
    pub(super) fn for_create(self, name: &str, image: &str) -> Self {
        match self {
            Self::Refused { status: 409, message, .. }
                if message.contains("is already in use by container") =>
            {
                Self::NameTaken { name: name.to_owned() }
            }
            Self::Refused { status: 404, message, .. } if message.contains("No such image") => {
                Self::NoSuchImage { image: image.to_owned() }
            }
            Self::Refused { status: 400, message, .. } if message.contains("invalid reference") => {
                Self::InvalidImageName { image: image.to_owned(), message }
            }
            other => other,
        }
    }

    /// Classifies the error of a pull by its text: Docker passes on no codes from registries.
    pub(crate) fn from_pull_message(image: &str, message: String) -> Self {
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

    /// True if Docker as a whole is unavailable, so that nothing is wrong with this one request.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. })
    }
}

/// Longest time for a request that reads.
pub(super) const READ: Duration = Duration::from_secs(20);
/// Longest time for a request that creates, starts or removes: a slow disk may take long.
pub(super) const WRITE: Duration = Duration::from_secs(120);

/// Runs a request with a time limit and translates its error.
pub(super) async fn within<T>(
    act: &'static str,
    after: Duration,
    request: impl Future<Output = Result<T, bollard::errors::Error>>,
) -> Result<T, DockerError> {
    match tokio::time::timeout(after, request).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(DockerError::from_client(act, &error)),
        Err(_) => Err(DockerError::Timeout { act, after }),
    }
}

const NO_CONTAINER: &str = "No such container";

fn is_being_removed(message: &str) -> bool {
    message.contains("is already in progress") || message.contains("marked for removal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_registries_become_reasons() {
        let kind = |message: &str| match DockerError::from_pull_message("app", message.to_owned()) {
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

    fn refused(status: u16, message: &str) -> DockerError {
        DockerError::Refused { act: "to test", status, message: message.to_owned() }
    }

    // Texts of Docker 20.10. Red when `of_create` took every 409 for a taken name.
    #[test]
    fn only_a_taken_name_is_called_one() {
        let taken = "Conflict. The container name \"/a\" is already in use by container \"0c\". You have to \
                     remove (or rename) that container to be able to reuse that name.";
        let name = DockerError::NameTaken { name: "a".into() };
        assert_eq!(refused(409, taken).for_create("a", "i"), name);
        for other in [
            "conflicting options: hostname and the network mode",
            "cannot join IPC of a non running container",
        ] {
            assert_eq!(refused(409, other).for_create("a", "i"), refused(409, other));
        }
        let image = DockerError::NoSuchImage { image: "i".into() };
        assert_eq!(refused(404, "No such image: i:latest").for_create("a", "i"), image);
        let joined = "No such container: 0c";
        assert_eq!(refused(404, joined).for_create("a", "i"), refused(404, joined));
    }

    #[test]
    fn what_is_missing_or_going_is_named() {
        let missing = |id: &str| DockerError::NotFound { id: id.into() };
        assert_eq!(refused(404, "No such container: 0c").for_container("0c"), missing("0c"));
        assert_eq!(refused(404, "No such container: pause").for_container("0c"), missing("pause"));
        assert_eq!(refused(404, "No such container").for_container("0c"), missing("0c"));
        let going = DockerError::BeingRemoved { id: "0c".into() };
        assert_eq!(refused(409, "removal of container 0c is already in progress").for_container("0c"), going);
        let start = "container is marked for removal and cannot be started";
        assert_eq!(refused(409, start).for_container("0c"), going);
        let other = refused(409, "You cannot remove a running container 0c");
        assert_eq!(other.clone().for_container("0c"), other);
    }
}
