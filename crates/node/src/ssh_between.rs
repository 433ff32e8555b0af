//! Transfers between two hosts reached by ssh: ssh starts both ends, and this process connects them.
//!
//! ```text
//! sink  <==channel== client ==channel==> source        the control stream, keys and addresses
//! sink  <=============== lanes ================ source        direct links if possible, otherwise through the client
//! ```
//!
//! Model: the sink gets the source's key instead of the client's, so the source connects like a client. If there is no
//! direct link, the source opens its streams in its own channel. This process opens a matching stream to the sink for
//! each, and forwards frames in both directions ([`forward_all`]).
//! Invariant: when either channel ends, so does the transfer. This process holds at most [`WINDOW`] blocks for each
//! direction of a stream.
//! Non-goals: interpreting the frames.

use std::sync::Arc;

use thalweg_api::{PumpReceipt, PumpRequest, PumpSaid, SshMeeting, TransferRequest, from_json, to_json};
use thalweg_block::Pool;
use thalweg_engine::{Progress, PumpOptions, SshHost};
use thalweg_transfer::FRAME_BYTES;
use thalweg_wire::{
    ClusterError, Incoming, Link, LinkError, Outgoing, Role, TemporaryIdentity, What, message,
};

use crate::ends::{Initiator, Result, follow, no_link, request, words_of};
use crate::ssh::{OverSsh, RemoteEnd, SshOptions, meeting_of, outcome};

/// The blocks for one direction of a stream in this process.
const WINDOW: usize = 3;

/// Asks one host to send to another, or to copy files between its own directories.
pub(crate) fn between(
    how: &SshOptions,
    (from, to): (&SshHost, &SshHost),
    dest: String,
    options: &PumpOptions,
    progress: &Progress,
) -> Result<PumpReceipt> {
    let mut source = RemoteEnd::start(how, from)?;
    let (channel, greeting) = source.hear(progress)?;
    let transport = source.meet(channel, &greeting)?;
    let mut asked = request(&transport, options, words_of(options)?);
    if from == to {
        asked.dest = Some(dest);
        let moved = ask(&transport, asked, from)
            .and_then(|hearing| follow(hearing, &transport, &to.to_string(), progress));
        return outcome(moved, &mut [source], progress);
    }
    // One after the other, because ssh may prompt the user.
    let mut sink = RemoteEnd::start(how, to)?;
    let (channel, greeting) = sink.hear(progress)?;
    (asked.to, asked.meeting) = (Some((to.to_string(), dest)), Some(sink.meeting(&greeting)));
    let moved = ask(&transport, asked, from).and_then(|mut hearing| {
        let link = sink.link(channel, &greeting, authority(&mut hearing)?)?;
        std::thread::scope(|scope| {
            scope.spawn(|| forward_all(&transport.channel(), &link));
            let moved = follow(hearing, &transport, &to.to_string(), progress);
            transport.channel().close();
            link.close();
            moved
        })
    });
    outcome(moved, &mut [sink, source], progress)
}

fn ask(transport: &OverSsh, asked: PumpRequest, from: &SshHost) -> Result<message::Reader> {
    let (mut out, inc) = transport.begin(&TransferRequest::Pump(Box::new(asked))).map_err(no_link)?;
    out.end(&[]).map_err(no_link)?;
    message::Reader::new(inc, &from.to_string(), FRAME_BYTES).map_err(no_link)
}

/// The certificate of the authority that signs for the source.
fn authority(source: &mut message::Reader) -> Result<String> {
    let said = source.next().map_err(no_link)?.map(|(text, _)| from_json(&text));
    match said {
        Some(Ok(PumpSaid::Authority(authority))) => Ok(authority),
        _ => Err(thalweg_transfer::Error::Protocol(source.peer().into()).into()),
    }
}

/// At the source: sends its authority to the client, and makes the transport to the sink from the sink's greeting.
pub(crate) fn introduced(
    sink: &str,
    meeting: &SshMeeting,
    channel: &Arc<Link>,
    client: &mut Outgoing,
) -> Result<OverSsh> {
    let temporary = TemporaryIdentity::new(meeting_of(sink, &meeting.greeting)?, Role::Client)
        .map_err(ClusterError::from)?;
    message::send(client, &to_json(&PumpSaid::Authority(temporary.authority())), &[]).map_err(no_link)?;
    OverSsh::new(sink.to_string(), temporary, meeting, channel.clone(), false)
}

/// Opens a stream to the sink for every stream of the source and forwards its frames, until the source's channel ends.
fn forward_all(source: &Link, sink: &Link) {
    std::thread::scope(|scope| {
        while let Ok(Some((request, to_source, from_source))) = source.accept() {
            match sink.open(&request) {
                Ok((to_sink, from_sink)) => {
                    scope.spawn(|| forward(from_source, to_sink));
                    scope.spawn(|| forward(from_sink, to_source));
                }
                Err(why) => drop(to_source.abort(&why.to_string())),
            }
        }
    });
}

/// Forwards one direction of a stream until its end, and the end too.
fn forward(from: Incoming, mut to: Outgoing) {
    let pool = match Pool::new(FRAME_BYTES, WINDOW) {
        Ok(pool) => pool,
        Err(why) => return drop(to.abort(&why.to_string())),
    };
    let mut from = from.takes(&pool, WINDOW);
    loop {
        match from.next_on() {
            Ok(Some((channel, block))) => {
                if to.put_on(channel, block).is_err() {
                    return;
                }
            }
            Ok(None) => return drop(to.end(from.result().unwrap_or_default())),
            Err(LinkError { what: What::Aborted(why), .. }) => return drop(to.abort(&why)),
            Err(why) => return drop(to.abort(&thalweg_transfer::Error::Link(why).to_string())),
        }
    }
}
