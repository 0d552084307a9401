//! Answers questions: for the cluster's names from the newest zone, for all others from upstream.
//!
//! Answers from the zone wait for nothing: no etcd, no reconciler, no upstream.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use hickory_proto::op::{
    Edns, Header, HeaderCounts, Message, MessageType, Metadata, OpCode, Query, ResponseCode,
};
use hickory_proto::rr::{DNSClass, LowerName, Record, RecordType};
use hickory_server::net::runtime::Time;
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use tokio::sync::watch;

use super::forward::Forwarder;
use super::zone::{Answer, Zone};
use crate::metrics::{METRICS, QueryCounts};

/// Largest packet over UDP, whatever size a client accepts: packets up to this size are not fragmented within the
/// cluster (DNS flag day 2020). Larger answers go over TCP.
const PAYLOAD_MAX: u16 = 1232;

/// Smallest value of the maximum packet size that a client may announce (RFC 6891).
const PAYLOAD_MIN: u16 = 512;

/// Maximum length of a chain of the zone's aliases.
const ALIASES_MAX: usize = 8;

/// Request handler of the name server.
#[derive(Clone)]
pub(super) struct Handler {
    zone: watch::Receiver<Arc<Zone>>,
    forwarder: watch::Receiver<Arc<Forwarder>>,
    /// Rotates the order of addresses, to spread clients that take the first.
    turn: Arc<AtomicUsize>,
    pub(super) queries: QueryCounts,
}

impl Handler {
    /// Creates a handler that answers from the newest zone and forwarder.
    pub(super) fn new(zone: watch::Receiver<Arc<Zone>>, forwarder: watch::Receiver<Arc<Forwarder>>) -> Self {
        Self { zone, forwarder, turn: Arc::default(), queries: METRICS.dns.clone() }
    }

    async fn answer<R: ResponseHandler>(&self, request: &Request, to: R) -> ResponseInfo {
        if request.metadata.op_code != OpCode::Query {
            return reply(request, to, ResponseCode::NotImp, Sections::default()).await;
        }
        let Ok(info) = request.request_info() else {
            return reply(request, to, ResponseCode::FormErr, Sections::default()).await;
        };
        let kind = info.query.query_type();
        if request.version() > 0 {
            return reply(request, to, ResponseCode::BADVERS, Sections::default()).await;
        }
        // Zone transfers are refused, and so are classes other than Internet.
        if info.query.query_class() != DNSClass::IN || matches!(kind, RecordType::AXFR | RecordType::IXFR) {
            return reply(request, to, ResponseCode::Refused, Sections::default()).await;
        }
        let zone = Arc::clone(&self.zone.borrow());
        match zone.answer(info.query.name(), kind) {
            Answer::Found { mut answers, additionals } => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                if let Some(by) = turn.checked_rem(answers.len()) {
                    answers.rotate_left(by);
                }
                let sections = Sections { answers, additionals, ..Sections::ours() };
                reply(request, to, ResponseCode::NoError, sections).await
            }
            Answer::Synthesized(record) => {
                let sections = Sections { answers: vec![&record], ..Sections::ours() };
                reply(request, to, ResponseCode::NoError, sections).await
            }
            Answer::Alias { record, target } => {
                let followed = self.follow(&zone, record, target, (kind, request.src().ip())).await;
                let sections = Sections {
                    answers: followed.answers.iter().collect(),
                    authorities: followed.authorities.iter().collect(),
                    ..Sections::ours()
                };
                reply(request, to, followed.code, sections).await
            }
            Answer::NoData(soa) => {
                let sections = Sections { authorities: vec![soa], ..Sections::ours() };
                reply(request, to, ResponseCode::NoError, sections).await
            }
            Answer::NoName(soa) => {
                let sections = Sections { authorities: vec![soa], ..Sections::ours() };
                reply(request, to, ResponseCode::NXDomain, sections).await
            }
            Answer::Unknown => reply(request, to, ResponseCode::ServFail, Sections::default()).await,
            Answer::Elsewhere => self.forward(request, info.query.original(), to).await,
        }
    }

    /// Resolves an alias's target, here or upstream: a client that only knows one server must get the addresses
    /// with the alias. The code is that of the last name (RFC 6604).
    async fn follow(
        &self,
        zone: &Zone,
        first: &Record,
        target: LowerName,
        (kind, client): (RecordType, IpAddr),
    ) -> AliasResult {
        let mut followed = AliasResult { answers: vec![first.clone()], ..AliasResult::default() };
        let mut next = target;
        for _ in 0..ALIASES_MAX {
            match zone.answer(&next, kind) {
                Answer::Alias { record, target } => {
                    followed.answers.push(record.clone());
                    next = target;
                    continue;
                }
                Answer::Found { answers, .. } => followed.answers.extend(answers.into_iter().cloned()),
                Answer::Synthesized(record) => followed.answers.push(*record),
                Answer::NoData(soa) => followed.authorities.push(soa.clone()),
                Answer::NoName(soa) => {
                    followed.authorities.push(soa.clone());
                    followed.code = ResponseCode::NXDomain;
                }
                Answer::Unknown => followed.code = ResponseCode::ServFail,
                Answer::Elsewhere => {
                    let query = Query::query((&next).into(), kind);
                    self.follow_elsewhere(&query, client, &mut followed).await;
                }
            }
            return followed;
        }
        tracing::debug!(name = %first.name, "alias leads to too many others");
        followed.code = ResponseCode::ServFail;
        followed
    }

    async fn follow_elsewhere(&self, query: &Query, client: IpAddr, followed: &mut AliasResult) {
        let forwarder = Arc::clone(&self.forwarder.borrow());
        match forwarder.resolve(query, client).await {
            Ok(message) => {
                followed.answers.extend(message.answers.iter().cloned());
                followed.authorities.extend(message.authorities.iter().cloned());
                followed.code = message.metadata.response_code;
            }
            Err(error) => {
                tracing::debug!(%query, %error, "target of an alias not answered");
                followed.code = ResponseCode::ServFail;
            }
        }
    }

    async fn forward<R: ResponseHandler>(&self, request: &Request, query: &Query, to: R) -> ResponseInfo {
        let forwarder = Arc::clone(&self.forwarder.borrow());
        match forwarder.resolve(query, request.src().ip()).await {
            Ok(message) => {
                let Message { answers, authorities, additionals, .. } = &*message;
                let sections = Sections {
                    answers: answers.iter().collect(),
                    authorities: authorities.iter().collect(),
                    additionals: additionals.iter().collect(),
                    ours: false,
                };
                reply(request, to, message.metadata.response_code, sections).await
            }
            Err(error) => {
                tracing::debug!(%query, %error, "name not answered");
                reply(request, to, ResponseCode::ServFail, Sections::default()).await
            }
        }
    }
}

#[async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, to: R) -> ResponseInfo {
        let began = Instant::now();
        let answered = self.answer(request, to).await;
        self.queries.count(answered.response_code.into(), began.elapsed());
        answered
    }
}

/// Outcome of following an alias.
struct AliasResult {
    code: ResponseCode,
    answers: Vec<Record>,
    authorities: Vec<Record>,
}

impl Default for AliasResult {
    fn default() -> Self {
        Self { code: ResponseCode::NoError, answers: Vec::new(), authorities: Vec::new() }
    }
}

/// Sections of an answer.
#[derive(Default)]
struct Sections<'a> {
    answers: Vec<&'a Record>,
    authorities: Vec<&'a Record>,
    additionals: Vec<&'a Record>,
    /// Set if the answer comes from the zone.
    ours: bool,
}

impl Sections<'_> {
    fn ours() -> Self {
        Self { ours: true, ..Self::default() }
    }
}

/// Sends an answer. A client that can't be reached will retry.
async fn reply<R: ResponseHandler>(
    request: &Request,
    mut to: R,
    code: ResponseCode,
    sections: Sections<'_>,
) -> ResponseInfo {
    let mut metadata = Metadata::response_from_request(&request.metadata);
    metadata.response_code = code;
    metadata.authoritative = sections.ours;
    metadata.recursion_available = true;
    let edns = request.edns.as_ref().map(|asked| {
        let mut edns = Edns::new();
        edns.set_max_payload(asked.max_payload().clamp(PAYLOAD_MIN, PAYLOAD_MAX));
        edns
    });
    let builder = MessageResponseBuilder::new(&request.queries, edns.as_ref());
    let response = builder.build(metadata, sections.answers, sections.authorities, [], sections.additionals);
    match to.send_response(response).await {
        Ok(info) => info,
        Err(error) => {
            tracing::debug!(%error, "answer not sent");
            let mut metadata = Metadata::new(request.metadata.id, MessageType::Response, OpCode::Query);
            metadata.response_code = ResponseCode::ServFail;
            Header { metadata, counts: HeaderCounts::default() }.into()
        }
    }
}
