//! Commands on keys of any type.

use crate::call::{Arguments, Call, Outcome, number};
use crate::error::Refusal;
use crate::pattern::{Scan, matches};
use crate::resp::REPLY_BYTES_MAX;

/// The least bytes of a key in a reply beyond those of the key itself.
const LINES_BYTES: usize = 6;

pub(super) fn dbsize(call: &mut Call<'_, '_>, _: &Arguments<'_>) -> Outcome {
    let count = call.keys().len();
    call.count(count)
}

pub(super) fn del(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let count = a[1..].iter().filter(|key| call.shared.keyspace.delete_live(key)).count();
    call.count(count)
}

pub(super) fn exists(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let count = a[1..].iter().filter(|key| call.shared.keyspace.expiry(key).is_some()).count();
    call.count(count)
}

pub(super) fn kind(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let kind = call.keys().kind(a[1]);
    call.reply.simple(kind.map_or("none", |kind| kind.name()));
    Ok(())
}

pub(super) fn flush(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    if a.get(1)
        .is_some_and(|how| !["async", "sync"].iter().any(|word| how.eq_ignore_ascii_case(word.as_bytes())))
    {
        return Err(Refusal::Syntax("flush"));
    }
    call.keys().clear()?;
    call.done()
}

/// EXPIRE and its variants: in seconds or milliseconds, from now or since 1970.
fn end(
    call: &mut Call<'_, '_>,
    a: &Arguments<'_>,
    name: &'static str,
    unit_ms: i64,
    from_ms: i64,
) -> Outcome {
    let ms = number(a[2])?.checked_mul(unit_ms).and_then(|ms| ms.checked_add(from_ms));
    let ms = ms.ok_or(Refusal::Expiry(name))?;
    let Some(now) = call.keys().expiry(a[1]) else { return call.count(0) };
    let is_done = wants(name, now, ms, a.get(3).copied())? && call.keys().expire(a[1], Some(ms))?;
    call.count(usize::from(is_done))
}

/// Whether a key with this expiry, if any, is to get that one, according to the last word of EXPIRE.
pub(super) fn wants(
    name: &'static str,
    now: Option<i64>,
    ms: i64,
    word: Option<&[u8]>,
) -> Result<bool, Refusal> {
    Ok(match word.map(<[u8]>::to_ascii_lowercase).as_deref() {
        None => true,
        Some(b"nx") => now.is_none(),
        Some(b"xx") => now.is_some(),
        Some(b"gt") => now.is_some_and(|now| ms > now),
        Some(b"lt") => now.is_none_or(|now| ms < now),
        Some(_) => return Err(Refusal::Syntax(name)),
    })
}

pub(super) fn expire(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let now = call.keys().now_ms;
    end(call, a, "expire", 1000, now)
}

pub(super) fn pexpire(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let now = call.keys().now_ms;
    end(call, a, "pexpire", 1, now)
}

pub(super) fn expireat(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    end(call, a, "expireat", 1000, 0)
}

pub(super) fn pexpireat(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    end(call, a, "pexpireat", 1, 0)
}

pub(super) fn persist(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let ends = call.keys().expiry(a[1]).flatten().is_some();
    let is_done = ends && call.keys().expire(a[1], None)?;
    call.count(usize::from(is_done))
}

/// The time until a key expires, in units of `unit_ms`, rounded; -1 if it does not expire, -2 if there is no such key.
fn left(call: &mut Call<'_, '_>, key: &[u8], unit_ms: i64) -> Outcome {
    let now = call.keys().now_ms;
    let left = match call.keys().expiry(key) {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => (at - now + unit_ms / 2) / unit_ms,
    };
    call.reply.integer(left);
    Ok(())
}

pub(super) fn ttl(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    left(call, a[1], 1000)
}

pub(super) fn pttl(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    left(call, a[1], 1)
}

pub(super) fn keys(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let (mut found, mut bytes) = (Vec::new(), 0);
    call.keys().scan(None, usize::MAX, |key, _| {
        if bytes <= REPLY_BYTES_MAX && matches(a[1], key) {
            bytes += key.len() + LINES_BYTES;
            found.push(key.to_vec());
        }
    });
    if bytes > REPLY_BYTES_MAX {
        return Err(Refusal::LongReply);
    }
    call.reply.array(found.len());
    found.iter().for_each(|key| call.reply.bulk(key));
    Ok(())
}

pub(super) fn scan(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let begin = call.shared.common.cursors().place(a[1], None)?;
    let wanted = Scan::of("scan", &a[2..])?;
    let mut found = Vec::new();
    let keyspace = &call.shared.keyspace;
    let last = keyspace.scan(begin.1.as_deref(), wanted.count, |key, kind| {
        let is_kind = wanted.kind.is_none_or(|name| name.eq_ignore_ascii_case(kind.name().as_bytes()));
        if is_kind && wanted.wants(key) {
            found.push(key.to_vec());
        }
    });
    let now_ms = call.keys().now_ms;
    call.reply.cursor(call.shared.common.cursors().give(&begin, None, last, now_ms));
    call.reply.array(found.len());
    found.iter().for_each(|key| call.reply.bulk(key));
    Ok(())
}
