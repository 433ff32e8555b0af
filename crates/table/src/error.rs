//! The refusals of requests. Each message begins with the error code that client libraries expect.

use std::fmt;

use crate::cluster::Error;
use crate::slab::{Full, KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Refusal {
    /// There is no such command.
    Unknown(String),
    /// The command has too few or too many arguments.
    Arguments(&'static str),
    /// The arguments make no sense together.
    Syntax(&'static str),
    /// The command does not apply to the type of the key's value.
    WrongType,
    /// The memory is full.
    Full,
    /// The requests and replies of all clients take too much memory.
    Buffers,
    /// A key is too long; it has this many bytes.
    LongKey(usize),
    /// A value is too long; it has this many bytes.
    LongValue(usize),
    /// An argument or a result is not a signed 64-bit integer.
    NoInteger,
    /// Not a number.
    NoNumber,
    /// The expiry is out of range.
    Expiry(&'static str),
    /// Neither `-`, `+`, nor a key after `[` or `(`.
    NoBound,
    /// The score of a member of a sorted set is unlike that of the others.
    Score(f64),
    /// A cursor that was never issued, or is no longer stored.
    Cursor,
    /// There is only database 0.
    Database,
    /// The client must send the password first.
    NoPassword,
    /// The password is wrong.
    WrongPassword,
    /// The server has no password.
    NoPasswordSet,
    /// This version of the protocol is not supported.
    Version,
    /// A command that is forbidden in a transaction.
    Nested(&'static str),
    /// `EXEC` or `DISCARD` without `MULTI`.
    Outside(&'static str),
    /// A command between `MULTI` and `EXEC` was refused.
    Aborted,
    /// The reply is longer than the limit.
    LongReply,
    /// The transaction is larger than the limit.
    LongTransaction,
    /// An operation on a table of a cluster failed.
    Cluster(Error),
    /// The tables of a cluster cannot do this.
    NotOnCluster(&'static str),
    /// Others changed a record again and again while it was to be changed.
    Contended,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Unknown(name) => write!(f, "ERR unknown command '{name}'"),
            Refusal::Arguments(name) => write!(f, "ERR wrong number of arguments for '{name}' command"),
            Refusal::Syntax(name) => write!(f, "ERR syntax error in the arguments of '{name}'"),
            Refusal::WrongType => f.write_str("WRONGTYPE the key holds a value of another type"),
            Refusal::Full => f.write_str(
                "OOM the memory of this server is full; delete keys, or give it more with --memory",
            ),
            Refusal::Buffers => f.write_str(
                "OOM the requests and replies of all clients take more than 256 MiB; send shorter ones, or fewer at a time",
            ),
            Refusal::LongKey(bytes) => {
                write!(f, "ERR a key of {bytes} bytes; the longest has {KEY_BYTES_MAX}")
            }
            Refusal::LongValue(bytes) => {
                write!(f, "ERR a value of {bytes} bytes; the longest has {VALUE_BYTES_MAX}")
            }
            Refusal::NoInteger => f.write_str("ERR value is not an integer or out of range"),
            Refusal::NoNumber => f.write_str("ERR value is not a valid float"),
            Refusal::Expiry(name) => write!(f, "ERR invalid expire time in '{name}' command"),
            Refusal::NoBound => f.write_str("ERR min or max not valid: write -, +, [KEY or (KEY"),
            Refusal::Score(score) => {
                write!(f, "ERR the members of a sorted set have one score here, and this set has {score}")
            }
            Refusal::Cursor => f.write_str("ERR invalid cursor, or one of a scan that is too old"),
            Refusal::Database => f.write_str("ERR DB index is out of range: there is database 0 only"),
            Refusal::NoPassword => f.write_str("NOAUTH Authentication required."),
            Refusal::WrongPassword => f.write_str("WRONGPASS the user name or the password is wrong"),
            Refusal::NoPasswordSet => {
                f.write_str("ERR AUTH without a password set: this server asks for none")
            }
            Refusal::Version => {
                f.write_str("NOPROTO unsupported protocol version: this server speaks 2 and 3")
            }
            Refusal::Nested(name) => write!(f, "ERR {name} inside MULTI is not allowed"),
            Refusal::Outside(name) => write!(f, "ERR {name} without MULTI"),
            Refusal::Aborted => {
                f.write_str("EXECABORT a command of the transaction was refused, so none was carried out")
            }
            Refusal::LongReply => {
                f.write_str("ERR the reply would be larger than 64 MiB; ask for less at a time")
            }
            Refusal::Cluster(why @ Error::Full(_)) => write!(f, "OOM {why}"),
            Refusal::Cluster(why) => write!(f, "ERR {why}"),
            Refusal::NotOnCluster(what) => {
                write!(
                    f,
                    "ERR {what} is not possible on the tables of a cluster; see the guide of thalweg table"
                )
            }
            Refusal::Contended => f.write_str("ERR other clients keep changing this record; try again"),
            Refusal::LongTransaction => f.write_str("ERR the commands, or watched keys, of a transaction have more than 32 MiB"),
        }
    }
}

impl From<Full> for Refusal {
    fn from(_: Full) -> Refusal {
        Refusal::Full
    }
}
