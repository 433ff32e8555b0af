//! Asks other hosts for a client, over the links that this node keeps.
//!
//! Model: a stream is opened on the link with each host, one after the other. The thread that reads a link reports that
//! something has come on it, and one thread passes everything on into the client's one stream: blocks with the host's
//! place in the list as their offset, ends as lines on a channel of their own, as many as have come together.
//! Invariant: every host that was asked has an end or an error. When the client goes, or gives up, everything ends within
//! [`LOOK`]. A host without a link holds up no other, unless all wait for the client's input. Each host has [`WINDOW`]
//! blocks for what it sends.
//! Non-goals: what is asked.

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

/// The channel of ends, a line of JSON for each.
pub(crate) const END: u8 = 3;
/// How often somebody looks whether the client is still there.
const LOOK: Duration = Duration::from_millis(100);
/// Blocks for a host: one that comes, and one that goes on to the client.
const WINDOW: usize = 2;
/// How long the first end waits for others, unless there are none.
const TOGETHER: Duration = Duration::from_millis(2);

/// Relays a request; the client's stream is ended when all hosts have.
pub(crate) fn run((host, input): (&Arc<Host>, &Pool), request: RelayRequest, out: Outgoing, inc: Incoming) {
    let stdin = match &*request.ask {
        CommandRequest::Run(exec) => exec.stdin,
        CommandRequest::Ping => false,
        CommandRequest::Relay(_) => return drop(out.abort("that is not for other hosts")),
    };
    let count = request.on.len();
    if count == 0 || count > HOSTS_MAX {
        return drop(out.abort(&format!("{count} hosts, where 1 to {HOSTS_MAX} can be asked")));
    }
    let pool = match Pool::new(READ_BYTES, count * WINDOW) {
        Ok(pool) => pool,
        Err(why) => return drop(out.abort(&why.to_string())),
    };
    let (tell, words) = channel();
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
    if answers.gather(&words).is_ok() {
        let _ = answers.out.end(&[]);
    }
    // Only now: to want no more of the client's before would give the whole stream up.
    drop(unfed);
}

/// Gives what the client says to every host that still wants it.
fn feed(inc: Incoming, outs: &mut Vec<Outgoing>, pool: &Pool) {
    let mut inc = inc.takes(pool, 2);
    while let Ok(Some((_, block))) = inc.next_on() {
        // Sealing changes the bytes, so each gets its own.
        outs.retain_mut(|out| out.send(0, &mut block.to_vec()).is_ok());
        if outs.is_empty() {
            return;
        }
    }
    if inc.result().is_some() {
        outs.iter_mut().for_each(|out| drop(out.end(&[])));
    }
}

/// What there is to know of the host in some place.
enum Word {
    /// It has been asked, and answers here.
    Asked(usize, Incoming),
    /// Something has come from it.
    Heard(usize),
    /// It cannot be asked, and why.
    Unasked(usize, String),
}

/// How hosts are asked.
#[derive(Clone)]
struct Asking {
    host: Arc<Host>,
    ask: Arc<str>,
    pool: Pool,
    tell: Sender<Word>,
    gatherer: Thread,
    /// Hosts from which no end has come.
    unended: Arc<AtomicUsize>,
    watch: Stopwatch,
}

impl Asking {
    /// Opens the links that are missing, side by side.
    fn dial_all(&self, hosts: &[String]) {
        thread::scope(|scope| {
            for host in hosts.iter().filter(|host| self.host.kept_with(host).is_none()) {
                // Why it cannot be is told when it is asked.
                scope.spawn(move || drop(self.host.link_with(host)));
            }
        });
    }

    /// Asks over the link that is kept, at once; else opens one first, aside. If the client has input for it, returns
    /// where that goes.
    fn ask(&self, place: usize, host: &str, stdin: bool) -> Option<Outgoing> {
        if let Some(link) = self.host.kept_with(host) {
            return self.ask_over(place, &link, stdin);
        }
        let (aside, name) = (self.clone(), host.to_string());
        let dial = move || match aside.host.link_with(&name) {
            Ok(link) => drop(aside.ask_over(place, &link, false)),
            Err(why) => aside.tell(Word::Unasked(place, why.to_string()), News::End),
        };
        if !spawn("dial", dial) {
            self.tell(Word::Unasked(place, "its node has no thread to reach it with".into()), News::End);
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
                self.tell(Word::Asked(place, inc), News::Block);
                out
            }
            Err(why) => {
                self.tell(Word::Unasked(place, why.to_string()), News::End);
                None
            }
        }
    }

    /// Who gathers need not be woken for an end before the last.
    fn tell(&self, word: Word, what: News) {
        // Nobody listens any more when the client has gone; what was asked is given up by being dropped.
        let _ = self.tell.send(word);
        let one_less = |left: usize| left.checked_sub(1);
        if what == News::Block
            || self.unended.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) == Ok(1)
        {
            self.gatherer.unpark();
        }
    }
}

/// What comes back, on its way to the client.
struct Answers {
    asking: Asking,
    hosts: Vec<String>,
    from: Vec<Option<Incoming>>,
    /// Hosts without an end.
    left: usize,
    out: Outgoing,
    /// Lines of ends that the client has not been told.
    ends: Vec<u8>,
}

impl Answers {
    /// Passes on what comes until all have ended; an error if the client has gone, and with it what was asked.
    fn gather(&mut self, words: &Receiver<Word>) -> Result<(), Option<LinkError>> {
        while self.left > 0 {
            match words.recv_timeout(LOOK) {
                Ok(first) => {
                    self.take(first)?;
                    if self.left > 0 {
                        thread::park_timeout(TOGETHER);
                    }
                    words.try_iter().try_for_each(|more| self.take(more))?;
                    self.out.send(END, &mut std::mem::take(&mut self.ends))?;
                }
                Err(RecvTimeoutError::Timeout) if !self.out.is_given_up() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Err(None),
            }
        }
        Ok(())
    }

    fn take(&mut self, word: Word) -> Result<(), LinkError> {
        match word {
            Word::Asked(place, inc) => {
                let asking = self.asking.clone();
                inc.on_news(move |what| asking.tell(Word::Heard(place), what));
                self.from[place] = Some(inc);
            }
            Word::Unasked(place, why) => self.end(place, Err(why)),
            Word::Heard(place) => {
                let Some(inc) = &mut self.from[place] else { return Ok(()) };
                match inc.next_on() {
                    Ok(Some((channel, mut block))) => {
                        return self.out.send_from(channel, place as u64, &mut block);
                    }
                    Ok(None) => {
                        let end = inc.result().map(String::from_utf8_lossy).unwrap_or_default();
                        let end = from_json::<ExecEnd>(&end);
                        self.end(place, end.map_err(|why| format!("an answer that is none: {why}")));
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
