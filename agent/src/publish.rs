//! Publication of values between loops.

use tokio::sync::watch;

/// Publishes a value and wakes its receivers, but only if it differs. Returns true if it did.
pub(crate) fn publish<T: PartialEq>(sender: &watch::Sender<T>, value: T) -> bool {
    sender.send_if_modified(|known| {
        let differs = *known != value;
        *known = value;
        differs
    })
}
