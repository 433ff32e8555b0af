//! The commands of Redis clients: one table of their names, and how each is carried out.
//!
//! Model: a command reads its arguments, asks or changes the keyspace, and writes one reply. All of it happens on one thread, so
//! every command is atomic, and so are those between `MULTI` and `EXEC` together.
//! Invariant: what is refused has changed nothing.
//! Non-goals: sockets.

mod connection;
mod hashes;
mod keys;
mod sorted;
mod strings;

use std::collections::VecDeque;

use crate::error::Refusal;
use crate::keyspace::{Keyspace, Scanned};
use crate::resp::{Reply, integer};

/// The most commands of one transaction, and the most keys that it watches.
const TRANSACTION_MAX: usize = 1 << 16;
/// Cursors of scans that are remembered, and for how long.
const CURSORS_MAX: usize = 1 << 16;
const CURSOR_LIVES_MS: i64 = 10 * 60 * 1000;

/// Arguments of a command, its name first.
type Arguments<'a> = [&'a [u8]];
type Outcome = Result<(), Refusal>;

/// A command.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// The fewest and the most arguments, without the name.
    least: usize,
    most: usize,
    /// Arguments that are keys: the first, the last (from the end, if it is negative), and the distance between two; 0 if there are none.
    keys: (i64, i64, i64),
    flags: &'static [&'static str],
    run: fn(&mut Call<'_, '_>, &Arguments<'_>) -> Outcome,
}

/// As many arguments as anybody likes.
const MANY: usize = usize::MAX;
const READS: &[&str] = &["readonly"];
const WRITES: &[&str] = &["write", "denyoom"];
const REMOVES: &[&str] = &["write"];
const OTHER: &[&str] = &["fast"];
const ONE: (i64, i64, i64) = (1, 1, 1);
const ALL: (i64, i64, i64) = (1, -1, 1);
const NONE: (i64, i64, i64) = (0, 0, 0);

const fn command(
    name: &'static str,
    (least, most): (usize, usize),
    keys: (i64, i64, i64),
    flags: &'static [&'static str],
    run: fn(&mut Call<'_, '_>, &Arguments<'_>) -> Outcome,
) -> Command {
    Command { name, least, most, keys, flags, run }
}

/// All commands, by name.
pub(crate) const COMMANDS: &[Command] = &[
    command("append", (2, 2), ONE, WRITES, strings::append),
    command("auth", (1, 2), NONE, OTHER, connection::auth),
    command("client", (1, MANY), NONE, OTHER, connection::client),
    command("command", (0, MANY), NONE, OTHER, connection::command),
    command("config", (1, MANY), NONE, OTHER, connection::config),
    command("dbsize", (0, 0), NONE, READS, keys::dbsize),
    command("decr", (1, 1), ONE, WRITES, strings::decr),
    command("decrby", (2, 2), ONE, WRITES, strings::decrby),
    command("del", (1, MANY), ALL, REMOVES, keys::del),
    command("discard", (0, 0), NONE, OTHER, connection::outside),
    command("echo", (1, 1), NONE, OTHER, connection::echo),
    command("exec", (0, 0), NONE, OTHER, connection::outside),
    command("exists", (1, MANY), ALL, READS, keys::exists),
    command("expire", (2, 3), ONE, REMOVES, keys::expire),
    command("expireat", (2, 3), ONE, REMOVES, keys::expireat),
    command("flushall", (0, 1), NONE, REMOVES, keys::flush),
    command("flushdb", (0, 1), NONE, REMOVES, keys::flush),
    command("get", (1, 1), ONE, READS, strings::get),
    command("getdel", (1, 1), ONE, REMOVES, strings::getdel),
    command("getset", (2, 2), ONE, WRITES, strings::getset),
    command("hdel", (2, MANY), ONE, REMOVES, hashes::hdel),
    command("hello", (0, MANY), NONE, OTHER, connection::hello),
    command("hexists", (2, 2), ONE, READS, hashes::hexists),
    command("hget", (2, 2), ONE, READS, hashes::hget),
    command("hgetall", (1, 1), ONE, READS, hashes::hgetall),
    command("hincrby", (3, 3), ONE, WRITES, hashes::hincrby),
    command("hkeys", (1, 1), ONE, READS, hashes::hkeys),
    command("hlen", (1, 1), ONE, READS, hashes::hlen),
    command("hmget", (2, MANY), ONE, READS, hashes::hmget),
    command("hmset", (3, MANY), ONE, WRITES, hashes::hmset),
    command("hscan", (2, MANY), ONE, READS, hashes::hscan),
    command("hset", (3, MANY), ONE, WRITES, hashes::hset),
    command("hsetnx", (3, 3), ONE, WRITES, hashes::hsetnx),
    command("hstrlen", (2, 2), ONE, READS, hashes::hstrlen),
    command("hvals", (1, 1), ONE, READS, hashes::hvals),
    command("incr", (1, 1), ONE, WRITES, strings::incr),
    command("incrby", (2, 2), ONE, WRITES, strings::incrby),
    command("info", (0, MANY), NONE, OTHER, connection::info),
    command("keys", (1, 1), NONE, READS, keys::keys),
    command("mget", (1, MANY), ALL, READS, strings::mget),
    command("mset", (2, MANY), (1, -1, 2), WRITES, strings::mset),
    command("multi", (0, 0), NONE, OTHER, connection::multi),
    command("persist", (1, 1), ONE, REMOVES, keys::persist),
    command("pexpire", (2, 3), ONE, REMOVES, keys::pexpire),
    command("pexpireat", (2, 3), ONE, REMOVES, keys::pexpireat),
    command("ping", (0, 1), NONE, OTHER, connection::ping),
    command("psetex", (3, 3), ONE, WRITES, strings::psetex),
    command("pttl", (1, 1), ONE, READS, keys::pttl),
    command("quit", (0, MANY), NONE, OTHER, connection::quit),
    command("reset", (0, 0), NONE, OTHER, connection::reset),
    command("scan", (1, MANY), NONE, READS, keys::scan),
    command("select", (1, 1), NONE, OTHER, connection::select),
    command("set", (2, MANY), ONE, WRITES, strings::set),
    command("setex", (3, 3), ONE, WRITES, strings::setex),
    command("setnx", (2, 2), ONE, WRITES, strings::setnx),
    command("strlen", (1, 1), ONE, READS, strings::strlen),
    command("ttl", (1, 1), ONE, READS, keys::ttl),
    command("type", (1, 1), ONE, READS, keys::kind),
    command("unlink", (1, MANY), ALL, REMOVES, keys::del),
    command("unwatch", (0, 0), NONE, OTHER, connection::unwatch),
    command("watch", (1, MANY), ALL, OTHER, connection::watch),
    command("zadd", (3, MANY), ONE, WRITES, sorted::zadd),
    command("zcard", (1, 1), ONE, READS, sorted::zcard),
    command("zlexcount", (3, 3), ONE, READS, sorted::zlexcount),
    command("zrange", (3, MANY), ONE, READS, sorted::zrange),
    command("zrangebylex", (3, 6), ONE, READS, sorted::zrangebylex),
    command("zrem", (2, MANY), ONE, REMOVES, sorted::zrem),
    command("zremrangebylex", (3, 3), ONE, REMOVES, sorted::zremrangebylex),
    command("zrevrangebylex", (3, 6), ONE, READS, sorted::zrevrangebylex),
    command("zscore", (2, 2), ONE, READS, sorted::zscore),
];

/// The command of a name, in any case.
fn find(name: &[u8]) -> Option<&'static Command> {
    let mut lower = [0; 16];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let at = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(lower)).ok()?;
    Some(&COMMANDS[at])
}

/// What the server knows beside keys.
pub(crate) struct Shared {
    pub(crate) keyspace: Keyspace,
    pub(crate) password: Option<Vec<u8>>,
    pub(crate) clients: usize,
    pub(crate) commands: u64,
    pub(crate) started_ms: i64,
    cursors: Cursors,
}

impl Shared {
    pub(crate) fn new(keyspace: Keyspace, password: Option<Vec<u8>>, started_ms: i64) -> Shared {
        Shared { keyspace, password, clients: 0, commands: 0, started_ms, cursors: Cursors::default() }
    }
}

/// What the server knows of one client.
pub(crate) struct Session {
    number: u64,
    name: Vec<u8>,
    version: u8,
    may: bool,
    pub(crate) ends: bool,
    transaction: Option<Transaction>,
    /// Keys that are watched, with the changes they had then.
    watched: Vec<(Vec<u8>, u64)>,
}

#[derive(Default)]
struct Transaction {
    commands: Vec<(&'static Command, Vec<Vec<u8>>)>,
    was_refused: bool,
}

impl Session {
    pub(crate) fn new(number: u64, shared: &Shared) -> Session {
        let may = shared.password.is_none();
        let name = Vec::new();
        Session { number, name, version: 2, may, ends: false, transaction: None, watched: Vec::new() }
    }

    /// Whether the client has given the password, if there is one.
    pub(crate) fn may(&self) -> bool {
        self.may
    }

    /// Forgets the keys that are watched; whether one of them was changed.
    pub(crate) fn unwatch(&mut self, keyspace: &mut Keyspace) -> bool {
        self.watched
            .drain(..)
            .fold(false, |changed, (key, changes)| keyspace.unwatch(&key, changes) | changed)
    }
}

/// A command that is carried out.
struct Call<'a, 'b> {
    shared: &'a mut Shared,
    session: &'a mut Session,
    reply: Reply<'b>,
}

impl Call<'_, '_> {
    fn keys(&mut self) -> &mut Keyspace {
        &mut self.shared.keyspace
    }

    fn count(&mut self, count: usize) -> Outcome {
        self.reply.count(count);
        Ok(())
    }

    fn done(&mut self) -> Outcome {
        self.reply.simple("OK");
        Ok(())
    }
}

/// Carries out a command, and appends its reply.
pub(crate) fn run(shared: &mut Shared, session: &mut Session, arguments: &Arguments<'_>, out: &mut Vec<u8>) {
    shared.commands += 1;
    let outcome = check(session, arguments).and_then(|command| match command.name {
        "exec" if session.transaction.is_some() => execute(shared, session, out),
        "discard" if session.transaction.is_some() => {
            session.transaction = None;
            session.unwatch(&mut shared.keyspace);
            Reply::new(out, session.version).simple("OK");
            Ok(())
        }
        _ => match &mut session.transaction {
            Some(transaction) if !matches!(command.name, "quit" | "reset") => {
                queue(transaction, command, arguments)?;
                Reply::new(out, session.version).simple("QUEUED");
                Ok(())
            }
            _ => carry_out(shared, session, command, arguments, out),
        },
    });
    if let Err(why) = outcome {
        if let Some(transaction) = &mut session.transaction {
            // As Redis has it, what may not be within a transaction is no part of it.
            transaction.was_refused |= !matches!(why, Refusal::Nested(_));
        }
        Reply::new(out, session.version).error(&why.to_string());
    }
}

/// The command that these arguments ask for, if the client may have it carried out.
fn check(session: &Session, arguments: &Arguments<'_>) -> Result<&'static Command, Refusal> {
    let unknown = || {
        let name = &arguments[0][..arguments[0].len().min(64)];
        Refusal::Unknown(name.escape_ascii().to_string())
    };
    let command = find(arguments[0]).ok_or_else(unknown)?;
    if !session.may && !matches!(command.name, "auth" | "hello" | "quit" | "reset") {
        return Err(Refusal::NoPassword);
    }
    let count = arguments.len() - 1;
    if count < command.least || count > command.most {
        return Err(Refusal::Arguments(command.name));
    }
    Ok(command)
}

fn queue(transaction: &mut Transaction, command: &'static Command, arguments: &Arguments<'_>) -> Outcome {
    if matches!(command.name, "multi" | "watch") {
        return Err(Refusal::Nested(command.name));
    }
    if transaction.commands.len() >= TRANSACTION_MAX {
        return Err(Refusal::LongTransaction);
    }
    transaction.commands.push((command, arguments.iter().map(|one| one.to_vec()).collect()));
    Ok(())
}

fn carry_out(
    shared: &mut Shared,
    session: &mut Session,
    command: &Command,
    arguments: &Arguments<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let reply = Reply::new(out, session.version);
    let mut call = Call { shared, session, reply };
    let outcome = (command.run)(&mut call, arguments);
    let outcome = if call.reply.is_long() { Err(Refusal::LongReply) } else { outcome };
    outcome.inspect_err(|_| call.reply.withdraw())
}

/// Carries out the commands since `MULTI`, unless one of them was refused, or a key that is watched was changed.
fn execute(shared: &mut Shared, session: &mut Session, out: &mut Vec<u8>) -> Outcome {
    let Some(transaction) = session.transaction.take() else { return Err(Refusal::Outside("EXEC")) };
    let has_changed = session.unwatch(&mut shared.keyspace);
    if transaction.was_refused {
        return Err(Refusal::Aborted);
    }
    let mut reply = Reply::new(out, session.version);
    if has_changed {
        reply.null_array();
        return Ok(());
    }
    reply.array(transaction.commands.len());
    for (command, arguments) in &transaction.commands {
        let arguments: Vec<&[u8]> = arguments.iter().map(|one| &one[..]).collect();
        if let Err(why) = carry_out(shared, session, command, &arguments, out) {
            Reply::new(out, session.version).error(&why.to_string());
        }
    }
    Ok(())
}

/// Where scans go on, by the numbers that clients give back.
#[derive(Default)]
struct Cursors {
    last: u64,
    /// Numbers ascend, and so do the times when they were given out.
    given: VecDeque<(u64, i64, Scanned)>,
}

impl Cursors {
    /// A number for a place; 0 for the end.
    fn give(&mut self, place: Option<Scanned>, now_ms: i64) -> u64 {
        let Some(place) = place else { return 0 };
        let is_old = |given: &(u64, i64, Scanned)| given.1 + CURSOR_LIVES_MS < now_ms;
        while self.given.len() >= CURSORS_MAX || self.given.front().is_some_and(is_old) {
            self.given.pop_front();
        }
        self.last += 1;
        self.given.push_back((self.last, now_ms, place));
        self.last
    }

    /// The place of a number; `None` for 0, the beginning.
    fn place(&self, argument: &[u8]) -> Result<Option<Scanned>, Refusal> {
        let number =
            integer(argument).and_then(|number| u64::try_from(number).ok()).ok_or(Refusal::Cursor)?;
        if number == 0 {
            return Ok(None);
        }
        let at = self.given.binary_search_by_key(&number, |given| given.0).map_err(|_| Refusal::Cursor)?;
        Ok(Some(self.given[at].2.clone()))
    }
}

/// An argument that is a number of 64 bits.
fn number(argument: &[u8]) -> Result<i64, Refusal> {
    integer(argument).ok_or(Refusal::NoInteger)
}

/// What a scan's arguments behind its cursor ask for.
struct Scan<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    kind: Option<&'a [u8]>,
    only_keys: bool,
}

impl<'a> Scan<'a> {
    fn of(name: &'static str, arguments: &Arguments<'a>) -> Result<Scan<'a>, Refusal> {
        let mut scan = Scan { pattern: None, count: 10, kind: None, only_keys: false };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            if name == "hscan" && word.eq_ignore_ascii_case(b"novalues") {
                scan.only_keys = true;
                continue;
            }
            let value = *words.next().ok_or(Refusal::Syntax(name))?;
            match &word.to_ascii_lowercase()[..] {
                b"match" => scan.pattern = Some(value),
                b"count" => {
                    let count = number(value)?;
                    scan.count =
                        usize::try_from(count).ok().filter(|n| *n > 0).ok_or(Refusal::Syntax(name))?;
                }
                b"type" if name == "scan" => scan.kind = Some(value),
                _ => return Err(Refusal::Syntax(name)),
            }
        }
        Ok(scan)
    }

    fn wants(&self, key: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| matches(pattern, key))
    }
}

/// Whether a pattern with `*`, `?`, `[a-z]`, `[^a]` and `\` stands for all of a text.
///
/// The time is bounded by the product of both lengths: only the last `*` is gone back to.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some(b'?') => Some(p + 1),
            Some(b'[') => class(pattern, p + 1, text[t]),
            Some(b'\\') if p + 1 < pattern.len() => (pattern[p + 1] == text[t]).then_some(p + 2),
            Some(byte) => (*byte == text[t]).then_some(p + 1),
            None => None,
        };
        match (step, star) {
            (Some(next), _) => (p, t) = (next, t + 1),
            (None, Some((behind, from))) => {
                star = Some((behind, from + 1));
                (p, t) = (behind, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Behind the class that begins here, if the byte is in it.
fn class(pattern: &[u8], from: usize, byte: u8) -> Option<usize> {
    let is_not = pattern.get(from) == Some(&b'^');
    let mut at = from + usize::from(is_not);
    let mut is_in = false;
    loop {
        match (pattern.get(at), pattern.get(at + 1), pattern.get(at + 2)) {
            (None, ..) => return (is_in != is_not).then_some(at),
            (Some(b']'), ..) => return (is_in != is_not).then_some(at + 1),
            (Some(b'\\'), Some(escaped), _) => {
                is_in |= *escaped == byte;
                at += 2;
            }
            (Some(low), Some(b'-'), Some(high)) if *high != b']' => {
                is_in |= (*low.min(high)..=*low.max(high)).contains(&byte);
                at += 3;
            }
            (Some(one), ..) => {
                is_in |= *one == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
#[path = "commands_test.rs"]
mod tests;
