//! Deterministic archive of a file or folder of a repository: equal content gives equal bytes.
//!
//! A tar of regular files and symbolic links, sorted by path, mode 0644 or 0755, no times, owned by root. Its
//! SHA-256 is the digest of the content, both on the reconciler that creates the archive and on the node that
//! verifies what it unpacked.

use std::io::{self, Read, Write};

use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use crate::codec::hex;

/// Size limits of a mounted file or folder.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Total bytes of all files.
    pub bytes: u64,
    /// Number of files and links.
    pub entries: usize,
    /// Bytes of a secret's ciphertext: Kubernetes' limit for secrets.
    pub secret_bytes: u64,
}

/// Limits of every repository volume. Configuration is small; larger content belongs in an image or on a disk.
pub const LIMITS: Limits = Limits { bytes: 64 * 1024 * 1024, entries: 10_000, secret_bytes: 1024 * 1024 };

/// Error from building an archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// More bytes than [`LIMITS`] allows.
    #[error("it holds more than {} MiB", LIMITS.bytes / 1024 / 1024)]
    TooLarge,
    /// More files than [`LIMITS`] allows.
    #[error("it holds more than {} files", LIMITS.entries)]
    TooMany,
    /// An invalid name, or a name out of order.
    #[error("{0:?} is not a valid file name")]
    Name(String),
    /// A symbolic link that leads out of the folder.
    #[error("the symbolic link {path} points outside the folder")]
    Link {
        /// Path of the link.
        path: String,
    },
    /// Reading the content or writing the archive failed.
    #[error("cannot create the archive")]
    Io(#[from] io::Error),
}

/// An archive under construction.
pub struct Archive<W: Write> {
    builder: Builder<HashingWriter<W>>,
    bytes: u64,
    entries: usize,
    last: String,
}

/// A finished archive.
#[derive(Debug)]
pub struct FinishedArchive<W> {
    /// The writer that received the archive.
    pub writer: W,
    /// SHA-256, 64 hex digits.
    pub digest: String,
    /// Size in bytes.
    pub size: u64,
}

impl<W: Write> Archive<W> {
    /// Creates an empty archive.
    pub fn new(writer: W) -> Self {
        let hashing = HashingWriter { writer, hash: Sha256::new(), size: 0 };
        Self { builder: Builder::new(hashing), bytes: 0, entries: 0, last: String::new() }
    }

    /// Adds a file of `size` bytes. Paths must be added in byte order.
    pub fn file(
        &mut self,
        path: &str,
        executable: bool,
        size: u64,
        content: impl Read,
    ) -> Result<(), ArchiveError> {
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > LIMITS.bytes {
            return Err(ArchiveError::TooLarge);
        }
        self.count(path)?;
        let mut header = header(EntryType::Regular, if executable { 0o755 } else { 0o644 });
        header.set_size(size);
        Ok(self.builder.append_data(&mut header, path, content)?)
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> Result<(), ArchiveError> {
        if !link_stays(path, target) {
            return Err(ArchiveError::Link { path: path.to_owned() });
        }
        self.count(path)?;
        let mut header = header(EntryType::Symlink, 0o777);
        header.set_size(0);
        Ok(self.builder.append_link(&mut header, path, target)?)
    }

    /// Finishes the archive.
    pub fn finish(self) -> Result<FinishedArchive<W>, ArchiveError> {
        let HashingWriter { writer, hash, size } = self.builder.into_inner()?;
        Ok(FinishedArchive { writer, digest: hex(&hash.finalize()), size })
    }

    fn count(&mut self, path: &str) -> Result<(), ArchiveError> {
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        if !path.split('/').all(is_part) || path.contains('\0') || path <= self.last.as_str() {
            return Err(ArchiveError::Name(path.to_owned()));
        }
        self.entries += 1;
        if self.entries > LIMITS.entries {
            return Err(ArchiveError::TooMany);
        }
        path.clone_into(&mut self.last);
        Ok(())
    }
}

fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// True if a symbolic link at `path` of a folder stays in that folder, whatever else the folder holds: the target
/// first goes up, at most to the folder, and then only down. So a path through several such links stays inside,
/// too.
pub fn link_stays(path: &str, target: &str) -> bool {
    let mut depth = path.split('/').count() - 1;
    let mut goes_down = false;
    if target.is_empty() || target.starts_with('/') || target.contains('\0') {
        return false;
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if goes_down || depth == 0 => return false,
            ".." => depth -= 1,
            _ => goes_down = true,
        }
    }
    true
}

struct HashingWriter<W> {
    writer: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.writer.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn made(files: &BTreeMap<String, (bool, Vec<u8>)>) -> FinishedArchive<Vec<u8>> {
        let mut archive = Archive::new(Vec::new());
        for (path, (executable, content)) in files {
            archive.file(path, *executable, content.len() as u64, content.as_slice()).unwrap();
        }
        archive.finish().unwrap()
    }

    /// Pods depend on these digests: another encoding would roll every pod with files at an upgrade.
    #[test]
    fn the_bytes_of_an_archive_never_change() {
        let long = format!("{}/app.conf", "deep".repeat(40));
        let mut archive = Archive::new(Vec::new());
        archive.file("a.conf", false, 2, b"a\n".as_slice()).unwrap();
        archive.file("bin/run", true, 3, b"run".as_slice()).unwrap();
        archive.link("current", "a.conf").unwrap();
        archive.file(&long, false, 0, b"".as_slice()).unwrap();
        let made = archive.finish().unwrap();
        assert_eq!(made.size, made.writer.len() as u64);
        assert_eq!((made.digest.as_str(), made.size), (GOLDEN, 5120));
    }

    const GOLDEN: &str = "3667bb664106e4e6df6b82d2327b9916103746ce5e75987703c8223d03666dab";

    #[test]
    fn what_is_too_much_misplaced_or_leads_out_is_refused() {
        let mut archive = Archive::new(io::sink());
        assert!(matches!(
            archive.file("a", false, LIMITS.bytes + 1, io::empty()),
            Err(ArchiveError::TooLarge)
        ));
        for name in ["", "/a", "a/", "../a", "a/../b", "a//b", "./a", "a\0b"] {
            let mut archive = Archive::new(io::sink());
            assert!(
                matches!(archive.file(name, false, 0, io::empty()), Err(ArchiveError::Name(_))),
                "{name:?}"
            );
        }
        let mut archive = Archive::new(io::sink());
        archive.file("b", false, 0, io::empty()).unwrap();
        for again in ["b", "a"] {
            assert!(matches!(archive.file(again, false, 0, io::empty()), Err(ArchiveError::Name(_))));
        }
        assert!(matches!(archive.link("c", "../etc"), Err(ArchiveError::Link { .. })));
        let mut archive = Archive::new(io::sink());
        for number in 0..LIMITS.entries {
            archive.link(&format!("{number:06}"), "000000").unwrap();
        }
        assert!(matches!(archive.link("x", "000000"), Err(ArchiveError::TooMany)));
    }

    #[test]
    fn links_that_leave_their_folder_are_distinguished_from_those_that_stay() {
        for (path, target) in [("a", "b"), ("a/b", "../c"), ("a/b/c", "../../d/e"), ("a", "./b//c")] {
            assert!(link_stays(path, target), "{path} -> {target}");
        }
        for (path, target) in [
            ("a", "../b"),
            ("a/b", "../../c"),
            ("a", "/etc/passwd"),
            ("a", ""),
            // After another link `..` may lead elsewhere than it reads.
            ("a/b/c", "d/../../e"),
        ] {
            assert!(!link_stays(path, target), "{path} -> {target}");
        }
    }

    proptest! {
        // Seen red with `append_data` given one name for all.
        #[test]
        fn equal_content_is_one_digest_and_other_content_another(
            one in proptest::collection::btree_map("[a-c]{1,3}(/[d-f]{1,2})?", (any::<bool>(), any::<Vec<u8>>()), 1..8),
            at in any::<prop::sample::Index>(), what in 0..4,
        ) {
            prop_assert_eq!(&made(&one).digest, &made(&one).digest);
            let path = one.keys().nth(at.index(one.len())).unwrap().clone();
            let mut other = one.clone();
            let mut file = other.remove(&path).unwrap();
            // Another path, mode or content, or no such file at all.
            match what {
                0 => drop(other.insert(format!("{path}z"), file)),
                1 => { file.0 = !file.0; other.insert(path, file); }
                2 => { file.1.push(0); other.insert(path, file); }
                _ => {}
            }
            prop_assert_ne!(&made(&one).digest, &made(&other).digest);
            prop_assert_eq!(&made(&one).digest, &hex(&Sha256::digest(&made(&one).writer)));
        }
    }
}
