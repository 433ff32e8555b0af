//! Control over HTTP: status, jobs, metrics, and the description of all that.
//!
//! Invariant: what changes something is for clients of the cluster that may do anything, not for its other nodes; a peer that proved nothing (on
//! loopback, at a node without identity) is told the status and nothing else. Headers and bodies are bounded, and a
//! request has to come within [`HEADERS_SECONDS`].

use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use thalweg_api::{JobList, JobState, May, to_json};
use thalweg_base::clock::Stopwatch;
use thalweg_wire::{Id, Role};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::audit::Who;
use crate::daemon::{MAY_ONLY_LOOK, Node};
use crate::job::Job;

/// The longest that the headers of a request may take.
pub(crate) const HEADERS_SECONDS: u64 = 5;
/// The most bytes of headers.
const HEADERS_BYTES_MAX: usize = 16 << 10;
/// The most bytes of a body.
const BODY_BYTES_MAX: usize = 1 << 20;
/// How long a job that was cancelled may take to end before it is told as it is.
const CANCEL_SECONDS: f64 = 3.0;
/// How often an event is sent at least, and how long a change may wait.
const EVENT: Duration = Duration::from_millis(500);
/// The description of all this.
const OPENAPI: &str = include_str!("openapi.json");

/// Who asks; `None` proved nothing.
type Asker = Option<(Id, Role)>;

/// Serves one connection to its end, or until the cluster file lists its peer no longer.
pub(crate) async fn serve<S>(node: &Arc<Node>, stream: S, who: Who)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let asker: Asker = who.proved;
    let service = TowerToHyperService::new(routes(node.clone(), who));
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(HEADERS_SECONDS));
    server.max_buf_size(HEADERS_BYTES_MAX).keep_alive(true);
    let mut served = std::pin::pin!(server.serve_connection(TokioIo::new(stream), service));
    let is_listed = |(id, _)| node.hands().is_some_and(|hands| hands.identity().members.has(id));
    loop {
        let mut changed = std::pin::pin!(node.changed.notified());
        // From here on no change is missed.
        changed.as_mut().enable();
        if asker.is_some_and(|asker| !is_listed(asker)) {
            return;
        }
        tokio::select! {
            // What goes wrong here is the peer's, and it has been told.
            _ = &mut served => return,
            () = changed => {}
        }
    }
}

fn routes(node: Arc<Node>, who: Who) -> Router {
    let asker = who.proved;
    let mut routes = Router::new()
        .route("/v1/status", get(status))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(|| async { json(OPENAPI.to_string()) }));
    let may = asker.map(|(id, role)| (role, node.may(id)));
    if may.is_some() {
        routes = routes
            .route("/v1/jobs", get(jobs))
            .route("/v1/jobs/{id}", get(job))
            .route("/v1/jobs/{id}/events", get(events));
    }
    match may {
        Some((_, May::All)) => routes = routes.route("/v1/doctor", get(doctor)),
        Some((_, May::Status)) => {
            let refused = || async { (StatusCode::FORBIDDEN, format!("{MAY_ONLY_LOOK}\n")) };
            routes = routes.fallback(refused);
        }
        None => {}
    }
    if may == Some((Role::Client, May::All)) {
        routes = routes.route("/v1/jobs/{id}/cancel", post(cancel)).route("/v1/cluster", put(take_cluster));
    }
    let routes = routes.layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
    let audited = axum::middleware::from_fn_with_state((node.clone(), who), audited);
    routes.layer(axum::middleware::from_fn(announced)).layer(audited).with_state(node)
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn not_found(id: &str) -> Response {
    (StatusCode::NOT_FOUND, format!("no job {id} here\n")).into_response()
}

async fn status(State(node): State<Arc<Node>>) -> Response {
    json(to_json(&node.status()))
}

/// What the host offers and lacks. One at a time looks: it takes a moment of the disk.
async fn doctor(State(node): State<Arc<Node>>) -> Response {
    let looked = tokio::task::spawn_blocking(move || {
        // It guards nothing but the turn.
        let _turn = node.doctoring.lock().unwrap_or_else(PoisonError::into_inner);
        thalweg_engine::doctor(&[])
    });
    let failed = |why: String| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response();
    match looked.await {
        Ok(Ok(report)) => json(to_json(&report)),
        Ok(Err(why)) => failed(why.to_string()),
        Err(why) => failed(why.to_string()),
    }
}

/// What changes something, or would have, has a line in the audit log.
async fn audited(
    State((node, who)): State<(Arc<Node>, Who)>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> Response {
    if [axum::http::Method::GET, axum::http::Method::HEAD].contains(request.method()) {
        return next.run(request).await;
    }
    let what = format!("http {}", request.method());
    let mut entry = node.audit.begin(who, &what, &[request.uri().path().to_string()]);
    let answer = next.run(request).await;
    let status = format!("status {}", answer.status().as_u16());
    if answer.status().is_client_error() {
        entry.refused(status)
    } else {
        entry.ends(status)
    }
    answer
}

/// Refuses a body that says itself that it is too large, before any of it is asked for.
async fn announced(request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if length.is_some_and(|length| length.parse().is_ok_and(|bytes: u64| bytes > BODY_BYTES_MAX as u64)) {
        return (StatusCode::PAYLOAD_TOO_LARGE, format!("a body has at most {BODY_BYTES_MAX} bytes\n"))
            .into_response();
    }
    next.run(request).await
}

async fn jobs(State(node): State<Arc<Node>>) -> Response {
    json(to_json(&JobList { jobs: node.jobs.all(), errors: Vec::new() }))
}

async fn job(State(node): State<Arc<Node>>, Path(id): Path<String>) -> Response {
    node.jobs.find(&id).map_or_else(|| not_found(&id), |job| json(to_json(&job.report())))
}

async fn cancel(State(node): State<Arc<Node>>, Path(id): Path<String>) -> Response {
    let Some(job) = node.jobs.find(&id) else { return not_found(&id) };
    job.cancel("it was cancelled");
    // Waited for by a thread, as a watcher's changes are.
    let ended = tokio::task::spawn_blocking(move || {
        let (watch, mut report) = (Stopwatch::start(), job.report());
        while report.state == JobState::Running && watch.seconds() < CANCEL_SECONDS {
            report = job.wait(&report, EVENT);
        }
        report
    });
    ended.await.map_or_else(|_| not_found(&id), |report| json(to_json(&report)))
}

async fn take_cluster(State(node): State<Arc<Node>>, text: String) -> Response {
    match node.take_cluster(&text) {
        Ok((epoch, _)) => json(format!("{{\"epoch\":{epoch}}}")),
        Err(why) => (StatusCode::CONFLICT, format!("{why}\n")).into_response(),
    }
}

/// A job's reports as server-sent events, one at every change and the last at its end.
async fn events(State(node): State<Arc<Node>>, Path(id): Path<String>) -> Response {
    let Some(job) = node.jobs.find(&id) else { return not_found(&id) };
    let (send, receive) = tokio::sync::mpsc::channel::<Vec<u8>>(2);
    // A job's changes are waited for by a thread: there is one for each watcher, and connections are bounded.
    tokio::task::spawn_blocking(move || watch(&job, &send));
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::new(Events(receive))).into_response()
}

fn watch(job: &Job, send: &tokio::sync::mpsc::Sender<Vec<u8>>) {
    let mut report = job.report();
    loop {
        let event = format!("data: {}\n\n", to_json(&report));
        if send.blocking_send(event.into_bytes()).is_err() || report.state != JobState::Running {
            return;
        }
        report = job.wait(&report, EVENT);
    }
}

/// A body of events.
struct Events(tokio::sync::mpsc::Receiver<Vec<u8>>);

impl hyper::body::Body for Events {
    type Data = axum::body::Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Infallible>>> {
        self.0.poll_recv(cx).map(|event| event.map(|event| Ok(hyper::body::Frame::data(event.into()))))
    }
}

/// For Prometheus.
async fn metrics(State(node): State<Arc<Node>>) -> Response {
    let status = node.status();
    let rows: [(&str, &str, &str, f64); 6] = [
        ("uptime_seconds", "counter", "Seconds since the node began.", status.seconds),
        ("links", "gauge", "Links that are open.", status.links as f64),
        ("jobs_running", "gauge", "Jobs that run.", status.jobs_running as f64),
        ("jobs_ended_total", "counter", "Jobs that have ended.", status.jobs_ended as f64),
        ("connections_refused_total", "counter", "Connections that were refused.", status.refused as f64),
        ("resident_bytes", "gauge", "Memory that is resident.", status.resident_bytes as f64),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in rows {
        text +=
            &format!("# HELP thalweg_{name} {help}\n# TYPE thalweg_{name} {kind}\nthalweg_{name} {value}\n");
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}
