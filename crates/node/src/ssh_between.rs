//! Transfers between two hosts that ssh reaches: ssh starts both ends, and this process only introduces them.
//!
//! ```text
//! sink  <==channel== client ==channel==> source        the control stream, and what it takes to meet
//! sink  <=============== lanes ================ source        direct links if they can be had, else as the control stream
//! ```
//!
//! Model: the sink is given the source's key as if it were the client's, so the source connects as a client would. Streams
//! for which there is no direct link the source opens in its own channel; here each is opened once more towards the sink,
//! and frames are passed on both ways ([`pass_all`]).
//! Invariant: when either channel ends, so does the transfer. Of a stream at most [`WINDOW`] blocks each way are here.
//! Non-goals: what the frames mean.

use std::sync::Arc;

use thalweg_api::{PumpReceipt, PumpRequest, PumpSaid, SshMeeting, TransferRequest, from_json, to_json};
use thalweg_block::Pool;
use thalweg_engine::{Progress, PumpOptions, SshHost};
use thalweg_transfer::FRAME_BYTES;
use thalweg_wire::{ClusterError, Fleeting, Incoming, Link, LinkError, Outgoing, Role, What, message};

use crate::ends::{Asks, Result, follow, no_link, request, words_of};
use crate::ssh::{OverSsh, SshOptions, There, meeting_of, outcome};

/// Blocks of a stream that are on their way through here in one direction.
const WINDOW: usize = 3;

/// Has one host send to another, or move between its own directories.
pub(crate) fn between(
    how: &SshOptions,
    (from, to): (&SshHost, &SshHost),
    dest: String,
    options: &PumpOptions,
    progress: &Progress,
) -> Result<PumpReceipt> {
    let mut source = There::start(how, from)?;
    let (channel, greeting) = source.hear(progress)?;
    let transport = source.meet(channel, &greeting)?;
    let mut asked = request(&transport, options, words_of(options)?);
    if from == to {
        asked.dest = Some(dest);
        let moved = ask(&transport, asked, from)
            .and_then(|hearing| follow(hearing, &transport, &to.to_string(), progress));
        return outcome(moved, &mut [source], progress);
    }
    // One after the other: ssh may have to ask the user for something.
    let mut sink = There::start(how, to)?;
    let (channel, greeting) = sink.hear(progress)?;
    (asked.to, asked.meeting) = (Some((to.to_string(), dest)), Some(sink.meeting(&greeting)));
    let moved = ask(&transport, asked, from).and_then(|mut hearing| {
        let link = sink.link(channel, &greeting, authority(&mut hearing)?)?;
        std::thread::scope(|scope| {
            scope.spawn(|| pass_all(&transport.channel(), &link));
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

/// By what the source can be known.
fn authority(source: &mut message::Reader) -> Result<String> {
    let said = source.next().map_err(no_link)?.map(|(text, _)| from_json(&text));
    match said {
        Some(Ok(PumpSaid::Authority(authority))) => Ok(authority),
        _ => Err(thalweg_transfer::Error::Protocol(source.peer().into()).into()),
    }
}

/// At the source: says who it is, and makes the way to the sink out of what was said of that.
pub(crate) fn introduced(
    sink: &str,
    meeting: &SshMeeting,
    channel: &Arc<Link>,
    client: &mut Outgoing,
) -> Result<OverSsh> {
    let fleeting =
        Fleeting::new(meeting_of(sink, &meeting.greeting)?, Role::Client).map_err(ClusterError::from)?;
    message::send(client, &to_json(&PumpSaid::Authority(fleeting.authority())), &[]).map_err(no_link)?;
    OverSsh::new(sink.to_string(), fleeting, meeting, channel.clone(), false)
}

/// Opens what the source opens towards the sink too, and passes on what comes, until the source's channel ends.
fn pass_all(source: &Link, sink: &Link) {
    std::thread::scope(|scope| {
        while let Ok(Some((request, to_source, from_source))) = source.accept() {
            match sink.open(&request) {
                Ok((to_sink, from_sink)) => {
                    scope.spawn(|| pass(from_source, to_sink));
                    scope.spawn(|| pass(from_sink, to_source));
                }
                Err(why) => drop(to_source.abort(&why.to_string())),
            }
        }
    });
}

/// Passes on what comes, and how it ends.
fn pass(from: Incoming, mut to: Outgoing) {
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
