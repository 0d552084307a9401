//! What the image of a function is called: by its content, so that equal sources are built once.

use super::FunctionSpec;
use crate::codec::content_hash;
use crate::files::{BlobRef, Files, of_path};
use crate::kinds::cluster::FunctionDefaults;

/// Before the hash in the names of images that nodes build. Not a registry: `.local` is never asked.
pub const IMAGE_PREFIX: &str = "minik8s.local/function:";

/// Counts the changes of what is put into each image beside the source: another number builds all images anew. A test of
/// the agent asks for it.
pub const RUNTIME_VERSION: u32 = 4;

/// Before the names of all images that nodes make.
const LOCAL: &str = "minik8s.local/";
/// The repository in a registry, below its address.
const REGISTRY_REPOSITORY: &str = "function";

/// Hex digits of the hash.
const HASH_DIGITS: usize = 32;

/// What an image is called that is built of this source; and the source.
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

/// The hash in the name of an image that a node built.
pub fn image_hash(reference: &str) -> Option<&str> {
    reference.strip_prefix(IMAGE_PREFIX).filter(|hash| is_hash(hash))
}

fn is_hash(text: &str) -> bool {
    text.len() == HASH_DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// What an image that a node built is called in a registry at this address.
pub fn registry_image(address: &str, hash: &str) -> String {
    format!("{}/{REGISTRY_REPOSITORY}:{hash}", address.trim_end_matches('/'))
}

/// The repository and the hash of such a name, in whichever registry.
pub fn of_registry(reference: &str) -> Option<(&str, &str)> {
    let (repository, hash) = reference.rsplit_once(':')?;
    let (address, name) = repository.rsplit_once('/')?;
    (name == REGISTRY_REPOSITORY && format!("{address}/") != LOCAL && is_hash(hash))
        .then_some((repository, hash))
}
