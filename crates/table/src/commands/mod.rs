//! The commands of Redis clients: one table of their names, and the execution of each.
//!
//! Model: a command reads its arguments, reads or changes the keyspace, and writes one reply. All commands run on one
//! thread, so each is atomic, and so are those between `MULTI` and `EXEC` together. On a node they work on the tables
//! of its cluster instead; see cluster.rs.
//! Invariant: a refused command has changed nothing.
//! Non-goals: sockets.

mod cluster;
mod connection;
mod expiring;
mod hashes;
mod keys;
mod sorted;
mod strings;

use crate::call::{Arguments, Call, Outcome, Session, Shared, Transaction};
use crate::cluster::{Error, Front};
use crate::error::Refusal;
use crate::resp::{REPLY_BYTES_MAX, Reply};

/// A command.
struct Command {
    name: &'static str,
    /// The fewest and the most arguments, without the name.
    least: usize,
    most: usize,
    /// Which arguments are keys: the first, the last (from the end if negative), and the step; 0 if there are none.
    keys: (i64, i64, i64),
    flags: &'static [&'static str],
    run: fn(&mut Call<'_, '_>, &Arguments<'_>) -> Outcome,
}

/// No limit on the number of arguments.
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
const COMMANDS: &[Command] = &[
    command("append", (2, 2), ONE, WRITES, strings::append),
    command("auth", (1, 2), NONE, OTHER, connection::auth),
    command("client", (1, MANY), NONE, OTHER, connection::client),
    command("command", (0, MANY), NONE, OTHER, command_itself),
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
    command("zrevrange", (3, 3), ONE, READS, sorted::zrevrange),
    command("zrevrangebylex", (3, 6), ONE, READS, sorted::zrevrangebylex),
    command("zscore", (2, 2), ONE, READS, sorted::zscore),
];

/// Finds a command by its name, in upper or lower case.
fn find(name: &[u8]) -> Option<&'static Command> {
    let mut lower = [0; 16];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let at = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(lower)).ok()?;
    Some(&COMMANDS[at])
}

/// Runs a command, and appends its reply.
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
        _ if session.transaction.is_some() && !matches!(command.name, "quit" | "reset") => {
            if shared.front.is_some() {
                return Err(Refusal::NotOnCluster("MULTI"));
            }
            queue(session, command, arguments)?;
            Reply::new(out, session.version).simple("QUEUED");
            Ok(())
        }
        _ => carry_out(shared, session, command, arguments, out),
    });
    if let Err(why) = outcome {
        if let Some(transaction) = &mut session.transaction {
            // As in Redis, a command that is forbidden in a transaction does not abort it.
            transaction.was_refused |= !matches!(why, Refusal::Nested(_));
        }
        Reply::new(out, session.version).error(&why.to_string());
    }
}

/// The command that these arguments name, if this client may run it.
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

fn queue(session: &mut Session, command: &'static Command, arguments: &Arguments<'_>) -> Outcome {
    if matches!(command.name, "multi" | "watch") {
        return Err(Refusal::Nested(command.name));
    }
    session.hold(arguments)?;
    if let Some(transaction) = &mut session.transaction {
        transaction.requests.push(arguments.iter().map(|one| one.to_vec()).collect());
    }
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
    let outcome = match call.shared.front.clone() {
        Some(front) => on_cluster(&mut call, &front, command, arguments),
        None => (command.run)(&mut call, arguments),
    };
    let outcome = if call.reply.is_long() { Err(Refusal::LongReply) } else { outcome };
    outcome.inspect_err(|_| call.reply.withdraw())
}

/// Carries out a command on the tables of a cluster. Those about the connection are the same there.
fn on_cluster(
    call: &mut Call<'_, '_>,
    front: &Front,
    command: &Command,
    arguments: &Arguments<'_>,
) -> Outcome {
    if command.name == "multi" {
        // Clients send the commands of a transaction with it. They are refused, too, until EXEC or DISCARD.
        call.session.transaction = Some(Transaction::default());
        return Err(Refusal::NotOnCluster("MULTI"));
    }
    let Some(run) = cluster::find(command.name) else {
        return match command.flags == OTHER && command.name != "watch" {
            true => (command.run)(call, arguments),
            false => Err(Refusal::NotOnCluster(command.name)),
        };
    };
    match run(call, front, arguments) {
        // The table was dropped or loaded since it was opened. The command has changed nothing.
        Err(Refusal::Cluster(Error::Lost(_) | Error::Dropped)) => {
            front.forget();
            call.reply.withdraw();
            run(call, front, arguments)
        }
        outcome => outcome,
    }
}

/// Runs the commands since `MULTI`, unless one of them was refused or a watched key has changed.
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
    reply.array(transaction.requests.len());
    let (from, mut is_long) = (out.len(), false);
    for request in &transaction.requests {
        let arguments: Vec<&[u8]> = request.iter().map(|one| &one[..]).collect();
        let outcome = check(session, &arguments)
            .and_then(|command| carry_out(shared, session, command, &arguments, out));
        if let Err(why) = outcome {
            Reply::new(out, session.version).error(&why.to_string());
        }
        if out.len() - from > REPLY_BYTES_MAX {
            is_long = true;
            out.truncate(from);
        }
    }
    if is_long {
        // All commands have run, so an error reply would be wrong, and a client cannot use a partial reply.
        out.truncate(from);
        session.ends = true;
    }
    Ok(())
}

fn command_itself(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    match (a.get(1).map(|word| word.to_ascii_lowercase()).as_deref(), a.get(2..)) {
        (None, _) => {
            call.reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| describe(call, command));
        }
        (Some(b"count"), _) => call.reply.count(COMMANDS.len()),
        (Some(b"docs"), _) => call.reply.map(0),
        (Some(b"info"), Some(names)) => {
            call.reply.array(names.len());
            for name in names {
                match find(name) {
                    Some(command) => describe(call, command),
                    None => call.reply.null_array(),
                }
            }
        }
        (Some(b"list"), _) => {
            call.reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| call.reply.bulk(command.name.as_bytes()));
        }
        _ => return Err(Refusal::Syntax("command")),
    }
    Ok(())
}

fn describe(call: &mut Call<'_, '_>, command: &Command) {
    let Command { name, least, most, keys: (first, last, step), flags, .. } = command;
    let least = *least as i64 + 1;
    call.reply.array(6);
    call.reply.bulk(name.as_bytes());
    call.reply.integer(if *most as i64 + 1 == least { least } else { -least });
    call.reply.array(flags.len());
    flags.iter().for_each(|flag| call.reply.simple(flag));
    [first, last, step].into_iter().for_each(|number| call.reply.integer(*number));
}
