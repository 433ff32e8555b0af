//! Transfers between hosts: the client is one end, or asks two hosts to be the ends.
//!
//! ```text
//! client reads, n1 writes       client ==lanes==> n1
//! n1 reads, client writes       client <==lanes== n1
//! n1 reads, n2 writes           client --asks--> n1 ==lanes==> n2
//! several write                 client ==lanes==> n1 ==lanes==> n2 ==lanes==> n3
//! ```
//!
//! Model: the initiator opens a link for the control stream and one for each lane, so that each lane's thread receives
//! its own frames and several cores decrypt. A node matches lanes by the transfer's id.

use std::path::Path;

use thalweg_api::{PumpReceipt, TransferRequest};
use thalweg_base::host_list;
use thalweg_engine::{Asked, Endpoint, Error, Progress, PumpOptions};
use thalweg_transfer::FRAME_BYTES;
use thalweg_wire::cluster::HOSTS_MAX;
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
            let (host, onward) = chain(&client, host)?;
            let transport = ToNode::new(client.credentials(), client.file(), &host)?;
            push(&transport, (word_of(end)?, onward), options, progress)
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

/// The first host of a list, and those that it sends on to.
fn chain(client: &Client, list: &str) -> Result<(String, Option<Vec<String>>)> {
    let wrong = |why| Error::from(Asked::Hosts(why));
    let hosts = match list.contains([',', '[', '!', '@']) {
        false => vec![find(client.file(), list)?.name.clone()],
        true => {
            let listed = host_list::expand(list, HOSTS_MAX).map_err(wrong)?;
            client.hosts(&listed)?.into_iter().map(|host| host.name).collect()
        }
    };
    let mut hosts = hosts.into_iter();
    let first = hosts.next().expect("a list without hosts is refused");
    let onward: Vec<String> = hosts.collect();
    Ok((first, (!onward.is_empty()).then_some(onward)))
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
    let (to, onward) = chain(client, to)?;
    if onward.iter().flatten().any(|other| other == host) || (onward.is_some() && to == host) {
        return Err(Asked::SourceInChain(host.into()).into());
    }
    let transport = ToNode::new(client.credentials(), client.file(), host)?;
    let mut request = request(&transport, options, words_of(options)?);
    match (host == to, word_of(end)?) {
        (true, word) => request.dest = Some(word),
        (false, word) => (request.to, request.onward) = (Some((to.clone(), word)), onward),
    }
    let (_out, inc) = transport.open(&TransferRequest::Pump(Box::new(request))).map_err(no_link)?;
    let hearing = message::Reader::new(inc, host, FRAME_BYTES).map_err(no_link)?;
    follow(hearing, &transport, &to, progress)
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
        Some(dest) => push(&transport, (dest, None), options, progress),
        None => pull(&transport, options, progress),
    });
    outcome(moved, &mut [remote], progress)
}
