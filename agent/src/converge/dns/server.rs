//! Answers questions: of the cluster from the newest zone, all others by asking upstream.
//!
//! The zone's answers wait for nothing: no etcd, no reconciler, no upstream.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// Largest packet over UDP, whatever a client says that it takes: no such packet is fragmented within
/// the cluster (DNS flag day 2020). What is larger comes over TCP.
const PAYLOAD_MAX: u16 = 1232;

/// Smallest largest packet that a client may name (RFC 6891).
const PAYLOAD_MIN: u16 = 512;

/// Most aliases of the zone that lead from one to the other.
const ALIASES_MAX: usize = 8;

/// Answers questions.
#[derive(Clone)]
pub(super) struct Handler {
    zone: watch::Receiver<Arc<Zone>>,
    forwarder: watch::Receiver<Arc<Forwarder>>,
    /// Turns the order of addresses, so that clients that take the first are spread.
    turn: Arc<AtomicUsize>,
}

impl Handler {
    /// One that answers from whatever is newest.
    pub(super) fn new(zone: watch::Receiver<Arc<Zone>>, forwarder: watch::Receiver<Arc<Forwarder>>) -> Self {
        Self { zone, forwarder, turn: Arc::default() }
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
        // The zone is not transferred, and no class but the Internet's is served.
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
            Answer::Made(record) => {
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

    /// Asks for what an alias names, here or elsewhere: a client that only knows a server has to get the
    /// addresses with the alias. The code is that of the last name (RFC 6604).
    async fn follow(
        &self,
        zone: &Zone,
        first: &Record,
        target: LowerName,
        (kind, client): (RecordType, IpAddr),
    ) -> Followed {
        let mut followed = Followed { answers: vec![first.clone()], ..Followed::default() };
        let mut next = target;
        for _ in 0..ALIASES_MAX {
            match zone.answer(&next, kind) {
                Answer::Alias { record, target } => {
                    followed.answers.push(record.clone());
                    next = target;
                    continue;
                }
                Answer::Found { answers, .. } => followed.answers.extend(answers.into_iter().cloned()),
                Answer::Made(record) => followed.answers.push(*record),
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
        tracing::debug!(name = %first.name, "an alias leads to too many others");
        followed.code = ResponseCode::ServFail;
        followed
    }

    async fn follow_elsewhere(&self, query: &Query, client: IpAddr, followed: &mut Followed) {
        let forwarder = Arc::clone(&self.forwarder.borrow());
        match forwarder.ask(query, client).await {
            Ok(message) => {
                followed.answers.extend(message.answers.iter().cloned());
                followed.authorities.extend(message.authorities.iter().cloned());
                followed.code = message.metadata.response_code;
            }
            Err(error) => {
                tracing::debug!(%query, %error, "what an alias names is not answered");
                followed.code = ResponseCode::ServFail;
            }
        }
    }

    async fn forward<R: ResponseHandler>(&self, request: &Request, query: &Query, to: R) -> ResponseInfo {
        let forwarder = Arc::clone(&self.forwarder.borrow());
        match forwarder.ask(query, request.src().ip()).await {
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
                tracing::debug!(%query, %error, "a name is not answered");
                reply(request, to, ResponseCode::ServFail, Sections::default()).await
            }
        }
    }
}

#[async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, to: R) -> ResponseInfo {
        self.answer(request, to).await
    }
}

/// What an alias leads to.
struct Followed {
    code: ResponseCode,
    answers: Vec<Record>,
    authorities: Vec<Record>,
}

impl Default for Followed {
    fn default() -> Self {
        Self { code: ResponseCode::NoError, answers: Vec::new(), authorities: Vec::new() }
    }
}

/// What an answer consists of.
#[derive(Default)]
struct Sections<'a> {
    answers: Vec<&'a Record>,
    authorities: Vec<&'a Record>,
    additionals: Vec<&'a Record>,
    /// The answer is the zone's.
    ours: bool,
}

impl Sections<'_> {
    fn ours() -> Self {
        Self { ours: true, ..Self::default() }
    }
}

/// Sends an answer. Who can't be reached asks again.
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
            tracing::debug!(%error, "an answer can't be sent");
            let mut metadata = Metadata::new(request.metadata.id, MessageType::Response, OpCode::Query);
            metadata.response_code = ResponseCode::ServFail;
            Header { metadata, counts: HeaderCounts::default() }.into()
        }
    }
}
