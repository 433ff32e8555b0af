//! The end of a transfer that ssh starts: `thalweg pump --serve`, which nobody types.
//!
//! Model: standard input and output are the channel. It says who it is and where it listens ([`greeting`]), hears the
//! client's answer, and from then on serves streams of the link in the channel, and of direct links, as a node serves
//! those about transfers.
//! Invariant: it serves who is at the other end of the channel, and whoever holds the key that was made there for this meeting.
//! When the channel ends it ends too, within [`ENDING`], and leaves what a killed transfer leaves.
//! Non-goals: commands, other hosts, anything that outlives the channel.

use std::io::IsTerminal;
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use thalweg_api::{SshAnswer, SshGreeting, from_json, to_json};
use thalweg_base::clock::Stopwatch;
use thalweg_transfer::FRAME_BYTES;
use thalweg_wire::{Fleeting, Hands, Heard, Link, Patience, Pipes, Role, Terms, VERSION, listen, new_id};

use crate::pump::{Pumps, serve_alone};
use crate::threads::spawn;

/// The words that start it, which are of no table: they are no command for people.
pub const SERVE: [&str; 2] = ["pump", "--serve"];
/// The first word of what either side says before there is a link.
pub(crate) const GREETING: &str = "thalweg-pump";
/// How long a client may take to answer.
const ANSWER_SECONDS: f64 = 10.0;
/// How long a line may wait for room in the channel.
pub(crate) const SAYING: Duration = Duration::from_secs(5);
/// How long transfers may take to end when the channel has.
const ENDING: Duration = Duration::from_secs(4);
/// The most who may be at the door for direct links at once: all lanes, and some who err.
const GUESTS_MAX: usize = 128;

/// How both ends want their links, but that a channel is sealed already.
pub(crate) fn terms() -> Terms {
    Terms { block_bytes: FRAME_BYTES as u32, patience: Patience::default() }
}

/// A line that both sides know by its first words.
pub(crate) fn greeting(json: &str) -> String {
    format!("{GREETING} {VERSION} {json}")
}

/// What cannot be talked to.
pub(crate) enum Stranger {
    /// It is no greeting.
    Unknown,
    /// One of another version.
    Version(String),
}

/// What such a line says.
pub(crate) fn greeted(line: &[u8]) -> Result<&str, Stranger> {
    let line = str::from_utf8(line).map_err(|_| Stranger::Unknown)?;
    let rest =
        line.strip_prefix(GREETING).and_then(|rest| rest.strip_prefix(' ')).ok_or(Stranger::Unknown)?;
    match rest.split_once(' ') {
        Some((version, json)) if version == VERSION.to_string() => Ok(json),
        Some((version, _)) => Err(Stranger::Version(version.into())),
        None => Err(Stranger::Unknown),
    }
}

/// Serves the client at the other end of standard input and output, until it has gone.
pub fn serve() -> Result<(), String> {
    let (from, to) = (std::io::stdin(), std::io::stdout());
    if from.is_terminal() {
        return Err(
            "pump --serve is what ssh starts at the other end of a transfer; write thalweg pump SOURCE \
                    ssh://HOST/PATH"
                .into(),
        );
    }
    let failed = |e: std::io::Error| format!("standard input and output are no channel: {e}");
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    let from = own(from.as_fd()).map_err(failed)?;
    let mut channel = Pipes::new(from, own(to.as_fd()).map_err(failed)?).map_err(failed)?;
    let meeting = new_id();
    let fleeting = Fleeting::new(meeting, Role::Node).map_err(|e| e.to_string())?;
    let door = own_address().and_then(|at| listen(at).ok());
    let greets = SshGreeting {
        meeting: meeting.to_string(),
        authority: fleeting.authority(),
        address: door.as_ref().and_then(|door| door.local_addr().ok()),
    };
    let gone = |why: thalweg_wire::What| format!("nobody is at the other end: {why:?}");
    channel.say(&greeting(&to_json(&greets)), SAYING).map_err(gone)?;
    let answer = answer(&mut channel)?;
    let hands = fleeting.meets(&answer.name, &answer.authority).map_err(|e| e.to_string())?;
    let link = channel.link("the client", (meeting, Role::Node), terms()).map_err(|e| e.to_string())?;
    let (link, pumps) = (Arc::new(link), Arc::new(Pumps::default()));
    let _ = link.keep();
    if let Some(door) = door {
        let pumps = pumps.clone();
        spawn("door", move || open_door(&door, &hands, &pumps));
    }
    while serve_one(&link, &pumps) {}
    pumps.rest(ENDING);
    Ok(())
}

/// The address of this machine by which ssh was reached.
fn own_address() -> Option<IpAddr> {
    // The client's address and port, and ours.
    std::env::var("SSH_CONNECTION").ok()?.split(' ').nth(2)?.parse().ok()
}

fn answer(channel: &mut Pipes) -> Result<SshAnswer, String> {
    let watch = Stopwatch::start();
    let heard = channel.hear(|| watch.seconds() < ANSWER_SECONDS).map_err(|e| e.to_string())?;
    let Heard::Line(line) = heard else {
        return Err(format!("the client has gone, or not answered within {ANSWER_SECONDS} s"));
    };
    match greeted(&line) {
        Ok(json) => from_json(json),
        Err(_) => Err("an answer that is none; bring both sides to one version of thalweg".into()),
    }
}

/// Serves the next stream of a link on a thread of its own; false when there are no more.
fn serve_one(link: &Arc<Link>, pumps: &Arc<Pumps>) -> bool {
    let Ok(Some((request, out, inc))) = link.accept() else { return false };
    let request = String::from_utf8_lossy(&request).into_owned();
    let (link, pumps) = (link.clone(), pumps.clone());
    spawn("stream", move || {
        if let Some((out, _inc)) = serve_alone(&pumps, None, &link, &request, (out, inc)) {
            let _ = out.abort("only transfers are served here");
        }
    })
}

/// Lets those in who prove that they were told of this meeting; each has a lane.
fn open_door(door: &TcpListener, hands: &Hands, pumps: &Arc<Pumps>) {
    let guests = Arc::new(AtomicUsize::new(0));
    for socket in door.incoming().map_while(Result::ok) {
        if guests.fetch_add(1, Ordering::Relaxed) >= GUESTS_MAX {
            guests.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (hands, pumps, guests) = (hands.clone(), pumps.clone(), guests.clone());
        spawn("guest", move || {
            if let Ok(link) = hands.accept(socket, terms()) {
                let link = Arc::new(link);
                let _ = link.keep();
                serve_one(&link, &pumps);
            }
            guests.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_known_by_its_first_words_and_its_version() {
        let line = greeting("{}");
        assert!(matches!(greeted(line.as_bytes()), Ok("{}")));
        let other = line.replacen(&VERSION.to_string(), "9", 1);
        assert!(matches!(greeted(other.as_bytes()), Err(Stranger::Version(v)) if v == "9"));
        for noise in ["", "Welcome", "thalweg-pumpkin 1 {}", "thalweg-pump", "thalweg-pump 1"] {
            assert!(matches!(greeted(noise.as_bytes()), Err(Stranger::Unknown)), "{noise}");
        }
    }
}
