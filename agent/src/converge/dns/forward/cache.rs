//! Answers of upstream servers, kept for as long as they say, within limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{RData, Record};
use moka::Expiry;

/// What all answers may take, in bytes of their packets; in memory a few times that.
const BYTES_MAX: u64 = 4 << 20;

/// Longest time that an answer is kept, in seconds, as CoreDNS does it in a cluster.
const POSITIVE_MAX: u32 = 30;

/// Longest time that a missing name is kept, in seconds.
const NEGATIVE_MAX: u32 = 10;

/// What an answer takes besides its packet, in bytes.
const OVERHEAD: u32 = 256;

#[derive(Debug, Clone)]
struct Kept {
    message: Arc<Message>,
    since: Instant,
    seconds: u32,
    bytes: u32,
}

struct UntilItEnds;

impl Expiry<Query, Kept> for UntilItEnds {
    fn expire_after_create(&self, _query: &Query, kept: &Kept, _now: Instant) -> Option<Duration> {
        Some(Duration::from_secs(kept.seconds.into()))
    }

    fn expire_after_update(
        &self,
        _query: &Query,
        kept: &Kept,
        _now: Instant,
        _left: Option<Duration>,
    ) -> Option<Duration> {
        Some(Duration::from_secs(kept.seconds.into()))
    }
}

/// The answers.
#[derive(Debug)]
pub(super) struct Cache(moka::sync::Cache<Query, Kept>);

impl Cache {
    pub(super) fn new() -> Self {
        let builder = moka::sync::Cache::builder();
        let builder = builder.max_capacity(BYTES_MAX).weigher(|_, kept: &Kept| kept.bytes);
        Self(builder.expire_after(UntilItEnds).build())
    }

    /// The answer, its records' time shortened by what has passed.
    pub(super) fn get(&self, query: &Query) -> Option<Arc<Message>> {
        let kept = self.0.get(query)?;
        let passed = u32::try_from(kept.since.elapsed().as_secs()).unwrap_or(u32::MAX);
        if passed == 0 {
            return Some(kept.message);
        }
        let mut message = (*kept.message).clone();
        records(&mut message).for_each(|record| record.ttl = record.ttl.saturating_sub(passed));
        Some(Arc::new(message))
    }

    /// Keeps an answer if it may be kept; the answer as the client gets it.
    pub(super) fn keep(&self, query: &Query, mut message: Message) -> Arc<Message> {
        let seconds = limit(&mut message);
        let message = Arc::new(message);
        if seconds > 0 {
            let length =
                message.to_vec().map_or(u32::MAX, |packet| u32::try_from(packet.len()).unwrap_or(u32::MAX));
            let bytes = length.saturating_add(OVERHEAD);
            let kept = Kept { message: Arc::clone(&message), since: Instant::now(), seconds, bytes };
            self.0.insert(query.clone(), kept);
        }
        message
    }
}

fn records(message: &mut Message) -> impl Iterator<Item = &mut Record> {
    let Message { answers, authorities, additionals, .. } = message;
    answers.iter_mut().chain(authorities).chain(additionals)
}

/// Brings the times within the limits; how long the answer may be kept, in seconds. A negative answer
/// may be kept as its SOA says (RFC 2308), and not at all without one.
fn limit(message: &mut Message) -> u32 {
    let negative = message.answers.is_empty() || message.metadata.response_code == ResponseCode::NXDomain;
    let soa = message.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(soa.minimum.min(record.ttl)),
        _ => None,
    });
    let max = match (negative, soa) {
        (true, soa) => soa.unwrap_or(0).min(NEGATIVE_MAX),
        (false, _) => POSITIVE_MAX,
    };
    records(message).for_each(|record| record.ttl = record.ttl.min(max));
    let shortest = message.answers.iter().map(|record| record.ttl).min();
    shortest.unwrap_or(max).min(max)
}
