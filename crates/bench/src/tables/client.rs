//! Clients of Redis's protocol, and of etcd's HTTP interface.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;

use super::{CLIENTS, VALUE_BYTES};
use thalweg_measure::process::whole_process;
use thalweg_measure::{Error, Result};

fn broken(what: &str) -> impl Fn(std::io::Error) -> Error {
    move |why| Error::Failed(format!("the connection to {what} broke: {why}"))
}

fn connect(what: &str, port: u16) -> Result<BufReader<TcpStream>> {
    let socket = TcpStream::connect(("127.0.0.1", port)).map_err(broken(what))?;
    socket.set_nodelay(true).map_err(broken(what))?;
    Ok(BufReader::with_capacity(64 << 10, socket))
}

/// A connection to a server that speaks the protocol of Redis.
pub(super) struct Resp {
    socket: BufReader<TcpStream>,
    requests: Vec<u8>,
    line: Vec<u8>,
}

impl Resp {
    pub(super) fn connect(port: u16) -> Result<Resp> {
        let socket = connect("the server", port)?;
        Ok(Resp { socket, requests: Vec::new(), line: Vec::new() })
    }

    /// Adds a request to those that are sent next.
    pub(super) fn add(&mut self, words: &[Vec<u8>]) {
        self.requests.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            self.requests.extend(format!("${}\r\n", word.len()).bytes());
            self.requests.extend_from_slice(word);
            self.requests.extend(b"\r\n");
        }
    }

    /// Sends the requests, and reads this many replies.
    pub(super) fn exchange(&mut self, replies: usize) -> Result<()> {
        self.socket.get_mut().write_all(&self.requests).map_err(broken("the server"))?;
        self.requests.clear();
        let mut left = replies as i64;
        while left > 0 {
            left += self.part()? - 1;
        }
        Ok(())
    }

    /// Reads a reply, or the head of an array. Returns the number of replies that are part of it.
    fn part(&mut self) -> Result<i64> {
        self.line.clear();
        self.socket.read_until(b'\n', &mut self.line).map_err(broken("the server"))?;
        let text = std::str::from_utf8(&self.line).unwrap_or_default().trim_end();
        let number = text.get(1..).and_then(|number| number.parse::<i64>().ok());
        match (text.as_bytes().first(), number) {
            (Some(b'+' | b':'), _) => Ok(0),
            (Some(b'*'), Some(count)) => Ok(count.max(0)),
            (Some(b'$'), Some(bytes)) if bytes >= 0 => {
                self.line.resize(bytes as usize + 2, 0);
                self.socket.read_exact(&mut self.line).map_err(broken("the server")).map(|()| 0)
            }
            _ => Err(Error::Wrong(format!("the server answered '{text:.80}'"))),
        }
    }
}

/// The seconds that redis-benchmark takes for this many requests.
pub(super) fn redis_benchmark(
    port: u16,
    requests: u64,
    keys: u64,
    pipeline: usize,
    request: &[&str],
) -> Result<f64> {
    let mut command = Command::new("redis-benchmark");
    command.args(["--csv", "-p", &port.to_string(), "-c", &CLIENTS.to_string(), "-P", &pipeline.to_string()]);
    command.args(["-n", &requests.to_string(), "-r", &keys.to_string()]);
    let value = "v".repeat(VALUE_BYTES);
    command.args(request.iter().map(|word| if *word == "VALUE" { &value } else { *word }));
    let out = whole_process(&mut command)?.out;
    // The name in the first column holds the request, and no quotes.
    let rate = out.lines().last().and_then(|line| line.split('"').nth(3)?.parse::<f64>().ok());
    let rate = rate.filter(|rate| *rate > 0.0);
    rate.map(|rate| requests as f64 / rate)
        .ok_or_else(|| Error::Failed(format!("redis-benchmark said '{:.200}'", out.trim())))
}

/// A connection to etcd's JSON interface.
pub(super) struct Http {
    socket: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Http {
    pub(super) fn connect(port: u16) -> Result<Http> {
        Ok(Http { socket: connect("etcd", port)?, body: Vec::new() })
    }

    /// Sets the value of a record; if `again`, to another value than before.
    pub(super) fn put(&mut self, number: u64, again: bool) -> Result<()> {
        let value = vec![if again { b'w' } else { b'v' }; VALUE_BYTES];
        let (key, value) = (base64(format!("key:{number:012}").as_bytes()), base64(&value));
        self.post("put", &format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}"), "revision")
    }

    /// Reads a record.
    pub(super) fn get(&mut self, number: u64) -> Result<()> {
        let key = base64(format!("key:{number:012}").as_bytes());
        self.post("range", &format!("{{\"key\":\"{key}\"}}"), "\"kvs\"")
    }

    /// Reads at most `limit` records from a key on.
    pub(super) fn range(&mut self, number: u64, limit: u64) -> Result<()> {
        let (key, end) = (base64(format!("key:{number:012}").as_bytes()), base64(b"key;"));
        let body = format!("{{\"key\":\"{key}\",\"range_end\":\"{end}\",\"limit\":\"{limit}\"}}");
        self.post("range", &body, "\"kvs\"")
    }

    fn post(&mut self, what: &str, body: &str, answer_has: &str) -> Result<()> {
        let request = format!(
            "POST /v3/kv/{what} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.socket.get_mut().write_all(request.as_bytes()).map_err(broken(ETCD))?;
        self.body.clear();
        match self.head()? {
            Some(bytes) => self.read(bytes)?,
            None => loop {
                let bytes = usize::from_str_radix(&self.line()?, 16).unwrap_or(0);
                self.read(bytes)?;
                self.line()?;
                if bytes == 0 {
                    break;
                }
            },
        }
        let said = String::from_utf8_lossy(&self.body);
        if said.contains(answer_has) {
            Ok(())
        } else {
            Err(Error::Wrong(format!("etcd answered '{said:.200}'")))
        }
    }

    /// Reads the head of a response. Returns the length of its body, unless the body is chunked.
    fn head(&mut self) -> Result<Option<usize>> {
        let mut bytes = None;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(bytes);
            }
            if let Some((name, value)) = line.split_once(": ")
                && name.eq_ignore_ascii_case("content-length")
            {
                bytes = value.parse().ok();
            }
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.socket.read_line(&mut line).map_err(broken(ETCD))? {
            0 => Err(Error::Failed("etcd hung up".into())),
            _ => Ok(line.trim_end().into()),
        }
    }

    fn read(&mut self, bytes: usize) -> Result<()> {
        let from = self.body.len();
        self.body.resize(from + bytes, 0);
        self.socket.read_exact(&mut self.body[from..]).map_err(broken(ETCD))
    }
}

const ETCD: &str = "etcd";

/// Bytes in base64, as etcd's interface requires (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let number = (0..3).fold(0, |number, i| number << 8 | u32::from(*three.get(i).unwrap_or(&0)));
        for i in 0..4 {
            let digit = DIGITS[(number >> (18 - 6 * i) & 63) as usize];
            text.push(if i > three.len() { '=' } else { char::from(digit) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(super::base64(bytes.as_bytes()), text);
        }
    }
}
