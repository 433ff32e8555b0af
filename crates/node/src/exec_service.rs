//! The service `exec`: runs commands here, or relays them to other hosts.

use std::sync::Arc;

use thalweg_api::{CommandRequest, ExecRequest, RelayRequest, ServiceRequest, from_json, to_json};
use thalweg_block::Pool;
use thalweg_job::Jobs;
use thalweg_wire::{Host, Peer, Service, Streams};

use crate::{Result, exec_session, relay};

/// Blocks for the input that clients send.
const BLOCKS: usize = 64;

/// The service `exec` of a node.
pub struct ExecService {
    host: Arc<Host>,
    jobs: Arc<Jobs>,
    pool: Pool,
}

impl ExecService {
    /// The service on this host; it adds its jobs to `jobs`.
    pub fn new(host: &Arc<Host>, jobs: &Arc<Jobs>) -> Result<ExecService> {
        let pool = Pool::new(thalweg_transfer::FRAME_BYTES, BLOCKS)?;
        Ok(ExecService { host: host.clone(), jobs: jobs.clone(), pool })
    }

    fn run(&self, peer: &Peer<'_>, exec: ExecRequest, (out, inc): Streams) -> bool {
        let what = if exec.detach { "exec detached" } else { "exec" };
        let entry = peer.entry(what, &exec.command).of_job(&exec.job);
        let (jobs, pool) = (self.jobs.clone(), self.pool.clone());
        let (host, by) = (self.host.name().to_string(), peer.link.peer().to_string());
        entry.spawn("stream", move |entry| {
            let id = exec.job.clone();
            let end = exec_session::run(&jobs, (&host, &by), exec, out, inc, &pool);
            entry.ends_as(&end);
            if let Some(job) = jobs.find(&id) {
                entry.bytes(job.report().output_bytes);
            }
        })
    }

    fn relay(&self, peer: &Peer<'_>, request: RelayRequest, (out, inc): Streams) -> bool {
        let (job, words) = match &*request.ask {
            CommandRequest::Run(exec) => (&*exec.job, &exec.command[..]),
            _ => ("", &[][..]),
        };
        let entry = peer.entry("relay", words).of_job(job).on(&request.on);
        let (host, pool) = (self.host.clone(), self.pool.clone());
        entry.spawn("relay", move |entry| {
            relay::run((&host, &pool), request, out, inc);
            entry.ends("done");
        })
    }
}

impl Service for ExecService {
    fn name(&self) -> &'static str {
        CommandRequest::SERVICE
    }

    fn is_harmless(&self, body: &str) -> bool {
        matches!(from_json(body), Ok(CommandRequest::Ping))
    }

    fn serve(self: Arc<Self>, peer: &Peer<'_>, body: &str, (mut out, inc): Streams) -> bool {
        match from_json(body) {
            Ok(CommandRequest::Run(exec)) => self.run(peer, exec, (out, inc)),
            Ok(CommandRequest::Relay(request)) => self.relay(peer, request, (out, inc)),
            Ok(CommandRequest::Ping) => out.end(to_json(&exec_session::nothing()).as_bytes()).is_ok(),
            Err(why) => out.abort(&format!("this node does not know the request: {why}")).is_ok(),
        }
    }
}
