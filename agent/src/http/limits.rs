//! The bounds of the gateway, and how each was chosen.

use std::time::Duration;

/// What nothing goes beyond.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections of clients at one time; further ones wait in the kernel's queue. With their
    /// connections to endpoints they need twice as many open files. One client may hold a quarter of them:
    /// it is answered 503 beyond that.
    pub connections: usize,
    /// Size of a request's head in bytes; beyond it the answer is 431. nginx allows 32 KiB in all.
    pub head_bytes: usize,
    /// Time for a request's head once its first byte is there, and for the first byte of a new
    /// connection: who sends a byte now and then must not hold connections.
    pub head: Duration,
    /// Time for the first byte of a connection that was made just before shutdown: its client can't know of that. Clients that
    /// open a connection to ask something do so at once.
    pub first_byte: Duration,
    /// Time without a request on a connection that has had one; browsers and nginx count alike.
    pub idle: Duration,
    /// Time for a connection to an endpoint: two of TCP's tries.
    pub connect: Duration,
    /// Time without an acknowledgement from an endpoint's machine, until its connection is given up. The kernel
    /// of a slow server answers for it. At least 5 s, as keepalive counts seconds.
    pub gone: Duration,
    /// Time without progress until an endpoint begins its answer (504) or a client goes on with its body
    /// (408), or reads on in an answer that is held here whole (it is cut). An endpoint's answer that has begun has
    /// none: a stream may rest as long as both ends want.
    pub answer: Duration,
    /// Idle connections that are kept for each endpoint, shared out among the cores, and as many again for plain requests. Of
    /// more requests at one time than this some open a connection each and close it: of 32 with 16 kept, three to seven times
    /// fewer were answered.
    pub spare: usize,
    /// How long they are kept: less than the 60 s and more after which servers close them.
    pub spare_for: Duration,
    /// Time for requests under way when the agent stops: half of what the agent gives all its tasks.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            head_bytes: 64 * 1024,
            head: Duration::from_secs(10),
            first_byte: Duration::from_secs(1),
            idle: Duration::from_secs(60),
            connect: Duration::from_secs(2),
            gone: Duration::from_secs(5),
            answer: Duration::from_secs(60),
            spare: 64,
            spare_for: Duration::from_secs(30),
            drain: Duration::from_secs(5),
        }
    }
}
