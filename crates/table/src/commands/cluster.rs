//! The commands of Redis clients on the tables of a cluster.
//!
//! Model: a key with a string is a record of one table. A hash or a sorted set is a table of its own; its
//! fields or members are the records. A command waits for the nodes, and sends what it can at once.
//! Invariant: a command on one record is atomic; one on several is not. A command that is not in [`find`] is refused.
//! Strings, which may expire, are in expiring.rs.
//! Non-goals: transactions, hashes and sorted sets that expire, and a type that strings and tables share: they have names of their own.

use std::collections::VecDeque;
use std::ops::Bound;

use super::expiring;
use super::sorted::{Added, Window, added, ends, ranks};
use crate::call::{Arguments, Call, Outcome, number};
use crate::cluster::{Answer, Error, Front, Interval, Operation, Table};
use crate::error::Refusal;
use crate::pattern::{SCANNED_BYTES, Scan, matches};
use crate::resp::{REPLY_BYTES_MAX, integer};
use crate::walk::End;

/// How often a change is tried that depends on the present value, while others change it too.
const TRIES_MAX: usize = 100;
/// The most values that a command has requested and not yet used.
const TOGETHER: usize = 128;

/// The most keys that are removed in one round, of at most 2 KiB each.
const ROUND: usize = 1024;

type Run = fn(&mut Call<'_, '_>, &Front, &Arguments<'_>) -> Outcome;

/// What a command does on a cluster; `None` if it is not possible there.
pub(super) fn find(name: &str) -> Option<Run> {
    of_strings(name).or_else(|| of_hashes(name)).or_else(|| of_sets(name))
}

/// The commands on strings, and on keys of any type.
fn of_strings(name: &str) -> Option<Run> {
    let run: Run = match name {
        "append" => expiring::append,
        "dbsize" => dbsize,
        "decr" => |call, front, a| expiring::add(call, front, a[1], -1),
        "decrby" => |call, front, a| {
            expiring::add(call, front, a[1], number(a[2])?.checked_neg().ok_or(Refusal::NoInteger)?)
        },
        "del" | "unlink" => del,
        "exists" => exists,
        "expire" => |call, front, a| expiring::expire(call, front, a, ("expire", 1000, true)),
        "expireat" => |call, front, a| expiring::expire(call, front, a, ("expireat", 1000, false)),
        "flushall" | "flushdb" => flush,
        "get" => expiring::get,
        "getdel" => expiring::getdel,
        "getset" => expiring::getset,
        "incr" => |call, front, a| expiring::add(call, front, a[1], 1),
        "incrby" => |call, front, a| expiring::add(call, front, a[1], number(a[2])?),
        "keys" => keys,
        "mget" => expiring::mget,
        "mset" => expiring::mset,
        "persist" => expiring::persist,
        "pexpire" => |call, front, a| expiring::expire(call, front, a, ("pexpire", 1, true)),
        "pexpireat" => |call, front, a| expiring::expire(call, front, a, ("pexpireat", 1, false)),
        "psetex" => |call, front, a| expiring::setex(call, front, a, ("psetex", false)),
        "pttl" => |call, front, a| expiring::left(call, front, a, 1),
        "scan" => scan,
        "set" => expiring::set,
        "setex" => |call, front, a| expiring::setex(call, front, a, ("setex", true)),
        "setnx" => expiring::setnx,
        "strlen" => expiring::strlen,
        "ttl" => |call, front, a| expiring::left(call, front, a, 1000),
        "type" => kind,
        _ => return None,
    };
    Some(run)
}

/// The commands on hashes.
fn of_hashes(name: &str) -> Option<Run> {
    let run: Run = match name {
        "hdel" => |call, front, a| remove(call, front, a, false),
        "hexists" => |call, front, a| {
            let value = field(front, a)?;
            call.count(usize::from(value.is_some()))
        },
        "hget" => |call, front, a| {
            let value = field(front, a)?;
            call.reply.bulk_or_null(value.as_deref());
            Ok(())
        },
        "hgetall" => |call, front, a| all(call, front, a, true, true),
        "hincrby" => hincrby,
        "hkeys" => |call, front, a| all(call, front, a, true, false),
        "hlen" => |call, front, a| length(call, front, a, false),
        "hmget" => hmget,
        "hmset" => |call, front, a| {
            put(front, a, "hmset")?;
            call.done()
        },
        "hscan" => hscan,
        "hset" => |call, front, a| {
            let count = put(front, a, "hset")?;
            call.count(count)
        },
        "hsetnx" => |call, front, a| {
            let is_new = front.hash_to_write(a[1])?.table.insert(a[2], a[3])?;
            call.count(usize::from(is_new))
        },
        "hstrlen" => |call, front, a| {
            let value = field(front, a)?;
            call.count(value.map_or(0, |value| value.len()))
        },
        "hvals" => |call, front, a| all(call, front, a, false, true),
        _ => return None,
    };
    Some(run)
}

/// The commands on sorted sets.
fn of_sets(name: &str) -> Option<Run> {
    let run: Run = match name {
        "zadd" => zadd,
        "zcard" => |call, front, a| length(call, front, a, true),
        "zlexcount" => zlexcount,
        "zrange" => zrange,
        "zrangebylex" => |call, front, a| range(call, front, a, "zrangebylex", false),
        "zrem" => |call, front, a| remove(call, front, a, true),
        "zremrangebylex" => zremrangebylex,
        "zrevrange" => |call, front, a| by_rank(call, front, a, true),
        "zrevrangebylex" => |call, front, a| range(call, front, a, "zrevrangebylex", true),
        "zscore" => zscore,
        _ => return None,
    };
    Some(run)
}

impl From<Error> for Refusal {
    fn from(why: Error) -> Refusal {
        Refusal::Cluster(why)
    }
}

/// Replaces the value of a record by what `change` makes of it, and returns what it was.
pub(super) fn changed(
    table: &Table,
    key: &[u8],
    change: impl Fn(Option<&[u8]>) -> Result<Option<Vec<u8>>, Refusal>,
) -> Result<Option<Vec<u8>>, Refusal> {
    for _ in 0..TRIES_MAX {
        let before = table.get(key)?;
        let after = change(before.as_deref())?;
        if after == before || table.compare_and_set(key, before.as_deref(), after.as_deref())? {
            return Ok(before);
        }
    }
    Err(Refusal::Contended)
}

/// Adds to the number that is the value of a field, and replies with the sum.
fn hincrby(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let by = number(a[3])?;
    let sum = |before: Option<&[u8]>| {
        let before = before.map_or(Some(0), integer);
        before.and_then(|before| before.checked_add(by)).ok_or(Refusal::NoInteger)
    };
    let table = front.hash_to_write(a[1])?.table;
    let before = changed(&table, a[2], |before| Ok(Some(sum(before)?.to_string().into_bytes())))?;
    call.reply.integer(sum(before.as_deref())?);
    Ok(())
}

/// Takes the values of keys in order. Up to [`TOGETHER`] are requested or stored at a time.
pub(super) fn each_value(
    table: Option<&Table>,
    keys: &[&[u8]],
    mut take: impl FnMut(Option<&[u8]>) -> Outcome,
) -> Outcome {
    let Some(table) = table else { return keys.iter().try_for_each(|_| take(None)) };
    let (mut rest, mut tickets) = (keys.iter(), VecDeque::new());
    loop {
        while tickets.len() < TOGETHER
            && let Some(key) = rest.next()
        {
            tickets.push_back(table.submit(Operation::Get { key: (*key).into() })?);
        }
        let Some(ticket) = tickets.pop_front() else { return Ok(()) };
        match ticket.wait()? {
            Answer::Value(value) => take(value.as_deref())?,
            _ => take(None)?,
        }
    }
}

/// Replies with the values of keys.
pub(super) fn values(
    call: &mut Call<'_, '_>,
    table: Option<&Table>,
    keys: &[&[u8]],
    value: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Outcome {
    call.reply.array(keys.len());
    each_value(table, keys, |stored| {
        call.reply.bulk_or_null(stored.and_then(&value).as_deref());
        if call.reply.is_long() { Err(Refusal::LongReply) } else { Ok(()) }
    })
}

/// The type of what has this key.
pub(super) fn type_of(
    call: &mut Call<'_, '_>,
    front: &Front,
    key: &[u8],
) -> Result<Option<&'static str>, Refusal> {
    if expiring::string(call, front, key)?.is_some() {
        return Ok(Some("string"));
    }
    let types = front.types()?;
    Ok(types.into_iter().find(|(name, _)| name.as_bytes() == key).map(|(_, of_table)| of_table))
}

fn exists(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let (strings, others) = expiring::split(call, front, &a[1..])?;
    call.count(strings.len() + front.tables_of(others)?.len())
}

fn kind(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let name = type_of(call, front, a[1])?;
    call.reply.simple(name.unwrap_or("none"));
    Ok(())
}

/// Removes strings, and tables that Redis clients have made.
fn del(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let (strings, others) = expiring::split(call, front, &a[1..])?;
    let mut count = match front.strings()? {
        Some(table) => delete(&table, strings.into_iter().map(<[u8]>::to_vec))?,
        None => 0,
    };
    for key in front.tables_of(others)? {
        count += usize::from(front.remove(key)?);
    }
    call.count(count)
}

fn flush(call: &mut Call<'_, '_>, front: &Front, _: &Arguments<'_>) -> Outcome {
    for name in front.names()? {
        front.remove(name.as_bytes())?;
    }
    front.remove_strings()?;
    call.done()
}

fn dbsize(call: &mut Call<'_, '_>, front: &Front, _: &Arguments<'_>) -> Outcome {
    let strings = match front.strings()? {
        Some(strings) => strings.count(Interval::all(), None)?,
        None => 0,
    };
    let tables = front.names()?.len();
    call.count(tables + strings as usize)
}

fn keys(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let (here, mut count) = (call.reply.here(), 0);
    if let Some(strings) = front.strings()? {
        for record in strings.range(Interval::all()).keys_only() {
            let (key, _) = record?;
            if matches(a[1], &key) {
                call.reply.bulk(&key);
                count += 1;
            }
            if call.reply.is_long() {
                return Err(Refusal::LongReply);
            }
        }
    }
    for name in front.names()?.iter().filter(|name| matches(a[1], name.as_bytes())) {
        call.reply.bulk(name.as_bytes());
        count += 1;
    }
    call.reply.array_since(here, count);
    Ok(())
}

/// A scan of the strings; its last part also has the names of all tables.
fn scan(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let begin = call.shared.common.cursors().place(a[1], None)?;
    let wanted = Scan::of("scan", &a[2..])?;
    let (mut found, mut last) = (Vec::new(), None);
    if let Some(strings) = front.strings()? {
        let low = begin.1.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let keys = strings.range(Interval::from((low, Bound::Unbounded))).keys_only();
        let keys = keys.limit(wanted.count as u64).map(|record| record.map(|(key, _)| key));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        if keys.len() == wanted.count {
            last = keys.last().cloned();
        }
        found.extend(keys.into_iter().map(|key| (key, "string")));
    }
    if last.is_none() {
        found.extend(front.types()?.into_iter().map(|(name, kind)| (name.into_bytes(), kind)));
    }
    let is_wanted = |(key, kind): &(Vec<u8>, &str)| {
        wanted.wants(key) && wanted.kind.is_none_or(|wanted| wanted.eq_ignore_ascii_case(kind.as_bytes()))
    };
    found.retain(is_wanted);
    let now_ms = call.keys().now_ms;
    call.reply.cursor(call.shared.common.cursors().give(&begin, None, last, now_ms));
    call.reply.array(found.len());
    found.iter().for_each(|(key, _)| call.reply.bulk(key));
    Ok(())
}

fn field(front: &Front, a: &Arguments<'_>) -> Result<Option<Vec<u8>>, Refusal> {
    match front.hash(a[1])? {
        Some(hash) => Ok(hash.table.get(a[2])?),
        None => Ok(None),
    }
}

/// Sets fields, and returns how many are new.
fn put(front: &Front, a: &Arguments<'_>, name: &'static str) -> Result<usize, Refusal> {
    let pairs = a[2..].chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(Refusal::Arguments(name));
    }
    let hash = front.hash_to_write(a[1])?;
    let insert =
        |pair: &[&[u8]]| hash.table.submit(Operation::Insert { key: pair[0].into(), value: pair[1].into() });
    let tickets = pairs.clone().map(insert).collect::<Result<Vec<_>, _>>()?;
    let (mut count, mut existing) = (0, Vec::new());
    for (ticket, pair) in tickets.into_iter().zip(pairs) {
        match ticket.wait()? {
            Answer::Done => count += 1,
            _ => existing.push(Operation::Upsert { key: pair[0].into(), value: pair[1].into() }),
        }
    }
    let tickets =
        existing.into_iter().map(|upsert| hash.table.submit(upsert)).collect::<Result<Vec<_>, _>>()?;
    tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
    Ok(count)
}

fn hmget(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let hash = front.hash(a[1])?;
    values(call, hash.as_ref().map(|hash| &hash.table), &a[2..], |value| Some(value.into()))
}

/// Removes fields of a hash or members of a sorted set.
fn remove(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>, is_sorted: bool) -> Outcome {
    let table = if is_sorted { front.sorted(a[1])? } else { front.hash(a[1])? };
    let Some(table) = table else { return call.count(0) };
    let removed = delete(&table.table, a[2..].iter().map(|key| key.to_vec()))?;
    call.count(removed)
}

fn delete(table: &Table, keys: impl Iterator<Item = Vec<u8>>) -> Result<usize, Refusal> {
    let delete = |key: Vec<u8>| table.submit(Operation::Delete { key: key.into() });
    let tickets = keys.map(delete).collect::<Result<Vec<_>, _>>()?;
    let mut count = 0;
    for ticket in tickets {
        count += usize::from(ticket.wait()? == Answer::Done);
    }
    Ok(count)
}

fn length(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>, is_ordered: bool) -> Outcome {
    let table = if is_ordered { front.find(a[1])? } else { front.hash(a[1])? };
    let count = table.map_or(Ok(0), |table| table.table.count(Interval::all(), None))?;
    call.count(count as usize)
}

/// All fields in order, as their keys, values, or both.
fn all(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>, keys: bool, values: bool) -> Outcome {
    let (mut records, mut bytes) = (Vec::new(), 0);
    if let Some(hash) = front.hash(a[1])? {
        for record in hash.table.range(Interval::all()) {
            let (key, value) = record?;
            bytes += key.len() + value.len();
            if bytes > REPLY_BYTES_MAX {
                return Err(Refusal::LongReply);
            }
            records.push((key, value));
        }
    }
    match keys && values {
        true => call.reply.map(records.len()),
        false => call.reply.array(records.len()),
    }
    for (key, value) in records {
        if keys {
            call.reply.bulk(&key);
        }
        if values {
            call.reply.bulk(&value);
        }
    }
    Ok(())
}

fn hscan(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let begin = call.shared.common.cursors().place(a[2], Some(a[1]))?;
    let wanted = Scan::of("hscan", &a[3..])?;
    let low = begin.1.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let (mut found, mut last) = (Vec::new(), None);
    if let Some(hash) = front.hash(a[1])? {
        let records = hash.table.range(Interval::from((low, Bound::Unbounded))).limit(wanted.count as u64);
        let mut bytes = 0;
        for (i, record) in records.enumerate() {
            let (key, value) = record?;
            bytes += value.len();
            if i + 1 == wanted.count || bytes >= SCANNED_BYTES {
                last = Some(key.clone());
            }
            found.extend(wanted.wants(&key).then_some((key, value)));
            if last.is_some() {
                break;
            }
        }
    }
    let now_ms = call.keys().now_ms;
    call.reply.cursor(call.shared.common.cursors().give(&begin, Some(a[1]), last, now_ms));
    call.reply.array(if wanted.only_keys { found.len() } else { 2 * found.len() });
    for (key, value) in found {
        call.reply.bulk(&key);
        if !wanted.only_keys {
            call.reply.bulk(&value);
        }
    }
    Ok(())
}

fn zadd(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let Added { is_nothing, scores, members } = added(&a[2..])?;
    let set = match is_nothing {
        true => front.sorted(a[1])?,
        false => Some(front.sorted_to_write(a[1], scores[0])?),
    };
    let Some(set) = set else { return call.count(0) };
    let one = set.score().unwrap_or_default();
    if scores.iter().any(|score| *score != one) {
        return Err(Refusal::Score(one));
    }
    let insert =
        |member: &[u8]| set.table.submit(Operation::Insert { key: member.into(), value: Box::default() });
    let members = members.into_iter().filter(|_| !is_nothing);
    let tickets = members.map(insert).collect::<Result<Vec<_>, _>>()?;
    let mut count = 0;
    for ticket in tickets {
        count += usize::from(ticket.wait()? == Answer::Done);
    }
    call.count(count)
}

fn zscore(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let score = match front.sorted(a[1])? {
        Some(set) if set.table.get(a[2])?.is_some() => set.score(),
        _ => None,
    };
    match score {
        Some(score) => call.reply.double(score),
        None => call.reply.null(),
    }
    Ok(())
}

fn zlexcount(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let ends = ends(a[2], a[3])?;
    let count = match front.find(a[1])?.zip(ends) {
        Some((set, ends)) => set.table.count(Interval::from(ends), None)?,
        None => 0,
    };
    call.count(count as usize)
}

/// Reads some keys and removes them, then some more, so that few are in memory. Returns how many were removed.
fn in_rounds(
    mut keys: impl Iterator<Item = Result<Vec<u8>, Error>>,
    mut remove: impl FnMut(Vec<Vec<u8>>) -> Result<usize, Refusal>,
) -> Result<usize, Refusal> {
    let mut removed = 0;
    loop {
        let round = keys.by_ref().take(ROUND).collect::<Result<Vec<_>, _>>()?;
        if round.is_empty() {
            return Ok(removed);
        }
        removed += remove(round)?;
    }
}

fn zremrangebylex(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let ends = ends(a[2], a[3])?;
    let Some((set, ends)) = front.sorted(a[1])?.zip(ends) else { return call.count(0) };
    let members = set.table.range(Interval::from(ends)).keys_only();
    let members = members.map(|record| record.map(|(key, _)| key));
    let removed = in_rounds(members, |round| delete(&set.table, round.into_iter()))?;
    call.count(removed)
}

fn by_lex(
    call: &mut Call<'_, '_>,
    front: &Front,
    name: &[u8],
    ends: Option<(End<'_>, End<'_>)>,
    window: &Window,
) -> Outcome {
    let Some((set, ends)) = front.find(name)?.zip(ends) else {
        call.reply.array(0);
        return Ok(());
    };
    let members = set.table.range(Interval::from(ends)).keys_only();
    let members = if window.backwards { members.descending() } else { members };
    let most = window.most.map_or(u64::MAX, |most| window.offset.saturating_add(most) as u64);
    let (here, mut count) = (call.reply.here(), 0);
    for record in members.limit(most).skip(window.offset) {
        call.reply.bulk(&record?.0);
        count += 1;
        if call.reply.is_long() {
            return Err(Refusal::LongReply);
        }
    }
    call.reply.array_since(here, count);
    Ok(())
}

fn zrange(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let (window, is_lex) = Window::of_zrange(&a[4..])?;
    if !is_lex {
        return by_rank(call, front, a, window.backwards);
    }
    let ends = if window.backwards { ends(a[3], a[2])? } else { ends(a[2], a[3])? };
    by_lex(call, front, a[1], ends, &window)
}

/// Members by rank. They are read from the nearer end.
fn by_rank(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>, backwards: bool) -> Outcome {
    let set = front.find(a[1])?;
    let len = match &set {
        Some(set) => set.table.count(Interval::all(), None)? as i64,
        None => 0,
    };
    let (first, count) = ranks(a, len)?;
    let Some(set) = set.filter(|_| count > 0) else {
        call.reply.array(0);
        return Ok(());
    };
    // The ranks from the other end.
    let behind = len as usize - (first + count).min(len as usize);
    let is_nearer = behind < first;
    let skipped = if is_nearer { behind } else { first };
    let range = set.table.range(Interval::all()).keys_only().limit((skipped + count) as u64);
    let range = if backwards != is_nearer { range.descending() } else { range };
    let mut bytes = 0;
    let mut members = Vec::new();
    for record in range.skip(skipped) {
        let (member, _) = record?;
        bytes += member.len();
        if bytes > REPLY_BYTES_MAX {
            return Err(Refusal::LongReply);
        }
        members.push(member);
    }
    if is_nearer {
        members.reverse();
    }
    call.reply.array(members.len());
    members.iter().for_each(|member| call.reply.bulk(member));
    Ok(())
}

fn range(
    call: &mut Call<'_, '_>,
    front: &Front,
    a: &Arguments<'_>,
    name: &'static str,
    backwards: bool,
) -> Outcome {
    let window = Window::of_range(&a[4..], name, backwards)?;
    let ends = if backwards { ends(a[3], a[2])? } else { ends(a[2], a[3])? };
    by_lex(call, front, a[1], ends, &window)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// What went wrong: all members of a range were in memory before the first was removed.
    #[test]
    fn few_keys_are_in_memory_while_many_are_removed() {
        let (read, total) = (Cell::new(0), 10 * ROUND + 1);
        let keys = (0..total).map(|i| {
            read.set(read.get() + 1);
            Ok(i.to_be_bytes().to_vec())
        });
        let (mut expected, mut rounds) = (0..total, 0);
        let removed = in_rounds(keys, |round| {
            assert!(round.len() <= ROUND && read.get() <= (rounds + 1) * ROUND);
            assert!(round.iter().all(|key| *key == expected.next().unwrap().to_be_bytes()));
            rounds += 1;
            Ok(round.len() - 1)
        });
        assert_eq!((removed, expected.len(), rounds), (Ok(total - 11), 0, 11));
        let fails = [Ok(vec![1]), Err(Error::ReadOnly)].into_iter();
        assert_eq!(in_rounds(fails, |round| Ok(round.len())), Err(Refusal::Cluster(Error::ReadOnly)));
    }
}
