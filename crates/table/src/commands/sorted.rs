//! Commands on sorted sets whose members all have one score, and are therefore in the order of their bytes.

use std::ops::Bound;

use crate::call::{Arguments, Call, Outcome, number};
use crate::error::Refusal;
use crate::keyspace::{Kind, TableRef};
use crate::walk::End;

/// The number of members that are found and then removed at a time.
const REMOVED_TOGETHER: usize = 1000;

fn is_sorted(kind: Kind) -> bool {
    matches!(kind, Kind::Sorted(_))
}

/// Whether members are ordered. Those of a hash are too: they are its fields.
fn is_ordered(kind: Kind) -> bool {
    kind != Kind::String
}

fn score(argument: &[u8]) -> Result<f64, Refusal> {
    let text = std::str::from_utf8(argument).map_err(|_| Refusal::NoNumber)?;
    text.parse().ok().filter(|score: &f64| !score.is_nan()).ok_or(Refusal::NoNumber)
}

/// What ZADD adds.
pub(super) struct Added<'a> {
    /// Whether nothing is added, because only members that are there would be changed.
    pub(super) is_nothing: bool,
    pub(super) scores: Vec<f64>,
    pub(super) members: Vec<&'a [u8]>,
}

/// The arguments of ZADD behind the name of the set. As all members have one score, the only possible change is a new
/// member, so NX and CH change nothing.
pub(super) fn added<'a>(mut pairs: &Arguments<'a>) -> Result<Added<'a>, Refusal> {
    let (mut is_nothing, mut only_new) = (false, false);
    while let [word, rest @ ..] = pairs {
        match &word.to_ascii_lowercase()[..] {
            b"nx" => only_new = true,
            b"xx" => is_nothing = true,
            b"ch" => {}
            _ => break,
        }
        pairs = rest;
    }
    if !pairs.len().is_multiple_of(2) || pairs.is_empty() || (is_nothing && only_new) {
        return Err(Refusal::Syntax("zadd"));
    }
    let pairs = pairs.chunks_exact(2);
    let scores = pairs.clone().map(|pair| score(pair[0])).collect::<Result<_, _>>()?;
    Ok(Added { is_nothing, scores, members: pairs.map(|pair| pair[1]).collect() })
}

pub(super) fn zadd(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let Added { is_nothing, scores, members } = added(&a[2..])?;
    let one = match call.keys().table(a[1], is_sorted)?.map(|set| set.kind()) {
        Some(Kind::Sorted(score)) => score,
        _ => scores[0],
    };
    if scores.iter().any(|score| *score != one) {
        return Err(Refusal::Score(one));
    }
    for member in &members {
        call.keys().fits(member, b"")?;
    }
    let mut count = 0;
    for member in members.into_iter().filter(|_| !is_nothing) {
        let is_there = call.keys().table(a[1], is_sorted)?.is_some_and(|set| set.get(member).is_some());
        if !is_there {
            call.keys().put(a[1], Kind::Sorted(one), member, b"")?;
            count += 1;
        }
    }
    call.count(count)
}

pub(super) fn zrem(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let count = match call.keys().table(a[1], is_sorted)?.is_some() {
        true => a[2..].iter().filter(|member| call.shared.keyspace.take(a[1], member)).count(),
        false => 0,
    };
    call.count(count)
}

pub(super) fn zscore(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let set = call.shared.keyspace.table(a[1], is_sorted)?;
    match set.filter(|set| set.get(a[2]).is_some()).map(|set| set.kind()) {
        Some(Kind::Sorted(score)) => call.reply.double(score),
        _ => call.reply.null(),
    }
    Ok(())
}

pub(super) fn zcard(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let len = call.keys().table(a[1], is_ordered)?.map_or(0, |set| set.len());
    call.count(len)
}

/// One end of a range of members: `-`, `+`, or a member after `[` or `(`.
fn end(argument: &[u8]) -> Result<Lex<'_>, Refusal> {
    match argument {
        b"-" => Ok(Lex::Lowest),
        b"+" => Ok(Lex::Highest),
        [b'[', member @ ..] => Ok(Lex::At(Bound::Included(member))),
        [b'(', member @ ..] => Ok(Lex::At(Bound::Excluded(member))),
        _ => Err(Refusal::NoBound),
    }
}

enum Lex<'a> {
    Lowest,
    Highest,
    At(End<'a>),
}

/// The ends of a range; `None` if nothing can be in it.
pub(super) fn ends<'a>(low: &'a [u8], high: &'a [u8]) -> Result<Option<(End<'a>, End<'a>)>, Refusal> {
    let low = match end(low)? {
        Lex::Lowest => Some(Bound::Unbounded),
        Lex::At(low) => Some(low),
        Lex::Highest => None,
    };
    let high = match end(high)? {
        Lex::Highest => Some(Bound::Unbounded),
        Lex::At(high) => Some(high),
        Lex::Lowest => None,
    };
    Ok(low.zip(high))
}

pub(super) fn zlexcount(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let ends = ends(a[2], a[3])?;
    let set = call.keys().table(a[1], is_ordered)?;
    let count = set.zip(ends).map_or(0, |(set, ends)| set.count(ends));
    call.count(count)
}

pub(super) fn zremrangebylex(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let ends = ends(a[2], a[3])?;
    call.keys().table(a[1], is_sorted)?;
    let Some(ends) = ends else { return call.count(0) };
    let mut count = 0;
    loop {
        let mut members = Vec::new();
        if let Some(set) = call.keys().table(a[1], is_sorted)? {
            let next = set.walk(ends, false).take(REMOVED_TOGETHER);
            members.extend(next.map(|record| record.key.to_vec()));
        }
        if members.is_empty() {
            return call.count(count);
        }
        count += members.iter().filter(|member| call.shared.keyspace.take(a[1], member)).count();
    }
}

/// Which members of a range are returned.
pub(super) struct Window {
    pub(super) backwards: bool,
    pub(super) offset: usize,
    pub(super) most: Option<usize>,
}

impl Window {
    /// From the arguments of ZRANGE after its ends. Also returns whether the ends are members, not ranks.
    pub(super) fn of_zrange(mut words: &Arguments<'_>) -> Result<(Window, bool), Refusal> {
        const SYNTAX: Refusal = Refusal::Syntax("zrange");
        let mut window = Window { backwards: false, offset: 0, most: None };
        let (mut is_lex, mut limit) = (false, None);
        while let [word, rest @ ..] = words {
            words = rest;
            match &word.to_ascii_lowercase()[..] {
                b"bylex" => is_lex = true,
                b"rev" => window.backwards = true,
                b"limit" => {
                    limit = Some(rest.get(..2).ok_or(SYNTAX)?);
                    words = &rest[2..];
                }
                _ => return Err(SYNTAX),
            }
        }
        match limit {
            Some(limit) if is_lex => window.limit("zrange", limit)?,
            Some(_) => return Err(SYNTAX),
            None => {}
        }
        Ok((window, is_lex))
    }

    /// From the arguments of ZRANGEBYLEX or ZREVRANGEBYLEX after its ends.
    pub(super) fn of_range(
        words: &Arguments<'_>,
        name: &'static str,
        backwards: bool,
    ) -> Result<Window, Refusal> {
        let mut window = Window { backwards, offset: 0, most: None };
        match words {
            [] => {}
            [word, limit @ ..] if word.eq_ignore_ascii_case(b"limit") => window.limit(name, limit)?,
            _ => return Err(Refusal::Syntax(name)),
        }
        Ok(window)
    }

    /// Applies the two numbers after LIMIT; a negative count means no limit.
    fn limit(&mut self, name: &'static str, words: &Arguments<'_>) -> Outcome {
        let [offset, count] = words else { return Err(Refusal::Syntax(name)) };
        // Redis, too, finds nothing after a negative offset.
        self.offset = usize::try_from(number(offset)?).unwrap_or(usize::MAX);
        self.most = usize::try_from(number(count)?).ok();
        Ok(())
    }
}

fn by_lex(
    call: &mut Call<'_, '_>,
    name: &[u8],
    ends: Option<(End<'_>, End<'_>)>,
    window: &Window,
) -> Outcome {
    let set = call.shared.keyspace.table(name, is_ordered)?;
    let Some((set, ends)) = set.zip(ends) else {
        call.reply.array(0);
        return Ok(());
    };
    let mut walk = set.walk(ends, window.backwards);
    walk.skip_records(window.offset);
    let (here, mut count) = (call.reply.here(), 0);
    for record in walk.take(window.most.unwrap_or(usize::MAX)) {
        call.reply.bulk(record.key);
        count += 1;
        if call.reply.is_long() {
            return Err(Refusal::LongReply);
        }
    }
    call.reply.array_since(here, count);
    Ok(())
}

/// The first rank of a range, and how many members it has. Negative ranks count from the end.
pub(super) fn ranks(a: &Arguments<'_>, len: i64) -> Result<(usize, usize), Refusal> {
    let rank = |argument| number(argument).map(|rank| if rank < 0 { rank.saturating_add(len) } else { rank });
    let (first, last) = (rank(a[2])?.max(0), rank(a[3])?.min(len - 1));
    Ok((first as usize, usize::try_from(last - first + 1).unwrap_or(0)))
}

pub(super) fn zrange(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let (window, is_lex) = Window::of_zrange(&a[4..])?;
    if is_lex {
        let ends = if window.backwards { ends(a[3], a[2])? } else { ends(a[2], a[3])? };
        return by_lex(call, a[1], ends, &window);
    }
    by_rank(call, a, window.backwards)
}

pub(super) fn zrevrange(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    by_rank(call, a, true)
}

fn by_rank(call: &mut Call<'_, '_>, a: &Arguments<'_>, backwards: bool) -> Outcome {
    let len = call.keys().table(a[1], is_ordered)?.map_or(0, |set: TableRef<'_>| set.len()) as i64;
    let (first, count) = ranks(a, len)?;
    let window = Window { backwards, offset: first, most: Some(count) };
    by_lex(call, a[1], Some((Bound::Unbounded, Bound::Unbounded)), &window)
}

fn range(call: &mut Call<'_, '_>, a: &Arguments<'_>, name: &'static str, backwards: bool) -> Outcome {
    let window = Window::of_range(&a[4..], name, backwards)?;
    let ends = if backwards { ends(a[3], a[2])? } else { ends(a[2], a[3])? };
    by_lex(call, a[1], ends, &window)
}

pub(super) fn zrangebylex(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    range(call, a, "zrangebylex", false)
}

pub(super) fn zrevrangebylex(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    range(call, a, "zrevrangebylex", true)
}
