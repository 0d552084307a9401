//! Mounts at or below our directories, from the kernel's mount table.
//!
//! Some show directories of the machine and share their mounts, so that one that is detached here would go there, too.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// Mount points at or below `dir`, in mount order: a mount comes after the one it lies on.
pub(crate) fn at_or_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let dir = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    Ok(points_at_or_below(&std::fs::read("/proc/self/mountinfo")?, &dir))
}

/// Mount points strictly below `dir`, in the same order.
pub(crate) fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let dir = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let mut points = points_at_or_below(&std::fs::read("/proc/self/mountinfo")?, &dir);
    points.retain(|point| *point != dir);
    Ok(points)
}

/// Detaches mounts, given in mount order, even while they are in use; never follows a link that took the place of one.
/// Mounts of which they are copies stay.
pub(crate) fn detach(points: &[PathBuf]) -> nix::Result<()> {
    let none = None::<&str>;
    for point in points {
        match mount(none, point, none, MsFlags::MS_PRIVATE, none) {
            // Not mounted any more.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    let mut result = Ok(());
    for point in points.iter().rev() {
        result = result.and(umount2(point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW));
    }
    result
}

fn points_at_or_below(mountinfo: &[u8], dir: &Path) -> Vec<PathBuf> {
    let points = mountinfo
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4).map(unescape));
    points.filter(|point| point.starts_with(dir)).collect()
}

/// Decodes the kernel's escapes: blank, tab, newline and backslash as three octal digits.
pub(crate) fn unescape(text: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let digits = text.get(at + 1..at + 4).filter(|_| text[at] == b'\\');
        let value = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        match value {
            Some(byte) => {
                plain.push(byte);
                at += 4;
            }
            None => {
                plain.push(text[at]);
                at += 1;
            }
        }
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Red with `starts_with` on text instead of path components, and without `unescape`.
    #[test]
    fn mount_points_of_a_directory_are_found_and_unescaped() {
        let text = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n\
                     30 22 0:5 / /s/agent rw - tmpfs tmpfs rw\n\
                     31 22 0:6 / /s/agent/pods/a\\040b rw - tmpfs tmpfs rw\n\
                     32 31 0:7 / /s/agent/pods/a\\134040b/c rw - tmpfs tmpfs rw\n\
                     33 22 0:8 / /s/agent2/x rw - tmpfs tmpfs rw\n";
        let found = points_at_or_below(text, Path::new("/s/agent"));
        let wanted = ["/s/agent", "/s/agent/pods/a b", "/s/agent/pods/a\\040b/c"];
        assert_eq!(found, wanted.map(PathBuf::from));
    }
}
