//! The audit log: who requested what of this node, from where, and how it ended.
//!
//! Model: an [`Entry`] begins with a request, and becomes a line of IDENTITY/audit.log when it ends. Work that may take
//! long also gets a line when it begins, which remains if the node is killed (docs/formats/audit.md). Requests for
//! the state of something, sessions with a volume or a table, and messages between nodes within a job get no entry.
//! Invariant: no environment, input or output is recorded, and at most [`WORDS_BYTES_MAX`] bytes of a command. At most
//! [`REFUSED_A_MINUTE`] lines a minute are about refusals of one peer, or of all unauthenticated peers together; the
//! rest is only counted, so that no peer can flood the log. If the log cannot be written, that is reported once, and
//! nothing stops.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use thalweg_api::{AuditLine, ExecEnd, to_json};
use thalweg_base::clock::{Stopwatch, wall_seconds};
use thalweg_io::rotated::Rotated;

use crate::threads::spawn;
use crate::{Id, Link, Role, log};

/// The log's name in the identity's directory.
const AUDIT_FILE: &str = "audit.log";
/// The number of files that are kept, and their size.
const FILES: usize = 8;
const FILE_BYTES: u64 = 4 << 20;
/// The most bytes of a command's arguments that are logged.
const WORDS_BYTES_MAX: usize = 1024;
/// The most bytes of the kind of request, which over HTTP may be any text.
const WHAT_BYTES_MAX: usize = 32;
/// The most bytes of a job's id.
const JOB_BYTES_MAX: usize = 32;
/// The most lines per minute about refusals of one peer.
const REFUSED_A_MINUTE: u64 = 60;

/// The audit log of a node.
#[derive(Default)]
pub struct Audit(Mutex<State>);

#[derive(Default)]
struct State {
    log: Option<Rotated>,
    /// The addresses of open links that peers opened.
    came: Vec<(Weak<Link>, SocketAddr)>,
    /// Whether the failure to write the log was reported.
    told: bool,
    /// Refusals by the peer's id; all unauthenticated peers share the empty id.
    refused: BTreeMap<String, Refused>,
}

/// The minute of the last refusal, the refusals in it, and the refusals that were not logged.
#[derive(Default)]
struct Refused {
    minute: u64,
    count: u64,
    untold: u64,
}

/// The peer that sends a request.
#[derive(Debug, Clone, Default)]
pub struct Who {
    /// Its name and address.
    pub peer: String,
    /// Its id and role, if it is authenticated.
    pub proved: Option<(Id, Role)>,
}

impl Audit {
    /// The log in this identity's directory; without a directory nothing is written.
    pub fn open(directory: Option<&Path>) -> Arc<Audit> {
        let audit = Audit::default();
        let log = directory.map(|directory| Rotated::open(&directory.join(AUDIT_FILE), FILES, FILE_BYTES));
        match log.transpose() {
            Ok(log) => audit.state().log = log,
            Err(why) => tell(&mut audit.state(), &why),
        }
        Arc::new(audit)
    }

    /// Remembers the address from which a link was opened.
    pub fn came(&self, link: &Arc<Link>, from: SocketAddr) {
        let mut state = self.state();
        state.came.retain(|(link, _)| link.strong_count() > 0);
        state.came.push((Arc::downgrade(link), from));
    }

    /// The peer of a link.
    pub fn who(&self, link: &Link) -> Who {
        let (hello, state) = (link.hello(), self.state());
        let from = state.came.iter().find(|(came, _)| std::ptr::eq(came.as_ptr(), link));
        let from = from.map_or(String::new(), |(_, address)| format!(" at {address}"));
        Who { peer: format!("{}{from}", link.peer()), proved: Some((hello.node, hello.role)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the entry of a request. The line is written when the entry is dropped.
    pub fn begin(self: &Arc<Audit>, who: Who, what: &str, words: &[String]) -> Entry {
        let proved = who.proved;
        let line = AuditLine {
            peer: who.peer,
            id: proved.map_or(String::new(), |(id, _)| id.to_string()),
            role: proved.map_or("", |(_, role)| role.name()).into(),
            what: cut(what, WHAT_BYTES_MAX),
            words: shown(words),
            ended: "an internal error, which the node's log tells".into(),
            ..AuditLine::default()
        };
        Entry { audit: self.clone(), line, watch: Stopwatch::start(), is_refused: false }
    }

    /// Records that a peer was refused before it could request anything.
    pub fn refused(self: &Arc<Audit>, peer: String, why: &str) {
        self.begin(Who { peer, proved: None }, "connect", &[]).refused(why);
    }

    /// The number of this peer's earlier refusals that were not logged; `None` if no line about this one may be
    /// written.
    fn may_tell(&self, id: &str, minute: u64) -> Option<u64> {
        let mut state = self.state();
        // Drops peers that have neither a refusal in this minute nor an unlogged one.
        state.refused.retain(|_, refused| refused.minute == minute || refused.untold > 0);
        let refused = state.refused.entry(id.to_string()).or_default();
        if refused.minute != minute {
            (refused.minute, refused.count) = (minute, 0);
        }
        refused.count += 1;
        if refused.count > REFUSED_A_MINUTE {
            refused.untold += 1;
            return None;
        }
        Some(std::mem::take(&mut refused.untold))
    }

    fn write(&self, line: &AuditLine) {
        let mut state = self.state();
        if let Some(log) = &mut state.log
            && let Err(why) = log.line(&to_json(line))
        {
            tell(&mut state, &why);
        }
    }
}

fn tell(state: &mut State, why: &thalweg_io::Error) {
    if !std::mem::replace(&mut state.told, true) {
        log(&format!("the audit log is not written: {why}; the node continues without it"));
    }
}

fn cut(text: &str, bytes: usize) -> String {
    text[..text.floor_char_boundary(bytes)].to_string()
}

/// The arguments of a command, cut off after [`WORDS_BYTES_MAX`] bytes in all.
fn shown(words: &[String]) -> Vec<String> {
    let mut left = WORDS_BYTES_MAX;
    let mut shown = Vec::new();
    for (i, word) in words.iter().enumerate() {
        let end = word.floor_char_boundary(left);
        shown.push(word[..end].to_string());
        left -= end;
        if end < word.len() || left == 0 {
            shown.push(format!("... ({} of {} words)", i + 1, words.len()));
            break;
        }
    }
    shown
}

/// A request that is being served.
pub struct Entry {
    audit: Arc<Audit>,
    line: AuditLine,
    watch: Stopwatch,
    is_refused: bool,
}

impl Entry {
    /// Sets the job.
    pub fn of_job(mut self, id: &str) -> Entry {
        self.line.job = cut(id, JOB_BYTES_MAX);
        self
    }

    /// Sets the other hosts to which the request is relayed.
    pub fn on(mut self, hosts: &[String]) -> Entry {
        self.line.on = shown(hosts);
        self
    }

    /// Records that the work begins.
    pub fn runs(self) -> Entry {
        let line = AuditLine { time: wall_seconds(), ended: "running".into(), ..self.line.clone() };
        self.audit.write(&line);
        self
    }

    /// Records that the work begins, and does it on a thread of this name; false if the system has no thread left.
    pub fn spawn(self, thread: &'static str, work: impl FnOnce(&mut Entry) + Send + 'static) -> bool {
        let mut entry = self.runs();
        spawn(thread, move || work(&mut entry))
    }

    /// Records that the request was refused, and why.
    pub fn refused(&mut self, why: impl std::fmt::Display) {
        self.ends(format!("refused: {why}"));
        self.is_refused = true;
    }

    /// Records how the work ended.
    pub fn ends(&mut self, ended: impl Into<String>) {
        self.line.ended = ended.into();
    }

    /// Records the number of bytes.
    pub fn bytes(&mut self, bytes: u64) {
        self.line.bytes = Some(bytes);
    }

    /// Records how a command ended.
    pub fn ends_as(&mut self, end: &ExecEnd) {
        let state = format!("{:?}", end.state).to_lowercase();
        let status = end.status.map_or(String::new(), |status| format!(", status {status}"));
        let signal = end.signal.map_or(String::new(), |signal| format!(", signal {signal}"));
        let why = end.why.as_ref().map_or(String::new(), |why| format!(": {why}"));
        self.ends(state + &status + &signal + &why);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.line.time = wall_seconds();
        if self.is_refused {
            match self.audit.may_tell(&self.line.id, self.line.time / 60) {
                None => return,
                Some(0) => {}
                Some(untold) => self.line.ended += &format!("; {untold} before it were not recorded"),
            }
        }
        self.line.seconds = (self.watch.seconds() * 1e3).round() / 1e3;
        self.audit.write(&self.line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_is_refused_more_often_than_may_be_told_is_a_number() {
        let audit = Audit::default();
        let told = |id: &str, minute| (0..100).filter(|_| audit.may_tell(id, minute).is_some()).count();
        assert_eq!((told("a", 1), told("b", 1), told("", 1)), (60, 60, 60), "each has its own");
        assert_eq!((audit.may_tell("a", 2), audit.may_tell("a", 2)), (Some(40), Some(0)));
        assert_eq!(audit.may_tell("b", 9), Some(40), "the next line says it, whenever it comes");
        assert_eq!(audit.may_tell("c", 20), Some(0));
        let left: Vec<String> = audit.state().refused.keys().cloned().collect();
        assert_eq!(left, ["", "c"], "who has nothing untold is forgotten");
    }

    #[test]
    fn words_come_to_an_end() {
        let long = "é".repeat(WORDS_BYTES_MAX);
        let words = shown(&["a".into(), long, "b".into()]);
        assert_eq!((words.len(), words[2].as_str()), (3, "... (2 of 3 words)"));
        assert!(words.concat().len() < WORDS_BYTES_MAX + 32);
    }
}
