//! The commands of Redis clients on strings of a cluster, which may expire; see cluster/expiry.rs.
//!
//! Invariant: a command on one string is atomic.
//! Non-goals: an end of hashes and sorted sets, which are tables.

use super::cluster::{changed, each_value, type_of, values};
use super::keys::wants;
use super::strings::{ends, options};
use crate::call::{Arguments, Call, Outcome, number};
use crate::cluster::{Answer, Front, Operation, Text, fits};
use crate::error::Refusal;
use crate::resp::integer;

/// The string of a key.
pub(super) fn string(call: &mut Call<'_, '_>, front: &Front, key: &[u8]) -> Result<Option<Text>, Refusal> {
    let now_ms = call.keys().now_ms;
    match front.strings()? {
        Some(strings) => Ok(strings.get(key)?.and_then(|stored| Text::of(&stored, now_ms))),
        None => Ok(None),
    }
}

/// The value to be stored for a string.
fn stored(text: &Text) -> Result<Vec<u8>, Refusal> {
    let stored = text.stored();
    fits(&[], &stored)?;
    Ok(stored)
}

/// Replaces a string by what `change` makes of it, and returns what it was.
fn swap(
    call: &mut Call<'_, '_>,
    front: &Front,
    key: &[u8],
    change: impl Fn(Option<&Text>) -> Result<Option<Text>, Refusal>,
) -> Result<Option<Text>, Refusal> {
    let now_ms = call.keys().now_ms;
    let text = |before: Option<&[u8]>| before.and_then(|stored| Text::of(stored, now_ms));
    let before = changed(&front.strings_to_write()?, key, |before| {
        change(text(before).as_ref())?.as_ref().map(stored).transpose()
    })?;
    Ok(text(before.as_deref()))
}

pub(super) fn get(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let text = string(call, front, a[1])?;
    call.reply.bulk_or_null(text.as_ref().map(|text| &text.value[..]));
    Ok(())
}

pub(super) fn strlen(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let text = string(call, front, a[1])?;
    call.count(text.map_or(0, |text| text.value.len()))
}

pub(super) fn mget(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let (strings, now_ms) = (front.strings()?, call.keys().now_ms);
    let value = |stored: &[u8]| Text::of(stored, now_ms).map(|text| text.value);
    values(call, strings.as_ref(), &a[1..], value)
}

pub(super) fn set(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let options = options(call, &a[3..])?;
    let new = Text { value: a[2].to_vec(), ends_ms: options.expires_ms };
    if options.only_if.is_none() && !options.get && !options.keep {
        front.strings_to_write()?.upsert(a[1], &stored(&new)?)?;
        return call.done();
    }
    let is_wanted =
        |before: Option<&Text>| options.only_if.is_none_or(|if_there| if_there == before.is_some());
    let before = swap(call, front, a[1], |before| match is_wanted(before) {
        true if options.keep => {
            Ok(Some(Text { ends_ms: before.and_then(|before| before.ends_ms), ..new.clone() }))
        }
        true => Ok(Some(new.clone())),
        false => Ok(before.cloned()),
    })?;
    match (options.get, is_wanted(before.as_ref())) {
        (true, _) => call.reply.bulk_or_null(before.as_ref().map(|text| &text.value[..])),
        (false, true) => call.reply.simple("OK"),
        (false, false) => call.reply.null(),
    }
    Ok(())
}

pub(super) fn setnx(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let new = Text { value: a[2].to_vec(), ends_ms: None };
    let before = swap(call, front, a[1], |before| Ok(Some(before.unwrap_or(&new).clone())))?;
    call.count(usize::from(before.is_none()))
}

/// SETEX and PSETEX.
pub(super) fn setex(
    call: &mut Call<'_, '_>,
    front: &Front,
    a: &Arguments<'_>,
    (name, is_seconds): (&'static str, bool),
) -> Outcome {
    let ends_ms = Some(ends(call, name, number(a[2])?, is_seconds, true)?);
    front.strings_to_write()?.upsert(a[1], &stored(&Text { value: a[3].to_vec(), ends_ms })?)?;
    call.done()
}

pub(super) fn getset(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let new = Text { value: a[2].to_vec(), ends_ms: None };
    let before = swap(call, front, a[1], |_| Ok(Some(new.clone())))?;
    call.reply.bulk_or_null(before.as_ref().map(|text| &text.value[..]));
    Ok(())
}

pub(super) fn getdel(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let before = swap(call, front, a[1], |_| Ok(None))?;
    call.reply.bulk_or_null(before.as_ref().map(|text| &text.value[..]));
    Ok(())
}

pub(super) fn append(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let before = swap(call, front, a[1], |before| {
        let mut text = before.cloned().unwrap_or(Text { value: Vec::new(), ends_ms: None });
        text.value.extend_from_slice(a[2]);
        Ok(Some(text))
    })?;
    call.count(before.map_or(0, |before| before.value.len()) + a[2].len())
}

/// Adds to the number that is a string, and replies with the sum.
pub(super) fn add(call: &mut Call<'_, '_>, front: &Front, key: &[u8], by: i64) -> Outcome {
    let sum = |before: Option<&Text>| {
        let before = before.map_or(Some(0), |before| integer(&before.value));
        before.and_then(|before| before.checked_add(by)).ok_or(Refusal::NoInteger)
    };
    let before = swap(call, front, key, |before| {
        let value = sum(before)?.to_string().into_bytes();
        Ok(Some(Text { value, ends_ms: before.and_then(|before| before.ends_ms) }))
    })?;
    call.reply.integer(sum(before.as_ref())?);
    Ok(())
}

type Keys<'a> = Vec<&'a [u8]>;

/// The keys that have strings, and the others.
pub(super) fn split<'a>(
    call: &mut Call<'_, '_>,
    front: &Front,
    keys: &Arguments<'a>,
) -> Result<(Keys<'a>, Keys<'a>), Refusal> {
    let (strings, now_ms) = (front.strings()?, call.keys().now_ms);
    let (mut with, mut without, mut rest) = (Vec::new(), Vec::new(), keys.iter());
    each_value(strings.as_ref(), keys, |stored| {
        let is_there = stored.is_some_and(|stored| Text::of(stored, now_ms).is_some());
        let part = if is_there { &mut with } else { &mut without };
        part.extend(rest.next());
        Ok(())
    })?;
    Ok((with, without))
}

/// EXPIRE and its variants: in seconds or milliseconds, from now or since 1970.
pub(super) fn expire(
    call: &mut Call<'_, '_>,
    front: &Front,
    a: &Arguments<'_>,
    (name, unit_ms, is_span): (&'static str, i64, bool),
) -> Outcome {
    let now_ms = call.keys().now_ms;
    let from_ms = if is_span { now_ms } else { 0 };
    let ms = number(a[2])?.checked_mul(unit_ms).and_then(|ms| ms.checked_add(from_ms));
    let ms = ms.ok_or(Refusal::Expiry(name))?;
    let is_wanted = |before: &Text| wants(name, before.ends_ms, ms, a.get(3).copied());
    let before = swap(call, front, a[1], |before| match before {
        Some(before) if is_wanted(before)? => {
            Ok((ms > now_ms).then(|| Text { ends_ms: Some(ms), ..before.clone() }))
        }
        before => Ok(before.cloned()),
    })?;
    let is_done = match &before {
        Some(before) => is_wanted(before)?,
        None => {
            no_table(call, front, a[1], name)?;
            false
        }
    };
    call.count(usize::from(is_done))
}

/// Refuses what tables cannot do, if the key is the name of one.
fn no_table(call: &mut Call<'_, '_>, front: &Front, key: &[u8], name: &'static str) -> Outcome {
    match type_of(call, front, key)? {
        Some(_) => Err(Refusal::NotOnCluster(name)),
        None => Ok(()),
    }
}

pub(super) fn persist(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let before =
        swap(call, front, a[1], |before| Ok(before.map(|before| Text { ends_ms: None, ..before.clone() })))?;
    call.count(usize::from(before.is_some_and(|before| before.ends_ms.is_some())))
}

/// TTL and PTTL: the time until a key expires, in units of `unit_ms`; -1 if it does not, -2 if there is none.
pub(super) fn left(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>, unit_ms: i64) -> Outcome {
    let now_ms = call.keys().now_ms;
    let left = match string(call, front, a[1])? {
        Some(Text { ends_ms: Some(ends), .. }) => (ends - now_ms + unit_ms / 2) / unit_ms,
        Some(_) => -1,
        None if type_of(call, front, a[1])?.is_some() => -1,
        None => -2,
    };
    call.reply.integer(left);
    Ok(())
}

pub(super) fn mset(call: &mut Call<'_, '_>, front: &Front, a: &Arguments<'_>) -> Outcome {
    let pairs = a[1..].chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(Refusal::Arguments("mset"));
    }
    let strings = front.strings_to_write()?;
    let upsert = |pair: &[&[u8]]| -> Result<_, Refusal> {
        let value = stored(&Text { value: pair[1].to_vec(), ends_ms: None })?;
        Ok(strings.submit(Operation::Upsert { key: pair[0].into(), value: value.into() })?)
    };
    let tickets = pairs.map(upsert).collect::<Result<Vec<_>, _>>()?;
    tickets.into_iter().try_for_each(|ticket| ticket.wait().map(|_: Answer| ()))?;
    call.done()
}
