//! `cluster upgrade`: copies this program to hosts, and restarts their nodes with it, one after the other.
//!
//! Model: before a node is restarted, the cluster is sound: every node answers, every table has all of its keys and the
//! parity that it promises, and every volume in the user's list has all of its stores and copies. The node then takes
//! no new jobs, and those that run there end. Stopped, it gives its buckets of tables to other nodes. The next node
//! follows when this one answers and the cluster is sound again.
//! Invariant: at most one node is down because of this. After an error the hosts behind it are as they were, and the
//! command goes on where it stopped when it is run again, because nodes that run this program are left alone.
//! Non-goals: nodes whose protocol this program does not speak.

use std::path::Path;
use std::time::Duration;

use thalweg::nodes::installer::{DOWN_SECONDS, Hosts, Running, Step};
use thalweg::nodes::{VERSIONS, Versions, control};
use thalweg::table::Tables;
use thalweg::volume::{self, Registry};
use thalweg_api::{HostStep, HostSteps, JobReport, NodeStatus, TableStatus, VolumeStatus, to_json};
use thalweg_base::clock::Stopwatch;

use crate::failure::{COULD_NOT, DONE, Failure};
use crate::interpret::Show;
use crate::interpret::nodes::OverSsh;
use crate::print::{complain, tell};
use crate::show;

/// The shortest time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How much longer than a look the time until the next one is, because a look at volumes reads all their names.
const PAUSE_FACTOR: f64 = 3.0;

/// Runs the command.
pub(crate) fn upgrade(
    identity: &Path,
    asked: &OverSsh,
    patience: Duration,
    how: Show,
) -> Result<u8, Failure> {
    let hosts = Hosts::new(identity, &asked.program, &asked.ssh)?;
    let names = hosts.chosen(&asked.on)?;
    let upgrade = Upgrade { identity, hosts, patience };
    if let Some(why) = upgrade.speaks_another_protocol()? {
        return Err(Failure::Upgrade(why));
    }
    let mut steps = HostSteps { hosts: Vec::new() };
    for host in names {
        let watch = Stopwatch::start();
        let outcome = upgrade.one(&host);
        let (done, error) = (outcome.as_ref().ok().cloned(), outcome.err());
        let failed = error.clone();
        steps.hosts.push(HostStep { host: host.clone(), done, error, seconds: watch.seconds() });
        if !how.json && !how.quiet {
            tell(how, show::steps(&HostSteps { hosts: steps.hosts[steps.hosts.len() - 1..].to_vec() }))?;
        }
        if let Some(why) = failed {
            if how.json {
                tell(how, to_json(&steps) + "\n")?;
            }
            complain(&format!(
                "{host}: {why}; no other node was touched after it, and thalweg cluster upgrade goes on with {host}"
            ));
            return Ok(COULD_NOT);
        }
    }
    if how.json {
        tell(how, to_json(&steps) + "\n")?;
    }
    Ok(DONE)
}

struct Upgrade<'a> {
    identity: &'a Path,
    hosts: Hosts,
    patience: Duration,
}

impl Upgrade<'_> {
    /// Says so if some node speaks no version of the protocol that this program does.
    fn speaks_another_protocol(&self) -> Result<Option<String>, Failure> {
        let report = control::status(self.identity)?;
        Ok(report.hosts.into_iter().find_map(|host| apart(&host.status?)))
    }

    /// Upgrades a host. Returns what was done.
    fn one(&self, host: &str) -> Result<String, String> {
        let step = |step: Step| self.hosts.take_on(host, &step).map_err(|why| why.to_string());
        step(Step::Install)?;
        match self.hosts.running(host).map_err(|why| why.to_string())? {
            Running::Installed(pid) => return Ok(format!("runs this build already, as process {pid}")),
            Running::Other(_) => {
                self.is_sound()?;
                self.is_drained(host)?;
                step(Step::Down(DOWN_SECONDS))?;
            }
            Running::Nothing => {}
        }
        let started = step(Step::Up)?;
        self.is_sound()?;
        let status = control::status_of(self.identity, host).map_err(|why| why.to_string())?;
        Ok(format!("{started}: {}", show::version(&status)))
    }

    /// Waits until no job runs on a host, and keeps new ones away from it.
    fn is_drained(&self, host: &str) -> Result<(), String> {
        let drained = || {
            let jobs = control::drain(self.identity, host).map_err(|why| why.to_string())?;
            let ids = |jobs: &[JobReport]| {
                jobs.iter().map(|job| job.id.get(..8).unwrap_or(&job.id)).collect::<Vec<_>>().join(", ")
            };
            Ok((!jobs.is_empty()).then(|| {
                let count = show::counted(jobs.len(), "job still runs", "jobs still run");
                format!("{count} there, {}; thalweg job cancel ID ends one", ids(&jobs))
            }))
        };
        self.until_nothing(drained)
    }

    /// Waits until the cluster is sound.
    fn is_sound(&self) -> Result<(), String> {
        self.until_nothing(|| Ok(self.is_unsound()))
    }

    /// Looks again and again until there is nothing to say; an error with what is said in the end.
    fn until_nothing(&self, look: impl Fn() -> Result<Option<String>, String>) -> Result<(), String> {
        let watch = Stopwatch::start();
        loop {
            let took = Stopwatch::start();
            let Some(why) = look()? else { return Ok(()) };
            if watch.seconds() > self.patience.as_secs_f64() {
                return Err(format!("{why} (for {:.0} s; --timeout sets how long to wait)", watch.seconds()));
            }
            let pause = Duration::from_secs_f64(took.seconds() * PAUSE_FACTOR);
            std::thread::park_timeout(pause.max(LOOK_EVERY));
        }
    }

    /// Why no node may be restarted now, if there is a reason.
    fn is_unsound(&self) -> Option<String> {
        self.silent_node().or_else(|| self.short_table()).or_else(|| self.short_volume())
    }

    fn silent_node(&self) -> Option<String> {
        let report = match control::status(self.identity) {
            Ok(report) => report,
            Err(why) => return Some(why.to_string()),
        };
        let silent = report.hosts.into_iter().find_map(|host| Some((host.host, host.error?)));
        silent.map(|(host, why)| format!("{host} does not answer: {why}; thalweg cluster mend replaces it"))
    }

    fn short_table(&self) -> Option<String> {
        let failed = |why: thalweg::table::Error| format!("the tables cannot be looked at: {why}");
        let tables = match Tables::load(self.identity, None) {
            Ok(tables) => tables,
            Err(why) => return Some(why.to_string()),
        };
        let all = match tables.list() {
            Ok(list) => list.tables,
            Err(why) => return Some(failed(why)),
        };
        let short = |name: &str| match tables.status(name) {
            Ok(status) => is_short(&status),
            Err(why) => Some(failed(why)),
        };
        all.iter().find_map(|table| short(&table.name))
    }

    fn short_volume(&self) -> Option<String> {
        let cluster = self.hosts.cluster();
        let looked = Registry::of_user().and_then(|registry| {
            for entry in registry.list()?.volumes {
                if entry.cluster.as_ref().is_none_or(|of| of.name != cluster) {
                    continue;
                }
                let status = volume::open(&registry, &entry.name).and_then(|open| volume::status(&open));
                if let Some(why) = status.map_or_else(|why| Some(why.to_string()), |status| lacks(&status)) {
                    return Ok(Some(format!("volume {}: {why}", entry.name)));
                }
            }
            Ok(None)
        });
        looked.unwrap_or_else(|why| Some(why.to_string()))
    }
}

/// What a table lacks, if anything.
fn is_short(status: &TableStatus) -> Option<String> {
    let name = &status.table.name;
    if !status.missing.is_empty() || !status.unreachable.is_empty() {
        return Some(format!("table {name} has lost keys, or a node that has some does not answer"));
    }
    let is_short = status.table.parity.is_some() && !show::is_table_safe(status);
    is_short.then(|| format!("table {name} lacks parity; thalweg table status {name} says where"))
}

/// What a volume lacks, if anything.
fn lacks(status: &VolumeStatus) -> Option<String> {
    let lost = status.stores.iter().find_map(|store| Some((&store.directory, store.lost.as_ref()?)));
    let lost = lost.map(|(directory, why)| format!("its store {directory} is lost: {why}"));
    let short = (status.short_files > 0).then(|| {
        format!("copies of {} are missing", show::counted(status.short_files as usize, "file", "files"))
    });
    lost.or(short)
}

/// Says so if a node speaks no version of the protocol that this program does.
fn apart(status: &NodeStatus) -> Option<String> {
    let [first, last] = status.protocols;
    let (name, version, theirs) = (&status.name, show::version(status), Versions { first, last });
    let theirs = match theirs {
        _ if VERSIONS.common(theirs).is_some() => return None,
        Versions { last: 0, .. } => "older protocol".to_string(),
        told => format!("protocol {told}"),
    };
    Some(format!(
        "{name} runs thalweg {version}, whose {theirs} is not understood by nodes of this program, which speaks \
         {VERSIONS}; end all with thalweg cluster down, then thalweg cluster install and up"
    ))
}

#[cfg(test)]
mod tests {
    use thalweg_api::from_json;

    use super::*;

    #[test]
    fn nodes_that_this_program_cannot_follow_are_named() {
        let of = |more: &str| -> NodeStatus {
            let text = r#"{"name":"n1","id":"1","cluster":"2","epoch":1,"version":"0.1.0","pid":1,"seconds":1.0,"links":0,
                           "jobs_running":0,"jobs_ended":0,"refused":0,"resident_bytes":0"#;
            from_json(&format!("{text}{more}}}")).unwrap()
        };
        assert_eq!(apart(&of(&format!(r#","protocols":[1,{}]"#, VERSIONS.last))), None);
        // A node of a build that does not say what it speaks.
        let older = apart(&of("")).unwrap();
        assert!(
            older.starts_with("n1 runs thalweg 0.1.0, whose older protocol is not understood"),
            "{older}"
        );
        let later = apart(&of(r#","protocols":[98,99],"build":"0123456789abcdef""#)).unwrap();
        assert!(later.starts_with("n1 runs thalweg 0.1.0 01234567, whose protocol 98 to 99 is"), "{later}");
    }
}
