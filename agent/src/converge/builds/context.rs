//! The tar that a build gets as its context. Blocking.

use std::io;
use std::path::PathBuf;

/// A part of the context.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// A file with this text.
    Text { path: &'static str, text: String },
    /// A file on this node.
    File { path: &'static str, file: PathBuf },
    /// A folder on this node, with everything below it; the root if `path` is empty.
    Folder { path: &'static str, folder: PathBuf },
}

/// Builds the tar of these parts.
pub(super) fn tar(parts: &[Content]) -> io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    // Links are kept: one that leads out of the folder stays a link.
    builder.follow_symlinks(false);
    builder.mode(tar::HeaderMode::Deterministic);
    for part in parts {
        match part {
            Content::Text { path, text } => {
                let mut header = tar::Header::new_gnu();
                header.set_size(text.len() as u64);
                header.set_mode(0o644);
                builder.append_data(&mut header, path, text.as_bytes())?;
            }
            Content::File { path, file } => builder.append_path_with_name(file, path)?,
            Content::Folder { path, folder } => builder.append_dir_all(path, folder)?,
        }
    }
    builder.into_inner()
}
