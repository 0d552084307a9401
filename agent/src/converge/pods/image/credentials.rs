//! Registry logins from the pod's `imagePullSecrets`, decrypted on this node.

use async_trait::async_trait;
use schema::files::Files;
use schema::records::PodInstance;

use super::registry_login::{logins_for, parse};
use crate::files::PodFiles;
use crate::worlds::docker::RegistryLogin;

/// Source of registry logins.
#[async_trait]
pub trait Credentials: Send + Sync + 'static {
    /// Returns the logins for an image of a pod, in the order in which to try them; an empty list means a pull
    /// without login. The error is a sentence that names what can't be read, without any content.
    async fn logins(&self, pod: &PodInstance, image: &str) -> Result<Vec<RegistryLogin>, String>;
}

#[cfg(any(test, feature = "fakes"))]
/// Credentials without any login.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCredentials;

#[cfg(any(test, feature = "fakes"))]
#[async_trait]
impl Credentials for NoCredentials {
    async fn logins(&self, _pod: &PodInstance, _image: &str) -> Result<Vec<RegistryLogin>, String> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl Credentials for PodFiles {
    async fn logins(&self, pod: &PodInstance, image: &str) -> Result<Vec<RegistryLogin>, String> {
        let mut logins = Vec::new();
        for secret in &pod.spec.image_pull_secrets {
            logins.extend(logins_of(self, &pod.files, &pod.namespace, &secret.name, image).await?);
        }
        Ok(logins)
    }
}

/// Returns the logins for an image in one secret among `files`, for use in `namespace`. The error is a sentence
/// without any content.
pub async fn logins_of(
    from: &PodFiles,
    files: &Files,
    namespace: &str,
    secret: &str,
    image: &str,
) -> Result<Vec<RegistryLogin>, String> {
    let opened = from.open_secret(files, namespace, secret).await;
    let (_, plain) = opened.map_err(|error| error.to_string())?;
    let entries =
        parse(&plain).map_err(|error| format!("secret {secret} is not a registry login: {error}"))?;
    Ok(logins_for(image, &entries))
}
