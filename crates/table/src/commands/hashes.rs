//! Commands on hashes: tables of fields.

use std::ops::Bound;

use crate::call::{Arguments, Call, Outcome, number};
use crate::error::Refusal;
use crate::keyspace::{Kind, TableRef};
use crate::pattern::{SCANNED_BYTES, Scan};
use crate::resp::integer;

fn is_hash(kind: Kind) -> bool {
    kind == Kind::Hash
}

fn hash<'a>(call: &'a mut Call<'_, '_>, name: &[u8]) -> Result<Option<TableRef<'a>>, Refusal> {
    call.keys().table(name, is_hash)
}

fn field(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Result<Option<Vec<u8>>, Refusal> {
    Ok(hash(call, a[1])?.and_then(|table| table.get(a[2])).map(<[u8]>::to_vec))
}

pub(super) fn hset(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let count = put(call, a, "hset")?;
    call.count(count)
}

pub(super) fn hmset(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    put(call, a, "hmset")?;
    call.done()
}

/// Sets fields and returns how many are new. If a pair is too long, sets none; if memory runs out, sets those before.
fn put(call: &mut Call<'_, '_>, a: &Arguments<'_>, name: &'static str) -> Result<usize, Refusal> {
    let pairs = a[2..].chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(Refusal::Arguments(name));
    }
    for pair in pairs.clone() {
        call.keys().fits(pair[0], pair[1])?;
    }
    let mut count = 0;
    for pair in pairs {
        count += usize::from(call.keys().put(a[1], Kind::Hash, pair[0], pair[1])?);
    }
    Ok(count)
}

pub(super) fn hsetnx(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let is_new = hash(call, a[1])?.is_none_or(|table| table.get(a[2]).is_none());
    if is_new {
        call.keys().put(a[1], Kind::Hash, a[2], a[3])?;
    }
    call.count(usize::from(is_new))
}

pub(super) fn hincrby(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let by = number(a[3])?;
    let before = field(call, a)?.map_or(Some(0), |value| integer(&value));
    let sum = before.and_then(|before| before.checked_add(by)).ok_or(Refusal::NoInteger)?;
    call.keys().put(a[1], Kind::Hash, a[2], sum.to_string().as_bytes())?;
    call.reply.integer(sum);
    Ok(())
}

pub(super) fn hget(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let table = call.shared.keyspace.table(a[1], is_hash)?;
    call.reply.bulk_or_null(table.and_then(|table| table.get(a[2])));
    Ok(())
}

pub(super) fn hmget(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let table = call.shared.keyspace.table(a[1], is_hash)?;
    call.reply.array(a.len() - 2);
    for field in &a[2..] {
        call.reply.bulk_or_null(table.as_ref().and_then(|table| table.get(field)));
        if call.reply.is_long() {
            return Err(Refusal::LongReply);
        }
    }
    Ok(())
}

pub(super) fn hexists(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let is_there = hash(call, a[1])?.is_some_and(|table| table.get(a[2]).is_some());
    call.count(usize::from(is_there))
}

pub(super) fn hstrlen(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let len = hash(call, a[1])?.and_then(|table| table.get(a[2])).map_or(0, <[u8]>::len);
    call.count(len)
}

pub(super) fn hlen(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let len = hash(call, a[1])?.map_or(0, |table| table.len());
    call.count(len)
}

pub(super) fn hdel(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let count = match hash(call, a[1])?.is_some() {
        true => a[2..].iter().filter(|field| call.shared.keyspace.take(a[1], field)).count(),
        false => 0,
    };
    call.count(count)
}

/// All fields in order, as their keys, values, or both.
fn all(call: &mut Call<'_, '_>, a: &Arguments<'_>, keys: bool, values: bool) -> Outcome {
    let table = call.shared.keyspace.table(a[1], is_hash)?;
    let len = table.as_ref().map_or(0, TableRef::len);
    match keys && values {
        true => call.reply.map(len),
        false => call.reply.array(len),
    }
    let Some(table) = table else { return Ok(()) };
    for record in table.walk((Bound::Unbounded, Bound::Unbounded), false) {
        if keys {
            call.reply.bulk(record.key);
        }
        if values {
            call.reply.bulk(record.value);
        }
        if call.reply.is_long() {
            return Err(Refusal::LongReply);
        }
    }
    Ok(())
}

pub(super) fn hgetall(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    all(call, a, true, true)
}

pub(super) fn hkeys(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    all(call, a, true, false)
}

pub(super) fn hvals(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    all(call, a, false, true)
}

pub(super) fn hscan(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let begin = call.shared.common.cursors().place(a[2], Some(a[1]))?;
    let wanted = Scan::of("hscan", &a[3..])?;
    let now_ms = call.keys().now_ms;
    let low = begin.1.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let table = call.shared.keyspace.table(a[1], is_hash)?;
    let (mut found, mut last) = (Vec::new(), None);
    if let Some(table) = &table {
        let mut walk = table.walk((low, Bound::Unbounded), false);
        let mut bytes = 0;
        for record in walk.by_ref().take(wanted.count) {
            if wanted.wants(record.key) {
                found.push(record);
                bytes += record.value.len();
            }
            last = Some(record.key);
            if bytes >= SCANNED_BYTES {
                break;
            }
        }
        last = last.filter(|_| walk.next().is_some());
    }
    let last = last.map(<[u8]>::to_vec);
    call.reply.cursor(call.shared.common.cursors().give(&begin, Some(a[1]), last, now_ms));
    call.reply.array(if wanted.only_keys { found.len() } else { 2 * found.len() });
    for record in found {
        call.reply.bulk(record.key);
        if !wanted.only_keys {
            call.reply.bulk(record.value);
        }
    }
    Ok(())
}
