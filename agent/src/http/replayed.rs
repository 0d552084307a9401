//! A connection to an endpoint that is handed from one client to another while it waits for the response.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A connection on which a request was already sent, wrapped for an HTTP client that will send it again: that copy
/// is discarded, and the response received so far is replayed.
#[derive(Debug)]
pub(crate) struct ReplayStream {
    link: TcpStream,
    /// Bytes received.
    received: Vec<u8>,
    /// Number of bytes replayed.
    read: usize,
    sent: SendProgress,
}

/// Progress of the repeated request.
#[derive(Debug, PartialEq, Eq)]
enum SendProgress {
    Nothing,
    /// At least part of it.
    Some,
    /// The whole request: a client flushes after sending.
    All,
}

impl ReplayStream {
    /// Wraps `link`, on which `received` is the response so far.
    pub(super) fn new(link: TcpStream, received: Vec<u8>) -> Self {
        Self { link, received, read: 0, sent: SendProgress::Nothing }
    }
}

impl AsyncRead for ReplayStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.sent != SendProgress::All {
            // A response before its request would be an error. The task is woken once the request is sent.
            return Poll::Pending;
        }
        if self.read < self.received.len() {
            let end = self.received.len().min(self.read + buf.remaining());
            buf.put_slice(&self.received[self.read..end]);
            self.read = end;
            if end == self.received.len() {
                // The connection may be kept for long.
                (self.received, self.read) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.link).poll_read(cx, buf)
    }
}

impl AsyncWrite for ReplayStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.sent == SendProgress::All {
            return Pin::new(&mut self.link).poll_write(cx, buf);
        }
        self.sent = SendProgress::Some;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.sent == SendProgress::Some {
            self.sent = SendProgress::All;
            cx.waker().wake_by_ref();
        }
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_shutdown(cx)
    }
}
