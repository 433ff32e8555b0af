//! The reports of a node about its jobs over HTTP.

use std::sync::Arc;
use std::time::Duration;

use thalweg_api::{JobList, JobReport, JobState, to_json};
use thalweg_base::clock::Stopwatch;
use thalweg_wire::{Access, Method, Reply, Route};

use crate::jobs::{Job, Jobs};

/// How long a cancelled job may take to end before it is reported as it is.
const CANCEL_SECONDS: f64 = 3.0;
/// The longest time between two events, and until a change is reported.
const EVENT: Duration = Duration::from_millis(500);

/// Routes to these jobs.
pub(crate) fn of(jobs: &Arc<Jobs>) -> Vec<Route> {
    let (all, drained) = (jobs.clone(), jobs.clone());
    vec![
        Route {
            method: Method::Post,
            path: "/v1/drain",
            access: Access::Owner,
            answer: Box::new(move |_| {
                Reply::Json(to_json(&JobList { jobs: drained.drain(), errors: Vec::new() }))
            }),
        },
        Route {
            method: Method::Get,
            path: "/v1/jobs",
            access: Access::Listed,
            answer: Box::new(move |_| Reply::Json(to_json(&JobList { jobs: all.all(), errors: Vec::new() }))),
        },
        of_job(jobs, (Method::Get, "/v1/jobs/{id}", Access::Listed), |job| {
            Reply::Json(to_json(&job.report()))
        }),
        of_job(jobs, (Method::Get, "/v1/jobs/{id}/events", Access::Listed), |job| {
            Reply::Events(Box::new(Reports { job, last: None }))
        }),
        of_job(jobs, (Method::Post, "/v1/jobs/{id}/cancel", Access::Owner), |job| {
            Reply::Json(to_json(&cancelled(&job)))
        }),
    ]
}

/// A route to the job whose id is in its path.
fn of_job(
    jobs: &Arc<Jobs>,
    (method, path, access): (Method, &'static str, Access),
    reply: fn(Arc<Job>) -> Reply,
) -> Route {
    let jobs = jobs.clone();
    let answer =
        move |id: &str| jobs.find(id).map_or_else(|| Reply::Missing(format!("no job {id} here")), reply);
    Route { method, path, access, answer: Box::new(answer) }
}

fn cancelled(job: &Job) -> JobReport {
    job.cancel("it was cancelled");
    let (watch, mut report) = (Stopwatch::start(), job.report());
    while report.state == JobState::Running && watch.seconds() < CANCEL_SECONDS {
        report = job.wait(&report, EVENT);
    }
    report
}

/// A job's reports: one at every change, and the last at its end.
struct Reports {
    job: Arc<Job>,
    last: Option<JobReport>,
}

impl Iterator for Reports {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let report = match &self.last {
            None => self.job.report(),
            Some(last) if last.state != JobState::Running => return None,
            Some(last) => self.job.wait(last, EVENT),
        };
        let text = to_json(&report);
        self.last = Some(report);
        Some(text)
    }
}
