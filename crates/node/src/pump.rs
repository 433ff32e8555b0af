//! Transfers between hosts: the client is one end, or asks two hosts to be the ends.
//!
//! ```text
//! client reads, n1 writes       client ==lanes==> n1
//! n1 reads, client writes       client <==lanes== n1
//! n1 reads, n2 writes           client --asks--> n1 ==lanes==> n2
//! ```
//!
//! Model: the initiator opens a link for the control stream and one for each lane, so that each lane's thread receives
//! its own frames and several cores decrypt. A node matches lanes by the transfer's id.

use std::path::Path;

use thalweg_api::{PumpReceipt, TransferRequest};
use thalweg_engine::{Asked, Endpoint, Progress, PumpOptions};
use thalweg_transfer::FRAME_BYTES;
use thalweg_wire::{Client, message};

use crate::ends::{Result, follow, no_link, pull, push, request, word_of, word_over_ssh, words_of};
use crate::ssh::{RemoteEnd, SshOptions, outcome};
use crate::ssh_between;
use crate::to_node::{ToNode, find};

/// Copies files between this machine and a host of the cluster, or between two hosts.
pub fn pump(identity: &Path, options: &PumpOptions, progress: &Progress) -> Result<PumpReceipt> {
    let client = Client::load(identity)?;
    let from = sources_host(options)?;
    match (from, &options.dest) {
        (None, Endpoint::Host(host, end)) => {
            push(&ToNode::new(client.credentials(), client.file(), host)?, word_of(end)?, options, progress)
        }
        (Some(host), Endpoint::Host(to, end)) => between(&client, &host, to, end, options, progress),
        (Some(host), _) => pull(&ToNode::new(client.credentials(), client.file(), &host)?, options, progress),
        (None, _) => Err(Asked::NoRemoteEnd.into()),
    }
}

/// The host of all sources, if they are on a host. An error if they are on several.
fn sources_host(options: &PumpOptions) -> Result<Option<String>> {
    let mut hosts = options.sources.iter().map(|end| match end {
        Endpoint::Host(host, _) => Some(host),
        _ => None,
    });
    let first = hosts.next().flatten();
    match hosts.all(|host| host == first) {
        true => Ok(first.cloned()),
        false => Err(Asked::SourcesOnHosts.into()),
    }
}

/// Asks one host to send to another, or to copy files between its own directories.
fn between(
    client: &Client,
    host: &str,
    to: &str,
    end: &Endpoint,
    options: &PumpOptions,
    progress: &Progress,
) -> Result<PumpReceipt> {
    find(client.file(), to)?;
    let transport = ToNode::new(client.credentials(), client.file(), host)?;
    let mut request = request(&transport, options, words_of(options)?);
    match (host == to, word_of(end)?) {
        (true, word) => request.dest = Some(word),
        (false, word) => request.to = Some((to.to_string(), word)),
    }
    let (_out, inc) = transport.open(&TransferRequest::Pump(Box::new(request))).map_err(no_link)?;
    let hearing = message::Reader::new(inc, host, FRAME_BYTES).map_err(no_link)?;
    follow(hearing, &transport, to, progress)
}

/// Copies files between this machine and one reached by ssh.
pub fn pump_over_ssh(how: &SshOptions, options: &PumpOptions, progress: &Progress) -> Result<PumpReceipt> {
    let (host, dest) = match (options.sources.first(), &options.dest) {
        (Some(Endpoint::Ssh(from, _)), Endpoint::Ssh(to, end)) => {
            return ssh_between::between(how, (from, to), word_over_ssh(end), options, progress);
        }
        (_, Endpoint::Ssh(host, end)) => (host, Some(word_over_ssh(end))),
        (Some(Endpoint::Ssh(host, _)), _) => (host, None),
        _ => return Err(Asked::NoRemoteEnd.into()),
    };
    let mut remote = RemoteEnd::start(how, host)?;
    let (channel, greeting) = remote.hear(progress)?;
    let moved = remote.meet(channel, &greeting).and_then(|transport| match dest {
        Some(dest) => push(&transport, dest, options, progress),
        None => pull(&transport, options, progress),
    });
    outcome(moved, &mut [remote], progress)
}
