//! Names of function images, derived from their content, so that equal sources are built once.

use super::FunctionSpec;
use crate::codec::content_hash;
use crate::files::{BlobRef, Files, of_path};
use crate::kinds::cluster::FunctionDefaults;

/// Prefix of the names of function images that nodes build. Not a registry: `.local` is never contacted.
pub const IMAGE_PREFIX: &str = "minik8s.local/function:";

/// Version of the content that is added to each image besides the source: a new number rebuilds every image. A test
/// of the agent enforces the change.
pub const RUNTIME_VERSION: u32 = 4;

/// Prefix of the names of all images that nodes build.
const LOCAL: &str = "minik8s.local/";
/// Repository in a registry, below its address.
const REGISTRY_REPOSITORY: &str = "function";

/// Number of hex digits of the hash.
const HASH_DIGITS: usize = 32;

/// Returns the name of the image that is built from the function's source, and the source.
pub fn built_image<'f>(
    function: &FunctionSpec,
    files: &'f Files,
    cluster: &FunctionDefaults,
) -> Option<(String, &'f BlobRef)> {
    let (_, source) = of_path(files, function.source.as_ref()?)?;
    let of = (RUNTIME_VERSION, &function.runtime, &cluster.python_base, &source.digest);
    let mut hash = content_hash(&of);
    hash.truncate(HASH_DIGITS);
    Some((format!("{IMAGE_PREFIX}{hash}"), source))
}

/// Returns the hash in the name of an image that a node built.
pub fn image_hash(reference: &str) -> Option<&str> {
    reference.strip_prefix(IMAGE_PREFIX).filter(|hash| is_hash(hash))
}

fn is_hash(text: &str) -> bool {
    text.len() == HASH_DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Returns the name that an image built by a node has in the registry at `address`.
pub fn registry_image(address: &str, hash: &str) -> String {
    format!("{}/{REGISTRY_REPOSITORY}:{hash}", address.trim_end_matches('/'))
}

/// Splits such a name, in any registry, into its repository and hash.
pub fn of_registry(reference: &str) -> Option<(&str, &str)> {
    let (repository, hash) = reference.rsplit_once(':')?;
    let (address, name) = repository.rsplit_once('/')?;
    (name == REGISTRY_REPOSITORY && format!("{address}/") != LOCAL && is_hash(hash))
        .then_some((repository, hash))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::files::BlobKind;
    use crate::kinds::function::Runtime;

    // Seen red without the base in the hash.
    #[test]
    fn another_source_runtime_or_base_is_another_image_and_nothing_else_is() {
        let image = |digit: &str, function: &FunctionSpec, cluster: &FunctionDefaults| {
            let (digest, texts, source) = (digit.repeat(64), Vec::new(), String::new());
            let blob = BlobRef { digest, size: 1, kind: BlobKind::Folder, texts, source };
            let files = [("functions/hello".to_owned(), blob)].into();
            built_image(function, &files, cluster).unwrap().0
        };
        let source = Some("functions/hello".to_owned());
        let (function, cluster) =
            (FunctionSpec { source, ..FunctionSpec::default() }, FunctionDefaults::default());
        let docker = FunctionSpec { runtime: Some(Runtime::Dockerfile), ..function.clone() };
        let on = |base: &str| FunctionDefaults { python_base: Some(base.to_owned()), ..cluster.clone() };
        let first = image("a", &function, &cluster);
        let others = [
            image("b", &function, &cluster),
            image("a", &docker, &cluster),
            image("a", &function, &on("base:1")),
            image("a", &function, &on("base:2")),
        ];
        assert_eq!(others.iter().chain([&first]).collect::<BTreeSet<_>>().len(), 5, "{others:?}");
        assert!(others.iter().all(|name| image_hash(name).is_some()), "{others:?}");
        let slower = FunctionSpec { timeout_seconds: Some(600), ..function };
        let index = Some("https://index.lan/simple".to_owned());
        let elsewhere = FunctionDefaults { package_index: index, ..cluster };
        assert_eq!(image("a", &slower, &elsewhere), first);
    }
}
