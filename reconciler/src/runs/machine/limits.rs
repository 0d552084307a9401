//! The bounds of a run, and how each was chosen.

use jiff::SignedDuration;
use serde_json::Value as Json;

/// Most states that a run enters, in all branches. Step Functions ends a run at 25,000 history events.
pub const STEPS_MAX: u32 = 25_000;

/// Most entries of a run's journal. A Task that is retried for ever enters one state only.
pub const EVENTS_MAX: u32 = 25_000;

/// Largest input, output and payload of a state, as JSON: that of Step Functions.
pub const PAYLOAD_MAX_BYTES: usize = 256 * 1024;

/// Most bytes of answers and errors that a run gets in all: they lie in etcd for as long as the run is kept, and the private etcd
/// holds 2 GiB. 64 answers of the largest size. Also the most that all its strands hold at the same time, in memory.
pub const RUN_MAX_BYTES: usize = 64 * PAYLOAD_MAX_BYTES;

/// Most levels of lists and objects in each other in an input, an answer and an output: 127 can be read back, and the
/// journal adds some.
pub const DEPTH_MAX: usize = 100;

/// Most items of a Map under way at the same time: as many calls as a run makes at once. Step Functions' inline Map has
/// the same.
pub const MAP_CONCURRENCY_MAX: u32 = 40;

/// Most calls of a run at once, however its Maps and Parallels are nested. The other Tasks wait, and their time limits begin
/// with their calls.
pub const CALLS_MAX: usize = 40;

/// With this many strands under way, a Map begins no further item while another one of its own is under way. A few levels of
/// Maps in each other fit in; each step of a run looks at all strands.
pub const STRANDS_MAX: usize = 1_000;

/// Longest run whose workflow has no `timeoutSeconds`.
pub const RUN_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Most bytes of inputs and outputs in a history that is shown.
pub(super) const HISTORY_MAX_BYTES: usize = 32 * 1024 * 1024;

/// How many bytes a value has as JSON, without writing it anywhere.
pub fn size(value: &Json) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        Err(_) => usize::MAX,
    }
}
