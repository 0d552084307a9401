//! Small text files that people write, in any editor.

use std::path::Path;
use std::{fs, io};

use schema::file_text::file_text;

/// Reads a file without the byte order mark that editors of Windows put before its first word.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let bytes = fs::read(path)?;
    let text = file_text(&bytes).map(str::to_owned);
    text.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_no_part_of_the_text_and_other_encodings_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.txt");
        for (bytes, text) in
            [(&b"\xEF\xBB\xBFage1"[..], Some("age1")), (b"age1", Some("age1")), (b"\xFF\xFEa\0", None)]
        {
            fs::write(&file, bytes).unwrap();
            assert_eq!(read_text(&file).ok().as_deref(), text, "{bytes:?}");
        }
    }
}
