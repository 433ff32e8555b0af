//! Jobs and clusters as text.

use thalweg_api::{
    ClusterDoctor, ClusterReport, ExecReport, HostSteps, JobList, JobReport, JobState, NodeStatus, Verdict,
};
use thalweg_base::units::Bytes;

use super::{seconds, sorts};

/// A cluster, a host on each line.
pub(crate) fn cluster(report: &ClusterReport) -> String {
    let mut rows = vec![
        ["host", "address", "state", "version", "epoch", "links", "jobs", "memory", "answer"]
            .map(String::from)
            .to_vec(),
    ];
    for host in &report.hosts {
        let mut row = vec![host.host.clone(), host.address.clone()];
        match (&host.status, &host.error) {
            (Some(status), _) => row.extend([
                "up".to_string(),
                version(status),
                status.epoch.to_string(),
                status.links.to_string(),
                status.jobs_running.to_string(),
                Bytes(status.resident_bytes >> 20 << 20).to_string(),
                seconds(host.seconds),
            ]),
            (None, why) => row.push(format!("down: {}", why.as_deref().unwrap_or("no answer"))),
        }
        rows.push(row);
    }
    format!("cluster {}, epoch {}\n{}", report.name, report.epoch, left(&rows))
}

/// A node's version, with the first digits of its build if it tells that.
pub(crate) fn version(NodeStatus { version, build, .. }: &NodeStatus) -> String {
    const DIGITS: usize = 8;
    format!("{version} {}", build.get(..DIGITS).unwrap_or(build)).trim_end().to_string()
}

/// For each host the number of checks, and the findings that need a remedy.
pub(crate) fn cluster_doctor(report: &ClusterDoctor) -> String {
    let mut text = String::new();
    for host in report.hosts.iter().filter(|host| host.error.is_none()) {
        let lacking: Vec<_> = host.findings.iter().filter(|f| f.verdict != Verdict::Good).collect();
        let looked = host.findings.len();
        text += &format!("{}: {looked} things looked at, {} to remedy\n", host.host, lacking.len());
        for finding in lacking {
            text += &format!("  {}: {}\n    remedy: {}\n", finding.name, finding.seen, finding.remedy);
        }
    }
    text
}

/// The result of a step on each host.
pub(crate) fn steps(steps: &HostSteps) -> String {
    let done = steps.hosts.iter().filter_map(|host| Some((host, host.done.as_ref()?)));
    let rows: Vec<Vec<String>> =
        done.map(|(host, done)| vec![host.host.clone(), seconds(host.seconds), done.clone()]).collect();
    left(&rows)
}

/// The time that an empty request to each host took.
pub(crate) fn pings(report: &ExecReport) -> String {
    let there = report.hosts.iter().filter(|host| host.error.is_none());
    let rows: Vec<Vec<String>> =
        there.map(|host| vec![host.host.clone(), format!("{:.2} ms", host.seconds * 1e3)]).collect();
    left(&rows)
}

/// Jobs, one on each line.
pub(crate) fn jobs(list: &JobList) -> String {
    if list.jobs.is_empty() {
        return "no jobs\n".into();
    }
    let mut rows = vec![["job", "hosts", "state", "time", "by", "command"].map(String::from).to_vec()];
    let mut ids: Vec<&str> = Vec::new();
    for first in &list.jobs {
        if ids.contains(&first.id.as_str()) {
            continue;
        }
        ids.push(&first.id);
        let all: Vec<&JobReport> = list.jobs.iter().filter(|job| job.id == first.id).collect();
        let id = first.id.get(..8).unwrap_or(&first.id).to_string();
        let time = all.iter().map(|job| job.seconds).fold(0.0, f64::max);
        rows.push(vec![
            id,
            hosts(&all),
            states(&all),
            seconds(time),
            first.by.clone(),
            typed(&first.command),
        ]);
    }
    left(&rows)
}

/// The hosts of a job; their number if there are many.
fn hosts(jobs: &[&JobReport]) -> String {
    const NAMED: usize = 3;
    match jobs.len() {
        ..=NAMED => jobs.iter().map(|job| &job.host[..]).collect::<Vec<_>>().join(","),
        many => format!("{many} hosts"),
    }
}

/// The state of a job on its hosts; if they differ, the number of hosts for each.
fn states(jobs: &[&JobReport]) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for state in jobs.iter().map(|job| state(job)) {
        match counts.iter_mut().find(|(known, _)| *known == state) {
            Some((_, count)) => *count += 1,
            None => counts.push((state, 1)),
        }
    }
    match &counts[..] {
        [(state, _)] => state.clone(),
        _ => counts.iter().map(|(state, n)| format!("{n} {state}")).collect::<Vec<_>>().join(", "),
    }
}

/// One job on all of its hosts.
pub(crate) fn whole(jobs: &[JobReport]) -> String {
    match jobs.first() {
        Some(first) if first.share.is_some() => sorts::sort(jobs),
        _ => jobs.iter().map(job).collect(),
    }
}

/// One job on one host.
pub(crate) fn job(job: &JobReport) -> String {
    let mut text = format!(
        "{} on {}: {}, {}, {} of output: {}\n",
        job.id,
        job.host,
        state(job),
        seconds(job.seconds),
        Bytes(job.output_bytes),
        typed(&job.command)
    );
    for line in job.tail.lines() {
        text += &format!("  {}\n", harmless(line));
    }
    text
}

/// A command on one line; arguments with special characters are quoted.
pub(super) fn typed(command: &[String]) -> String {
    let word = |word: &String| {
        let plain =
            !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c.is_control() || c == '\'');
        if plain { word.clone() } else { format!("'{}'", harmless(word)) }
    };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// The text on one line, without control characters that a terminal would obey.
pub(super) fn harmless(text: &str) -> String {
    let one =
        |c: char| if c.is_control() && c != '\t' { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(one).collect()
}

pub(super) fn state(job: &JobReport) -> String {
    let how = match (job.state, job.status, job.signal) {
        (JobState::Running, ..) => "running".to_string(),
        (JobState::Done, ..) => "done".to_string(),
        (JobState::Cancelled, ..) => "cancelled".to_string(),
        (JobState::Failed, Some(status), _) => format!("failed with status {status}"),
        (JobState::Failed, _, Some(signal)) => format!("failed by signal {signal}"),
        (JobState::Failed, None, None) => "failed".to_string(),
    };
    match &job.why {
        Some(why) => format!("{how} ({why})"),
        None => how,
    }
}

/// Rows as columns, all aligned left.
pub(super) fn left(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let last = |row: &Vec<String>, i: usize| i + 1 == row.len();
    let width = |i: usize| {
        rows.iter().filter(|row| !last(row, i)).filter_map(|row| row.get(i)).map(String::len).max()
    };
    let widths: Vec<usize> = (0..count).map(|i| width(i).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_stays_on_its_line_and_does_nothing_to_a_terminal() {
        let command = ["sh", "-c", "echo a\nb", "", "\u{1b}[2J\u{9b}1m", "it's"].map(String::from);
        assert_eq!(typed(&command), r"sh -c 'echo a\nb' '' '\u{1b}[2J\u{9b}1m' 'it's'");
        assert_eq!(harmless("a\tb\rc"), "a\tb\\rc");
    }

    #[test]
    fn jobs_are_told_with_how_they_ended() {
        let job = JobReport {
            id: "0123456789abcdef".into(),
            host: "n1".into(),
            by: "own".into(),
            command: vec!["sleep".into(), "9".into()],
            state: JobState::Cancelled,
            status: None,
            signal: Some(9),
            why: Some("its client has gone".into()),
            detached: false,
            pid: Some(7),
            began_seconds: 0,
            seconds: 1.5,
            output_bytes: 0,
            tail: String::new(),
            share: None,
        };
        let mut list = JobList { jobs: vec![job], errors: Vec::new() };
        assert_eq!(
            jobs(&list),
            "job       hosts  state                            time    by   command\n\
             01234567  n1     cancelled (its client has gone)  1.50 s  own  sleep 9\n"
        );
        // One row for a job, on however many hosts it runs.
        let on = |host: &str, seconds| JobReport { host: host.into(), seconds, ..list.jobs[0].clone() };
        let other = JobReport { id: "f".into(), state: JobState::Done, why: None, ..on("n1", 0.5) };
        let running = JobReport { state: JobState::Running, why: None, ..on("n2", 2.5) };
        list.jobs.extend([other, running]);
        assert_eq!(
            jobs(&list),
            "job       hosts  state                                         time    by   command\n\
             01234567  n1,n2  1 cancelled (its client has gone), 1 running  2.50 s  own  sleep 9\n\
             f         n1     done                                          0.50 s  own  sleep 9\n"
        );
        let more = ["n3", "n4"].map(|host| JobReport { host: host.into(), ..list.jobs[2].clone() });
        list.jobs.extend(more);
        assert!(jobs(&list).contains("\n01234567  4 hosts  1 cancelled"), "{}", jobs(&list));
    }
}
