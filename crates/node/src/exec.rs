//! Runs a command on many nodes at once.
//!
//! Model: a thread for each host connects, sends the request and reads the answer, all at the same time, or as many as
//! the caller allows, each for one host after the other. Output goes to the caller's thread, in order for each host.
//! Invariant: every host ends with a status or an error. If the client stops, its jobs end, and no other begins.
//! Non-goals: printing, shells.

use std::io::Read;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::{
    ClusterHost, CommandRequest, ExecEnd, ExecReport, ExecRequest, HostEnd, RelayRequest, ServiceRequest,
    from_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_block::Pool;
use thalweg_wire::{Cancel, Client, Incoming, Link, Outgoing, new_id};

use crate::exec_session::STDERR;
use crate::relay::END;
use crate::{Error, Result};

/// A block of output or input.
const BLOCK_BYTES: usize = 64 << 10;
/// Credits for one host's output.
const WINDOW: usize = 2;
/// Pieces of output that may wait for the caller.
const WAITING: usize = 64;
const STACK_BYTES: usize = 256 << 10;

/// What to run, and where.
#[derive(Debug, Clone, Default)]
pub struct ExecOptions {
    /// The directory of the client's identity.
    pub identity: PathBuf,
    /// The hosts; none means all.
    pub on: Vec<String>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables added to the nodes' environment.
    pub env: Vec<(String, String)>,
    /// The command is killed after this time.
    pub timeout: Option<Duration>,
    /// The command continues without the client.
    pub detach: bool,
    /// Whether standard input goes to all hosts.
    pub stdin: bool,
    /// The most hosts on which it runs at a time; without this, all at once. Not with `stdin` or `via`.
    pub fanout: Option<usize>,
    /// The host whose node relays the command to the others.
    pub via: Option<String>,
}

/// One of a command's two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl Channel {
    /// The output on this channel of a stream.
    fn of(channel: u8) -> Channel {
        if channel == STDERR { Channel::Err } else { Channel::Out }
    }
}

/// Sends a request to a host over a new link. If there is input, a new thread sends it.
fn ask(
    client: &Client,
    host: &ClusterHost,
    request: &str,
    (pool, window): (&Pool, usize),
    input: Option<Receiver<Arc<Vec<u8>>>>,
) -> Result<(Arc<Link>, Incoming)> {
    fits(request)?;
    let Some(pieces) = input else {
        let (link, inc) = client.link_and_ask(host, BLOCK_BYTES, request, (pool, window))?;
        return Ok((Arc::new(link), inc));
    };
    let link = client.link(host, BLOCK_BYTES)?;
    let (out, inc) = link.open(request.as_bytes())?;
    let inc = inc.takes(pool, window);
    pass_on(out, pieces)?;
    Ok((Arc::new(link), inc))
}

/// Output of a host's command: the host's index, the output, the bytes.
type Said = (usize, Channel, Vec<u8>);

/// Runs a command and returns when it has ended on all hosts. Calls `said` with each host's output as it arrives.
pub fn exec(
    options: &ExecOptions,
    cancel: &Cancel,
    said: impl FnMut(&str, Channel, &[u8]),
) -> Result<ExecReport> {
    if let Some(word) = options.command.iter().find(|word| word.contains('\0')) {
        return Err(Error::NulByte(word.clone()));
    }
    let job = new_id().to_string();
    let request = CommandRequest::Run(ExecRequest {
        job: job.clone(),
        command: options.command.clone(),
        env: options.env.clone(),
        stdin: options.stdin && !options.detach,
        detach: options.detach,
        timeout_ms: options.timeout.map(|timeout| timeout.as_millis() as u64),
    });
    ask_all(options, cancel, job, request, said)
}

/// Sends a request without a process or output to the hosts. Options about the command are ignored.
pub fn ping(options: &ExecOptions, cancel: &Cancel) -> Result<ExecReport> {
    ask_all(options, cancel, String::new(), CommandRequest::Ping, |_, _, _| {})
}

fn ask_all(
    options: &ExecOptions,
    cancel: &Cancel,
    job: String,
    request: CommandRequest,
    mut said: impl FnMut(&str, Channel, &[u8]),
) -> Result<ExecReport> {
    let watch = Stopwatch::start();
    let client = Arc::new(Client::load(&options.identity)?);
    let hosts = client.hosts(&options.on)?;
    let mut ends: Vec<HostEnd> =
        hosts.iter().map(|host| HostEnd { host: host.name.clone(), ..HostEnd::default() }).collect();
    if let Some(via) = &options.via {
        let via = client.hosts(std::slice::from_ref(via))?.remove(0);
        relayed(&client, &via, cancel, request, &mut ends, said)?;
        return Ok(ExecReport { job, hosts: ends, seconds: watch.seconds() });
    }
    // Hosts that wait for their turn would not take input, and all hosts get each piece of it at the same time.
    let at_once = options.fanout.filter(|_| !options.stdin).unwrap_or(hosts.len()).clamp(1, hosts.len());
    let pool = Pool::new(BLOCK_BYTES, at_once * WINDOW)?;
    let (send, receive) = sync_channel(WAITING);
    let (mut inputs, mut waiting) = (Vec::new(), Vec::new());
    for (index, host) in hosts.into_iter().enumerate() {
        let (input, chunks) = sync_channel(WINDOW);
        inputs.push(input);
        let (client, request, pool) = (client.clone(), request.clone(), pool.clone());
        let request =
            HostRequest { index, client, host, request, pool, cancel: cancel.clone(), said: send.clone() };
        waiting.push((request, options.stdin.then_some(chunks)));
    }
    drop(send);
    let waiting = Arc::new(Mutex::new(waiting.into_iter()));
    let mut asking = Vec::new();
    for _ in 0..at_once {
        let (waiting, cancel) = (waiting.clone(), cancel.clone());
        let next =
            move || waiting.lock().expect("no holder panics").next().filter(|_| cancel.signal().is_none());
        let ask_in_turn = move || {
            let asked = std::iter::from_fn(next).map(|(host, input)| (host.index, host.ask(input)));
            asked.collect::<Vec<_>>()
        };
        let builder = std::thread::Builder::new().name("ask".into()).stack_size(STACK_BYTES);
        asking.push(builder.spawn(ask_in_turn).map_err(Error::Thread)?);
    }
    drop(waiting);
    if options.stdin {
        forward(inputs);
    }
    for (i, channel, bytes) in receive {
        said(&ends[i].host, channel, &bytes);
    }
    for (i, (outcome, seconds)) in
        asking.into_iter().flat_map(|thread| thread.join().expect("it does not panic"))
    {
        let end = &mut ends[i];
        end.seconds = seconds;
        match outcome {
            Ok(outcome) => end.end = Some(outcome),
            Err(why) => end.error = Some(why.to_string()),
        }
    }
    Ok(ExecReport { job, hosts: ends, seconds: watch.seconds() })
}

/// Sends the request to one node, which relays it to the others; uses one stream and this thread.
fn relayed(
    client: &Client,
    via: &ClusterHost,
    cancel: &Cancel,
    request: CommandRequest,
    ends: &mut [HostEnd],
    mut said: impl FnMut(&str, Channel, &[u8]),
) -> Result<()> {
    let stdin = matches!(&request, CommandRequest::Run(exec) if exec.stdin);
    let on = ends.iter().map(|end| end.host.clone()).collect();
    let request = CommandRequest::Relay(RelayRequest { on, ask: Box::new(request) }).text();
    let pool = Pool::new(BLOCK_BYTES, WAITING)?;
    let input = stdin.then(|| {
        let (input, pieces) = sync_channel(WINDOW);
        forward(vec![input]);
        pieces
    });
    let (link, mut inc) = ask(client, via, &request, (&pool, WAITING), input)?;
    cancel.watch(&link);
    let mut lines = Vec::new();
    loop {
        let (channel, block) = match inc.next_on() {
            Ok(Some(came)) => came,
            Ok(None) => return Ok(()),
            Err(why) => {
                let unheard = |end: &&mut HostEnd| end.end.is_none() && end.error.is_none();
                ends.iter_mut().filter(unheard).for_each(|end| end.error = Some(why.to_string()));
                return Ok(());
            }
        };
        let bad = |why: &str| Error::BadAnswer { host: via.name.clone(), why: why.into() };
        if channel != END {
            let from = ends.get(block.offset() as usize).ok_or_else(|| bad("no such host was asked"))?;
            said(&from.host, Channel::of(channel), &block);
            continue;
        }
        lines.extend_from_slice(&block);
        while let Some(len) = lines.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = lines.drain(..=len).collect();
            let told: HostEnd = from_json(&String::from_utf8_lossy(&line)).map_err(|why| bad(&why))?;
            let end = ends.iter_mut().find(|end| end.host == told.host);
            *end.ok_or_else(|| bad("no such host was asked"))? = told;
        }
    }
}

/// Checks that a request fits a link.
fn fits(request: &str) -> Result<()> {
    match request.len() {
        bytes if bytes > thalweg_wire::frame::PAYLOAD_BYTES_MAX => Err(Error::CommandTooLong(bytes)),
        _ => Ok(()),
    }
}

/// Starts a thread that sends chunks of input to a host.
fn pass_on(mut out: Outgoing, pieces: Receiver<Arc<Vec<u8>>>) -> Result<()> {
    let body = move || {
        for piece in pieces {
            if out.send(0, &mut piece.to_vec()).is_err() {
                return;
            }
        }
        let _ = out.end(&[]);
    };
    let builder = std::thread::Builder::new().name("input".into()).stack_size(STACK_BYTES);
    let started = builder.spawn(body).map(|_| ());
    started.map_err(Error::Thread)
}

/// Reads standard input and passes each chunk to every host that still accepts it.
fn forward(mut inputs: Vec<SyncSender<Arc<Vec<u8>>>>) {
    let body = move || {
        let mut stdin = std::io::stdin().lock();
        loop {
            let mut piece = vec![0; BLOCK_BYTES];
            let Ok(n @ 1..) = stdin.read(&mut piece) else { return };
            piece.truncate(n);
            let piece = Arc::new(piece);
            inputs.retain(|input| input.send(piece.clone()).is_ok());
            if inputs.is_empty() {
                return;
            }
        }
    };
    // If the thread cannot start, the commands see the end of their input at once.
    let _ = std::thread::Builder::new().name("stdin".into()).stack_size(STACK_BYTES).spawn(body);
}

/// A request to one host.
struct HostRequest {
    index: usize,
    client: Arc<Client>,
    host: ClusterHost,
    request: CommandRequest,
    pool: Pool,
    cancel: Cancel,
    said: SyncSender<Said>,
}

impl HostRequest {
    /// Runs the request. Returns the end of the command, and the seconds until then.
    fn ask(self, input: Option<Receiver<Arc<Vec<u8>>>>) -> (Result<ExecEnd>, f64) {
        let watch = Stopwatch::start();
        (self.converse(input), watch.seconds())
    }

    fn converse(&self, input: Option<Receiver<Arc<Vec<u8>>>>) -> Result<ExecEnd> {
        let (link, mut inc) =
            ask(&self.client, &self.host, &self.request.text(), (&self.pool, WINDOW), input)?;
        self.cancel.watch(&link);
        while let Some((channel, block)) = inc.next_on()? {
            // The receiver is dropped only when the process ends.
            let _ = self.said.send((self.index, Channel::of(channel), block.to_vec()));
        }
        let end = inc.result().map(String::from_utf8_lossy).unwrap_or_default();
        from_json(&end).map_err(|why| Error::BadAnswer { host: self.host.name.clone(), why })
    }
}
