//! Socket options that the standard library does not offer: receiving exactly as much as was asked for, and closing the
//! connection to a peer that stopped answering.
//!
//! Invariant: a receive wakes its thread once, when all of the bytes are there, and not for each packet (paper 000, figure
//! 3: three quarters of the time went into completions of 2 KB).

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv, sockopt};

use thalweg_base::clock::Stopwatch;

use crate::os::set_socket_option;

/// Receives until `into` is full, the peer has closed its side, or the socket's read timeout passes without a byte.
/// Returns how much came; with nothing at all, the end (0) or the timeout (`WouldBlock`).
pub fn receive(socket: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(socket, &mut *into, RecvFlags::WAITALL) {
            Ok((bytes, _)) => return Ok(bytes),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Waits until something has come, or a few bytes can be sent without waiting, or so long.
pub fn wait_for_either(socket: &TcpStream, patience: Duration) {
    let patience = Timespec::try_from(patience).unwrap_or_default();
    // Whatever is wrong with it, who uses it next is told.
    let _ = poll(&mut [PollFd::new(socket, PollFlags::IN | PollFlags::OUT)], Some(&patience));
}

/// The most that waits in the kernel before it is sent. A credit goes behind it, and less stays in the caches: 8 % more
/// a second over an unshaped link, 8 % less time for two nodes that sort over 10 ms.
const UNSENT_BYTES: libc::c_int = 256 << 10;

/// A socket option of Linux 6.16, which libc does not name yet: the least time after which what was not acknowledged is
/// sent again, 200 ms otherwise.
const TCP_RTO_MIN_US: libc::c_int = 45;
/// Many times what a packet takes there and back in a cluster. Where an acknowledgement is held back longer, one packet that
/// is alone on its way is sent twice: 118 of 350,000 in sorts on 8 hosts. With 60 ms the slowest tenth of such sorts with 1 % of
/// the packets lost took a fifth longer.
const RESEND_US: libc::c_int = 10_000;
/// One of Linux 6.15: the most, 120 s otherwise.
const TCP_RTO_MAX_MS: libc::c_int = 44;
/// The least that the kernel takes for it. Where 23 hosts send to each at once, a connection that loses a packet now and then
/// waited 4.5 s before it sent it again, and more each time: peers heard nothing for 5 s and took each other for dead.
const RESEND_AT_LAST_MS: libc::c_int = 1_000;
/// The kernel counts from the first packet that was sent again, also while acknowledgements come, as long as there is one
/// to send again: of 24 hosts that send to each other one gave a connection up in the middle. So it has this many times the
/// patience; who reads or sends finds a silent peer before.
const UNACKNOWLEDGED: u32 = 12;
/// How long the first attempt to connect may take.
const FIRST_ATTEMPT: Duration = Duration::from_millis(60);

/// Connects. What nobody answers is asked again soon, and then after twice as long each time: the kernel waits a second
/// before it takes the first packet for lost.
pub fn connect(address: &SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let (watch, mut attempt) = (Stopwatch::start(), FIRST_ATTEMPT);
    loop {
        let left = patience.saturating_sub(Duration::from_secs_f64(watch.seconds()));
        match TcpStream::connect_timeout(address, attempt.min(left).max(Duration::from_millis(1))) {
            Err(why) if why.kind() == io::ErrorKind::TimedOut && attempt < left => attempt *= 2,
            connected => return connected,
        }
    }
}

/// Has what is lost on the way sent again after some milliseconds, and then once a second at least, where the kernel can;
/// for both ends of a connection.
pub fn resend_soon(socket: &impl AsFd) {
    // An older kernel takes longer, and does the same.
    for (option, value) in [(TCP_RTO_MIN_US, RESEND_US), (TCP_RTO_MAX_MS, RESEND_AT_LAST_MS)] {
        let _ = set_socket_option(socket, (libc::IPPROTO_TCP, option), value);
    }
}

/// Small frames leave at once, behind few that wait; a send that moves nothing for `patience` ends, and so does, after many
/// times that, a connection whose other machine no longer answers.
pub fn be_impatient(socket: &TcpStream, patience: Duration) -> io::Result<()> {
    socket.set_nodelay(true)?;
    set_socket_option(socket, (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT), UNSENT_BYTES)?;
    let milliseconds = u32::try_from((UNACKNOWLEDGED * patience).as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, milliseconds)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(1))?;
    socket.set_write_timeout(Some(patience))
}
