//! Text of files that people write, in any editor. Pure.

/// Removes the byte order mark that editors of Windows put before UTF-8 text: it is no part of the text.
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes)
}

/// Returns the text of a file without its byte order mark; `None` if it is not UTF-8. Files next to manifests, such as
/// ignore files, lists of recipients and code, are read by this, so that all of them tolerate the same.
pub fn file_text(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(without_mark(bytes)).ok()
}

/// True for a file that git-crypt encrypted.
pub fn is_git_crypt(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\0GITCRYPT\0")
}
