//! A socket that is read by whole TLS records during a handshake.
//!
//! Model: a read ends at the latest with the current TLS record. So data after the handshake is either decrypted or
//! still in the socket for the thread that takes over the connection. No buffer between them holds a part of a record.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

const RECORD_HEAD_BYTES: usize = 5;

/// A socket, and the position in the current record.
pub(crate) struct TlsRecords {
    pub(crate) socket: TcpStream,
    by_record: bool,
    head: [u8; RECORD_HEAD_BYTES],
    head_len: usize,
    body_left: usize,
}

impl TlsRecords {
    pub(crate) fn new(socket: TcpStream) -> TlsRecords {
        TlsRecords { socket, by_record: true, head: [0; RECORD_HEAD_BYTES], head_len: 0, body_left: 0 }
    }

    /// From now on reads are passed to the socket unchanged.
    pub(crate) fn pass_all(&mut self) {
        self.by_record = false;
    }
}

impl AsyncRead for TlsRecords {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        if !this.by_record {
            return Pin::new(&mut this.socket).poll_read(cx, into);
        }
        let in_head = this.body_left == 0;
        let most = if in_head { RECORD_HEAD_BYTES - this.head_len } else { this.body_left };
        let mut some = into.take(most.min(into.remaining()));
        ready!(Pin::new(&mut this.socket).poll_read(cx, &mut some))?;
        let came = some.filled();
        let count = came.len();
        if in_head {
            this.head[this.head_len..this.head_len + count].copy_from_slice(came);
            this.head_len += count;
            if this.head_len == RECORD_HEAD_BYTES {
                if !(20..=23).contains(&this.head[0]) || this.head[1] != 3 {
                    return Poll::Ready(Err(Error::new(ErrorKind::InvalidData, "it does not speak TLS")));
                }
                this.body_left = usize::from(u16::from_be_bytes([this.head[3], this.head[4]]));
                this.head_len = 0;
            }
        } else {
            this.body_left -= count;
        }
        into.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TlsRecords {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}
