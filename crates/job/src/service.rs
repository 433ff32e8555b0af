//! The service of jobs: taking part in them, coordinating them, voting, checking and measuring.

use std::sync::Arc;
use std::time::Duration;

use thalweg_api::{JobRequest, ServiceRequest, from_json, to_json};
use thalweg_wire::threads::{caught, spawn};
use thalweg_wire::{Entry, Host, Metric, Peer, Route, Service, Streams};

use crate::agreement;
use crate::jobs::{Jobs, begun};
use crate::local::Local;
use crate::{check, participant, probe, routes, settle, successor};

/// The service of jobs on a node.
pub struct JobService {
    local: Arc<Local>,
}

impl JobService {
    /// The service on this host, with these jobs. A host with an identity settles what it voted on before.
    pub fn new(host: &Arc<Host>, jobs: &Arc<Jobs>) -> JobService {
        let local = Arc::new(Local::of(host, jobs));
        if host.directory().is_some() {
            let settling = local.clone();
            spawn("settler", move || while caught(|| settle::settle(&settling)).is_err() {});
        }
        JobService { local }
    }

    /// Reports to a participant how a job ended.
    fn ended(local: &Local, entry: &mut Entry, id: &str) {
        match local.jobs.find(id).map(|job| job.report()) {
            Some(job) => {
                let why = job.why.map_or(String::new(), |why| format!(": {why}"));
                entry.ends(format!("{:?}", job.state).to_lowercase() + &why);
            }
            None => entry.ends("it came to nothing"),
        }
    }
}

impl Service for JobService {
    fn name(&self) -> &'static str {
        JobRequest::SERVICE
    }

    fn serve(self: Arc<Self>, peer: &Peer<'_>, body: &str, (mut out, inc): Streams) -> bool {
        let (local, link) = (self.local.clone(), peer.link.clone());
        let request = match from_json(body) {
            Ok(request) => request,
            Err(why) => return out.abort(&format!("a request that is not known here: {why}")).is_ok(),
        };
        match request {
            JobRequest::Sort(request) => {
                let entry = peer.entry("job", &request.ask.words()).of_job(&request.job);
                entry.spawn("sort", move |entry| {
                    let id = request.job.clone();
                    participant::serve(&local, &link, request, (out, inc));
                    JobService::ended(&local, entry, &id);
                })
            }
            JobRequest::Check(request) => peer.entry("check", &request.inputs).spawn("check", move |entry| {
                check::serve(&local, &link, &request, (out, inc));
                entry.ends("done");
            }),
            JobRequest::Coordinate(request) => {
                let mut entry = peer.entry("coordinate", &request.ask.words()).of_job(&request.job);
                let begins = successor::begin(&local, request);
                entry.ends(begins.as_ref().map_or_else(|why| format!("refused: {why}"), |()| "begun".into()));
                out.end(to_json(&begun(begins)).as_bytes()).is_ok()
            }
            JobRequest::River { job, attempt, from } => {
                local.participations.river((&job, attempt), from, (out, inc), &link);
                true
            }
            // A vote waits for the disk.
            JobRequest::Vote(request) => spawn("vote", move || {
                let said = agreement::serve(&local, &link, *request);
                let _ = out.end(to_json(&said).as_bytes());
                drop(inc);
            }),
            JobRequest::Probe(request) => peer.entry("probe", &[]).spawn("probe", move |entry| {
                probe::serve(&local, request, (out, inc));
                entry.ends("done");
            }),
        }
    }

    fn routes(self: Arc<Self>) -> Vec<Route> {
        routes::of(&self.local.jobs)
    }

    fn metrics(&self) -> Vec<Metric> {
        let (running, ended) = self.local.jobs.counts();
        let metric = |name, kind, help, value: u64| Metric { name, kind, help, value: value as f64 };
        vec![
            metric("jobs_running", "gauge", "Jobs that run.", running),
            metric("jobs_ended_total", "counter", "Jobs that have ended.", ended),
        ]
    }

    fn stop(&self, patience: Duration) {
        self.local.jobs.close(patience);
    }
}
