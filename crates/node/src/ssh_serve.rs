//! The remote end of a transfer over ssh, which ssh starts.
//!
//! Model: standard input and output are the channel. The process sends its certificate and address ([`greeting`]),
//! reads the client's answer, and then serves streams of transfers like a node, on the channel's and on direct links.
//! Invariant: it serves only the client at the other end of the channel, and holders of the key made there for this
//! transfer. When the channel ends, the process ends within [`ENDING`], and leaves what a killed transfer leaves.
//! Non-goals: commands, other hosts, anything that outlives the channel.

use std::io::IsTerminal;
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use thalweg_api::{
    May, Request, ServiceRequest, SshAnswer, SshGreeting, TransferRequest, from_json, to_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_wire::threads::spawn;
use thalweg_wire::{
    Audit, ClusterError, Credentials, Heard, Link, LinkError, Peer, Pipes, Role, Service, TemporaryIdentity,
    listen, new_id,
};

use crate::greeting::{SAYING, greeted, greeting, terms};
use crate::transfers::TransferService;
use crate::{Error, Result};

/// How long a client may take to answer.
const ANSWER_SECONDS: f64 = 10.0;
/// The time limit for transfers to end after the channel.
const ENDING: Duration = Duration::from_secs(4);
/// The most handshakes and lanes on direct links at a time.
const GUESTS_MAX: usize = 128;

/// Serves the client at the other end of standard input and output until it disconnects.
pub fn serve() -> Result<()> {
    let (from, to) = (std::io::stdin(), std::io::stdout());
    if from.is_terminal() {
        return Err(Error::NotBySsh);
    }
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    let from = own(from.as_fd()).map_err(Error::Standard)?;
    let mut channel = Pipes::new(from, own(to.as_fd()).map_err(Error::Standard)?).map_err(Error::Standard)?;
    let meeting = new_id();
    let temporary = TemporaryIdentity::new(meeting, Role::Node).map_err(ClusterError::from)?;
    let door = own_address().and_then(|at| listen(at).ok());
    let greets = SshGreeting {
        meeting: meeting.to_string(),
        authority: temporary.authority(),
        address: door.as_ref().and_then(|door| door.local_addr().ok()),
    };
    let gone = |what| LinkError::new("the client", what);
    channel.say(&greeting(&to_json(&greets)), SAYING).map_err(gone)?;
    let answer = answer(&mut channel)?;
    let credentials = temporary.meets(&answer.name, &answer.authority).map_err(ClusterError::from)?;
    let link = channel.link("the client", (meeting, Role::Node), terms())?;
    let (link, service) = (Arc::new(link), Arc::new(TransferService::default()));
    let _ = link.keep();
    if let Some(door) = door {
        let service = service.clone();
        spawn("door", move || open_door(&door, &credentials, &service));
    }
    while serve_one(&link, &service) {}
    service.rest(ENDING);
    Ok(())
}

/// The address of this machine that the client of ssh used.
fn own_address() -> Option<IpAddr> {
    // The variable holds the client's address and port, then ours.
    std::env::var("SSH_CONNECTION").ok()?.split(' ').nth(2)?.parse().ok()
}

fn answer(channel: &mut Pipes) -> Result<SshAnswer> {
    let watch = Stopwatch::start();
    let heard = channel.hear(|| watch.seconds() < ANSWER_SECONDS).map_err(Error::Standard)?;
    let Heard::Line(line) = heard else {
        return Err(Error::ClientSilent(ANSWER_SECONDS));
    };
    greeted(&line).ok().and_then(|json| from_json(json).ok()).ok_or(Error::ClientAnswer)
}

/// Serves the next stream of a link on a thread of its own. Returns false if there are no more.
fn serve_one(link: &Arc<Link>, service: &Arc<TransferService>) -> bool {
    let Ok(Some((request, out, inc))) = link.accept() else { return false };
    let request = String::from_utf8_lossy(&request).into_owned();
    let (link, service) = (link.clone(), service.clone());
    spawn("stream", move || match Request::parse(&request) {
        Ok(Request { service: name, body }) if name == TransferRequest::SERVICE => {
            let peer = Peer { link: &link, may: May::All, audit: &Audit::open(None) };
            service.serve(&peer, &body, (out, inc));
        }
        _ => drop(out.abort("only transfers are served here")),
    })
}

/// Accepts direct links from holders of this transfer's key, and serves one lane on each.
fn open_door(door: &TcpListener, credentials: &Credentials, service: &Arc<TransferService>) {
    let guests = Arc::new(AtomicUsize::new(0));
    for socket in door.incoming().map_while(std::result::Result::ok) {
        if guests.fetch_add(1, Ordering::Relaxed) >= GUESTS_MAX {
            guests.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (credentials, service, guests) = (credentials.clone(), service.clone(), guests.clone());
        spawn("guest", move || {
            if let Ok(link) = credentials.accept(socket, terms()) {
                let link = Arc::new(link);
                let _ = link.keep();
                serve_one(&link, &service);
            }
            guests.fetch_sub(1, Ordering::Relaxed);
        });
    }
}
