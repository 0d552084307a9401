//! Faults of servers by seeded dice: errors, requests to come back later, answers that come too late, and connections cut
//! before or after the server did what it was asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use harness::{Chance, HttpAnswer, HttpRequest};
use schema::control::lock;
use serde_json::Value;

/// Faults among 100 answers.
pub(super) const BAD: u64 = 30;
/// Pause that a busy server asks for: longer than the client's own wait after a failure, 5 s.
pub(super) const PAUSE: Duration = Duration::from_secs(8);
/// Time after which a late answer comes: the client waits for 5 s.
const LATE: Duration = Duration::from_secs(6);

/// A fault of a server.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// 500 and nothing done.
    Error,
    /// 502 from a proxy whose server did everything.
    ErrorAfter,
    /// 429 with `Retry-After`.
    Busy,
    /// An answer that comes too late; everything was done.
    Late,
    /// A connection cut before anything was done.
    CutBefore,
    /// A connection cut after everything was done.
    CutAfter,
}

const FAULTS: [Fault; 6] =
    [Fault::Error, Fault::ErrorAfter, Fault::Busy, Fault::Late, Fault::CutBefore, Fault::CutAfter];

/// Dice shared by the servers of a story.
#[derive(Debug, Clone)]
pub(super) struct Dice {
    rolled: Arc<Mutex<Rolled>>,
    /// Most faults for one subject: the wait after each failure is twice the one before, 5 s at first.
    patience: u32,
}

#[derive(Debug)]
struct Rolled {
    chance: Chance,
    /// Faults so far by subject.
    faults: BTreeMap<String, u32>,
}

impl Dice {
    /// Seeded dice of this story, with at most `patience` faults for one subject.
    pub(super) fn of(story: &str, patience: u32) -> Self {
        let rolled = Rolled { chance: Chance::of(story), faults: BTreeMap::new() };
        Self { rolled: Arc::new(Mutex::new(rolled)), patience }
    }

    /// Most faults for one subject.
    pub(super) fn patience(&self) -> u32 {
        self.patience
    }

    /// A seed for a server in another process.
    pub(super) fn seed(&self) -> u64 {
        lock(&self.rolled).chance.below(1 << 31)
    }

    /// Number of faults so far.
    pub(super) fn faults(&self) -> u32 {
        lock(&self.rolled).faults.values().sum()
    }

    fn roll(&self, subject: &str) -> Option<Fault> {
        let mut rolled = lock(&self.rolled);
        let Rolled { chance, faults } = &mut *rolled;
        let count = faults.entry(subject.to_owned()).or_default();
        if *count >= self.patience || chance.below(100) >= BAD {
            return None;
        }
        *count += 1;
        chance.one_of(&FAULTS).ok().copied()
    }

    /// Does what was asked for, unless the dice decide otherwise; `None` cuts the connection. An error repeats the
    /// secrets of the request, as pages of proxies do.
    pub(super) fn play(
        &self,
        subject: &str,
        request: &HttpRequest,
        act: impl FnOnce() -> HttpAnswer,
    ) -> Option<HttpAnswer> {
        let secrets = ["authorization", "private-token"].map(|name| request.header(name).unwrap_or_default());
        let echo = format!("cannot serve {} to {}", request.path, secrets.concat());
        match self.roll(subject) {
            None => Some(act()),
            Some(Fault::Error) => Some(plain(500, &echo)),
            Some(Fault::ErrorAfter) => {
                act();
                Some(plain(502, &echo))
            }
            Some(Fault::Busy) => {
                let mut answer = plain(429, &echo);
                answer.headers.push(("Retry-After", PAUSE.as_secs().to_string()));
                Some(answer)
            }
            Some(Fault::Late) => {
                let answer = act();
                sleep(LATE);
                Some(answer)
            }
            Some(Fault::CutBefore) => None,
            Some(Fault::CutAfter) => {
                act();
                None
            }
        }
    }
}

/// An answer of text.
pub(super) fn plain(status: u16, text: &str) -> HttpAnswer {
    HttpAnswer { status, headers: vec![("Content-Type", "text/plain".to_owned())], body: text.to_owned() }
}

/// An answer of JSON.
pub(super) fn json(status: u16, value: &Value) -> HttpAnswer {
    let headers = vec![("Content-Type", "application/json".to_owned())];
    HttpAnswer { status, headers, body: value.to_string() }
}
