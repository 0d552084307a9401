//! The agent's directory. It holds mounts of the pods' volumes, some of which show directories of
//! the machine itself: nothing is deleted before the last mount is gone.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};

use super::Removed;
use crate::config::MachineConfig;

/// Most rounds of unmounting: mounts may lie on one another.
const ROUNDS: usize = 8;

pub(crate) fn remove(machine: &MachineConfig, removed: &mut Removed) {
    let dir = machine.agent_dir();
    if !dir.exists() {
        return;
    }
    match unmount_below(&dir) {
        Ok(0) => {}
        Ok(count) => removed.done(format!("{count} mounts below {}", dir.display())),
        // Deleting now could delete what a mount shows.
        Err(error) => return removed.failures.push(format!("mounts below {}: {error}", dir.display())),
    }
    let result = fs::remove_dir_all(&dir).map(|()| true);
    removed.note(format!("directory {}", dir.display()), result);
    // Only if nobody else keeps anything there.
    if fs::remove_dir(&machine.state_dir).is_ok() {
        removed.done(format!("directory {}", machine.state_dir.display()));
    }
}

/// Unmounts all below `dir`, the newest first; how many there were.
fn unmount_below(dir: &Path) -> io::Result<usize> {
    let dir = fs::canonicalize(dir)?;
    let mut count = 0;
    for _ in 0..ROUNDS {
        let mounts = mounts_below(&fs::read("/proc/self/mountinfo")?, &dir);
        if mounts.is_empty() {
            return Ok(count);
        }
        for mount in mounts.iter().rev() {
            umount2(mount, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
            count += 1;
        }
    }
    Err(io::Error::other("there are always new ones"))
}

/// Mount points below `dir` in the text of `mountinfo`, in its order: a mount comes after what it
/// lies on.
fn mounts_below(mountinfo: &[u8], dir: &Path) -> Vec<PathBuf> {
    let points = mountinfo.split(|byte| *byte == b'\n').filter_map(|line| {
        let point = line.split(|byte| *byte == b' ').nth(4)?;
        Some(PathBuf::from(std::ffi::OsString::from_vec(unescape(point))))
    });
    points
        .filter(|point| point.starts_with(dir) && point.as_os_str().as_bytes() != dir.as_os_str().as_bytes())
        .collect()
}

/// The kernel writes blank, tab, newline and backslash as three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
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
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_below_a_directory_are_found_and_unescaped() {
        let text = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n\
                     30 22 0:5 / /s/agent rw - tmpfs tmpfs rw\n\
                     31 22 0:6 / /s/agent/pods/a\\040b rw - tmpfs tmpfs rw\n\
                     32 31 0:7 / /s/agent/pods/a\\040b/c rw - tmpfs tmpfs rw\n\
                     33 22 0:8 / /s/agent2/x rw - tmpfs tmpfs rw\n";
        let found = mounts_below(text, Path::new("/s/agent"));
        assert_eq!(found, [PathBuf::from("/s/agent/pods/a b"), PathBuf::from("/s/agent/pods/a b/c")]);
    }
}
