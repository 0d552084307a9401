//! Removal of the agent's directory. It holds mounts of the pods' volumes, some of which show directories of the
//! machine itself: nothing is deleted before the last mount is gone.

use std::fs;
use std::io;
use std::path::Path;

use super::removed::Removed;
use crate::config::{AGE_IDENTITY, MachineConfig};
use crate::files::Keys;
use crate::{mounts, trees};

/// Maximum number of unmount rounds: mounts may be stacked.
const ROUNDS: usize = 8;

pub(crate) fn remove(machine: &MachineConfig, removed: &mut Removed) {
    let dir = machine.agent_dir();
    if !dir.exists() {
        return;
    }
    match unmount_below(&dir) {
        Ok(0) => {}
        Ok(count) => removed.done(format!("{count} mounts below {}", dir.display())),
        // Deleting now could delete the content of a mount.
        Err(error) => return removed.failures.push(format!("mounts below {}: {error}", dir.display())),
    }
    // Secrets that are encrypted to this identity alone are lost from here on.
    let identity = dir.join(AGE_IDENTITY);
    let recipient = identity.is_file().then(|| Keys::open(&identity).ok()).flatten();
    let recipient = recipient.and_then(|keys| keys.recipient().map(str::to_owned));
    // Containers may have nested folders deeper than the standard library can remove.
    let result = trees::clear(&dir).map_err(|error| error.to_string());
    let result = result.and_then(|()| fs::remove_dir_all(&dir).map_err(|error| error.to_string()));
    let result = result.map(|()| true);
    if let (Ok(_), Some(recipient)) = (&result, recipient) {
        removed.done(format!(
            "the age identity of recipient {recipient}: take it off the list with 'minik8s secrets recipients remove'"
        ));
    }
    removed.note(format!("directory {}", dir.display()), result);
    // Succeeds only if it is empty.
    if fs::remove_dir(&machine.state_dir).is_ok() {
        removed.done(format!("directory {}", machine.state_dir.display()));
    }
}

/// Unmounts everything below `dir`, newest first; returns the number of mounts.
fn unmount_below(dir: &Path) -> io::Result<usize> {
    let mut count = 0;
    for _ in 0..ROUNDS {
        let points = mounts::below(dir)?;
        if points.is_empty() {
            return Ok(count);
        }
        for point in points.iter().rev() {
            mounts::detach(point)?;
            count += 1;
        }
    }
    Err(io::Error::other("there are always new ones"))
}
