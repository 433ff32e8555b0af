//! Commands on keys with strings.

use crate::call::{Arguments, Call, Outcome, number};
use crate::error::Refusal;
use crate::resp::integer;

pub(super) fn get(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let found = call.shared.keyspace.string(a[1])?;
    call.reply.bulk_or_null(found.map(|record| record.value));
    Ok(())
}

pub(super) fn strlen(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let len = call.keys().string(a[1])?.map_or(0, |record| record.value.len());
    call.count(len)
}

pub(super) fn mget(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    call.reply.array(a.len() - 1);
    for key in &a[1..] {
        // A key of another type has no string.
        let found = call.shared.keyspace.string(key).unwrap_or(None);
        call.reply.bulk_or_null(found.map(|record| record.value));
        if call.reply.is_long() {
            return Err(Refusal::LongReply);
        }
    }
    Ok(())
}

/// The options of SET: its arguments after key and value.
#[derive(Default)]
pub(super) struct Options {
    pub(super) only_if: Option<bool>,
    pub(super) get: bool,
    pub(super) keep: bool,
    pub(super) expires_ms: Option<i64>,
}

pub(super) fn options(call: &mut Call<'_, '_>, words: &Arguments<'_>) -> Result<Options, Refusal> {
    const SYNTAX: Refusal = Refusal::Syntax("set");
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let word = word.to_ascii_lowercase();
        match &word[..] {
            b"nx" | b"xx" if options.only_if.is_none() => options.only_if = Some(word == b"xx"),
            b"get" => options.get = true,
            b"keepttl" if options.expires_ms.is_none() => options.keep = true,
            b"ex" | b"px" | b"exat" | b"pxat" if options.expires_ms.is_none() && !options.keep => {
                let time = number(words.next().ok_or(SYNTAX)?)?;
                let (is_seconds, is_span) = (word[0] == b'e', word.len() == 2);
                options.expires_ms = Some(ends(call, "set", time, is_seconds, is_span)?);
            }
            _ => return Err(SYNTAX),
        }
    }
    Ok(options)
}

/// The expiry of a key in milliseconds since 1970, from a point in time or from a span, which must be positive.
pub(super) fn ends(
    call: &mut Call<'_, '_>,
    name: &'static str,
    time: i64,
    is_seconds: bool,
    is_span: bool,
) -> Result<i64, Refusal> {
    let from = if is_span { call.keys().now_ms } else { 0 };
    let ms = time.checked_mul(if is_seconds { 1000 } else { 1 }).filter(|ms| *ms > 0);
    ms.and_then(|ms| ms.checked_add(from)).ok_or(Refusal::Expiry(name))
}

pub(super) fn set(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let options = options(call, &a[3..])?;
    let (key, value) = (a[1], a[2]);
    // Most requests have neither option.
    let is_there = match options.only_if.is_some() || options.keep {
        true => call.keys().expiry(key),
        false => None,
    };
    let before = match options.get {
        true => call.keys().string(key)?.map(|record| record.value.to_vec()),
        false => None,
    };
    let is_done = options.only_if.is_none_or(|if_there| if_there == is_there.is_some());
    if is_done {
        let expires_ms = if options.keep { is_there.flatten() } else { options.expires_ms };
        call.keys().set(key, value, expires_ms)?;
    }
    match (options.get, is_done) {
        (true, _) => call.reply.bulk_or_null(before.as_deref()),
        (false, true) => call.reply.simple("OK"),
        (false, false) => call.reply.null(),
    }
    Ok(())
}

pub(super) fn setnx(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let is_new = call.keys().expiry(a[1]).is_none();
    if is_new {
        call.keys().set(a[1], a[2], None)?;
    }
    call.count(usize::from(is_new))
}

pub(super) fn setex(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let expires = ends(call, "setex", number(a[2])?, true, true)?;
    call.keys().set(a[1], a[3], Some(expires))?;
    call.done()
}

pub(super) fn psetex(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let expires = ends(call, "psetex", number(a[2])?, false, true)?;
    call.keys().set(a[1], a[3], Some(expires))?;
    call.done()
}

pub(super) fn getset(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let before = call.keys().string(a[1])?.map(|record| record.value.to_vec());
    call.keys().set(a[1], a[2], None)?;
    call.reply.bulk_or_null(before.as_deref());
    Ok(())
}

pub(super) fn getdel(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    get(call, a)?;
    call.keys().delete(a[1]);
    Ok(())
}

/// If one of the pairs is too long, nothing is set; if memory runs out, the pairs before that are set.
pub(super) fn mset(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let pairs = a[1..].chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(Refusal::Arguments("mset"));
    }
    for pair in pairs.clone() {
        call.keys().fits(pair[0], pair[1])?;
    }
    for pair in pairs {
        call.keys().set(pair[0], pair[1], None)?;
    }
    call.done()
}

pub(super) fn append(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let found = call.keys().string(a[1])?;
    let expires_ms = found.and_then(|record| record.expires_ms);
    let value = [found.map_or(&b""[..], |record| record.value), a[2]].concat();
    call.keys().set(a[1], &value, expires_ms)?;
    call.count(value.len())
}

fn add(call: &mut Call<'_, '_>, key: &[u8], by: i64) -> Outcome {
    let found = call.keys().string(key)?;
    let expires_ms = found.and_then(|record| record.expires_ms);
    let before = found.map_or(Some(0), |record| integer(record.value));
    let sum = before.and_then(|before| before.checked_add(by)).ok_or(Refusal::NoInteger)?;
    call.keys().set(key, sum.to_string().as_bytes(), expires_ms)?;
    call.reply.integer(sum);
    Ok(())
}

pub(super) fn incr(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    add(call, a[1], 1)
}

pub(super) fn decr(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    add(call, a[1], -1)
}

pub(super) fn incrby(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    add(call, a[1], number(a[2])?)
}

pub(super) fn decrby(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    add(call, a[1], number(a[2])?.checked_neg().ok_or(Refusal::NoInteger)?)
}
