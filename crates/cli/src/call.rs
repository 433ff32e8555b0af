//! Commands as function calls: the arguments are parsed and interpreted as on the command line, and the result is
//! returned as the object that `--json` prints, instead of being shown. The Python package is such a caller.
//!
//! Non-goals: commands that run as processes (`node run`, `mount`, `table serve`, `exec`), and commands that change a
//! cluster or a volume.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use thalweg::nodes::control;
use thalweg::{Progress, TaskPlan, WorkOptions, model};
use thalweg_api::{from_json, to_json};

use crate::interpret::nodes::{ClusterAsk, JobsAsk, cluster_meant};
use crate::interpret::{Job, interpret};
use crate::parse::{Usage, parse};
use crate::show;
use crate::typed::TypedArgs;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The arguments cannot be understood, or the command cannot be called.
    #[error("{0}")]
    Usage(String),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] thalweg::Error),
    /// A request to nodes failed.
    #[error(transparent)]
    Node(#[from] thalweg::nodes::Error),
}

impl From<Usage> for CallError {
    fn from(Usage(why): Usage) -> CallError {
        CallError::Usage(why)
    }
}

/// Runs a command, and returns the object that `--json` prints.
///
/// # Errors
/// Those of the command. A check that finds records out of order is not an error.
pub fn call(words: Vec<OsString>, progress: &Progress) -> Result<String, CallError> {
    Ok(match interpret(parse(words)?)?.job {
        Job::Gen(options) => to_json(&thalweg::generate(&options, progress)?),
        Job::Task(task) => to_json(&task.run(progress)?),
        Job::Detached(task) => to_json(&task.detach()?),
        Job::Plan(task) => match task.plan()? {
            TaskPlan::Machine(plan) => to_json(&plan),
            TaskPlan::Cluster(plan) => to_json(&plan),
        },
        Job::PlanSimulated(asked, memory_bytes, layout) => {
            to_json(&model::predict(&model::simulate(&asked, layout, memory_bytes)?))
        }
        Job::Load(task, duplicates) => to_json(&task.load(duplicates, progress)?),
        Job::Pump(transfer) => to_json(&transfer.run(progress)?),
        Job::Check(options, cluster) => to_json(&thalweg::check(&options, cluster.as_ref(), progress)?),
        Job::Doctor(scratch) => to_json(&thalweg::doctor(&scratch)?),
        Job::Jobs(identity, JobsAsk::List(on)) => to_json(&control::jobs(&identity, &on)?),
        Job::Jobs(identity, JobsAsk::Show(id)) => to_json(&control::job(&identity, &id, false)?),
        Job::Jobs(identity, JobsAsk::Cancel(id)) => to_json(&control::job(&identity, &id, true)?),
        Job::Cluster(identity, ClusterAsk::Status) => to_json(&control::status(&identity)?),
        _ => return Err(CallError::Usage("this command is not for a call; start it as a process".into())),
    })
}

/// The options of a sort, shuffle, merge, join or partition with these arguments. Runs nothing.
///
/// # Errors
/// If the arguments cannot be understood.
pub fn work_options(words: Vec<OsString>) -> Result<WorkOptions, CallError> {
    match interpret(parse(words)?)?.job {
        Job::Task(task) => Ok(task.options),
        _ => Err(CallError::Usage("these words are not for work on records".into())),
    }
}

/// The directory of the identity for requests to a cluster, and the name that the cluster must have if `cluster` is a
/// name. If neither argument gives the directory, the environment does.
///
/// # Errors
/// If neither the arguments nor the environment give the directory.
pub fn identity(
    cluster: Option<&OsStr>,
    identity: Option<PathBuf>,
) -> Result<(PathBuf, Option<String>), CallError> {
    let args = TypedArgs { cluster: cluster.map(OsStr::to_owned), identity, ..TypedArgs::default() };
    Ok(cluster_meant(&args)?)
}

/// The text that the command prints for an object of this kind, the name of its struct in `thalweg_api`. `None` if the
/// object is not of that kind, or the kind has no text.
pub fn text(kind: &str, object: &str) -> Option<String> {
    Some(match kind {
        "Receipt" => show::receipt(&from_json(object).ok()?),
        "PumpReceipt" => show::pump(&from_json(object).ok()?),
        "Plan" => show::plan(&from_json(object).ok()?),
        "ClusterPlan" => show::cluster_plan(&from_json(object).ok()?),
        "Check" => show::check(&from_json(object).ok()?),
        "DoctorReport" => show::doctor(&from_json(object).ok()?),
        "ClusterReport" => show::cluster(&from_json(object).ok()?),
        "JobList" => show::jobs(&from_json(object).ok()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_call_returns_what_the_command_prints_as_json() {
        let plan = call(
            words("plan sort --simulate nodes=4,disk=2GB/s,link=10Gbit --record 100"),
            &Progress::default(),
        );
        let plan = plan.unwrap();
        assert!(plan.starts_with("{\"nodes\":"), "{plan}");
        assert!(text("ClusterPlan", &plan).unwrap().contains("4 nodes"));
        assert_eq!(text("Receipt", &plan), None);
        for line in ["bench io", "volume ls volume:films/", "partition a"] {
            assert!(matches!(call(words(line), &Progress::default()), Err(CallError::Usage(_))), "{line}");
        }
    }
}
