//! Commands on the connection and the server.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use crate::call::{Arguments, Call, Outcome, Transaction, number};
use crate::error::Refusal;
use crate::pattern::matches;

/// The version of Redis that is reported to clients; it has the commands that are here.
const REDIS_VERSION: &str = "7.0.0";
/// A client is disconnected after this many wrong passwords.
const WRONG_PASSWORDS_MAX: usize = 3;

pub(super) fn ping(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    match a.get(1) {
        Some(text) => call.reply.bulk(text),
        None => call.reply.simple("PONG"),
    }
    Ok(())
}

pub(super) fn echo(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    call.reply.bulk(a[1]);
    Ok(())
}

pub(super) fn quit(call: &mut Call<'_, '_>, _: &Arguments<'_>) -> Outcome {
    call.session.ends = true;
    call.done()
}

pub(super) fn reset(call: &mut Call<'_, '_>, _: &Arguments<'_>) -> Outcome {
    call.session.transaction = None;
    call.session.unwatch(&mut call.shared.keyspace);
    call.session.version = 2;
    call.session.name.clear();
    call.session.may = call.shared.password.is_none();
    call.reply.simple("RESET");
    Ok(())
}

pub(super) fn select(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    match number(a[1])? {
        0 => call.done(),
        _ => Err(Refusal::Database),
    }
}

/// Compares the password in constant time, so that the time does not show how much of it is right.
fn check(call: &mut Call<'_, '_>, user: &[u8], password: &[u8]) -> Outcome {
    let Some(right) = &call.shared.password else { return Err(Refusal::NoPasswordSet) };
    let differs = right.len() ^ password.len();
    let differs = right
        .iter()
        .enumerate()
        .fold(differs, |differs, (i, byte)| differs | usize::from(byte ^ password.get(i).unwrap_or(&0)));
    if user != b"default" || differs != 0 {
        call.session.wrong_passwords += 1;
        call.session.ends |= call.session.wrong_passwords >= WRONG_PASSWORDS_MAX;
        return Err(Refusal::WrongPassword);
    }
    call.session.may = true;
    Ok(())
}

pub(super) fn auth(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    match a {
        [_, password] => check(call, b"default", password)?,
        _ => check(call, a[1], a[2])?,
    }
    call.done()
}

pub(super) fn hello(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let mut version = call.session.version;
    let mut words = &a[1..];
    if let [first, rest @ ..] = words {
        version = match number(first) {
            Ok(2) => 2,
            Ok(3) => 3,
            _ => return Err(Refusal::Version),
        };
        words = rest;
    }
    let mut name = None;
    while let [word, rest @ ..] = words {
        words = match (&word.to_ascii_lowercase()[..], rest) {
            (b"auth", [user, password, rest @ ..]) => {
                check(call, user, password)?;
                rest
            }
            (b"setname", [given, rest @ ..]) => {
                name = Some(given.to_vec());
                rest
            }
            _ => return Err(Refusal::Syntax("hello")),
        };
    }
    if !call.session.may {
        return Err(Refusal::NoPassword);
    }
    call.session.version = version;
    if let Some(name) = name {
        set_name(call, &name)?;
    }
    call.reply.set_version(version);
    call.reply.map(7);
    let number = call.session.number as i64;
    let facts: [(&str, Result<&str, i64>); 6] = [
        ("server", Ok("redis")),
        ("version", Ok(REDIS_VERSION)),
        ("proto", Err(i64::from(version))),
        ("id", Err(number)),
        ("mode", Ok("standalone")),
        ("role", Ok("master")),
    ];
    for (name, value) in facts {
        call.reply.bulk(name.as_bytes());
        match value {
            Ok(text) => call.reply.bulk(text.as_bytes()),
            Err(number) => call.reply.integer(number),
        }
    }
    call.reply.bulk(b"modules");
    call.reply.array(0);
    Ok(())
}

fn set_name(call: &mut Call<'_, '_>, name: &[u8]) -> Outcome {
    if name.len() > 256 || name.iter().any(|byte| !byte.is_ascii_graphic()) {
        return Err(Refusal::Syntax("client"));
    }
    call.session.name = name.to_vec();
    Ok(())
}

pub(super) fn client(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    match (&a[1].to_ascii_lowercase()[..], &a[2..]) {
        (b"setname", [name]) => {
            set_name(call, name)?;
            call.done()
        }
        (b"getname", []) if call.session.name.is_empty() => {
            call.reply.null();
            Ok(())
        }
        (b"getname", []) => {
            call.reply.bulk(&call.session.name);
            Ok(())
        }
        (b"id", []) => {
            call.reply.integer(call.session.number as i64);
            Ok(())
        }
        // The client's name and version of its library are not used.
        (b"setinfo", [_, _]) => call.done(),
        (b"no-evict" | b"no-touch", [_]) => call.done(),
        _ => Err(Refusal::Syntax("client")),
    }
}

pub(super) fn config(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    let [_, word, names @ ..] = a else { return Err(Refusal::Syntax("config")) };
    if !word.eq_ignore_ascii_case(b"get") || names.is_empty() {
        return Err(Refusal::Syntax("config"));
    }
    let memory = call.memory().1.to_string();
    // Nothing is written to disk.
    let settings = [("appendonly", "no"), ("databases", "1"), ("maxmemory", &memory), ("save", "")];
    let found: Vec<_> = (settings.iter())
        .filter(|(name, _)| names.iter().any(|pattern| matches(pattern, name.as_bytes())))
        .collect();
    call.reply.map(found.len());
    for (name, value) in found {
        call.reply.bulk(name.as_bytes());
        call.reply.bulk(value.as_bytes());
    }
    Ok(())
}

pub(super) fn info(call: &mut Call<'_, '_>, _: &Arguments<'_>) -> Outcome {
    let clients = call.shared.common.clients.load(Ordering::Relaxed);
    let (commands, started) = (call.shared.commands, call.shared.started_ms);
    let (used, limit) = call.memory();
    let keyspace = call.keys();
    let (keys, now) = (keyspace.len(), keyspace.now_ms);
    let mut text = String::new();
    let seconds = (now - started) / 1000;
    let _ = write!(
        text,
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nthalweg_version:{}\r\nredis_mode:standalone\r\nprocess_id:{}\r\n\
uptime_in_seconds:{seconds}\r\n\r\n# Clients\r\nconnected_clients:{clients}\r\n\r\n# Memory\r\nused_memory:{used}\r\n\
maxmemory:{limit}\r\nmaxmemory_policy:noeviction\r\n\r\n# Stats\r\ntotal_commands_processed:{commands}\r\n\r\n\
# Replication\r\nrole:master\r\n\r\n# Keyspace\r\n",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
    );
    if keys > 0 {
        let _ = write!(text, "db0:keys={keys}\r\n");
    }
    call.reply.bulk(text.as_bytes());
    Ok(())
}

pub(super) fn multi(call: &mut Call<'_, '_>, _: &Arguments<'_>) -> Outcome {
    call.session.transaction = Some(Transaction::default());
    call.done()
}

pub(super) fn outside(_: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    Err(Refusal::Outside(if a[0].eq_ignore_ascii_case(b"exec") { "EXEC" } else { "DISCARD" }))
}

pub(super) fn watch(call: &mut Call<'_, '_>, a: &Arguments<'_>) -> Outcome {
    call.session.hold(&a[1..])?;
    for key in &a[1..] {
        // Checks the expiry before the watch begins: removing an expired key counts as a change.
        call.keys().expiry(key);
        let changes = call.keys().watch(key);
        call.session.watched.push((key.to_vec(), changes));
    }
    call.done()
}

pub(super) fn unwatch(call: &mut Call<'_, '_>, _: &Arguments<'_>) -> Outcome {
    call.session.unwatch(&mut call.shared.keyspace);
    call.done()
}
