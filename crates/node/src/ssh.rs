//! Transfers with a host that ssh reaches: this process is one end, and ssh starts the other.
//!
//! ```text
//! client --starts--> ssh ==channel==> sshd --starts--> thalweg pump --serve
//!        ======== lanes, each a direct link if one can be had ========>
//! ```
//!
//! Model: the channel carries a link with the control stream. Before that both sides exchange certificates over it, so lanes
//! can take direct links; where none can be had within [`DIRECT`], lanes are streams of the channel's link.
//! Invariant: above a lane everything is as between nodes. ssh is the user's own, with the user's settings, and may ask
//! questions. Whatever keeps the other end from answering is reported in one line: what ssh or the host's shell said.
//! Non-goals: hosts of a cluster; installing the program there.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::{
    PumpReceipt, ServiceRequest, SshAnswer, SshGreeting, SshMeeting, TransferRequest, from_json, to_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_engine::{Error, Progress, SshHost};
use thalweg_transfer::{Route, SshEnd, SshError, SshFault, Transport};
use thalweg_wire::{
    ClusterError, Credentials, Fleeting, Heard, Id, Link, LinkError, Pipes, Quit, Role, Streams, VERSION,
    What, is_host_name, new_id,
};

use crate::ends::{Asks, Result, no_link, route_of};
use crate::greeting::{SAYING, SERVE, Stranger, greeted, greeting, terms};
use crate::ssh_said::{Said, noise, why_not};

/// What ssh is told besides: nothing that is not for this, and not to wait for ever.
const SSH_OPTIONS: [&str; 10] = [
    "-x",
    "-T",
    "-o",
    "ClearAllForwardings=yes",
    "-o",
    "RemoteCommand=none",
    "-o",
    "PermitLocalCommand=no",
    "-o",
    "ConnectTimeout=10",
];
/// How long the other end may take to speak: sshd lets people log in for 120 s unless told otherwise.
const GREETING_SECONDS: f64 = 150.0;
/// How long a direct link is tried for.
const DIRECT: Duration = Duration::from_secs(2);
/// How many addresses of a name are tried.
const ADDRESSES_MAX: usize = 4;
/// How long ssh may take to end when all is said, and how often it is looked whether it has.
const END_SECONDS: f64 = 5.0;
const LOOK: Duration = Duration::from_millis(5);
/// How long ssh may take to end when the channel has ended before its time.
const DEATH_SECONDS: f64 = 1.0;
/// What this side and, if its name is none for a certificate, the other side are called on direct links.
const CLIENT: &str = "client";
const THERE: &str = "there";

/// How ssh is used.
#[derive(Debug, Clone)]
pub struct SshOptions {
    /// The program and its first arguments.
    pub ssh: Vec<String>,
    /// The program at the other end, as the shell there finds it.
    pub there: String,
    /// Whether to try no direct link.
    pub through: bool,
}

impl Default for SshOptions {
    fn default() -> SshOptions {
        SshOptions { ssh: vec!["ssh".into()], there: "thalweg".into(), through: false }
    }
}

/// What came of it, with what is known of how the other ends ended.
pub(crate) fn outcome(
    moved: Result<PumpReceipt>,
    theres: &mut [There<'_>],
    progress: &Progress,
) -> Result<PumpReceipt> {
    match (moved, progress.cancelled()) {
        (Ok(receipt), _) => {
            for there in theres {
                there.ended_within(END_SECONDS);
            }
            Ok(receipt)
        }
        // A terminal's signal reaches ssh too, and its end may be heard first.
        (Err(_), Some(signal)) => Err(Error::Interrupted(signal)),
        (Err(why), None) if !why.is_wrong() => match theres.iter_mut().find_map(|there| there.died(&why)) {
            Some(died) => Err(died),
            None => Err(why),
        },
        (Err(why), None) => Err(why),
    }
}

fn ssh_error(host: &SshHost, what: SshFault) -> Error {
    thalweg_transfer::Error::from(SshError { host: host.to_string(), what }).into()
}

/// ssh, and what it started.
pub(crate) struct There<'a> {
    child: Child,
    said: Said,
    how: &'a SshOptions,
    host: &'a SshHost,
}

impl<'a> There<'a> {
    pub(crate) fn start(how: &'a SshOptions, host: &'a SshHost) -> Result<There<'a>> {
        let Some((program, first)) = how.ssh.split_first() else {
            return Err(ssh_error(host, SshFault::NoCommand));
        };
        let mut command = Command::new(program);
        command.args(first).args(SSH_OPTIONS);
        if let Some(port) = host.port {
            command.args(["-p", &port.to_string()]);
        }
        if let Some(user) = &host.user {
            command.args(["-l", user]);
        }
        command.arg("--").arg(&host.host).arg(format!("{} {}", how.there, SERVE.join(" ")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let start = |why| ssh_error(host, SshFault::Start { program: program.clone(), why });
        let mut child = command.spawn().map_err(start)?;
        let said = Said::collect(child.stderr.take().expect("a pipe was asked for"));
        Ok(There { child, said, how, host })
    }

    /// Hears who is there.
    pub(crate) fn hear(&mut self, progress: &Progress) -> Result<(Pipes, SshGreeting)> {
        let from: OwnedFd = self.child.stdout.take().expect("a pipe was asked for").into();
        let to: OwnedFd = self.child.stdin.take().expect("a pipe was asked for").into();
        let failed = |why| ssh_error(self.host, SshFault::Channel(why));
        let mut channel = Pipes::new(from, to).map_err(failed)?;
        let watch = Stopwatch::start();
        let goes_on = || progress.cancelled().is_none() && watch.seconds() < GREETING_SECONDS;
        let heard = channel.hear(goes_on).map_err(failed)?;
        match progress.cancelled() {
            Some(signal) => Err(Error::Interrupted(signal)),
            None => Ok((channel, self.understood(heard)?)),
        }
    }

    /// Says who is here, and makes the channel a link.
    pub(crate) fn meet(&self, channel: Pipes, there: &SshGreeting) -> Result<OverSsh> {
        let peer = self.host.to_string();
        let fleeting = Fleeting::new(meeting_of(&peer, there)?, Role::Client).map_err(ClusterError::from)?;
        let link = self.link(channel, there, fleeting.authority())?;
        OverSsh::new(peer, fleeting, &self.meeting(there), Arc::new(link), true)
    }

    /// Says who will come by direct links, and makes the channel a link.
    pub(crate) fn link(&self, mut channel: Pipes, there: &SshGreeting, authority: String) -> Result<Link> {
        let peer = self.host.to_string();
        let answer = SshAnswer { name: self.name(), authority };
        let said = channel.say(&greeting(&to_json(&answer)), SAYING);
        said.map_err(|what| no_link(LinkError::new(&peer, what)))?;
        let meets = (meeting_of(&peer, there)?, Role::Client);
        let link = channel.link(&peer, meets, terms()).map_err(no_link)?;
        link.keep().map_err(|why| ssh_error(self.host, SshFault::Channel(why)))?;
        Ok(link)
    }

    /// How it can be met by who was told of it.
    pub(crate) fn meeting(&self, there: &SshGreeting) -> SshMeeting {
        let address = there.address.filter(|_| !self.how.through);
        let greeting = SshGreeting { address, ..there.clone() };
        SshMeeting { greeting, name: self.name(), host: self.host.host.clone() }
    }

    /// What it is called on direct links.
    fn name(&self) -> String {
        match &self.host.host {
            host if is_host_name(host) && !host.contains(':') => host.clone(),
            _ => THERE.to_string(),
        }
    }

    /// The greeting, or why there was none.
    fn understood(&mut self, heard: Heard) -> Result<SshGreeting> {
        let host = self.host;
        let fault = match heard {
            Heard::Line(line) => match greeted(&line) {
                Ok(json) => match from_json(json) {
                    Ok(greeting) => return Ok(greeting),
                    Err(why) => SshFault::Greeting(why),
                },
                Err(Stranger::Version(theirs)) => SshFault::Version { theirs, ours: VERSION },
                Err(Stranger::Unknown) => noise(&line),
            },
            Heard::Part(part) => {
                let status = self.ended_within(DEATH_SECONDS);
                why_not(&self.how.there, status, &part, self.said.last_line())
            }
            Heard::Nothing => SshFault::Silent(GREETING_SECONDS),
        };
        Err(ssh_error(host, fault))
    }

    /// How ssh ended, if it does so in time. What it started is closed already, or there is nothing to wait for.
    fn ended_within(&mut self, seconds: f64) -> Option<ExitStatus> {
        let watch = Stopwatch::start();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if watch.seconds() < seconds => std::thread::park_timeout(LOOK),
                _ => return None,
            }
        }
    }

    /// The error if ssh, or the program that it started, ended as it should not; the transfer failed with `then`.
    fn died(&mut self, then: &Error) -> Option<Error> {
        use std::os::unix::process::ExitStatusExt;
        let status = self.ended_within(DEATH_SECONDS)?;
        let (how, said) = match (status.signal(), status.code()) {
            (Some(signal), _) => (SshEnd::Signal(signal), String::new()),
            (_, Some(0) | None) => return None,
            (_, Some(status)) => (SshEnd::Status(status), self.said.last_line()),
        };
        Some(ssh_error(self.host, SshFault::Ended { how, said, then: then.to_string() }))
    }
}

impl Drop for There<'_> {
    fn drop(&mut self) {
        // It has ended if all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where direct links are tried.
struct Door {
    credentials: Credentials,
    name: String,
    /// Where the other end says that it listens.
    told: SocketAddr,
    /// The host as it was typed, which may be another address of it.
    host: String,
}

impl Door {
    /// A first direct link, and where it was had.
    fn first(&self) -> Option<(Link, SocketAddr)> {
        let (send, links): (_, Receiver<(Link, SocketAddr)>) = channel();
        for by_name in [false, true] {
            let (send, credentials, name) = (send.clone(), self.credentials.clone(), self.name.clone());
            let (told, host) = (self.told, self.host.clone());
            let tries = move || {
                let addresses: Vec<SocketAddr> = match by_name {
                    false => vec![told],
                    true => {
                        (host.as_str(), told.port()).to_socket_addrs().map_or(Vec::new(), Iterator::collect)
                    }
                };
                let others = addresses.into_iter().filter(|address| !by_name || *address != told);
                let link = others.take(ADDRESSES_MAX).find_map(|address| {
                    credentials.connect(&name, address, terms()).ok().map(|link| (link, address))
                });
                // One that comes too late is closed.
                let _ = link.map(|link| send.send(link));
            };
            let _ = std::thread::Builder::new().name("door".into()).spawn(tries);
        }
        drop(send);
        // The first that is there, or none in time.
        links.recv_timeout(DIRECT).ok()
    }

    fn another(&self, at: SocketAddr) -> thalweg_wire::Result<Link> {
        self.credentials.connect(&self.name, at, terms())
    }
}

/// The way to the other end; its first link is the channel's.
pub(crate) struct OverSsh {
    peer: String,
    /// None if the other end has none, or none is to be tried.
    door: Option<Door>,
    id: String,
    links: Mutex<Vec<Arc<Link>>>,
    /// How to give up what goes through the channel, where that is also whoever introduced the two ends'.
    quits: Option<Mutex<Vec<Quit>>>,
}

/// The meeting that a greeting tells of.
pub(crate) fn meeting_of(peer: &str, there: &SshGreeting) -> Result<Id> {
    there.meeting.parse().map_err(|_| thalweg_transfer::Error::Protocol(peer.into()).into())
}

impl OverSsh {
    /// To who is met there, as whoever this key makes known, with the link of the channel, which may be only for this.
    pub(crate) fn new(
        peer: String,
        fleeting: Fleeting,
        meeting: &SshMeeting,
        link: Arc<Link>,
        is_own: bool,
    ) -> Result<OverSsh> {
        let SshMeeting { greeting, name, host } = meeting;
        let credentials = fleeting.meets(CLIENT, &greeting.authority).map_err(ClusterError::from)?;
        let door =
            greeting.address.map(|told| Door { credentials, name: name.clone(), told, host: host.clone() });
        let (id, links) = (new_id().to_string(), Mutex::new(vec![link]));
        Ok(OverSsh { peer, door, id, links, quits: (!is_own).then(Mutex::default) })
    }

    fn direct_lane(&self, link: Link) -> thalweg_wire::Result<Streams> {
        let link = Arc::new(link);
        let cannot = |e: std::io::Error| LinkError::new(&self.peer, What::Unreachable(e.to_string()));
        link.keep().map_err(cannot)?;
        let streams = link.open(self.lane().as_bytes())?;
        self.links.lock().expect("no holder panics").push(link);
        Ok(streams)
    }

    fn lane(&self) -> String {
        TransferRequest::Lane { id: self.id.clone() }.text()
    }

    fn through_channel(&self, request: &str) -> thalweg_wire::Result<Streams> {
        let (out, inc) = self.channel().open(request.as_bytes())?;
        if let Some(quits) = &self.quits {
            quits.lock().expect("no holder panics").push(inc.quit());
        }
        Ok((out, inc))
    }

    pub(crate) fn channel(&self) -> Arc<Link> {
        self.links.lock().expect("no holder panics")[0].clone()
    }
}

impl Asks for OverSsh {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn begin(&self, request: &TransferRequest) -> thalweg_wire::Result<Streams> {
        self.through_channel(&request.text())
    }
}

impl Transport for OverSsh {
    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn lanes(&self, count: usize) -> thalweg_wire::Result<Vec<Streams>> {
        let Some((door, (first, at))) = self.door.as_ref().and_then(|door| Some((door, door.first()?)))
        else {
            return (0..count).map(|_| self.through_channel(&self.lane())).collect();
        };
        let others = (1..count).map(|_| door.another(at));
        std::iter::once(Ok(first)).chain(others).map(|link| self.direct_lane(link?)).collect()
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.links.lock().expect("no holder panics").clone()
    }

    fn give_up(&self, why: &str) {
        let links = self.links();
        let Some(quits) = &self.quits else { return links.iter().for_each(|link| link.close()) };
        links[1..].iter().for_each(|link| link.close());
        quits.lock().expect("no holder panics").drain(..).for_each(|quit| quit.quit(why));
    }

    fn route(&self) -> Route {
        route_of(&self.links())
    }
}
