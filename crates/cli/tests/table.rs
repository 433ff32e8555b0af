//! A server of tables, seen from outside: compared with Redis itself, request by request, and used by Redis's own
//! programs.
//!
//! Invariant: to any sequence of requests both answer the same bytes; of errors, the same code.
#![allow(clippy::disallowed_methods)] // Redis clients open sockets in other ways.

mod support;

use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use support::resp::{Client, scan_while_others_change};
use support::{Place, skipped, until};
use thalweg_api::{TableServer, from_json};
use thalweg_base::rng::Rng;

/// The program that is Redis when it is called so; it comes with redis-cli and redis-benchmark.
const REDIS: &str = "/usr/bin/redis-check-rdb";

/// What reads members in order reads the fields of a hash as well, which Redis does not: here it is asked of no hash.
const LEX_READS: &[&str] = &["ZRANGE", "ZRANGEBYLEX", "ZREVRANGE", "ZREVRANGEBYLEX", "ZLEXCOUNT", "ZCARD"];

/// A server that ends with the test.
struct Served {
    child: Child,
    ready: TableServer,
}

impl Served {
    fn start(place: &Place, flags: &[&str]) -> Served {
        let mut command = place.command(&[&["table", "serve", "--json"], flags].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = from_json(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        Served { child, ready }
    }

    /// Asks it to end, and waits for that.
    fn stop(mut self) {
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    fn tcp(&self) -> TcpStream {
        TcpStream::connect(&self.ready.resp).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Redis, which ends with the test; `None` where it is not installed, which is said.
fn redis(place: &Place) -> Option<Served> {
    if !Path::new(REDIS).exists() {
        skipped("there is no Redis to compare with; install redis-tools");
        return None;
    }
    let mut command = Command::new(REDIS);
    command.arg0("redis-server").current_dir(&place.0).stdin(Stdio::null()).stdout(Stdio::null());
    command.args(["--port", "0", "--save", "", "--databases", "1", "--unixsocket", "redis"]);
    let child = command.spawn().unwrap();
    until("Redis listens", || UnixStream::connect(place.0.join("redis")).is_ok());
    let ready = TableServer { resp: "unix:redis".into(), memory_bytes: 0, password: false };
    Some(Served { child, ready })
}

/// Requests: of a key, a field or member, a value, a number, an index, and ends of a range.
const SHAPES: &[&str] = &[
    "GET k",
    "GET k",
    "SET k v",
    "SET k v NX",
    "SET k v XX GET",
    "SET k v GET",
    "SET k v EX 100",
    "SET k v KEEPTTL",
    "SET k v PX 100000",
    "SET k v PX -3",
    "SET k v EXAT 99999999999",
    "SET k v EXAT -3",
    "SET k v NX XX",
    "SET k v EX 0",
    "SETNX k v",
    "SETEX k 100 v",
    "SETEX k long v",
    "PSETEX k 100000 v",
    "MGET k k k",
    "MSET k v k v",
    "MSET k v k",
    "DEL k",
    "DEL k k",
    "UNLINK k",
    "EXISTS k k k",
    "EXPIRE k 100",
    "EXPIRE k long",
    "EXPIRE k once GT",
    "EXPIRE k once LT",
    "EXPIRE k 900 NX",
    "EXPIRE k 900 XX",
    "TTL k",
    "PERSIST k",
    "INCR k",
    "INCRBY k n",
    "DECR k",
    "DECRBY k n",
    "SET k n",
    "APPEND k v",
    "STRLEN k",
    "TYPE k",
    "DBSIZE",
    "GETDEL k",
    "GETSET k v",
    "HSET k f v",
    "HSET k f v f v",
    "HSET k f",
    "HGET k f",
    "HMGET k f f f",
    "HDEL k f f",
    "HLEN k",
    "HEXISTS k f",
    "HSETNX k f v",
    "HINCRBY k f n",
    "HSTRLEN k f",
    "HMSET k f v",
    "ZADD k 0 f",
    "ZADD k 0 f 0 f 0 f",
    "ZADD k NX 0 f",
    "ZADD k XX 0 f",
    "ZADD k NX XX 0 f",
    "ZADD k CH NX 0 f",
    "ZADD k x f",
    "ZADD k 0",
    "ZREM k f f",
    "ZSCORE k f",
    "ZCARD k",
    "ZRANGE k low high BYLEX",
    "ZRANGE k high low BYLEX REV",
    "ZRANGE k low high BYLEX LIMIT i n",
    "ZRANGE k high low BYLEX REV LIMIT i 2",
    "ZRANGE k n n",
    "ZRANGE k n n REV",
    "ZRANGE k 0 -1",
    "ZRANGEBYLEX k low high",
    "ZRANGEBYLEX k low high LIMIT i 3",
    "ZREVRANGE k n n",
    "ZREVRANGEBYLEX k high low",
    "ZREVRANGEBYLEX k high low LIMIT 1 n",
    "ZLEXCOUNT k low high",
    "ZREMRANGEBYLEX k low low",
    "MULTI",
    "EXEC",
    "DISCARD",
    "WATCH k",
    "UNWATCH",
    "PING",
    "PING v",
    "ECHO v",
    "SELECT 0",
    "SELECT 9",
    "NOSUCH k",
    "GET",
    "GET k k",
];

/// A random request about a few keys, so that types, ends and transactions meet. `nth` counts a story's requests.
fn request(rng: &mut Rng, nth: usize) -> Vec<Vec<u8>> {
    let bound = |rng: &mut Rng| match rng.below(6) {
        0 => "-".into(),
        1 => "+".into(),
        i => format!("{}{}", if i % 2 == 0 { '[' } else { '(' }, word(rng)),
    };
    let shape = SHAPES[rng.below(SHAPES.len() as u64) as usize];
    let name = shape.split(' ').next().unwrap();
    let keys = match name {
        _ if LEX_READS.contains(&name) => 3..6,
        _ if name.starts_with('H') => 0..3,
        _ => 0..6,
    };
    let words = shape.split(' ').map(|part| match part {
        "k" => format!("key{}", keys.start + rng.below(keys.end - keys.start)),
        "f" => word(rng),
        "v" => "value".repeat(rng.below(4) as usize),
        "n" => ((rng.below(13) as i64) - 4).to_string(),
        "i" => rng.below(5).to_string(),
        // No end comes during a story.
        "long" => (((rng.below(13) as i64) - 4) * 100).to_string(),
        // Of two ends that are the same second, the later is told by the millisecond at which each server looked.
        "once" => (11 + 2 * ((nth * 89) % 503)).to_string(),
        "low" | "high" => bound(rng),
        part => part.into(),
    });
    words.map(String::into_bytes).collect()
}

/// One of few words that begin alike.
fn word(rng: &mut Rng) -> String {
    ["a", "aa", "ab", "b", "ba", "prefix:1", "prefix:2", "prefix:23"][rng.below(8) as usize].into()
}

#[test]
fn it_answers_as_redis_does() {
    let place = Place::new();
    let Some(_redis) = redis(&place) else { return };
    let _ours = Served::start(&place, &["--resp", "unix:ours", "--memory", "64MiB"]);
    let connect = |name: &str| Client::new(UnixStream::connect(place.0.join(name)).unwrap());
    let (mut theirs, mut ours) = ([connect("redis"), connect("redis")], [connect("ours"), connect("ours")]);
    let mut seen = std::collections::HashMap::<u8, usize>::new();
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut story = Vec::new();
        for who in 0..2 {
            for client in [&mut theirs[who], &mut ours[who]] {
                for line in ["RESET", if seed % 2 == 0 { "HELLO 2" } else { "HELLO 3" }, "FLUSHDB"] {
                    client.ask(line);
                }
            }
        }
        for nth in 0..500 {
            let who = rng.below(4) as usize / 3;
            let request = request(&mut rng, nth);
            let words: Vec<&[u8]> = request.iter().map(|word| &word[..]).collect();
            story.push(format!("{who}: {}", words.join(&b' ').escape_ascii()));
            theirs[who].send(&words);
            ours[who].send(&words);
            let (expected, found) = (theirs[who].reply(), ours[who].reply());
            *seen.entry(expected[0]).or_default() += 1;
            let told = story[story.len().saturating_sub(25)..].join("\n");
            assert_eq!(
                found.escape_ascii().to_string(),
                expected.escape_ascii().to_string(),
                "seed {seed}, after\n{told}"
            );
        }
    }
    // Not in the stories: until it looks for keys that are over, Redis counts them.
    for client in [&mut theirs[0], &mut ours[0]] {
        client.ask("RESET");
        assert_eq!(client.ask("SET over value EXAT 1"), "+OK\r\n");
        assert_eq!(client.ask("GET over"), "$-1\r\n");
    }
    for kind in *b"+-:$*_" {
        assert!(seen.get(&kind).is_some_and(|count| *count > 20), "replies of few kinds: {seen:?}");
    }
}

#[test]
fn scans_find_everything_once() {
    let place = Place::new();
    let served = Served::start(&place, &["--resp", "127.0.0.1:0", "--memory", "64MiB"]);
    let mut client = Client::new(served.tcp());
    for i in 0..1000 {
        client.ask(&format!("SET key:{i:04} x"));
        client.ask(&format!("HSET hash field:{i:04} x"));
    }
    client.ask("ZADD set 0 member");
    for (command, pattern, expected) in [
        ("SCAN", "key:*", 1000),
        ("SCAN", "*", 1002),
        ("HSCAN hash", "field:00*", 100),
        ("HSCAN hash", "*", 1000),
    ] {
        let (mut cursor, mut found) = ("0".to_string(), Vec::new());
        loop {
            let reply = client.ask(&format!("{command} {cursor} MATCH {pattern} COUNT 77"));
            let mut lines =
                reply.split("\r\n").filter(|line| !line.starts_with(['$', '*']) && !line.is_empty());
            cursor = lines.next().unwrap().into();
            let step = if command == "SCAN" { 1 } else { 2 };
            found.extend(lines.step_by(step).map(String::from));
            if cursor == "0" {
                break;
            }
        }
        let all = found.len();
        found.sort();
        found.dedup();
        assert_eq!((found.len(), all), (expected, expected), "{command} {pattern}");
    }
    assert_eq!(client.ask("SCAN 12345678"), "-ERR");
    assert_eq!(client.ask("SCAN x"), "-ERR");
}

#[test]
fn a_full_memory_refuses_and_loses_nothing() {
    let place = Place::new();
    let served = Served::start(&place, &["--resp", "127.0.0.1:0", "--memory", "4MiB"]);
    let mut client = Client::new(served.tcp());
    let value = "v".repeat(1000);
    let mut kept = 0;
    while client.ask(&format!("SET key{kept} {value}")) == "+OK\r\n" {
        kept += 1;
    }
    assert!((2500..4194).contains(&kept), "{kept} records");
    assert_eq!(client.ask(&format!("SET another {value}")), "-OOM");
    assert_eq!(client.ask("DBSIZE"), format!(":{kept}\r\n"));
    (0..kept).for_each(|i| assert_eq!(client.ask(&format!("STRLEN key{i}")), ":1000\r\n"));
    // A word too many deletes nothing.
    assert_eq!(client.ask("FLUSHDB x"), "-ERR");
    assert_eq!(client.ask("FLUSHALL asyn"), "-ERR");
    assert_eq!(client.ask("DBSIZE"), format!(":{kept}\r\n"));
    // What is deleted makes room.
    (0..kept / 2).for_each(|i| assert_eq!(client.ask(&format!("DEL key{i}")), ":1\r\n"));
    (0..kept / 2).for_each(|i| assert_eq!(client.ask(&format!("SET again{i} {value} PX 1000")), "+OK\r\n"));
    // Keys that have ended go, although nobody asks for them.
    until("keys that have ended are gone", || client.ask("DBSIZE") == format!(":{}\r\n", kept - kept / 2));
    assert_eq!(client.ask(&format!("SET {} x", "k".repeat(2048))), "-ERR");
    assert_eq!(client.ask(&format!("SET k {}", "x".repeat(1 << 20))), "-ERR");
}

#[test]
fn what_clients_hold_is_bounded() {
    let place = Place::new();
    let served = Served::start(&place, &["--resp", "127.0.0.1:0", "--memory", "128MiB"]);
    let mut client = Client::new(served.tcp());
    let value = vec![b'v'; 1 << 20];
    // A transaction of more than 32 MiB is refused where it becomes too long, and is not carried out.
    assert_eq!(client.ask("MULTI"), "+OK\r\n");
    let mut queued = 0;
    loop {
        client.send(&[b"APPEND", b"key", &value[..1000 << 10]]);
        match &client.reply()[..] {
            b"+QUEUED\r\n" => queued += 1,
            reply => break assert_eq!(reply, b"-ERR"),
        }
    }
    assert!((30..33).contains(&queued), "{queued}");
    assert_eq!(client.ask("EXEC"), "-EXECABORT");
    assert_eq!(client.ask("EXISTS key"), ":0\r\n");
    // A reply of more than 64 MiB is refused, also if it is that of a transaction, which is carried out.
    client.send(&[b"SET", b"key", &value[..1000 << 10]]);
    assert_eq!(client.reply(), b"+OK\r\n");
    client.send(&[&[&b"MGET"[..]], &[&b"key"[..]; 70][..]].concat());
    assert_eq!(client.reply(), b"-ERR");
    client.ask("MULTI");
    (0..70).for_each(|_| assert_eq!(client.ask("GET key"), "+QUEUED\r\n"));
    client.ask("SET done 1");
    client.send(&[b"EXEC"]);
    let mut rest = Vec::new();
    let _ = client.0.read_to_end(&mut rest);
    assert!(rest.len() < 100, "it is disconnected: {} bytes", rest.len());
    let mut client = Client::new(served.tcp());
    assert_eq!(client.ask("GET done"), "$1\r\n1\r\n");
    // Clients that send the beginnings of large requests are disconnected before all memory is theirs.
    let mut clients: Vec<TcpStream> = (0..16).map(|_| served.tcp()).collect();
    let begun = [b"*2\r\n$4\r\nPING\r\n$30000000\r\n", &vec![b'x'; 25_000_000][..]].concat();
    for socket in &mut clients {
        // The system may take all of it before the server reads any.
        let _ = socket.write_all(&begun);
        socket.set_nonblocking(true).unwrap();
    }
    let waits = |why: io::Error| why.kind() == io::ErrorKind::WouldBlock;
    let is_connected = |socket: &&TcpStream| socket.peek(&mut [0]).is_err_and(waits);
    until("at most 256 MiB are held", || clients.iter().filter(is_connected).count() <= 8);
    assert_eq!(client.ask("PING"), "+PONG\r\n");
}

/// The server waited for the client when it had replied with a MiB, although there were requests left and the socket
/// had taken all.
#[test]
fn replies_to_one_packet_of_requests_may_be_long() {
    let place = Place::new();
    let served = Served::start(&place, &["--resp", "127.0.0.1:0", "--memory", "64MiB"]);
    for (bytes, requests) in [(600_000, 40), (1000, 5000)] {
        let mut client = Client::new(served.tcp());
        let value = vec![b'v'; bytes];
        client.send(&[b"SET", b"key", &value]);
        assert_eq!(client.reply(), b"+OK\r\n");
        client.0.get_mut().write_all(&b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n".repeat(requests)).unwrap();
        client.0.get_mut().shutdown(Shutdown::Write).unwrap();
        (0..requests).for_each(|_| assert!(client.reply().len() > bytes));
        assert_eq!(client.0.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn strangers_are_turned_away() {
    let place = Place::new();
    place.write("password", b"open sesame\n");
    let flags = ["--resp", "127.0.0.1:0", "--password-file", "password"];
    // Whoever may read or write the file knows the password.
    for mode in [0o640, 0o604, 0o602] {
        std::fs::set_permissions(place.0.join("password"), Permissions::from_mode(mode)).unwrap();
        let refused = place.run(&[&["table", "serve"], &flags[..]].concat());
        refused.is_refused(&["password: others may read this password: chmod 600 it"]);
    }
    std::fs::set_permissions(place.0.join("password"), Permissions::from_mode(0o600)).unwrap();
    // A client could not send a longer one.
    let longest = vec![b'p'; 8192];
    place.write("password", &[&longest[..], b"p"].concat());
    place
        .run(&[&["table", "serve"], &flags[..]].concat())
        .is_refused(&["password of 8193 bytes", "at most 8192"]);
    place.write("password", &longest);
    let served = Served::start(&place, &flags);
    let mut client = Client::new(served.tcp());
    client.send(&[b"AUTH", b"default", &longest]);
    assert_eq!(client.reply(), b"+OK\r\n");
    drop(served);
    place.write("password", b"open sesame\n");
    let served = Served::start(&place, &flags);
    let mut client = Client::new(served.tcp());
    for line in ["GET a", "AUTH wrong", "AUTH default wrong", "HELLO 3", "MULTI", "NOSUCH"] {
        let reply = client.ask(line);
        assert!(["-NOAUTH", "-WRONGPASS", "-ERR"].contains(&&reply[..]), "{line}: {reply}");
    }
    client.send(&[b"AUTH", b"open sesame"]);
    assert_eq!(client.reply(), b"+OK\r\n");
    assert_eq!(client.ask("SET a 1"), "+OK\r\n");
    // What is no request, HTTP of a browser say, or too long before the password, ends the connection.
    let long = [&b"*2\r\n$4\r\nAUTH\r\n$20000\r\n"[..], &[b'x'; 18_000]].concat();
    for bytes in
        [&b"POST / HTTP/1.1\r\nHost: here\r\n\r\nSET a 2\r\n"[..], b"*1\r\n$-5\r\n", b"*1000000\r\n", &long]
    {
        let mut socket = served.tcp();
        // It may hang up before it has read all of it.
        let _ = socket.write_all(bytes);
        let _ = socket.shutdown(Shutdown::Write);
        let mut said = String::new();
        let _ = socket.read_to_string(&mut said);
        assert!(said.is_empty() || said.starts_with('-') && said.ends_with("\r\n"), "{said}");
    }
    assert_eq!(client.ask("GET a"), "$1\r\n1\r\n");
    // The third wrong password ends a connection, whatever else was sent with it.
    let mut guesser = Client::new(served.tcp());
    (0..10).for_each(|_| guesser.send(&[b"HELLO", b"3", b"AUTH", b"default", b"wrong"]));
    (0..3).for_each(|_| assert_eq!(guesser.reply(), b"-WRONGPASS"));
    let mut rest = Vec::new();
    let _ = guesser.0.read_to_end(&mut rest);
    assert_eq!(rest, b"");
    // Of too many who have not given it, those who came first go.
    let mut strangers: Vec<TcpStream> = (0..110).map(|_| served.tcp()).collect();
    let mut last = Client::new(strangers.pop().unwrap());
    assert_eq!(last.ask("GET a"), "-NOAUTH");
    assert_eq!(strangers[0].read(&mut [0]).unwrap_or(0), 0);
    assert_eq!(client.ask("GET a"), "$1\r\n1\r\n");
}

#[test]
fn clients_on_other_machines_need_tls_and_a_password() {
    let place = Place::new();
    place
        .shell(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout key -out cert \
-subj /CN=tables 2>made && cp key other && openssl ecparam -name prime256v1 -genkey -noout -out other && cp key open && \
chmod 644 open && (umask 077; echo open sesame > password)",
        )
        .is_done();
    let refused = |words: &[&str], holds: &str| {
        place.run(&[&["table", "serve", "--resp", "0.0.0.0:0"], words].concat()).is_refused(&[holds])
    };
    let (tls, password) = (["--tls-cert", "cert", "--tls-key", "key"], ["--password-file", "password"]);
    refused(&[], "other machines");
    refused(&tls, "other machines");
    refused(&password, "other machines");
    refused(&["--tls-cert", "cert"], "go together");
    refused(&["--tls-cert", "cert", "--tls-key", "open"], "chmod 600");
    refused(&["--tls-cert", "cert", "--tls-key", "other"], "cert and other");
    refused(&["--tls-cert", "key", "--tls-key", "key"], "no certificate");
    refused(&["--tls-cert", "none", "--tls-key", "key"], "none");

    let served = Served::start(&place, &[&["--resp", "0.0.0.0:0"], &tls[..], &password].concat());
    let port: u16 = served.ready.resp.rsplit(':').next().unwrap().parse().unwrap();
    // Nothing but TLS is answered.
    for bytes in
        [&b"*1\r\n$4\r\nPING\r\n"[..], b"POST / HTTP/1.1\r\nHost: here\r\n\r\n", b"\x16\x03\x01\xff\xff"]
    {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let _ = socket.write_all(bytes);
        let _ = socket.shutdown(Shutdown::Write);
        let mut said = Vec::new();
        let _ = socket.read_to_end(&mut said);
        assert!(said.len() < 10, "{}", said.escape_ascii());
    }
    if !Path::new("/usr/bin/redis-benchmark").exists() {
        return skipped("there is no redis-cli; install redis-tools");
    }
    let long = "x".repeat(900_000);
    place.write("long", long.as_bytes());
    let cli = format!("redis-cli --tls --cacert cert -p {port}");
    let out = place
        .shell(&format!(
            "export REDISCLI_AUTH='open sesame'; {cli} -x set long < long && {cli} get long | wc -c && \
{cli} mget $(yes long | head -60) | wc -c && env -u REDISCLI_AUTH {cli} get long && \
redis-benchmark --tls --cacert cert -p {port} -a 'open sesame' -n 20000 -r 5000 -P 16 -c 20 --csv -t set,get | grep -c SET"
        ));
    let out = out.is_done();
    let expected = format!("OK\n900001\n{}\nNOAUTH Authentication required.\n\n1\n", 60 * 900_001);
    assert_eq!(out, expected);
}

#[test]
fn only_this_user_reaches_its_socket() {
    let place = Place::new();
    let served = Served::start(&place, &["--resp", "unix:socket"]);
    let mode = std::fs::metadata(place.0.join("socket")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    place.run(&["table", "serve", "--resp", "unix:socket"]).is_refused(&["unix:socket is taken"]);
    place.write("file", b"mine");
    place.run(&["table", "serve", "--resp", "unix:file"]).is_refused(&["unix:file is taken"]);
    assert_eq!(place.read("file"), b"mine");
    // One that a killed server left behind is in nobody's way.
    drop(served);
    assert!(place.names().contains(&"socket".into()));
    let served = Served::start(&place, &["--resp", "unix:socket"]);
    let mut client = Client::new(UnixStream::connect(place.0.join("socket")).unwrap());
    assert_eq!(client.ask("PING"), "+PONG\r\n");
    // At its end a server removes its own socket, and not that of another which listens there now.
    std::fs::remove_file(place.0.join("socket")).unwrap();
    let other = Served::start(&place, &["--resp", "unix:socket"]);
    served.stop();
    assert!(place.names().contains(&"socket".into()));
    other.stop();
    assert!(!place.names().contains(&"socket".into()));
    drop(client);
}

#[test]
fn it_says_what_it_cannot_do() {
    let place = Place::new();
    let refused = |words: &[&str], holds: &str| place.run(&[&["table"], words].concat()).is_refused(&[holds]);
    refused(&["serve"], "--resp");
    refused(&["serve", "--resp", "here"], "ADDRESS:PORT");
    refused(&["serve", "--resp", "127.0.0.1:0", "--memory", "1K"], "too little");
    refused(&["serve", "--resp", "127.0.0.1:0", "--password-file", "none"], "none");
    place.write("empty", b"\nx");
    std::fs::set_permissions(place.0.join("empty"), Permissions::from_mode(0o600)).unwrap();
    refused(&["serve", "--resp", "127.0.0.1:0", "--password-file", "empty"], "the first line is empty");
}

#[test]
fn redis_benchmark_and_redis_cli_work() {
    if !Path::new("/usr/bin/redis-benchmark").exists() {
        return skipped("there is no redis-benchmark; install redis-tools");
    }
    let place = Place::new();
    let served = Served::start(&place, &["--resp", "127.0.0.1:0", "--memory", "256MiB"]);
    let port = served.ready.resp.rsplit(':').next().unwrap();
    let line = format!(
        "redis-benchmark -p {port} -n 20000 -r 5000 -P 16 -c 20 --csv -t ping,set,get,incr,hset,mset && \
redis-cli -p {port} -3 hgetall myhash | wc -l && redis-cli -p {port} --scan | wc -l && redis-cli -p {port} info | grep db0"
    );
    let done = place.shell(&line);
    let out = done.is_done();
    for test in ["SET", "GET", "INCR", "HSET", "MSET (10 keys)"] {
        assert!(out.contains(&format!("\"{test}\",")), "{out}");
    }
    assert!(out.contains("db0:keys="), "{out}");
}

#[test]
fn redis_py_works() {
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../redis-py/bin/python");
    if !python.exists() {
        return skipped("there is no redis-py; ./test installs it");
    }
    let place = Place::new();
    let _served = Served::start(&place, &["--resp", "unix:socket", "--memory", "64MiB"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/table/redis_py.py");
    let url = format!("unix://{}", place.0.join("socket").display());
    let done = Command::new(python).arg(script).arg(url).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && done.stdout.starts_with(b"redis-py "), "{said}");
}

#[test]
fn a_scan_has_what_is_there_throughout_and_no_place_of_another() {
    let place = Place::new();
    let served = Served::start(&place, &["--resp", "127.0.0.1:0"]);
    let mut client = Client::new(served.tcp());
    // A key that changes its type behind the scan is still there.
    for line in ["SET a 1", "SET b 1", "HSET z f 1"] {
        client.ask(line);
    }
    let first = client.ask("SCAN 0 COUNT 2");
    let (_, cursor) = first.split_once("\r\n$").unwrap();
    let cursor = cursor.lines().nth(1).unwrap();
    client.ask("SET z 1");
    assert!(client.ask(&format!("SCAN {cursor}")).ends_with("*1\r\n$1\r\nz\r\n"));
    client.ask("FLUSHALL");
    scan_while_others_change(|| Client::new(served.tcp()));
    served.stop();
}

/// What went wrong: the clock was read once for all requests that had arrived, so a lock behind slow commands had expired
/// before it was granted.
#[test]
fn time_passes_in_a_pipeline() {
    const LIVES_MS: u128 = 500;
    let place = Place::new();
    let served = Served::start(&place, &["--resp", "127.0.0.1:0"]);
    let mut client = Client::new(served.tcp());
    // So long that few requests take long, which arrive together.
    let keys: Vec<String> = (0..20_000).map(|i| format!("{}{i} v", "a".repeat(200))).collect();
    for keys in keys.chunks(5_000) {
        assert_eq!(client.ask(&format!("MSET {}", keys.join(" "))), "+OK\r\n");
    }
    // It finds nothing.
    let slow = ["KEYS", "*a*a*a*a*a*b"];
    let slow = slow.map(str::as_bytes);
    let mut one_us = || {
        let began = Instant::now();
        client.send(&slow);
        client.reply();
        began.elapsed().as_micros().max(1)
    };
    let least_us = (0..20).map(|_| one_us()).min().unwrap();
    let count = 2000 * LIVES_MS / least_us + 1;
    let began = Instant::now();
    (0..count).for_each(|_| client.send(&slow));
    client.send(&[b"SET", b"lock", b"me", b"PX", LIVES_MS.to_string().as_bytes()]);
    client.send(&[b"GET", b"lock"]);
    (0..count).for_each(|_| drop(client.reply()));
    assert!(began.elapsed().as_millis() > LIVES_MS, "the commands were not slow");
    assert_eq!(client.reply(), b"+OK\r\n");
    assert_eq!(client.reply(), b"$2\r\nme\r\n");
}
