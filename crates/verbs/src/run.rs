//! Verbs as calls, whose result is the object that the command prints with `--json`.

use thalweg::nodes::control;
use thalweg::{Progress, TaskPlan, model};
use thalweg_api::to_json;

use crate::ask::text;
use crate::{Ask, Command, Planned, Usage, in_python};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// What was asked cannot be understood, or no call does it.
    #[error("{}", in_python(.0))]
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

/// Does what was asked, and returns the object as JSON.
///
/// # Errors
/// Those of the verb. A check that finds records out of order is not an error.
pub fn run(mut ask: Ask, progress: &Progress) -> Result<String, CallError> {
    use Command::{Check, Cluster, Doctor, Gen, Join, Merge, Partition, Plan, Pump, Shuffle, Sort};
    let subject = match ask.command {
        Some(Cluster | Command::Job) if !ask.words.is_empty() => text(&ask.words.remove(0))?,
        _ => String::new(),
    };
    Ok(match (ask.command, &subject[..]) {
        (Some(Sort | Shuffle | Merge | Join | Partition), _) => match ask.detach {
            true => to_json(&ask.task()?.detach()?),
            false => to_json(&ask.task()?.run(progress)?),
        },
        (Some(Plan), _) => match ask.planned()? {
            Planned::Task(task) => match task.plan()? {
                TaskPlan::Machine(plan) => to_json(&plan),
                TaskPlan::Cluster(plan) => to_json(&plan),
            },
            Planned::Simulated(asked, memory_bytes, layout) => {
                to_json(&model::predict(&model::simulate(&asked, layout, memory_bytes)?))
            }
        },
        (Some(Check), _) => {
            let (options, cluster) = ask.check()?;
            to_json(&thalweg::check(&options, cluster.as_ref(), progress)?)
        }
        (Some(Gen), _) => to_json(&thalweg::generate(&ask.generated()?, progress)?),
        (Some(Pump), _) => to_json(&ask.transfer()?.run(progress)?),
        (Some(Doctor), _) => to_json(&thalweg::doctor(&ask.work.scratch)?),
        (Some(Command::Job), "list") => to_json(&control::jobs(&ask.identity()?, &ask.on)?),
        (Some(Command::Job), "cancel") => {
            let id = ask.words.first().map(text).transpose()?.unwrap_or_default();
            to_json(&control::job(&ask.identity()?, &id, true)?)
        }
        (Some(Cluster), "status") => to_json(&control::status(&ask.identity()?)?),
        _ => return Err(CallError::Usage("this command is not for a call; start it as a process".into())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named;

    #[test]
    fn a_call_returns_what_the_command_prints_as_json() {
        let mut ask = Ask::new(Command::Plan);
        for (name, value) in [("simulate", "nodes=4,disk=2GB/s,link=10Gbit"), ("record", "100")] {
            (named(name).unwrap().set)(&mut ask, value.as_ref()).unwrap();
        }
        let plan = run(ask, &Progress::default()).unwrap();
        assert!(plan.starts_with("{\"nodes\":"), "{plan}");
        for command in [Command::Bench, Command::Volume, Command::Partition, Command::Cluster] {
            let refused = run(Ask::new(command), &Progress::default());
            assert!(matches!(refused, Err(CallError::Usage(_))), "{command:?}");
        }
        let why = run(Ask::new(Command::Shuffle), &Progress::default()).unwrap_err();
        assert_eq!(why.to_string(), "say which random order: seed N; the same number gives the same order");
    }
}
