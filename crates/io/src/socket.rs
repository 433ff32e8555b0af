//! Socket operations that the standard library does not offer: receiving exactly as much as requested, closing a
//! connection whose peer no longer answers, and multicast.
//!
//! Invariant: a receive wakes its thread once, when all bytes are there, and not for each packet (paper 000, figure 3:
//! three quarters of the time went into completions of 2 KB).

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with, sockopt};

use thalweg_base::clock::Stopwatch;

use crate::os::set_socket_option;

/// Receives until `into` is full, the peer has closed its side, or nothing arrives for the socket's read timeout.
/// Returns the number of bytes; with none, the end (0) or the timeout (`WouldBlock`).
pub fn receive(socket: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(socket, &mut *into, RecvFlags::WAITALL) {
            Ok((bytes, _)) => return Ok(bytes),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Waits until something has arrived or a few bytes can be sent, at most for `patience`.
pub fn wait_for_either(socket: &TcpStream, patience: Duration) {
    let patience = Timespec::try_from(patience).unwrap_or_default();
    // An error shows at the next use.
    let _ = poll(&mut [PollFd::new(socket, PollFlags::IN | PollFlags::OUT)], Some(&patience));
}

/// Lets so many bytes of datagrams wait in the kernel, or as many as it allows this process.
pub fn hold_datagrams(socket: &UdpSocket, bytes: usize) {
    let forced = sockopt::set_socket_recv_buffer_size_force(socket, bytes);
    let _ = forced.or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes));
}

/// A socket for the datagrams of a multicast group that arrive at the interface with this address. Other sockets of the
/// machine can receive them too, and no others arrive here.
pub fn join(group: SocketAddrV4, interface: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &group)?;
    let socket = UdpSocket::from(socket);
    socket.join_multicast_v4(group.ip(), &interface)?;
    Ok(socket)
}

/// A socket that multicasts on the network of the interface through which this address is reached, and no further.
pub fn multicasts_towards(address: SocketAddrV4) -> io::Result<UdpSocket> {
    let probe = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // This sends nothing, and chooses the interface.
    probe.connect(address)?;
    let SocketAddr::V4(own) = probe.local_addr()? else { return Err(io::ErrorKind::AddrNotAvailable.into()) };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    sockopt::set_ip_multicast_if(&socket, own.ip())?;
    socket.set_multicast_ttl_v4(1)?;
    Ok(socket)
}

/// The most unsent bytes in the kernel: few, since credits queue behind them, and they stay in the caches. Throughput
/// over an unshaped link is 8 % higher, and two nodes that sort with a delay of 10 ms take 8 % less time.
const UNSENT_BYTES: libc::c_int = 256 << 10;

/// A socket option of Linux 6.16, which libc does not name yet: the shortest time before a retransmission, 200 ms by
/// default.
const TCP_RTO_MIN_US: libc::c_int = 45;
/// Many round trips in a cluster. If an acknowledgement is delayed longer, a lone packet is sent twice: 118 of 350,000
/// in sorts on 8 hosts. With 60 ms the slowest tenth of such sorts with 1 % packet loss took a fifth longer.
const RESEND_US: libc::c_int = 10_000;
/// An option of Linux 6.15: the longest time before a retransmission, 120 s by default.
const TCP_RTO_MAX_MS: libc::c_int = 44;
/// The smallest value that the kernel accepts. When 23 hosts sent to each host at the same time, a connection with
/// occasional losses waited 4.5 s or more before a retransmission; peers that received nothing for 5 s considered each
/// other dead.
const RESEND_AT_LAST_MS: libc::c_int = 1_000;
/// The kernel counts from the first retransmission, even while acknowledgements arrive, as long as packets have to be
/// retransmitted: one of 24 hosts that sent to each other gave up a working connection. So the limit is this many
/// timeouts; readers and senders notice a silent peer earlier.
const UNACKNOWLEDGED: u32 = 12;
/// The time limit of the first attempt to connect.
const FIRST_ATTEMPT: Duration = Duration::from_millis(60);

/// Connects. Repeats an unanswered attempt soon, then with doubled intervals: the kernel would wait a second before it
/// assumes that the first packet was lost.
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

/// Sets retransmission times, where the kernel can: some milliseconds at first, and at most a second. For both ends of
/// a connection.
pub fn resend_soon(socket: &impl AsFd) {
    // An older kernel is slower, but works.
    for (option, value) in [(TCP_RTO_MIN_US, RESEND_US), (TCP_RTO_MAX_MS, RESEND_AT_LAST_MS)] {
        let _ = set_socket_option(socket, (libc::IPPROTO_TCP, option), value);
    }
}

/// Sends small frames at once, with few unsent bytes. Fails a send that makes no progress for `patience`, and, after a
/// multiple of that, a connection whose peer machine no longer answers.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_members_of_a_group_receive_what_is_multicast_to_it_and_nothing_else() {
        let (here, [ours, other]) =
            (Ipv4Addr::LOCALHOST, [1, 2].map(|last| Ipv4Addr::new(239, 255, 77, last)));
        let port = UdpSocket::bind((here, 0)).unwrap().local_addr().unwrap().port();
        let members = [ours, ours].map(|group| join(SocketAddrV4::new(group, port), here).unwrap());
        let sender = multicasts_towards(SocketAddrV4::new(here, 9)).unwrap();
        sender.send_to(b"other group", (other, port)).unwrap();
        sender.send_to(b"unicast", (here, port)).unwrap();
        sender.send_to(b"ours", (ours, port)).unwrap();
        for member in members {
            member.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let mut bytes = [0; 16];
            let len = member.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..len], b"ours");
        }
    }
}
