//! Requests to nodes over HTTP: their status, their jobs, and cancelling a job.
//!
//! Invariant: all hosts are asked at the same time. Each may take [`ANSWER_SECONDS`]; one that does not answer is
//! reported and does not delay the others.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use thalweg_api::{
    ClusterDoctor, ClusterHost, ClusterReport, DoctorReport, HostDoctor, HostReport, JobList, JobReport,
    JobState, NodeStatus, from_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_wire::mesh::there_twice;
use thalweg_wire::{Client, cluster};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::error::NoAnswer;
use crate::{Error, Result};

/// The time limit of an answer.
pub const ANSWER_SECONDS: u64 = 5;
/// The size limit of an answer.
const ANSWER_BYTES_MAX: usize = 32 << 20;

type Answer<T> = std::result::Result<T, NoAnswer>;

/// The status of every node of the cluster.
pub fn status(identity: &Path) -> Result<ClusterReport> {
    let client = Client::load(identity)?;
    let answers = on_all(&client, &client.file().hosts, |client, host| async move {
        let text = ask(client, host, Method::GET, "/v1/status", "").await?;
        from_json::<NodeStatus>(&text).map_err(NoAnswer::Json)
    })?;
    let statuses = answers.iter().filter_map(|(answer, _)| answer.as_ref().ok());
    let warnings = warnings(&client, statuses);
    let hosts = client.file().hosts.iter().zip(answers).map(|(host, (answer, seconds))| HostReport {
        host: host.name.clone(),
        address: host.address.clone(),
        error: answer.as_ref().err().map(ToString::to_string),
        status: answer.ok(),
        seconds,
    });
    Ok(ClusterReport {
        name: client.file().name.clone(),
        cluster: client.file().id.clone(),
        epoch: client.file().epoch,
        warnings,
        hosts: hosts.collect(),
    })
}

/// Warns if certificates of this client, the authority or the nodes expire soon, or if a certificate is in use twice.
fn warnings<'a>(client: &Client, statuses: impl Iterator<Item = &'a NodeStatus> + Clone) -> Vec<String> {
    let identity = client.credentials().identity();
    let [own, authority] = identity.ends;
    let renew = |name: &str| format!("thalweg cluster renew {name} makes a new one");
    let name = &identity.name;
    let own = cluster::ends_soon(&format!("the certificate of this client, {name},"), own, &renew(name));
    let remedy = "make a new cluster with thalweg cluster init in another directory, and install it";
    let authority = cluster::ends_soon("the certificate of the cluster's authority", authority, remedy);
    let twice: BTreeSet<&String> = statuses.clone().flat_map(|node| &node.twice).collect();
    let hosts = statuses.filter_map(|node| {
        let remedy = format!("{}, and thalweg cluster install brings it", renew(&node.name));
        cluster::ends_soon(&format!("the certificate of host {}", node.name), node.certificate_ends, &remedy)
    });
    let twice = twice.into_iter().map(|host| there_twice(host));
    own.into_iter().chain(authority).chain(hosts).chain(twice).collect()
}

/// The findings of the nodes of these hosts, or of all, about their machines.
pub fn doctor(identity: &Path, on: &[String]) -> Result<ClusterDoctor> {
    let client = Client::load(identity)?;
    let hosts = client.hosts(on)?;
    let answers = on_all(&client, &hosts, |client, host| async move {
        let text = ask(client, host, Method::GET, "/v1/doctor", "").await?;
        let status = ask(client, host, Method::GET, "/v1/status", "").await?;
        let findings = from_json::<DoctorReport>(&text).map_err(NoAnswer::Json)?;
        Ok((findings, from_json::<NodeStatus>(&status).map_err(NoAnswer::Json)?))
    })?;
    let statuses = answers.iter().filter_map(|(answer, _)| Some(&answer.as_ref().ok()?.1));
    let warnings = warnings(&client, statuses);
    let hosts = hosts.iter().zip(answers).map(|(host, (answer, _))| HostDoctor {
        host: host.name.clone(),
        error: answer.as_ref().err().map(ToString::to_string),
        findings: answer.map_or(Vec::new(), |(report, _)| report.findings),
    });
    Ok(ClusterDoctor { warnings, hosts: hosts.collect() })
}

/// The status of one node.
pub fn status_of(identity: &Path, host: &str) -> Result<NodeStatus> {
    let client = Client::load(identity)?;
    let hosts = client.hosts(&[host.to_string()])?;
    let answers = on_all(&client, &hosts, |client, host| async move {
        let text = ask(client, host, Method::GET, "/v1/status", "").await?;
        from_json::<NodeStatus>(&text).map_err(NoAnswer::Json)
    })?;
    let (answer, _) = answers.into_iter().next().expect("one was asked");
    answer.map_err(Error::from)
}

/// Has a node take no new jobs for ten seconds from now on. Returns the jobs that run there.
pub fn drain(identity: &Path, host: &str) -> Result<Vec<JobReport>> {
    let client = Client::load(identity)?;
    let hosts = client.hosts(&[host.to_string()])?;
    let answers = on_all(&client, &hosts, |client, host| async move {
        let text = ask(client, host, Method::POST, "/v1/drain", "").await?;
        from_json::<JobList>(&text).map_err(NoAnswer::Json)
    })?;
    let (answer, _) = answers.into_iter().next().expect("one was asked");
    Ok(answer?.jobs)
}

/// The jobs on these hosts, or on all hosts.
pub fn jobs(identity: &Path, on: &[String]) -> Result<JobList> {
    let client = Client::load(identity)?;
    let hosts = client.hosts(on)?;
    let answers = on_all(&client, &hosts, |client, host| async move {
        let text = ask(client, host, Method::GET, "/v1/jobs", "").await?;
        from_json::<JobList>(&text).map(|list| list.jobs).map_err(NoAnswer::Json)
    })?;
    Ok(gathered(&hosts, answers))
}

/// One job on all hosts that know it; `cancel` ends it there. An abbreviated id must be unique.
pub fn job(identity: &Path, id: &str, cancel: bool) -> Result<JobList> {
    let list = jobs(identity, &[])?;
    let id = whole_id(&list, id)?;
    if !cancel {
        let jobs = list.jobs.into_iter().filter(|job| job.id == id).collect();
        return Ok(JobList { jobs, errors: list.errors });
    }
    if list.jobs.iter().filter(|job| job.id == id).all(|job| job.state != JobState::Running) {
        return Err(Error::JobEnded(id));
    }
    let client = Client::load(identity)?;
    let there = |host: &&ClusterHost| list.jobs.iter().any(|job| job.id == id && job.host == host.name);
    let hosts: Vec<ClusterHost> = client.file().hosts.iter().filter(there).cloned().collect();
    let path = format!("/v1/jobs/{id}/cancel");
    let answers = on_all(&client, &hosts, |client, host| {
        let path = path.clone();
        async move {
            let text = ask(client, host, Method::POST, &path, "").await?;
            from_json::<JobReport>(&text).map(|job| vec![job]).map_err(NoAnswer::Json)
        }
    })?;
    let mut cancelled = gathered(&hosts, answers);
    // The job may still run on a host that does not answer.
    cancelled.errors.extend(list.errors);
    Ok(cancelled)
}

/// Follows a job on all hosts that know it, until each has reported its end or stopped answering. Calls `seen` with
/// every report.
pub fn watch(identity: &Path, id: &str, mut seen: impl FnMut(&JobReport)) -> Result<JobList> {
    let mut list = job(identity, id, false)?;
    let client = Client::load(identity)?;
    let (send, mut receive) = tokio::sync::mpsc::channel::<std::result::Result<JobReport, String>>(16);
    let runtime = runtime()?;
    let mut last = list.jobs.clone();
    runtime.block_on(async {
        for job in &list.jobs {
            let Some(host) = client.file().hosts.iter().find(|host| host.name == job.host) else { continue };
            let patience = Duration::from_secs(ANSWER_SECONDS);
            let Ok(Ok(mut sender)) = tokio::time::timeout(patience, connect(&client, host)).await else {
                list.errors.push(format!("{}: its node cannot be reached any more", job.host));
                continue;
            };
            let path = format!("/v1/jobs/{}/events", job.id);
            let (send, host) = (send.clone(), job.host.clone());
            let Ok(request) = request(&host, Method::GET, &path, "") else { continue };
            tokio::spawn(async move {
                let answer = tokio::time::timeout(patience, sender.send_request(request)).await;
                let ended = match answer {
                    Ok(Ok(answer)) => follow(answer, &send).await,
                    _ => false,
                };
                if !ended {
                    let _ = send.send(Err(format!("{host}: {}", NoAnswer::Silent))).await;
                }
            });
        }
        drop(send);
        while let Some(report) = receive.recv().await {
            let report = match report {
                Ok(report) => report,
                Err(why) => {
                    list.errors.push(why);
                    continue;
                }
            };
            seen(&report);
            if let Some(old) = last.iter_mut().find(|job| job.host == report.host) {
                *old = report;
            }
        }
    });
    Ok(JobList { jobs: last, errors: list.errors })
}

/// Sends the new cluster file to all hosts except these. Returns a line for each failure.
pub fn tell(identity: &Path, but: &[String]) -> Result<Vec<String>> {
    let client = Client::load(identity)?;
    let told = client.file().hosts.iter().filter(|host| !but.contains(&host.name));
    let hosts = &told.cloned().collect::<Vec<ClusterHost>>();
    let text = cluster::text_in(identity)?;
    let answers = on_all(&client, hosts, |client, host| {
        let text = text.clone();
        async move { ask(client, host, Method::PUT, "/v1/cluster", &text).await }
    })?;
    let wrong = hosts
        .iter()
        .zip(answers)
        .filter_map(|(host, (answer, _))| answer.err().map(|why| format!("{}: {why}", host.name)));
    Ok(wrong.collect())
}

fn whole_id(list: &JobList, id: &str) -> Result<String> {
    let mut ids: Vec<&str> =
        list.jobs.iter().map(|job| job.id.as_str()).filter(|full| full.starts_with(id)).collect();
    ids.sort_unstable();
    ids.dedup();
    match ids[..] {
        [one] if !id.is_empty() => Ok(one.to_string()),
        [] => Err(Error::UnknownJob(id.into())),
        _ => Err(Error::AmbiguousJob { id: id.into(), jobs: ids.len() }),
    }
}

fn gathered(hosts: &[ClusterHost], answers: Vec<(Answer<Vec<JobReport>>, f64)>) -> JobList {
    let mut list = JobList { jobs: Vec::new(), errors: Vec::new() };
    for (host, (answer, _)) in hosts.iter().zip(answers) {
        match answer {
            Ok(jobs) => list.jobs.extend(jobs),
            Err(why) => list.errors.push(format!("{}: {why}", host.name)),
        }
    }
    list
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Error::Thread)
}

/// Sends a request to all hosts at the same time. Returns the answers in the same order, each with its time in seconds.
fn on_all<'a, T, F>(
    client: &'a Client,
    hosts: &'a [ClusterHost],
    each: impl Fn(&'a Client, &'a ClusterHost) -> F,
) -> Result<Vec<(Answer<T>, f64)>>
where
    F: Future<Output = Answer<T>>,
{
    let patience = Duration::from_secs(ANSWER_SECONDS);
    let one = |host| {
        let answer = each(client, host);
        async move {
            let watch = Stopwatch::start();
            let answer = tokio::time::timeout(patience, answer).await;
            (answer.unwrap_or(Err(NoAnswer::Late)), watch.seconds())
        }
    };
    Ok(runtime()?.block_on(join(hosts.iter().map(one).collect())))
}

/// Runs all futures concurrently to their ends.
async fn join<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, output) in running.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *output = Some(value);
            }
        }
        if outputs.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

type Sender = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

async fn connect(client: &Client, host: &ClusterHost) -> Answer<Sender> {
    let address = cluster::address_of(host)?;
    #[allow(clippy::disallowed_methods)] // HTTP is asynchronous, and so are its sockets.
    let socket = TcpStream::connect(address)
        .await
        .map_err(|e| NoAnswer::Unreachable { address, why: thalweg_wire::unreachable(&e) })?;
    socket.set_nodelay(true)?;
    let name = ServerName::try_from(host.name.clone())?;
    let tls = TlsConnector::from(client.credentials().http_client()).connect(name, socket).await;
    let tls = tls.map_err(|e| {
        let why = e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()).map(thalweg_wire::refusal);
        why.map_or(NoAnswer::Io(e), NoAnswer::Refused)
    })?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

fn request(host: &str, method: Method, path: &str, body: &str) -> Answer<Request<Full<Bytes>>> {
    let request = Request::builder().method(method).uri(path).header("host", host);
    Ok(request.body(Full::from(body.to_string()))?)
}

async fn ask(client: &Client, host: &ClusterHost, method: Method, path: &str, body: &str) -> Answer<String> {
    let mut sender = connect(client, host).await?;
    let answer = sender.send_request(request(&host.name, method, path, body)?).await;
    // The node's rejection of our certificate arrives only with the first answer.
    let answer = answer.map_err(|e| match std::error::Error::source(&e) {
        Some(cause) if is_end(cause) => NoAnswer::Closed,
        Some(cause) => NoAnswer::Refused(refused(cause).unwrap_or_else(|| cause.to_string())),
        None => NoAnswer::Http(e),
    })?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(NoAnswer::Body)?;
    let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    match status.is_success() {
        true => Ok(text),
        false => Err(NoAnswer::Status { status, text: text.trim_end().into() }),
    }
}

/// Why one side's TLS rejects the other's certificate.
fn refused(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    let inner = cause.downcast_ref::<std::io::Error>()?.get_ref()?;
    inner.downcast_ref::<rustls::Error>().map(thalweg_wire::refusal)
}

/// Whether a connection ended too early.
fn is_end(cause: &(dyn std::error::Error + 'static)) -> bool {
    let cause = cause.downcast_ref::<std::io::Error>();
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::UnexpectedEof)
}

/// Forwards every report of a stream of events, two in a second. Returns whether the last one reported the end.
async fn follow(
    answer: Response<Incoming>,
    send: &tokio::sync::mpsc::Sender<std::result::Result<JobReport, String>>,
) -> bool {
    let patience = Duration::from_secs(ANSWER_SECONDS);
    let mut body = answer.into_body();
    let mut text = String::new();
    while let Ok(Some(Ok(frame))) = tokio::time::timeout(patience, body.frame()).await {
        let Some(bytes) = frame.data_ref() else { continue };
        text += &String::from_utf8_lossy(bytes);
        while let Some((event, rest)) =
            text.split_once("\n\n").map(|(event, rest)| (event.to_string(), rest.to_string()))
        {
            text = rest;
            let report = event.strip_prefix("data: ").and_then(|data| from_json::<JobReport>(data).ok());
            let Some(report) = report else { continue };
            let ended = report.state != JobState::Running;
            if send.send(Ok(report)).await.is_err() || ended {
                return true;
            }
        }
        if text.len() > ANSWER_BYTES_MAX {
            return false;
        }
    }
    false
}
