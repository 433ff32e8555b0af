//! The commands about nodes: runs them, shows the result, and determines the exit status.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use thalweg::Error;
use thalweg::nodes::{Cancel, Channel, ExecOptions, Forward, NodeOptions, Stop, control};
use thalweg::table::Tables;
use thalweg::volume::{Location, Registry};
use thalweg_api::{ExecReport, JobReport, JobState, VolumeEntry, to_json};
use thalweg_base::host_list;
use thalweg_base::units::Bytes;
use thalweg_io::process;

use crate::failure::{COULD_NOT, DONE, Failure};
use crate::interpret::Show;
use crate::interpret::nodes::{ClusterAsk, Exec, JobsAsk, OverSsh};
use crate::print::{complain, pass_on, report, say, tell};
use crate::signals::Runs;
use crate::{program, show, signals, upgrade};

/// The most gathered output of a host, and the longest line that is shown in one piece.
const GATHERED_BYTES: usize = 16 << 20;
const LINE_BYTES: usize = 1 << 20;

fn on_signals(stop: impl Fn(i32) + Send + 'static) -> Result<(), Failure> {
    signals::on_signals(Runs::Verb, stop).map_err(Failure::Signals)
}

/// `node run`.
pub(crate) fn run(options: &NodeOptions) -> Result<u8, Failure> {
    if !thalweg::nodes::is_guarded() {
        return guard();
    }
    crate::outlive_panics();
    process::one_heap();
    let stop = Stop::default();
    let asked = stop.clone();
    // A second signal must not kill the node, because the processes that it started would remain.
    signals::on_every_signal(Runs::Server, move |_| asked.stop()).map_err(Failure::Signals)?;
    let ready = |ready: &_| drop(say(&(to_json(ready) + "\n"), false));
    thalweg::nodes::run(options, &stop, ready)?;
    Ok(DONE)
}

/// Starts this command again as the node, and guards it.
fn guard() -> Result<u8, Failure> {
    let forward = Forward::default();
    let asked = forward.clone();
    signals::on_signals(Runs::Server, move |signal| asked.signal(signal)).map_err(Failure::Signals)?;
    let program = program::path().map_err(Failure::Program)?;
    let ended = thalweg::nodes::guard(&program, &program::args(), &forward)?;
    if let Some(signal) = ended.signal {
        complain(&format!(
            "the node was ended by signal {signal}; {} that it had started {} with it",
            show::counted(ended.left, "process", "processes"),
            if ended.left == 1 { "is gone" } else { "are gone" }
        ));
    }
    Ok(ended.status)
}

/// `exec`.
pub(crate) fn exec(asked: &Exec, how: Show) -> Result<u8, Failure> {
    let cancel = Cancel::default();
    let stop = cancel.clone();
    on_signals(move |signal| stop.cancel(signal))?;
    // Standard output is reserved for the object, which then has the output of the hosts.
    let mut output = Output { gather: asked.gather || how.json, ..Output::default() };
    let mut unwritten = None;
    let mut said = thalweg::nodes::exec(&asked.options, &cancel, |host, channel, bytes| {
        if let (Err(why), None) = (output.take(host, channel, bytes), &unwritten) {
            unwritten = Some(why);
            cancel.cancel(SIGPIPE);
        }
    })?;
    if let Some(why) = unwritten.filter(|why| why.kind() != ErrorKind::BrokenPipe) {
        return Err(Failure::Output("cannot write what the hosts say", why));
    }
    output.rest(&mut said, how.json);
    if let Some(signal) = cancel.signal() {
        if signal != SIGPIPE {
            complain(&interrupted(signal, asked.options.detach, &said.job));
        }
        return Ok(Error::Interrupted(signal).exit_status());
    }
    if how.json {
        tell(how, to_json(&said) + "\n")?;
    } else if asked.options.detach && said.hosts.iter().any(|host| host.end.is_some()) {
        tell(how, format!("{}\n", said.job))?;
    }
    let status = exit_status(&said, asked.options.detach);
    if let Some(hint) = hint_of_shell(&asked.options.command, &said) {
        complain(&hint);
    }
    Ok(status.max(output.complain()))
}

/// What to write instead of a whole command in one word, as for a shell, which no host could start.
fn hint_of_shell(command: &[String], said: &ExecReport) -> Option<String> {
    let [word] = command else { return None };
    let whys = said.hosts.iter().filter_map(|host| host.end.as_ref()?.why.as_deref());
    let is_not_found =
        word.contains(char::is_whitespace) && whys.into_iter().any(|why| why.starts_with("cannot start "));
    is_not_found.then(|| {
        format!("no shell reads '{word}'; write its words behind '--', or thalweg exec -- sh -c '{word}'")
    })
}

/// What continues after a signal, and what ends.
fn interrupted(signal: i32, detached: bool, job: &str) -> String {
    let rest = if detached {
        format!("it continues where it was started; thalweg job cancel {} ends it", &job[..8])
    } else {
        "what runs on the hosts is being ended".into()
    };
    format!("interrupted by signal {signal}; {rest}")
}

/// `node ping`.
pub(crate) fn ping(options: &ExecOptions, how: Show) -> Result<u8, Failure> {
    let cancel = Cancel::default();
    let stop = cancel.clone();
    on_signals(move |signal| stop.cancel(signal))?;
    let said = thalweg::nodes::ping(options, &cancel)?;
    if let Some(signal) = cancel.signal() {
        return Err(Error::Interrupted(signal).into());
    }
    report(how, || to_json(&said), || show::pings(&said))?;
    Ok(exit_status(&said, false))
}

/// The signal of a pipe without a reader.
const SIGPIPE: i32 = 13;

/// Reports every failure, equal ones together, and returns the largest status.
fn exit_status(report: &ExecReport, detached: bool) -> u8 {
    let (mut worst, mut failed) = (DONE, Vec::new());
    for host in &report.hosts {
        let (status, why) = match (&host.end, &host.error) {
            (_, Some(why)) => (COULD_NOT, why.clone()),
            (Some(end), None) if end.state == JobState::Done => (DONE, String::new()),
            (Some(end), None) if detached && end.state == JobState::Running => (DONE, String::new()),
            (Some(end), None) => match (end.status, end.signal, &end.why) {
                (_, Some(signal), None) => (128 + (signal & 0x7f) as u8, format!("ended by signal {signal}")),
                (_, Some(signal), Some(why)) => (128 + (signal & 0x7f) as u8, why.clone()),
                (Some(status), None, None) => (status as u8, format!("exit status {status}")),
                (Some(status), None, Some(why)) => ((status as u8).max(COULD_NOT), why.clone()),
                (None, None, why) => (COULD_NOT, why.clone().unwrap_or_else(|| "it did not run".into())),
            },
            (None, None) => (COULD_NOT, "no answer".into()),
        };
        if !why.is_empty() {
            failed.push((&host.host[..], why));
        }
        worst = worst.max(status);
    }
    folded(failed).into_iter().for_each(|(hosts, why)| complain(&format!("{hosts}: {why}")));
    worst
}

/// What each host said, once for all hosts that said the same, in the order of the first of them.
fn folded<T: PartialEq>(said: Vec<(&str, T)>) -> Vec<(String, T)> {
    let mut groups: Vec<(Vec<&str>, T)> = Vec::new();
    for (host, what) in said {
        match groups.iter_mut().find(|(_, other)| *other == what) {
            Some((hosts, _)) => hosts.push(host),
            None => groups.push((vec![host], what)),
        }
    }
    groups.into_iter().map(|(hosts, what)| (host_list::fold(hosts), what)).collect()
}

/// Output of hosts that was not shown yet.
#[derive(Default)]
struct Output {
    gather: bool,
    /// By host and channel: the incomplete line, or the whole output if it is gathered.
    kept: BTreeMap<(String, bool), Vec<u8>>,
    /// The bytes of each host's output that were discarded.
    dropped: BTreeMap<String, u64>,
}

impl Output {
    /// Shows or stores output of a host. An error if it cannot be written.
    fn take(&mut self, host: &str, channel: Channel, bytes: &[u8]) -> std::io::Result<()> {
        let to_err = channel == Channel::Err;
        let kept = self.kept.entry((host.to_string(), to_err)).or_default();
        kept.extend_from_slice(bytes);
        if self.gather {
            let beyond = kept.len().saturating_sub(GATHERED_BYTES);
            kept.drain(..beyond);
            if beyond > 0 {
                *self.dropped.entry(host.to_string()).or_default() += beyond as u64;
            }
            return Ok(());
        }
        let whole = match kept.iter().rposition(|&b| b == b'\n') {
            Some(last) => last + 1,
            None if kept.len() >= LINE_BYTES => kept.len(),
            None => return Ok(()),
        };
        let lines: Vec<u8> = kept.drain(..whole).collect();
        pass_on(&labelled(host, &lines), to_err)
    }

    /// Reports output that was discarded. Returns the exit status.
    fn complain(&self) -> u8 {
        for (host, bytes) in &self.dropped {
            complain(&format!(
                "{host}: the first {} of its output were not kept; --gather keeps the last {}, leave it out to have all",
                Bytes(*bytes),
                Bytes(GATHERED_BYTES as u64)
            ));
        }
        if self.dropped.is_empty() { DONE } else { COULD_NOT }
    }

    /// Shows the remaining output when all hosts have ended, or puts it into the report. Gathered output that is equal
    /// on several hosts is shown once.
    fn rest(&mut self, report: &mut ExecReport, into_report: bool) {
        let mut left = Vec::new();
        for host in &mut report.hosts {
            let [out, err] = [false, true].map(|to_err| self.kept.remove(&(host.host.clone(), to_err)));
            if into_report {
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                (host.out, host.err) = (out.map(text), err.map(text));
            } else {
                left.push((&host.host[..], [out, err].map(Option::unwrap_or_default)));
            }
        }
        let left = if self.gather {
            folded(left)
        } else {
            left.into_iter().map(|(host, kept)| (host.to_string(), kept)).collect()
        };
        for (hosts, kept) in left {
            for (kept, to_err) in kept.into_iter().zip([false, true]).filter(|(kept, _)| !kept.is_empty()) {
                let _ = pass_on(&labelled(&hosts, &kept), to_err);
            }
        }
    }
}

/// Every line with the host's name before it.
fn labelled(host: &str, lines: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(lines.len() + host.len() + 2);
    for line in lines.split_inclusive(|&b| b == b'\n') {
        text.extend_from_slice(host.as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(line);
    }
    if !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    text
}

/// `job`.
pub(crate) fn jobs(identity: &Path, asked: &JobsAsk, how: Show) -> Result<u8, Failure> {
    let mut watched = show::Watched::default();
    let list = match asked {
        JobsAsk::List(on) => control::jobs(identity, on),
        JobsAsk::Show(id) => control::job(identity, id, false),
        JobsAsk::Cancel(id) => control::job(identity, id, true),
        JobsAsk::Watch(id) => control::watch(identity, id, |job| {
            let text = if job.share.is_some() { watched.sort(job) } else { watched.command(job) };
            if !how.json && !how.quiet && !text.is_empty() {
                drop(say(&text, false));
            }
        }),
    }?;
    let text = || match asked {
        JobsAsk::List(_) | JobsAsk::Cancel(_) => show::jobs(&list),
        JobsAsk::Show(_) => show::whole(&list.jobs),
        JobsAsk::Watch(_) => match show::end_of_sort(&list.jobs) {
            Some(end) => end.map_or(String::new(), show::receipt),
            None => show::jobs(&list),
        },
    };
    report(how, || to_json(&list), text)?;
    list.errors.iter().for_each(|why| complain(why));
    match show::end_of_sort(&list.jobs) {
        // Hosts that no longer answer do not change how the job ended.
        Some(end) if matches!(asked, JobsAsk::Watch(_)) => {
            end.map(|_| DONE).map_err(|why| Failure::Job(why.to_string()))
        }
        None if matches!(asked, JobsAsk::Watch(_)) => {
            let worst = list.jobs.iter().map(status_of).max().unwrap_or(DONE);
            Ok(if list.errors.is_empty() { worst } else { worst.max(COULD_NOT) })
        }
        _ => Ok(if list.errors.is_empty() { DONE } else { COULD_NOT }),
    }
}

/// The exit status that `exec` would have had.
fn status_of(job: &JobReport) -> u8 {
    match (job.state, job.status, job.signal) {
        (JobState::Done, ..) => DONE,
        (_, _, Some(signal)) => 128 + (signal & 0x7f) as u8,
        (_, Some(status), None) => status as u8,
        (_, None, None) => COULD_NOT,
    }
}

/// Runs a step on all hosts over ssh.
fn step(identity: &Path, asked: &OverSsh, how: Show) -> Result<u8, Failure> {
    let hosts = thalweg::nodes::installer::Hosts::new(identity, &asked.program, &asked.ssh)?;
    let steps = match &asked.step {
        Some(step) => hosts.take(step, &asked.on),
        None => hosts.chosen(&asked.on).and_then(|on| thalweg::nodes::fleet::mend(&hosts, &on)),
    };
    let steps = steps?;
    report(how, || to_json(&steps), || show::steps(&steps))?;
    let failed = steps.hosts.iter().filter_map(|host| Some((&host.host, host.error.as_ref()?)));
    let failed: Vec<_> = failed.map(|(host, why)| complain(&format!("{host}: {why}"))).collect();
    Ok(if failed.is_empty() { DONE } else { COULD_NOT })
}

/// `cluster`.
pub(crate) fn cluster(identity: &Path, asked: &ClusterAsk, how: Show) -> Result<u8, Failure> {
    use thalweg::nodes::cluster;
    let changed = match asked {
        ClusterAsk::Status => {
            let found = control::status(identity)?;
            report(how, || to_json(&found), || show::cluster(&found))?;
            found.warnings.iter().for_each(|why| complain(why));
            let missing = found.hosts.iter().any(|host| host.error.is_some());
            return Ok(if missing { COULD_NOT } else { DONE });
        }
        ClusterAsk::Doctor(on) => {
            let found = control::doctor(identity, on)?;
            report(how, || to_json(&found), || show::cluster_doctor(&found))?;
            found.warnings.iter().for_each(|why| complain(why));
            let lost = found.hosts.iter().filter_map(|host| Some((&host.host, host.error.as_ref()?)));
            let lost: Vec<_> = lost.map(|(host, why)| complain(&format!("{host}: {why}"))).collect();
            return Ok(if lost.is_empty() { DONE } else { COULD_NOT });
        }
        ClusterAsk::Probe(on) => {
            let found = thalweg::nodes::probe(identity, on)?;
            return report(how, || to_json(&found), || show::probe(&found));
        }
        ClusterAsk::Exchange(on, bytes, rounds, schedule) => {
            let found = thalweg::nodes::exchange(identity, on, (*bytes, *rounds), *schedule)?;
            return report(how, || to_json(&found), || show::exchange(&found));
        }
        ClusterAsk::Step(asked) => return step(identity, asked, how),
        ClusterAsk::Upgrade(asked, patience) => return upgrade::upgrade(identity, asked, *patience, how),
        ClusterAsk::Init { name, hosts, dead_after } => {
            let file = cluster::init(identity, name, hosts, *dead_after)?;
            let text = || {
                let hosts = show::counted(file.hosts.len(), "host", "hosts");
                format!("cluster {name} of {hosts} in {}\n", identity.display())
            };
            return report(how, || to_json(&file), text);
        }
        ClusterAsk::Add(hosts) => {
            check_tables(identity, asked)?;
            cluster::add(identity, hosts)
        }
        ClusterAsk::Renew(hosts) => cluster::renew(identity, hosts),
        ClusterAsk::Drop(names) => {
            check_tables(identity, asked)?;
            cluster::drop_named(identity, names)
        }
        ClusterAsk::Client(name, may) => cluster::client(identity, name, *may),
    };
    let file = changed?;
    let wrong = match asked {
        // The new certificates have to be brought to the hosts; until then no node shows what the file lists.
        ClusterAsk::Renew(names) if names.is_empty() => Vec::new(),
        ClusterAsk::Renew(names) => control::tell(identity, names)?,
        // New hosts have no node yet that could receive the file.
        ClusterAsk::Add(hosts) => {
            let new: Vec<String> = hosts.iter().map(|typed| cluster::name_of(typed).to_string()).collect();
            control::tell(identity, &new)?
        }
        _ => control::tell(identity, &[])?,
    };
    for why in &wrong {
        complain(&format!("cluster file not sent to {why}; thalweg cluster install brings it"));
    }
    if let ClusterAsk::Drop(names) = asked {
        complain_of_volumes(&file.name, names)?;
    }
    let hosts = show::counted(file.hosts.len(), "host", "hosts");
    let next = next_of(identity, asked);
    let text = || format!("cluster {} of {hosts}, epoch {}{next}\n", file.name, file.epoch);
    report(how, || to_json(&file), text)
}

/// Refuses a change of the hosts that would lose tables or their records. Says so if it cannot tell.
fn check_tables(identity: &Path, asked: &ClusterAsk) -> Result<(), Failure> {
    // Whatever is wrong with the identity is said by the change itself.
    let Ok(tables) = Tables::load(identity, None) else { return Ok(()) };
    let (dropped, new): (&[String], &[String]) = match asked {
        ClusterAsk::Drop(names) => (names, &[]),
        ClusterAsk::Add(hosts) => (&[], hosts),
        _ => return Ok(()),
    };
    let (now, next) = tables.registrars(dropped, new);
    if dropped.is_empty() && now == next {
        return Ok(());
    }
    match tables.outlive(dropped, next.as_deref()) {
        Err(why @ thalweg::table::Error::Refused(_)) if tables.list().is_ok() => Err(why.into()),
        Err(why) if now != next => {
            complain(&format!(
                "the list of tables cannot be asked for ({why}); if there are tables, the new registrar does not know them"
            ));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Reports volumes of this user that have lost their manager or a store because these hosts were dropped.
fn complain_of_volumes(cluster: &str, dropped: &[String]) -> Result<(), Failure> {
    let is_there =
        |place: &&String| Location::of(Path::new(place)).is_some_and(|place| dropped.contains(&place.node));
    let is_of = |volume: &VolumeEntry| volume.cluster.as_ref().is_some_and(|of| of.name == cluster);
    for VolumeEntry { name, manager, stores, .. } in
        Registry::of_user()?.list()?.volumes.into_iter().filter(is_of)
    {
        if is_there(&&manager) {
            complain(&format!(
                "the manager of volume {name} was on a host that is dropped, so nobody can use the volume; \
                 thalweg volume destroy {name} --force removes what is left of it"
            ));
            continue;
        }
        for store in stores.iter().filter(is_there) {
            complain(&format!(
                "{store} was a store of volume {name}; thalweg volume replace puts another in its place"
            ));
        }
    }
    Ok(())
}

/// The next steps after a change of the cluster.
fn next_of(identity: &Path, asked: &ClusterAsk) -> String {
    match asked {
        ClusterAsk::Add(_) => "; thalweg cluster install and up bring the new to life".into(),
        ClusterAsk::Renew(_) => {
            "; thalweg cluster install brings hosts theirs, and nodes take them as they run; copy cluster.json to each \
             client, and what lies in clients/NAME to one that was renewed"
                .into()
        }
        ClusterAsk::Client(name, _) => {
            let directory = thalweg::nodes::cluster::client_directory(identity, name);
            format!("; its identity is {}", directory.display())
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_labelled_however_they_are_cut() {
        assert_eq!(labelled("n1", b"a\nb"), b"n1: a\nn1: b\n");
        let mut output = Output::default();
        output.take("n1", Channel::Out, b"no end yet").unwrap();
        assert_eq!(output.kept[&("n1".to_string(), false)], b"no end yet");
    }

    #[test]
    fn what_hosts_say_alike_is_said_once() {
        let said = vec![("n1", "a"), ("n2", "b"), ("n3", "a"), ("db", "a"), ("n4", "a")];
        assert_eq!(folded(said), [("n[1,3-4],db".into(), "a"), ("n2".into(), "b")]);
    }
}
