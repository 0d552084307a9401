//! What the image of a function is called: by its content, so that equal sources are built once.

use super::FunctionSpec;
use crate::codec::content_hash;
use crate::files::{BlobRef, Files, of_path};
use crate::kinds::cluster::FunctionDefaults;

/// Before the hash in the names of images that nodes build. Not a registry: `.local` is never asked.
pub const IMAGE_PREFIX: &str = "minik8s.local/function:";

/// Counts the changes of what is put into each image beside the source: another number builds all images anew. A test of
/// the agent asks for it.
pub const RUNTIME_VERSION: u32 = 3;

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
    let hash = reference.strip_prefix(IMAGE_PREFIX)?;
    (hash.len() == HASH_DIGITS && hash.bytes().all(|digit| digit.is_ascii_hexdigit())).then_some(hash)
}
