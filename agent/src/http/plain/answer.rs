//! A plain response, whose head states its length: parsed, and written for a client. Pure.
//!
//! Anything not plain beyond doubt is left to hyper.

use super::request::{HEADERS_MAX, Head, Header, HeaderAction, NO_HEADERS, hop_by_hop, put};

/// Head of a plain response.
#[derive(Debug)]
struct PlainAnswer<'b> {
    status: u16,
    reason: &'b str,
    headers: &'b [Header<'b>],
    /// Length of the head in bytes.
    head: usize,
    /// Length of the body in bytes.
    body: usize,
}

/// Outcome of passing a response on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PassResult {
    /// The response is incomplete.
    Partial,
    /// hyper must handle the response.
    Unusual,
    /// The response is complete. Any bytes after its length belong to nothing.
    Whole { length: usize, status: u16 },
}

/// Appends the response to `out`, rewritten for the client, if it is complete and at most `most` bytes long; with
/// `closes` it announces the end of the connection.
pub(super) fn pass(received: &[u8], most: usize, closes: bool, out: &mut Vec<u8>) -> PassResult {
    let mut space = NO_HEADERS;
    let answer = match PlainAnswer::parse(received, &mut space) {
        Head::Partial if received.len() < most => return PassResult::Partial,
        Head::Partial | Head::Unusual => return PassResult::Unusual,
        Head::Plain(answer) => answer,
    };
    let length = answer.head + answer.body;
    if length > most {
        return PassResult::Unusual;
    }
    match received.get(answer.head..length) {
        None => PassResult::Partial,
        Some(body) => {
            answer.write(closes, out);
            out.extend_from_slice(body);
            PassResult::Whole { length, status: answer.status }
        }
    }
}

impl<'b> PlainAnswer<'b> {
    fn parse(received: &'b [u8], space: &'b mut [Header<'b>; HEADERS_MAX]) -> Head<Self> {
        let mut answer = httparse::Response::new(space);
        let head = match answer.parse(received) {
            Ok(httparse::Status::Complete(head)) => head,
            Ok(httparse::Status::Partial) => return Head::Partial,
            Err(_) => return Head::Unusual,
        };
        let (Some(status), Some(reason), Some(1)) = (answer.code, answer.reason, answer.version) else {
            return Head::Unusual;
        };
        let headers: &'b [Header<'b>] = answer.headers;
        let named = |name: &'static str| headers.iter().filter(move |h| h.name.eq_ignore_ascii_case(name));
        let mut lengths = named("content-length");
        let body = match (lengths.next(), lengths.next()) {
            (Some(length), None) if has_body(status) => digits(length.value),
            (None, None) if !has_body(status) => Some(0),
            _ => None,
        };
        // A proxy adds a missing date (RFC 9110 6.6.1), as hyper does.
        let is_dated = named("date").next().is_some();
        let is_unusual = |header: &Header<'_>| hop_by_hop(header) == HeaderAction::Unusual;
        match body {
            Some(body) if is_dated && (200..600).contains(&status) && !headers.iter().any(is_unusual) => {
                Head::Plain(Self { status, reason, headers, head, body })
            }
            _ => Head::Unusual,
        }
    }

    fn write(&self, closes: bool, out: &mut Vec<u8>) {
        let digit = |of: u16| b'0' + u8::try_from(of % 10).expect("a digit");
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(&[digit(self.status / 100), digit(self.status / 10), digit(self.status), b' ']);
        out.extend_from_slice(self.reason.as_bytes());
        out.extend_from_slice(b"\r\n");
        for header in self.headers.iter().filter(|header| hop_by_hop(header) == HeaderAction::Pass) {
            put(out, header.name, header.value);
        }
        if closes {
            put(out, "connection", b"close");
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// True if a body follows; these two never have one (RFC 9112 6.3).
fn has_body(status: u16) -> bool {
    status != 204 && status != 304
}

/// Parses a number of one to nine digits and nothing else.
fn digits(value: &[u8]) -> Option<usize> {
    let is_number = (1..=9).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| value.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(received: &str) -> (PassResult, String) {
        let mut out = Vec::new();
        let passed = pass(received.as_bytes(), 1000, false, &mut out);
        (passed, String::from_utf8(out).unwrap())
    }

    fn whole(status: u16, answer: &str) -> PassResult {
        PassResult::Whole { length: answer.len(), status }
    }

    const DATE: &str = "Date: Thu, 26 Nov 2026 18:00:00 GMT\r\n";

    fn ok(lines: &str, body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\n{DATE}{lines}\r\n{body}")
    }

    #[test]
    fn a_client_gets_the_answer_without_what_holds_for_one_connection() {
        let lines = "Content-Length: 5\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nETag: \"a\"\r\nSet-Cookie: b\r\nSet-Cookie: c\r\n";
        let answer = ok(lines, "hello");
        let wanted = ok("Content-Length: 5\r\nETag: \"a\"\r\nSet-Cookie: b\r\nSet-Cookie: c\r\n", "hello");
        assert_eq!(passed(&answer), (whole(200, &answer), wanted.clone()));
        assert_eq!(passed(&format!("{answer}HTTP/1.1 200 OK")), (whole(200, &answer), wanted));
        for end in 0..answer.len() {
            assert_eq!(passed(&answer[..end]), (PassResult::Partial, String::new()), "{end}");
        }
        let not_found = format!("HTTP/1.1 404 Not Found\r\n{DATE}Content-Length: 0\r\n\r\n");
        assert_eq!(passed(&not_found), (whole(404, &not_found), not_found.clone()));
        for (status, reason) in [(204, "No Content"), (304, "Not Modified")] {
            let empty = format!("HTTP/1.1 {status} {reason}\r\n{DATE}\r\n");
            assert_eq!(passed(&empty), (whole(status, &empty), empty.clone()));
        }
    }

    #[test]
    fn the_last_answer_of_a_connection_says_so() {
        let mut out = Vec::new();
        pass(ok("Content-Length: 0\r\n", "").as_bytes(), 1000, true, &mut out);
        assert!(out.ends_with(b"\r\nconnection: close\r\n\r\n"));
    }

    // Each was seen red without the line that detects it.
    #[test]
    fn an_answer_whose_end_is_not_sure_is_not_plain() {
        let lines = [
            "",
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: \r\n",
            "Content-Length: 0x5\r\n",
            "Content-Length: 5000000000\r\n",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 5\r\nConnection: close\r\n",
            "Content-Length: 5\r\nUpgrade: h2c\r\n",
            "Content-Length: 5\r\nTrailer: x\r\n",
            "Content-Length: 5\r\nProxy-Authenticate: Basic\r\n",
            "Content-Length: 999\r\n",
        ];
        for lines in lines {
            assert_eq!(passed(&ok(lines, "hello")), (PassResult::Unusual, String::new()), "{lines}");
        }
        let heads = [
            "HTTP/1.0 200 OK",
            "HTTP/1.1 100 Continue",
            "HTTP/1.1 101 Switching",
            "HTTP/1.1 103 Early",
            "HTTP/1.1 204 None",
            "HTTP/1.1 304 Same",
            "HTTP/1.1 600 What",
            "HTTP/2 200 OK",
            "SSH-2.0",
        ];
        for head in heads {
            let answer = format!("{head}\r\n{DATE}Content-Length: 0\r\n\r\n");
            assert_eq!(passed(&answer), (PassResult::Unusual, String::new()), "{head}");
        }
        let undated = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(passed(undated), (PassResult::Unusual, String::new()));
        let endless = ok(&"a: b\r\n".repeat(60), "")[..ok(&"a: b\r\n".repeat(60), "").len() - 2].to_owned()
            + &"c".repeat(1000);
        assert_eq!(passed(&endless).0, PassResult::Unusual, "a head that is too large");
    }
}
