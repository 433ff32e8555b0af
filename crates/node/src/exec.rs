//! Runs a command on many nodes at once.
//!
//! Model: a thread for each host connects, shakes hands, asks and listens, all at the same time; what comes is handed to
//! the caller's thread, in the order in which it came from each host.
//! Law: every host that was asked has an end or an error. A client that is stopped takes its jobs with it.
//! Non-goals: printing, shells.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::{
    ClusterFile, ClusterHost, ExecEnd, ExecReport, ExecRequest, HostEnd, Links, NodeRequest, from_json,
    to_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_block::Pool;
use thalweg_wire::{Hands, Identity, Link, Patience, Terms, new_id};

use crate::cluster;
use crate::error::{Error, Result};

/// A block of output or input.
const BLOCK_BYTES: usize = 64 << 10;
/// Blocks of output that one host may have on their way.
const WINDOW: usize = 2;
/// Pieces of output that wait for the caller.
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
    /// Added to the nodes' environment.
    pub env: Vec<(String, String)>,
    /// It is killed after so long.
    pub timeout: Option<Duration>,
    /// It goes on without the client.
    pub detach: bool,
    /// Whether standard input goes to all of them.
    pub stdin: bool,
}

/// Which of a command's two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Stops a run of commands. All clones are one.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Cancelling>);

#[derive(Default)]
struct Cancelling {
    signal: AtomicI32,
    links: Mutex<Vec<Arc<Link>>>,
}

impl Cancel {
    /// Closes all links, so that the nodes end what they run; remembers the signal that asked for it.
    pub fn cancel(&self, signal: i32) {
        self.0.signal.store(signal, Ordering::SeqCst);
        for link in self.0.links.lock().expect("no holder panics").iter() {
            link.close();
        }
    }

    /// The signal that asked for it, if one did.
    pub fn signal(&self) -> Option<i32> {
        Some(self.0.signal.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    /// Watches over a link; false if it is to end at once.
    fn watch(&self, link: &Arc<Link>) -> bool {
        self.0.links.lock().expect("no holder panics").push(link.clone());
        self.signal().is_none()
    }
}

/// A client of a cluster.
pub(crate) struct Client {
    pub(crate) hands: Hands,
    pub(crate) file: ClusterFile,
}

impl Client {
    pub(crate) fn load(identity: &Path) -> Result<Client> {
        let (identity, file) = Identity::load(identity)?;
        Ok(Client { hands: Hands::of(identity)?, file })
    }

    /// The hosts of these names, or all.
    pub(crate) fn hosts(&self, on: &[String]) -> Result<Vec<ClusterHost>> {
        if on.is_empty() {
            return Ok(self.file.hosts.clone());
        }
        let find = |name: &String| {
            let found = self.file.hosts.iter().find(|host| host.name == *name);
            found.cloned().ok_or_else(|| cluster::unknown(&self.file, name))
        };
        on.iter().map(find).collect()
    }

    fn link(&self, host: &ClusterHost) -> Result<Link> {
        let clear = self.file.links == Links::Clear;
        let terms = Terms { clear, block_bytes: BLOCK_BYTES as u32, patience: Patience::default() };
        Ok(self.hands.connect(&host.name, cluster::address_of(host)?, terms)?)
    }
}

/// What comes from a host.
enum Came {
    Bytes(usize, Channel, Vec<u8>),
    Ended(usize, Result<ExecEnd>, f64),
}

/// Runs it and returns when it has ended everywhere. `said` is called with what each host's command says, as it comes.
pub fn exec(
    options: &ExecOptions,
    cancel: &Cancel,
    mut said: impl FnMut(&str, Channel, &[u8]),
) -> Result<ExecReport> {
    let watch = Stopwatch::start();
    let client = Arc::new(Client::load(&options.identity)?);
    let hosts = client.hosts(&options.on)?;
    let request = request(options);
    let pool = Pool::new(BLOCK_BYTES, hosts.len() * WINDOW).map_err(|e| Error::Asked(e.to_string()))?;
    let (send, receive) = sync_channel(WAITING);
    let mut inputs = Vec::new();
    for (i, host) in hosts.iter().enumerate() {
        let (input, chunks) = sync_channel(WINDOW);
        inputs.push(input);
        let host = Ask {
            index: i,
            client: client.clone(),
            host: host.clone(),
            request: request.clone(),
            pool: pool.clone(),
            cancel: cancel.clone(),
            said: send.clone(),
        };
        let input = options.stdin.then_some(chunks);
        let builder = std::thread::Builder::new().name(host.host.name.clone()).stack_size(STACK_BYTES);
        builder
            .spawn(move || host.ask(input))
            .map_err(|e| Error::Asked(format!("no thread for a host: {e}")))?;
    }
    drop(send);
    if options.stdin {
        forward(inputs);
    }
    let mut ends: Vec<HostEnd> = hosts
        .iter()
        .map(|host| HostEnd { host: host.name.clone(), end: None, error: None, seconds: 0.0 })
        .collect();
    for came in receive {
        match came {
            Came::Bytes(i, channel, bytes) => said(&ends[i].host, channel, &bytes),
            Came::Ended(i, outcome, seconds) => {
                ends[i].seconds = seconds;
                match outcome {
                    Ok(end) => ends[i].end = Some(end),
                    Err(why) => ends[i].error = Some(why.to_string()),
                }
            }
        }
    }
    Ok(ExecReport { job: job_of(&request), hosts: ends, seconds: watch.seconds() })
}

fn request(options: &ExecOptions) -> NodeRequest {
    NodeRequest::Exec(ExecRequest {
        job: new_id().to_string(),
        command: options.command.clone(),
        env: options.env.clone(),
        stdin: options.stdin && !options.detach,
        detach: options.detach,
        timeout_ms: options.timeout.map(|timeout| timeout.as_millis() as u64),
    })
}

fn job_of(request: &NodeRequest) -> String {
    match request {
        NodeRequest::Exec(request) => request.job.clone(),
        _ => unreachable!("this room asks for a command here"),
    }
}

/// Reads standard input once and gives each piece to every host that still wants it.
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
    // Without the thread the commands see an end at once.
    let _ = std::thread::Builder::new().name("stdin".into()).stack_size(STACK_BYTES).spawn(body);
}

/// One host's part.
struct Ask {
    index: usize,
    client: Arc<Client>,
    host: ClusterHost,
    request: NodeRequest,
    pool: Pool,
    cancel: Cancel,
    said: SyncSender<Came>,
}

impl Ask {
    fn ask(self, input: Option<Receiver<Arc<Vec<u8>>>>) {
        let watch = Stopwatch::start();
        let outcome = self.converse(input);
        let _ = self.said.send(Came::Ended(self.index, outcome, watch.seconds()));
    }

    fn converse(&self, input: Option<Receiver<Arc<Vec<u8>>>>) -> Result<ExecEnd> {
        let request = to_json(&self.request);
        let most = thalweg_wire::frame::CONTROL_BYTES_MAX as usize;
        if request.len() > most {
            let long = request.len();
            return Err(Error::Asked(format!(
                "a command of {long} bytes with its environment, and {most} is the most; put it into a file"
            )));
        }
        let link = Arc::new(self.client.link(&self.host)?);
        if !self.cancel.watch(&link) {
            link.close();
        }
        let (mut out, inc) = link.open(request.as_bytes())?;
        let mut inc = inc.takes(&self.pool, WINDOW);
        match input {
            None => out.end(&[])?,
            Some(pieces) => {
                let body = move || {
                    for piece in pieces {
                        if out.send(0, &mut piece.to_vec()).is_err() {
                            return;
                        }
                    }
                    let _ = out.end(&[]);
                };
                let builder = std::thread::Builder::new().name("input".into()).stack_size(STACK_BYTES);
                builder
                    .spawn(body)
                    .map_err(|e| Error::Asked(format!("no thread for standard input: {e}")))?;
            }
        }
        while let Some((channel, block)) = inc.next_on()? {
            let channel = if channel == 2 { Channel::Err } else { Channel::Out };
            // Who prints has gone only when the process goes.
            let _ = self.said.send(Came::Bytes(self.index, channel, block.to_vec()));
        }
        let end = inc.result().map(String::from_utf8_lossy).unwrap_or_default();
        from_json(&end)
            .map_err(|why| Error::Asked(format!("{}: an answer that is none: {why}", self.host.name)))
    }
}
