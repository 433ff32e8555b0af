//! Relays a client's request to other hosts, over the links that this node keeps.
//!
//! Model: the relay opens a stream to each host. The thread that reads a link reports arrivals, and one thread forwards
//! everything into the client's one stream: blocks with the host's index as their offset, and ends as lines of JSON on
//! a channel of their own, several together.
//! Invariant: every host ends with a status or an error. When the client disconnects or gives up, everything ends
//! within [`LOOK`]. A host without a link delays others only where all wait for the client's input. Each host has
//! [`WINDOW`] blocks for its output.
//! Non-goals: the meaning of the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, Thread};
use std::time::Duration;

use thalweg_api::{CommandRequest, ExecEnd, HostEnd, RelayRequest, ServiceRequest, from_json, to_json};
use thalweg_base::clock::Stopwatch;
use thalweg_block::Pool;
use thalweg_wire::cluster::HOSTS_MAX;
use thalweg_wire::threads::spawn;
use thalweg_wire::{Host, Incoming, Link, LinkError, News, Outgoing};

use crate::exec_session::READ_BYTES;

/// The channel of ends, one line of JSON for each host.
pub(crate) const END: u8 = 3;
/// How often to check that the client is still there.
const LOOK: Duration = Duration::from_millis(100);
/// Blocks for a host: one that arrives, and one on its way to the client.
const WINDOW: usize = 2;
/// How long the first end waits for others, so that they are sent together.
const TOGETHER: Duration = Duration::from_millis(2);

/// Relays a request, and ends the client's stream when all hosts have ended.
pub(crate) fn run((host, input): (&Arc<Host>, &Pool), request: RelayRequest, out: Outgoing, inc: Incoming) {
    let stdin = match &*request.ask {
        CommandRequest::Run(exec) => exec.stdin,
        CommandRequest::Ping => false,
        CommandRequest::Relay(_) => return drop(out.abort("a relay cannot be relayed")),
    };
    let count = request.on.len();
    if count == 0 || count > HOSTS_MAX {
        return drop(out.abort(&format!("a request for {count} hosts; it can be for 1 to {HOSTS_MAX}")));
    }
    let pool = match Pool::new(READ_BYTES, count * WINDOW) {
        Ok(pool) => pool,
        Err(why) => return drop(out.abort(&why.to_string())),
    };
    let (tell, events) = channel();
    let asking = Asking {
        host: host.clone(),
        ask: request.ask.text().into(),
        pool,
        tell,
        gatherer: thread::current(),
        unended: Arc::new(AtomicUsize::new(count)),
        watch: Stopwatch::start(),
    };
    if stdin {
        asking.dial_all(&request.on);
    }
    let hosts = request.on.iter().enumerate();
    let mut outs: Vec<Outgoing> = hosts.filter_map(|(place, host)| asking.ask(place, host, stdin)).collect();
    let input = input.clone();
    let unfed = if stdin {
        spawn("stdin", move || feed(inc, &mut outs, &input));
        None
    } else {
        Some(inc)
    };
    let from = request.on.iter().map(|_| None).collect();
    let mut answers = Answers { asking, left: count, hosts: request.on, from, out, ends: Vec::new() };
    if answers.gather(&events).is_ok() {
        let _ = answers.out.end(&[]);
    }
    // Dropping this earlier would abort the whole stream.
    drop(unfed);
}

/// Forwards the client's input to every host that still takes it.
fn feed(inc: Incoming, outs: &mut Vec<Outgoing>, pool: &Pool) {
    let mut inc = inc.takes(pool, 2);
    while let Ok(Some((_, block))) = inc.next_on() {
        // Encryption happens in place, so each host gets a copy.
        outs.retain_mut(|out| out.send(0, &mut block.to_vec()).is_ok());
        if outs.is_empty() {
            return;
        }
    }
    if inc.result().is_some() {
        outs.iter_mut().for_each(|out| drop(out.end(&[])));
    }
}

/// An event of the host with this index.
enum Event {
    /// The request was sent, and the answers arrive on this stream.
    Asked(usize, Incoming),
    /// Something arrived from it.
    Arrived(usize),
    /// The request could not be sent, for this reason.
    Failed(usize, String),
}

/// The state shared by the requests to all hosts.
#[derive(Clone)]
struct Asking {
    host: Arc<Host>,
    ask: Arc<str>,
    pool: Pool,
    tell: Sender<Event>,
    gatherer: Thread,
    /// The number of hosts without an end.
    unended: Arc<AtomicUsize>,
    watch: Stopwatch,
}

impl Asking {
    /// Opens missing links, in parallel.
    fn dial_all(&self, hosts: &[String]) {
        thread::scope(|scope| {
            for host in hosts.iter().filter(|host| self.host.kept_with(host).is_none()) {
                // An error is reported when the request is sent.
                scope.spawn(move || drop(self.host.link_with(host)));
            }
        });
    }

    /// Sends the request over an open link at once, or over a new link from another thread. If the client has input,
    /// returns the stream for it.
    fn ask(&self, place: usize, host: &str, stdin: bool) -> Option<Outgoing> {
        if let Some(link) = self.host.kept_with(host) {
            return self.ask_over(place, &link, stdin);
        }
        let (aside, name) = (self.clone(), host.to_string());
        let dial = move || match aside.host.link_with(&name) {
            Ok(link) => drop(aside.ask_over(place, &link, false)),
            Err(why) => aside.tell(Event::Failed(place, why.to_string()), News::End),
        };
        if !spawn("dial", dial) {
            self.tell(
                Event::Failed(place, "the relaying node has no thread left to reach it".into()),
                News::End,
            );
        }
        None
    }

    fn ask_over(&self, place: usize, link: &Link, stdin: bool) -> Option<Outgoing> {
        let request = self.ask.as_bytes();
        let takes = (&self.pool, WINDOW);
        let asked = match stdin {
            true => link.open(request).map(|(out, inc)| (Some(out), inc.takes(takes.0, takes.1))),
            false => link.ask(request, Some(takes)).map(|inc| (None, inc)),
        };
        match asked {
            Ok((out, inc)) => {
                self.tell(Event::Asked(place, inc), News::Block);
                out
            }
            Err(why) => {
                self.tell(Event::Failed(place, why.to_string()), News::End);
                None
            }
        }
    }

    /// Reports an event. The gathering thread is woken for a block or the last end, not for other ends.
    fn tell(&self, event: Event, what: News) {
        // Once the client has disconnected nothing receives events; dropping the stream aborts the request.
        let _ = self.tell.send(event);
        let one_less = |left: usize| left.checked_sub(1);
        if what == News::Block
            || self.unended.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) == Ok(1)
        {
            self.gatherer.unpark();
        }
    }
}

/// The answers to forward to the client.
struct Answers {
    asking: Asking,
    hosts: Vec<String>,
    from: Vec<Option<Incoming>>,
    /// The number of hosts without an end.
    left: usize,
    out: Outgoing,
    /// Lines of ends that are not sent yet.
    ends: Vec<u8>,
}

impl Answers {
    /// Forwards answers until all hosts have ended. An error if the client has disconnected.
    fn gather(&mut self, events: &Receiver<Event>) -> Result<(), Option<LinkError>> {
        while self.left > 0 {
            match events.recv_timeout(LOOK) {
                Ok(first) => {
                    self.take(first)?;
                    if self.left > 0 {
                        thread::park_timeout(TOGETHER);
                    }
                    events.try_iter().try_for_each(|more| self.take(more))?;
                    self.out.send(END, &mut std::mem::take(&mut self.ends))?;
                }
                Err(RecvTimeoutError::Timeout) if !self.out.is_given_up() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Err(None),
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), LinkError> {
        match event {
            Event::Asked(place, inc) => {
                let asking = self.asking.clone();
                inc.on_news(move |what| asking.tell(Event::Arrived(place), what));
                self.from[place] = Some(inc);
            }
            Event::Failed(place, why) => self.end(place, Err(why)),
            Event::Arrived(place) => {
                let Some(inc) = &mut self.from[place] else { return Ok(()) };
                match inc.next_on() {
                    Ok(Some((channel, mut block))) => {
                        return self.out.send_from(channel, place as u64, &mut block);
                    }
                    Ok(None) => {
                        let end = inc.result().map(String::from_utf8_lossy).unwrap_or_default();
                        let end = from_json::<ExecEnd>(&end);
                        self.end(place, end.map_err(|why| format!("its answer cannot be understood: {why}")));
                    }
                    Err(why) => self.end(place, Err(why.to_string())),
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, place: usize, outcome: Result<ExecEnd, String>) {
        self.from[place] = None;
        self.left -= 1;
        let host = self.hosts[place].clone();
        let seconds = self.asking.watch.seconds();
        let end = match outcome {
            Ok(end) => HostEnd { host, end: Some(end), seconds, ..HostEnd::default() },
            Err(why) => HostEnd { host, error: Some(why), seconds, ..HostEnd::default() },
        };
        self.ends.extend((to_json(&end) + "\n").into_bytes());
    }
}
