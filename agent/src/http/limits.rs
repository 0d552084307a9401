//! Limits of the gateway, and the reasons for their values.

use std::time::Duration;

/// Limits of an HTTP server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum number of concurrent client connections; further ones wait in the kernel's queue. With their
    /// connections to endpoints they need twice as many open files. One client may hold a quarter of them: beyond
    /// that it gets a 503.
    pub connections: usize,
    /// Maximum size of a request's head in bytes; beyond it the response is 431. nginx allows 32 KiB in all.
    pub head_bytes: usize,
    /// Time for a request's head once its first byte has arrived, and for the first byte of a new connection: a
    /// client that sends a byte now and then must not hold connections.
    pub head: Duration,
    /// Time for the first byte of a connection that was made just before shutdown, which its client can't know of.
    /// Clients that open a connection for a request send it immediately.
    pub first_byte: Duration,
    /// Idle time of a connection between two requests; browsers and nginx use similar values.
    pub idle: Duration,
    /// Time to connect to an endpoint: two of TCP's tries.
    pub connect: Duration,
    /// Time without an acknowledgement from an endpoint's machine until its connection is given up. The kernel of a
    /// slow server acknowledges on its behalf. At least 5 s, as keepalive counts seconds.
    pub gone: Duration,
    /// Time without progress until an endpoint starts its response (504), until a client continues its body (408),
    /// or until it reads on in a response held in memory (which is then cut). A response streamed from an endpoint
    /// has no limit once started: a stream may pause as long as both ends want.
    pub answer: Duration,
    /// Maximum number of idle connections kept for each endpoint, shared out among the cores, and as many again for
    /// plain requests. Of more concurrent requests than this some open a connection each and close it: with 16
    /// kept, 32 concurrent requests got three to seven times less throughput.
    pub spare: usize,
    /// Idle time for which they are kept: less than the 60 s and more after which servers close them.
    pub spare_for: Duration,
    /// Time for requests under way when the agent stops: half of the agent's limit for all its tasks.
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
