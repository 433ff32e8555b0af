//! Asks other hosts on a client's behalf, over kept links.
//!
//! Model: a stream is opened on the link with each host, one after the other; then a thread for each listens, and what
//! it hears goes into the client's one stream, with the host's place in the list as its offset.
//! Law: every host that was asked has an end or an error. A client that has gone, or gives up, takes all of it along
//! within [`LOOK`]. A host without a link holds up no other, unless all wait for the client's input. Blocks for what
//! comes are one for each host.
//! Non-goals: what is asked.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::{ExecEnd, HostEnd, NodeRequest, RelayRequest, from_json, to_json};
use thalweg_base::clock::Stopwatch;
use thalweg_block::Pool;
use thalweg_wire::{Incoming, Outgoing, Quit};

use crate::cluster::HOSTS_MAX;
use crate::daemon::{BLOCK_BYTES, Node, spawn};

/// The channel of ends.
pub(crate) const END: u8 = 3;
/// How often somebody looks whether the client is still there.
const LOOK: Duration = Duration::from_millis(100);

/// Relays a request; the client's stream is ended when all hosts have.
pub(crate) fn run(node: &Arc<Node>, request: RelayRequest, out: Outgoing, inc: Incoming) {
    let stdin = match &*request.ask {
        NodeRequest::Exec(exec) => exec.stdin,
        NodeRequest::Ping => false,
        NodeRequest::Relay(_)
        | NodeRequest::Status
        | NodeRequest::Keep
        | NodeRequest::Pump(_)
        | NodeRequest::PumpLane { .. }
        | NodeRequest::Sort(_)
        | NodeRequest::Check(_)
        | NodeRequest::Coordinate(_)
        | NodeRequest::River { .. }
        | NodeRequest::Probe(_) => {
            return drop(out.abort("that is not for other hosts"));
        }
    };
    let count = request.on.len();
    if count == 0 || count > HOSTS_MAX {
        return drop(out.abort(&format!("{count} hosts, where 1 to {HOSTS_MAX} can be asked")));
    }
    let pool = match Pool::new(BLOCK_BYTES, count) {
        Ok(pool) => pool,
        Err(why) => return drop(out.abort(&why.to_string())),
    };
    let (ended, ends) = channel();
    let relay = Arc::new(Relay {
        node: node.clone(),
        ask: to_json(&*request.ask),
        pool,
        client: Mutex::new(out),
        quits: Mutex::new(Some(Vec::with_capacity(count))),
    });
    if stdin {
        relay.dial_all(&request.on);
    }
    let hosts = request.on.into_iter().enumerate();
    let mut outs: Vec<Outgoing> = hosts
        .filter_map(|(place, host)| {
            Asking { relay: relay.clone(), place: place as u64, host, ended: ended.clone() }.ask(stdin)
        })
        .collect();
    drop(ended);
    let fed = relay.clone();
    let unfed = if stdin {
        spawn("stdin", move || feed(inc, &mut outs, &fed.node.pool));
        None
    } else {
        Some(inc)
    };
    relay.gather(&ends, count);
    let _ = relay.client.lock().expect("no holder panics").end(&[]);
    // Only now: to want no more of the client's before would give the whole stream up.
    drop(unfed);
}

/// What all that serve one request share.
struct Relay {
    node: Arc<Node>,
    ask: String,
    pool: Pool,
    client: Mutex<Outgoing>,
    /// How to give up what was asked; nothing once it was.
    quits: Mutex<Option<Vec<Quit>>>,
}

impl Relay {
    /// Opens the links that are missing, side by side.
    fn dial_all(&self, hosts: &[String]) {
        std::thread::scope(|scope| {
            for host in hosts.iter().filter(|host| self.node.kept_with(host).is_none()) {
                // Why it cannot be is told when it is asked.
                scope.spawn(move || drop(self.node.link_with(host)));
            }
        });
    }

    /// Passes the ends on until all have come, or the client has gone; then gives up what is left.
    fn gather(&self, ends: &Receiver<(u64, HostEnd)>, count: usize) {
        let mut left = count;
        while left > 0 {
            match ends.recv_timeout(LOOK) {
                Ok((place, end)) => {
                    left -= 1;
                    let mut bytes = to_json(&end).into_bytes();
                    let mut client = self.client.lock().expect("no holder panics");
                    if client.send_from(END, place, &mut bytes).is_err() {
                        return self.give_up();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    if self.client.lock().expect("no holder panics").is_given_up() {
                        return self.give_up();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn give_up(&self) {
        let quits = self.quits.lock().expect("no holder panics").take();
        quits.into_iter().flatten().for_each(|quit| quit.quit("its client has gone"));
    }

    /// Remembers how to give a stream up, or does so if all has been given up meanwhile.
    fn remember(&self, quit: Quit) {
        match self.quits.lock().expect("no holder panics").as_mut() {
            Some(quits) => quits.push(quit),
            None => quit.quit("its client has gone"),
        }
    }
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

/// One host's part.
struct Asking {
    relay: Arc<Relay>,
    place: u64,
    host: String,
    ended: Sender<(u64, HostEnd)>,
}

impl Asking {
    /// Asks over the link that is kept, at once; else opens one first, aside. If the client has input for it, returns
    /// where that goes.
    fn ask(self, stdin: bool) -> Option<Outgoing> {
        let watch = Stopwatch::start();
        if let Some(link) = self.relay.node.kept_with(&self.host) {
            return self.ask_over(&link, stdin, watch);
        }
        let unasked = self.aside();
        let dial = move || match self.relay.node.link_with(&self.host) {
            Ok(link) => drop(self.ask_over(&link, false, watch)),
            Err(why) => self.end(Err(why.to_string()), watch),
        };
        if !spawn("dial", dial) {
            unasked.end(Err("its node has no thread to reach it with".into()), watch);
        }
        None
    }

    fn ask_over(self, link: &thalweg_wire::Link, stdin: bool, watch: Stopwatch) -> Option<Outgoing> {
        let (mut out, inc) = match link.open(self.relay.ask.as_bytes()) {
            Ok(ends) => ends,
            Err(why) => {
                self.end(Err(why.to_string()), watch);
                return None;
            }
        };
        if !stdin {
            let _ = out.end(&[]);
        }
        self.relay.remember(inc.quit());
        let inc = inc.takes(&self.relay.pool, 1);
        let unheard = self.aside();
        if !spawn("listen", move || self.listen(inc, watch)) {
            unheard.end(Err("its node has no thread to hear it with".into()), watch);
        }
        stdin.then_some(out)
    }

    fn aside(&self) -> Asking {
        let Asking { relay, place, host, ended } = self;
        Asking { relay: relay.clone(), place: *place, host: host.clone(), ended: ended.clone() }
    }

    fn listen(self, mut inc: Incoming, watch: Stopwatch) {
        let outcome = loop {
            match inc.next_on() {
                Ok(Some((channel, mut block))) => {
                    let mut client = self.relay.client.lock().expect("no holder panics");
                    if client.send_from(channel, self.place, &mut block).is_err() {
                        break Err("its client has gone".into());
                    }
                }
                Ok(None) => {
                    let end = inc.result().map(String::from_utf8_lossy).unwrap_or_default();
                    break from_json::<ExecEnd>(&end).map_err(|why| format!("an answer that is none: {why}"));
                }
                Err(why) => break Err(why.to_string()),
            }
        };
        self.end(outcome, watch);
    }

    fn end(self, outcome: Result<ExecEnd, String>, watch: Stopwatch) {
        let (end, error) = match outcome {
            Ok(end) => (Some(end), None),
            Err(why) => (None, Some(why)),
        };
        let _ = self.ended.send((
            self.place,
            HostEnd { host: self.host, end, error, seconds: watch.seconds(), ..HostEnd::default() },
        ));
    }
}
