//! Cache of upstream answers, kept for their TTL within limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{RData, Record};
use moka::Expiry;

/// Size limit of the cache, in bytes of packets; in memory a few times that.
const BYTES_MAX: u64 = 4 << 20;

/// Longest time an answer is kept, in seconds, as CoreDNS does in a cluster.
const POSITIVE_MAX: u32 = 30;

/// Longest time a negative answer is kept, in seconds.
const NEGATIVE_MAX: u32 = 10;

/// Overhead of an entry besides its packet, in bytes.
const OVERHEAD: u32 = 256;

#[derive(Debug, Clone)]
struct CachedAnswer {
    message: Arc<Message>,
    since: Instant,
    seconds: u32,
    bytes: u32,
}

struct AnswerExpiry;

impl Expiry<Query, CachedAnswer> for AnswerExpiry {
    fn expire_after_create(&self, _query: &Query, kept: &CachedAnswer, _now: Instant) -> Option<Duration> {
        Some(Duration::from_secs(kept.seconds.into()))
    }

    fn expire_after_update(
        &self,
        _query: &Query,
        kept: &CachedAnswer,
        _now: Instant,
        _left: Option<Duration>,
    ) -> Option<Duration> {
        Some(Duration::from_secs(kept.seconds.into()))
    }
}

/// Answers by question.
#[derive(Debug)]
pub(super) struct Cache(moka::sync::Cache<Query, CachedAnswer>);

impl Cache {
    pub(super) fn new() -> Self {
        let builder = moka::sync::Cache::builder();
        let builder = builder.max_capacity(BYTES_MAX).weigher(|_, kept: &CachedAnswer| kept.bytes);
        Self(builder.expire_after(AnswerExpiry).build())
    }

    /// Returns the cached answer, with its TTLs reduced by its age.
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

    /// Caches an answer if its TTLs allow it; returns the answer for the client.
    pub(super) fn keep(&self, query: &Query, mut message: Message) -> Arc<Message> {
        let seconds = limit(&mut message);
        let message = Arc::new(message);
        if seconds > 0 {
            let length =
                message.to_vec().map_or(u32::MAX, |packet| u32::try_from(packet.len()).unwrap_or(u32::MAX));
            let bytes = length.saturating_add(OVERHEAD);
            let kept = CachedAnswer { message: Arc::clone(&message), since: Instant::now(), seconds, bytes };
            self.0.insert(query.clone(), kept);
        }
        message
    }
}

fn records(message: &mut Message) -> impl Iterator<Item = &mut Record> {
    let Message { answers, authorities, additionals, .. } = message;
    answers.iter_mut().chain(authorities).chain(additionals)
}

/// Caps the TTLs and returns the seconds for which the answer may be kept. A negative answer may be kept as long as
/// its SOA allows (RFC 2308), and not at all without one.
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
