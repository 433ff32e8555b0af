//! Control over HTTP: status, metrics, and the routes of the services.
//!
//! Invariant: only clients with all rights may change anything; other nodes may not. An unauthenticated peer, which can
//! only be on loopback at a node without an identity, gets the status, the metrics and the description of the routes,
//! and nothing else. Headers and bodies are bounded, and the headers must arrive within [`HEADERS_SECONDS`].

use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post, put};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use thalweg_api::{May, to_json};
use thalweg_wire::{Access, Id, MAY_ONLY_LOOK, Method, Metric, Reply, Role, Route, Who};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::daemon::Node;

/// The time limit for the headers of a request.
pub(crate) const HEADERS_SECONDS: u64 = 5;
/// The size limit of headers.
const HEADERS_BYTES_MAX: usize = 16 << 10;
/// The size limit of a body.
const BODY_BYTES_MAX: usize = 1 << 20;
/// The OpenAPI description of these routes.
const OPENAPI: &str = include_str!("openapi.json");

/// The authenticated peer, if any.
type Asker = Option<(Id, Role)>;

/// Serves one connection until it ends or the cluster file no longer lists its peer.
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
    let is_listed =
        |(id, _)| node.host.credentials().is_some_and(|credentials| credentials.identity().members.has(id));
    loop {
        let mut changed = std::pin::pin!(node.changed.notified());
        // From here on no change is missed.
        changed.as_mut().enable();
        if asker.is_some_and(|asker| !is_listed(asker)) {
            return;
        }
        tokio::select! {
            // This error is the peer's fault, and the peer has received it.
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
    let may = asker.map(|(id, role)| (role, node.host.may(id)));
    for route in node.host.services().into_iter().flat_map(|service| service.routes()) {
        let has_access = match route.access {
            Access::Listed => may.is_some(),
            Access::Owner => may == Some((Role::Client, May::All)),
        };
        if has_access {
            routes = routes.route(route.path, answered_by(route));
        }
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
        routes = routes.route("/v1/cluster", put(take_cluster));
    }
    let routes = routes.layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
    let audited = axum::middleware::from_fn_with_state((node.clone(), who), audited);
    routes.layer(axum::middleware::from_fn(announced)).layer(audited).with_state(node)
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// Calls a service on a thread that may block.
fn answered_by(route: Route) -> MethodRouter<Arc<Node>> {
    let (method, answer) = (route.method, Arc::new(route.answer));
    let handler = move |id: Option<Path<String>>| async move {
        let id = id.map_or(String::new(), |Path(id)| id);
        let reply = tokio::task::spawn_blocking(move || answer(&id)).await;
        match reply {
            Ok(Reply::Json(text)) => json(text),
            Ok(Reply::Missing(what)) => (StatusCode::NOT_FOUND, format!("{what}\n")).into_response(),
            Ok(Reply::Events(events)) => as_events(events),
            Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")).into_response(),
        }
    };
    match method {
        Method::Get => get(handler),
        Method::Post => post(handler),
    }
}

async fn status(State(node): State<Arc<Node>>) -> Response {
    json(to_json(&node.status()))
}

/// The findings about this machine. Only one examination runs at a time, because it uses the disk.
async fn doctor(State(node): State<Arc<Node>>) -> Response {
    let looked = tokio::task::spawn_blocking(move || {
        // The lock protects no data, so a poisoned lock can be used.
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

/// Writes a line into the audit log for every request that may change something.
async fn audited(
    State((node, who)): State<(Arc<Node>, Who)>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> Response {
    if [axum::http::Method::GET, axum::http::Method::HEAD].contains(request.method()) {
        return next.run(request).await;
    }
    let what = format!("http {}", request.method());
    let mut entry = node.host.audit().begin(who, &what, &[request.uri().path().to_string()]);
    let answer = next.run(request).await;
    let status = format!("status {}", answer.status().as_u16());
    if answer.status().is_client_error() {
        entry.refused(status)
    } else {
        entry.ends(status)
    }
    answer
}

/// Refuses a body whose announced length is too large, before reading any of it.
async fn announced(request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if length.is_some_and(|length| length.parse().is_ok_and(|bytes: u64| bytes > BODY_BYTES_MAX as u64)) {
        return (StatusCode::PAYLOAD_TOO_LARGE, format!("a body has at most {BODY_BYTES_MAX} bytes\n"))
            .into_response();
    }
    next.run(request).await
}

async fn take_cluster(State(node): State<Arc<Node>>, text: String) -> Response {
    match node.host.take_cluster(&text) {
        Ok((epoch, _)) => json(format!("{{\"epoch\":{epoch}}}")),
        Err(why) => (StatusCode::CONFLICT, format!("{why}\n")).into_response(),
    }
}

/// Objects as server-sent events. Each watcher has a thread, and connections are bounded.
fn as_events(events: Box<dyn Iterator<Item = String> + Send>) -> Response {
    let (send, receive) = tokio::sync::mpsc::channel::<Vec<u8>>(2);
    tokio::task::spawn_blocking(move || {
        for event in events {
            if send.blocking_send(format!("data: {event}\n\n").into_bytes()).is_err() {
                return;
            }
        }
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::new(Events(receive))).into_response()
}

/// A response body of events.
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

/// Metrics for Prometheus.
async fn metrics(State(node): State<Arc<Node>>) -> Response {
    let status = node.status();
    let row = |name, kind, help, value| Metric { name, kind, help, value };
    let mut rows = vec![
        row("uptime_seconds", "counter", "Seconds since the node started.", status.seconds),
        row("links", "gauge", "Links that are open.", status.links as f64),
    ];
    rows.extend(node.host.services().iter().flat_map(|service| service.metrics()));
    rows.extend([
        row("connections_refused_total", "counter", "Connections that were refused.", status.refused as f64),
        row("resident_bytes", "gauge", "Memory that is resident.", status.resident_bytes as f64),
    ]);
    let mut text = String::new();
    for Metric { name, kind, help, value } in rows {
        text +=
            &format!("# HELP thalweg_{name} {help}\n# TYPE thalweg_{name} {kind}\nthalweg_{name} {value}\n");
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}
