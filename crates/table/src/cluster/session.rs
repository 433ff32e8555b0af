//! The stream of a client to a node: its requests, where its replies go, and what it sends and multicasts beside it.

use std::sync::Arc;
use std::time::Duration;

use thalweg_api::TableMulticast;
use thalweg_wire::threads::spawn;
use thalweg_wire::{Incoming, Link, Outgoing, cluster};

use super::datagrams::{self, Datagrams};
use super::journal::ClientId;
use super::message::Message;
use super::multicast::Group;
use super::service::{Medium, TableService, ToClient};
use super::stream::{Outlet, Reader, framed, locked};
use super::table::now_ms;

/// The most streams of clients.
const SESSIONS_MAX: usize = 1024;

impl TableService {
    /// Processes the requests of a client, and sends the replies.
    pub(super) fn session(
        self: &Arc<Self>,
        link: &Link,
        (out, inc): (Outgoing, Incoming),
        may_change: bool,
    ) -> std::result::Result<(), String> {
        let mut reader = Reader::new(link, inc)?;
        let outlet = Arc::new(Outlet::default());
        let sends = Arc::clone(&outlet);
        if !spawn("table", move || sends.run(out)) {
            return Err("this node has no thread left".into());
        }
        let session = Session { service: self, outlet, client: None, datagrams: None, sender: None };
        session.serve(link, &mut reader, may_change)
    }

    /// What this node receives in the cluster's group, or why it receives nothing. A thread receives it.
    pub(super) fn group(self: &Arc<Self>) -> &std::result::Result<Arc<Group>, String> {
        let start = || {
            let datagrams = Arc::clone(self.datagrams().ok_or("no UDP port can be opened")?);
            let file = self.host.cluster_file().ok_or("this node is in no cluster")?;
            let address = self.host.declared().map(|host| cluster::address_of(&host));
            let address = address.ok_or("this node is in no cluster")?.map_err(|why| why.to_string())?;
            let group = Arc::new(Group::join(&file.id, address)?);
            let (service, receives) = (Arc::clone(self), Arc::clone(&group));
            let receives = move || {
                let is_needed = || !service.host.is_stopping_within(Duration::ZERO);
                receives.run(&datagrams, is_needed, |session, requests| {
                    service.requests((session.client, Medium::Datagrams), session.may_change, requests);
                });
            };
            spawn("multicast", receives).then_some(group).ok_or("the system has no thread left".into())
        };
        self.group.get_or_init(start)
    }

    /// What the node has received in the group, if a client has asked for that.
    pub(super) fn multicast(&self) -> Option<TableMulticast> {
        let failed = |why: &String| TableMulticast { failed: Some(why.clone()), ..TableMulticast::default() };
        Some(self.group.get()?.as_ref().map_or_else(failed, |group| group.shown()))
    }
}

/// The stream of a client.
struct Session<'a> {
    service: &'a Arc<TableService>,
    outlet: Arc<Outlet>,
    /// The client, once its first message has said which of its sessions this is.
    client: Option<ClientId>,
    datagrams: Option<(Arc<datagrams::Session>, Arc<Datagrams>)>,
    /// The number of the client as a sender of multicast datagrams.
    sender: Option<(u64, Arc<Group>)>,
}

impl Session<'_> {
    fn serve(
        mut self,
        link: &Link,
        reader: &mut Reader,
        may_change: bool,
    ) -> std::result::Result<(), String> {
        let peer = link.hello().node.0;
        let of = |session| ClientId { peer: [(peer >> 64) as u64, peer as u64], session };
        while let Some(message) = reader.next()? {
            let message = match message {
                Message::Requests(requests) => {
                    let client = of(requests.client.session);
                    self.is(client)?;
                    self.service.requests((client, Medium::Link), may_change, requests);
                    continue;
                }
                Message::OpenDatagrams { client, bytes } => {
                    let client = of(client.session);
                    self.is(client)?;
                    self.open_datagrams(link, client, (bytes, may_change))?;
                    continue;
                }
                Message::OpenMulticast { secret } => {
                    self.open_multicast(&secret)?;
                    continue;
                }
                Message::Where { table, client } => {
                    let client = of(client.session);
                    self.is(client)?;
                    Message::Where { table, client }
                }
                _ => return Err("a client sent what only nodes send".into()),
            };
            self.service.with_buckets(|buckets, out| buckets.take(now_ms(), &"".into(), message, out));
        }
        Ok(())
    }

    /// Directs the replies to a client to this stream.
    fn is(&mut self, client: ClientId) -> std::result::Result<(), String> {
        if self.client == Some(client) {
            return Ok(());
        }
        let mut clients = locked(&self.service.clients);
        if self.client.is_some() || clients.len() >= SESSIONS_MAX {
            return Err(format!(
                "a stream is for one session, and a node has at most {SESSIONS_MAX} of them"
            ));
        }
        self.client = Some(client);
        clients.insert(client, ToClient { outlet: Arc::clone(&self.outlet), datagrams: None });
        Ok(())
    }

    /// Opens a session of datagrams beside this stream. Without a port, the client does not hear of one.
    fn open_datagrams(
        &mut self,
        link: &Link,
        client: ClientId,
        (bytes, may_change): (u32, bool),
    ) -> std::result::Result<(), String> {
        if self.datagrams.is_some() {
            return Err("a stream has one session of datagrams".into());
        }
        let Some(datagrams) = self.service.datagrams() else { return Ok(()) };
        let Some((session, opened)) = datagrams.open(link, client, bytes, may_change) else { return Ok(()) };
        if let Some(to) = locked(&self.service.clients).get_mut(&client) {
            to.datagrams = Some(Arc::clone(&session));
        }
        self.datagrams = Some((session, Arc::clone(datagrams)));
        self.outlet.put(framed(&opened));
        Ok(())
    }

    /// Receives what the client multicasts with this secret, and nothing more with an earlier one. If this node cannot
    /// receive it, the client does not hear of it.
    fn open_multicast(&mut self, secret: &[u8]) -> std::result::Result<(), String> {
        let Some((session, _)) = &self.datagrams else { return Err("it has no session of datagrams".into()) };
        let Ok(group) = self.service.group() else { return Ok(()) };
        let (number, opened) = group.open(secret, session).ok_or("a secret for multicast is used once")?;
        if let Some((earlier, _)) = self.sender.replace((number, Arc::clone(group))) {
            group.close(earlier);
        }
        self.outlet.put(framed(&opened));
        Ok(())
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.outlet.close();
        self.datagrams.iter().for_each(|(session, datagrams)| datagrams.close(session));
        self.sender.iter().for_each(|(number, group)| group.close(*number));
        let Some(client) = self.client else { return };
        let mut clients = locked(&self.service.clients);
        // The client may have reconnected on another stream.
        if clients.get(&client).is_some_and(|to| Arc::ptr_eq(&to.outlet, &self.outlet)) {
            clients.remove(&client);
        }
    }
}
