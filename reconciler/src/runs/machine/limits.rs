//! Limits of a run, and the reasons for their values.

use jiff::SignedDuration;
use serde_json::Value as Json;

/// Maximum number of states that a run enters, in all branches. Step Functions ends a run at 25,000 history events.
pub const STEPS_MAX: u32 = 25_000;

/// Maximum number of entries in a run's journal. A Task that is retried forever enters only one state.
pub const EVENTS_MAX: u32 = 25_000;

/// Largest input, output and payload of a state, as JSON: the same as in Step Functions.
pub const PAYLOAD_MAX_BYTES: usize = 256 * 1024;

/// Maximum size of all answers and errors of a run together: they are in etcd for as long as the run is kept, and
/// the private etcd holds 2 GiB. Equals 64 answers of the largest size. Also the maximum that all strands of a run
/// hold at the same time, in memory.
pub const RUN_MAX_BYTES: usize = 64 * PAYLOAD_MAX_BYTES;

/// Maximum nesting of lists and objects in an input, an answer and an output: 127 levels can be read back, and the
/// journal adds some.
pub const DEPTH_MAX: usize = 100;

/// Maximum number of items of a Map in progress at the same time: as many as the concurrent calls of a run. Step
/// Functions' inline Map has the same limit.
pub const MAP_CONCURRENCY_MAX: u32 = 40;

/// Maximum number of concurrent calls of a run, however its Maps and Parallels are nested. The other Tasks wait,
/// and their time limits begin with their calls.
pub const CALLS_MAX: usize = 40;

/// Number of strands in progress from which on a Map begins no further item while another one of its own is in
/// progress. A few levels of nested Maps fit in; each step of a run visits all strands.
pub const STRANDS_MAX: usize = 1_000;

/// Time limit of a run whose workflow has no `timeoutSeconds`.
pub const RUN_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Maximum size of the inputs and outputs in a displayed history.
pub(super) const HISTORY_MAX_BYTES: usize = 32 * 1024 * 1024;

/// Returns the size of a value as JSON, without writing it anywhere.
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
