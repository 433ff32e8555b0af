//! Transfers with a host reached by ssh: this process is one end, and ssh starts the other.
//!
//! ```text
//! client --starts--> ssh ==channel==> sshd --starts--> thalweg pump --serve
//!        ======== lanes, direct links if possible ====================>
//! ```
//!
//! Model: the channel carries a link with the control stream. Both sides first exchange certificates over it, so that
//! lanes can use direct links. If none opens within [`DIRECT`], lanes are streams of the channel's link.
//! Invariant: above a lane everything is as between nodes. ssh is the user's own, with the user's settings, and may ask
//! questions. If the other end does not answer, the error says what ssh or the remote shell printed.
//! Non-goals: hosts of a cluster; installing the program on the host.

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
    ClusterError, Credentials, Heard, Id, Link, LinkError, Pipes, Quit, Role, Streams, TemporaryIdentity,
    VERSIONS, What, is_host_name, new_id,
};

use crate::ends::{Initiator, Result, no_link, route_of};
use crate::greeting::{NoGreeting, SAYING, SERVE, greeted, greeting, terms};
use crate::ssh_stderr::{Stderr, noise, why_not};

/// Options for ssh: no forwarding, no local or remote command, and a time limit.
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
/// How long the other end may take to send its greeting. The default time for a login is 120 s.
const GREETING_SECONDS: f64 = 150.0;
/// How long a direct link may take to open.
const DIRECT: Duration = Duration::from_secs(2);
/// The most addresses of a name to try.
const ADDRESSES_MAX: usize = 4;
/// How long ssh may take to end after a transfer, and how often to check.
const END_SECONDS: f64 = 5.0;
const LOOK: Duration = Duration::from_millis(5);
/// How long ssh may take to end after the channel broke.
const DEATH_SECONDS: f64 = 1.0;
/// The name of this side on direct links, and of the other side if its own name does not fit a certificate.
const CLIENT: &str = "client";
const THERE: &str = "there";

/// How to use ssh.
#[derive(Debug, Clone)]
pub struct SshOptions {
    /// The ssh program and its first arguments.
    pub ssh: Vec<String>,
    /// The thalweg program on the remote host, as the shell finds it.
    pub there: String,
    /// Whether to avoid direct links.
    pub through: bool,
}

impl Default for SshOptions {
    fn default() -> SshOptions {
        SshOptions { ssh: vec!["ssh".into()], there: "thalweg".into(), through: false }
    }
}

/// The result of a transfer. If it failed because ssh ended, the error says how.
pub(crate) fn outcome(
    moved: Result<PumpReceipt>,
    remotes: &mut [RemoteEnd<'_>],
    progress: &Progress,
) -> Result<PumpReceipt> {
    match (moved, progress.cancelled()) {
        (Ok(receipt), _) => {
            for remote in remotes {
                remote.ended_within(END_SECONDS);
            }
            Ok(receipt)
        }
        // A terminal's signal also ends ssh, whose end may be noticed first.
        (Err(_), Some(signal)) => Err(Error::Interrupted(signal)),
        (Err(why), None) if !why.is_wrong() => {
            match remotes.iter_mut().find_map(|remote| remote.died(&why)) {
                Some(died) => Err(died),
                None => Err(why),
            }
        }
        (Err(why), None) => Err(why),
    }
}

fn ssh_error(host: &SshHost, what: SshFault) -> Error {
    thalweg_transfer::Error::from(SshError { host: host.to_string(), what }).into()
}

/// The ssh process, and through it the remote program.
pub(crate) struct RemoteEnd<'a> {
    child: Child,
    stderr: Stderr,
    how: &'a SshOptions,
    host: &'a SshHost,
}

impl<'a> RemoteEnd<'a> {
    pub(crate) fn start(how: &'a SshOptions, host: &'a SshHost) -> Result<RemoteEnd<'a>> {
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
        let stderr = Stderr::collect(child.stderr.take().expect("a pipe was asked for"));
        Ok(RemoteEnd { child, stderr, how, host })
    }

    /// Waits for the remote greeting.
    pub(crate) fn hear(&mut self, progress: &Progress) -> Result<(Pipes, SshGreeting)> {
        let from: OwnedFd = self.child.stdout.take().expect("a pipe was asked for").into();
        let to: OwnedFd = self.child.stdin.take().expect("a pipe was asked for").into();
        let failed = |why| ssh_error(self.host, SshFault::Channel(why));
        let mut channel = Pipes::new(from, to).map_err(failed)?;
        let watch = Stopwatch::start();
        let continues = || progress.cancelled().is_none() && watch.seconds() < GREETING_SECONDS;
        let heard = channel.hear(continues).map_err(failed)?;
        match progress.cancelled() {
            Some(signal) => Err(Error::Interrupted(signal)),
            None => Ok((channel, self.understood(heard)?)),
        }
    }

    /// Answers the greeting, and makes a link of the channel.
    pub(crate) fn meet(&self, channel: Pipes, there: &SshGreeting) -> Result<OverSsh> {
        let peer = self.host.to_string();
        let temporary =
            TemporaryIdentity::new(meeting_of(&peer, there)?, Role::Client).map_err(ClusterError::from)?;
        let link = self.link(channel, there, temporary.authority())?;
        OverSsh::new(peer, temporary, &self.meeting(there), Arc::new(link), true)
    }

    /// Sends the authority of the process that will use direct links, and makes a link of the channel.
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

    /// The information that another process needs to connect to this end.
    pub(crate) fn meeting(&self, there: &SshGreeting) -> SshMeeting {
        let address = there.address.filter(|_| !self.how.through);
        let greeting = SshGreeting { address, ..there.clone() };
        SshMeeting { greeting, name: self.name(), host: self.host.host.clone() }
    }

    /// Its name on direct links.
    fn name(&self) -> String {
        match &self.host.host {
            host if is_host_name(host) && !host.contains(':') => host.clone(),
            _ => THERE.to_string(),
        }
    }

    /// The greeting, or an error that says why there was none.
    fn understood(&mut self, heard: Heard) -> Result<SshGreeting> {
        let host = self.host;
        let fault = match heard {
            Heard::Line(line) => match greeted(&line) {
                Ok(json) => match from_json(json) {
                    Ok(greeting) => return Ok(greeting),
                    Err(why) => SshFault::Greeting(why),
                },
                Err(NoGreeting::Versions(theirs)) => SshFault::Versions { theirs, ours: VERSIONS },
                Err(NoGreeting::Unknown) => noise(&line),
            },
            Heard::Part(part) => {
                let status = self.ended_within(DEATH_SECONDS);
                why_not(&self.how.there, status, &part, self.stderr.last_line())
            }
            Heard::Nothing => SshFault::Silent(GREETING_SECONDS),
        };
        Err(ssh_error(host, fault))
    }

    /// The exit status of ssh, if it ends in time.
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

    /// The error if ssh, or the program that it started, failed. `then` is the error of the transfer.
    fn died(&mut self, then: &Error) -> Option<Error> {
        use std::os::unix::process::ExitStatusExt;
        let status = self.ended_within(DEATH_SECONDS)?;
        let (how, said) = match (status.signal(), status.code()) {
            (Some(signal), _) => (SshEnd::Signal(signal), String::new()),
            (_, Some(0) | None) => return None,
            (_, Some(status)) => (SshEnd::Status(status), self.stderr.last_line()),
        };
        Some(ssh_error(self.host, SshFault::Ended { how, said, then: then.to_string() }))
    }
}

impl Drop for RemoteEnd<'_> {
    fn drop(&mut self) {
        // After a success it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How to open direct links.
struct DirectLinks {
    credentials: Credentials,
    name: String,
    /// The address that the other end announced.
    told: SocketAddr,
    /// The host as the user typed it, which may resolve to another address.
    host: String,
}

impl DirectLinks {
    /// The first direct link that opens, and its address.
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
                // If the link is late, sending fails and the link is closed.
                let _ = link.map(|link| send.send(link));
            };
            let _ = std::thread::Builder::new().name("direct".into()).spawn(tries);
        }
        drop(send);
        // The first link that opens, or none within the time limit.
        links.recv_timeout(DIRECT).ok()
    }

    fn another(&self, at: SocketAddr) -> thalweg_wire::Result<Link> {
        self.credentials.connect(&self.name, at, terms())
    }
}

/// The transport to the other end. Its first link is the channel's.
pub(crate) struct OverSsh {
    peer: String,
    /// None if the other end does not listen, or direct links are not wanted.
    direct: Option<DirectLinks>,
    id: String,
    links: Mutex<Vec<Arc<Link>>>,
    /// Ends the streams of the channel, where the channel is shared with the client that connected the two ends.
    quits: Option<Mutex<Vec<Quit>>>,
}

/// The id of the transfer in a greeting.
pub(crate) fn meeting_of(peer: &str, there: &SshGreeting) -> Result<Id> {
    there.meeting.parse().map_err(|_| thalweg_transfer::Error::Protocol(peer.into()).into())
}

impl OverSsh {
    /// A transport to `peer` that authenticates with this key. `is_own`: whether the channel's link serves only this
    /// transfer.
    pub(crate) fn new(
        peer: String,
        temporary: TemporaryIdentity,
        meeting: &SshMeeting,
        link: Arc<Link>,
        is_own: bool,
    ) -> Result<OverSsh> {
        let SshMeeting { greeting, name, host } = meeting;
        let credentials = temporary.meets(CLIENT, &greeting.authority).map_err(ClusterError::from)?;
        let direct = greeting.address.map(|told| DirectLinks {
            credentials,
            name: name.clone(),
            told,
            host: host.clone(),
        });
        let (id, links) = (new_id().to_string(), Mutex::new(vec![link]));
        Ok(OverSsh { peer, direct, id, links, quits: (!is_own).then(Mutex::default) })
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

impl Initiator for OverSsh {
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
        let Some((direct, (first, at))) =
            self.direct.as_ref().and_then(|direct| Some((direct, direct.first()?)))
        else {
            return (0..count).map(|_| self.through_channel(&self.lane())).collect();
        };
        let others = (1..count).map(|_| direct.another(at));
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
