//! Watches of one stream, answer by answer.

use futures::FutureExt as _;

use super::*;

type Reply = oneshot::Receiver<Result<WatchReader, StoreError>>;

fn state() -> (StreamState, mpsc::UnboundedReceiver<i64>) {
    let (ends, ended) = mpsc::unbounded_channel();
    (StreamState::new(ends), ended)
}

fn request(state: &mut StreamState, prefix: &str) -> Reply {
    let (answer, reply) = oneshot::channel();
    state.request(Some(WatchRequest { prefix: prefix.to_owned(), from_revision: 7, answer }));
    reply
}

fn open(state: &mut StreamState, prefix: &str, id: i64) -> WatchReader {
    let mut reply = request(state, prefix);
    assert_eq!(state.take(Answer::Opened(id)), None);
    reply.try_recv().unwrap().unwrap()
}

/// Events of one watch, of this revision and with a value of so many bytes.
fn events(id: i64, revision: i64, bytes: usize) -> Answer {
    let key = format!("/t/{revision}");
    let value = Bytes::from(vec![0; bytes]);
    let put = KeyValue { key, value, create_revision: revision, mod_revision: revision };
    Answer::Events { id, events: vec![WatchEvent::Put(put)], is_fragment: false }
}

fn fragment(id: i64, revision: i64) -> Answer {
    match events(id, revision, 1) {
        Answer::Events { id, events, .. } => Answer::Events { id, events, is_fragment: true },
        other => other,
    }
}

/// Next item of a watch: the revisions of a batch, or the error. `None` if nothing has arrived.
fn next(reader: &mut WatchReader) -> Option<String> {
    let said = reader.next().now_or_never()?;
    Some(match said {
        Ok(batch) => format!("{:?}", batch.events.iter().map(mod_revision).collect::<Vec<_>>()),
        Err(error) => error.to_string(),
    })
}

fn refusal(reply: &mut Reply) -> String {
    reply.try_recv().unwrap().err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn answers_belong_to_the_requests_in_their_order() {
    let (mut state, _ended) = state();
    let (mut a, mut b, mut c) =
        (request(&mut state, "/a/"), request(&mut state, "/b/"), request(&mut state, "/c/"));
    assert_eq!(state.take(Answer::Opened(1)), None);
    // A refusal has no id of its own in every version of etcd.
    assert_eq!(state.take(Answer::Refused { is_compacted: false }), None);
    assert!(c.try_recv().is_err(), "answered too early");
    assert_eq!(state.take(Answer::Opened(3)), None);
    let mut watches = [a.try_recv().unwrap().unwrap(), c.try_recv().unwrap().unwrap()];
    assert_eq!(watches.each_ref().map(|watch| watch.prefix.as_str()), ["/a/", "/c/"]);
    assert_eq!(refusal(&mut b), "the watch on /b/ ended");

    assert_eq!(state.take(events(3, 9, 1)), None);
    assert_eq!(state.take(events(1, 8, 1)), None);
    assert_eq!(watches.each_mut().map(next), [Some("[8]".to_owned()), Some("[9]".to_owned())]);
    assert_eq!(watches.each_mut().map(next), [None, None]);
}

#[test]
fn ids_are_never_used_twice() {
    let (mut state, _ended) = state();
    drop(open(&mut state, "/a/", 1));
    state.end(1);
    drop(request(&mut state, "/b/"));
    assert_eq!(state.last_id, 2);
}

#[test]
fn only_a_refusal_for_another_reason_than_a_compaction_concerns_the_stream() {
    let (mut state, _ended) = state();
    let mut reply = request(&mut state, "/a/");
    state.take(Answer::Refused { is_compacted: true });
    assert_eq!((refusal(&mut reply).as_str(), state.is_refused), ("revision 7 is compacted", false));
    let _reply = request(&mut state, "/a/");
    state.take(Answer::Refused { is_compacted: false });
    assert!(state.is_refused && state.is_idle());
}

#[test]
fn a_watch_that_etcd_ends_leaves_the_others() {
    let (mut state, _ended) = state();
    let [mut canceled, mut compacted, mut other] = [1, 2, 3].map(|id| open(&mut state, "/t/", id));
    assert_eq!(state.take(events(1, 8, 1)), None);
    assert_eq!(state.take(Answer::Ended { id: 1, is_compacted: false }), None);
    assert_eq!(state.take(Answer::Ended { id: 2, is_compacted: true }), Some(2), "etcd keeps a part of it");
    let ended = Some("the watch on /t/ ended".to_owned());
    assert_eq!([next(&mut canceled), next(&mut canceled)], [Some("[8]".to_owned()), ended]);
    assert_eq!(next(&mut compacted), Some("revision 7 is compacted".to_owned()));
    assert_eq!(next(&mut other), None);
    assert_eq!(state.take(events(3, 9, 1)), None);
    assert_eq!(next(&mut other), Some("[9]".to_owned()));
    assert_eq!(state.take(events(1, 10, 1)), None, "events after the end");
}

#[test]
fn fragments_are_joined_by_watch() {
    let (mut state, _ended) = state();
    let (mut a, mut b) = (open(&mut state, "/a/", 1), open(&mut state, "/b/", 2));
    for answer in [fragment(1, 8), fragment(2, 8), events(2, 9, 1), fragment(1, 9)] {
        assert_eq!(state.take(answer), None);
    }
    assert_eq!((next(&mut a), next(&mut b)), (None, Some("[8, 9]".to_owned())));
    assert_eq!(state.take(events(1, 9, 1)), None);
    assert_eq!(next(&mut a), Some("[8, 9, 9]".to_owned()));
}

#[test]
fn a_reader_that_falls_behind_loses_its_watch_and_no_other_does() {
    let (mut state, _ended) = state();
    let (mut slow, mut other) = (open(&mut state, "/a/", 1), open(&mut state, "/b/", 2));
    let half = QUEUED_MAX_BYTES / 2 + 1;
    for revision in [8, 9] {
        assert_eq!(state.take(events(1, revision, half)), None);
        assert_eq!(next(&mut slow), Some(format!("[{revision}]")), "what was read waits no more");
    }
    assert_eq!(state.take(events(1, 10, half)), None);
    assert_eq!(state.take(events(1, 11, half)), Some(1));
    assert_eq!(state.take(events(2, 11, 1)), None);
    assert_eq!(next(&mut other), Some("[11]".to_owned()));
    assert_eq!(next(&mut slow), Some("[10]".to_owned()));
    assert_eq!(next(&mut slow), Some("the watch on /a/ ended".to_owned()));
}

#[test]
fn a_large_message_is_queued_if_nothing_else_waits() {
    let (mut state, _ended) = state();
    let mut reader = open(&mut state, "/a/", 1);
    assert_eq!(state.take(events(1, 8, QUEUED_MAX_BYTES + 1)), None);
    assert_eq!(next(&mut reader), Some("[8]".to_owned()));
}

#[test]
fn a_reader_that_is_dropped_cancels_its_watch_once() {
    let (mut state, mut ended) = state();
    drop(open(&mut state, "/a/", 1));
    assert_eq!(ended.try_recv(), Ok(1));
    assert_eq!([state.end(1), state.end(1)], [Some(1), None]);
    assert!(state.is_idle());

    // Nobody waits for the answer any more.
    drop(request(&mut state, "/b/"));
    assert_eq!(state.take(Answer::Opened(2)), None);
    assert_eq!(ended.try_recv(), Ok(2));
}

#[test]
fn a_sign_of_life_is_a_watch_that_is_canceled_at_once() {
    let (mut state, _ended) = state();
    let _reader = open(&mut state, "/a/", 1);
    state.request(None);
    assert!(state.awaits_answer());
    assert_eq!(state.take(Answer::Opened(2)), Some(2));
    assert_eq!(state.take(Answer::Ended { id: 2, is_compacted: false }), None);
    assert!(!state.awaits_answer() && !state.is_idle());
    state.end(1);
    state.request(None);
    assert!(state.is_idle(), "a sign of life keeps no stream open");
}

#[test]
fn a_broken_stream_ends_all_its_watches() {
    let (mut state, _ended) = state();
    let mut readers = [1, 2].map(|id| open(&mut state, "/t/", id));
    state.request(None);
    let (mut first, mut second) = (request(&mut state, "/a/"), request(&mut state, "/b/"));
    state.fail(StoreError::Unauthenticated { act: "a watch", message: "invalid auth token".to_owned() });
    for reader in &mut readers {
        assert_eq!(next(reader), Some("the watch on /t/ ended".to_owned()));
    }
    assert_eq!(refusal(&mut first), "etcd refused a watch: invalid auth token");
    assert_eq!(second.try_recv().err(), Some(oneshot::error::TryRecvError::Closed));
}
