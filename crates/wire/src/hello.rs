//! Hello: the first frame of each side, with its identity, cluster and versions.
//!
//! Model: each side says the first and the last version of the protocol that it speaks. A link is of the highest that
//! both speak, and so are the messages of all services on it; peers without one in common refuse each other.
//! Invariant: the magic and the two version numbers have the same place in every version, so peers of any two versions
//! at least notice that they are incompatible.

use std::fmt;

/// The first eight bytes of a hello's payload.
const MAGIC: &[u8; 8] = b"thalweg\0";
/// The versions that this program speaks. Version 7 is the first whose readers skip fields that they do not know.
pub const VERSIONS: Versions = Versions { first: 7, last: 7 };
/// The smallest block size that a peer must accept.
const BLOCK_BYTES_MIN: u32 = 4096;
/// Bytes of a hello's payload; later versions may append more.
pub(crate) const HELLO_BYTES: usize = 64;

/// A range of versions of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl Versions {
    /// The highest version in both ranges, if there is one.
    pub fn common(self, other: Versions) -> Option<u16> {
        let highest = self.last.min(other.last);
        (highest >= self.first.max(other.first)).then_some(highest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Versions { first, last } = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first} to {last}") }
    }
}

/// 128 random bits that identify a cluster or a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u128);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Id, String> {
        let right = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let id = u128::from_str_radix(text, 16).ok().filter(|_| right);
        id.map(Id).ok_or_else(|| format!("'{text}' is not an id: 32 hexadecimal digits"))
    }
}

/// The role of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Role {
    /// A daemon.
    Node = 1,
    /// A command.
    Client = 2,
}

impl Role {
    /// Its name in messages and certificates.
    pub fn name(self) -> &'static str {
        match self {
            Role::Node => "node",
            Role::Client => "client",
        }
    }
}

/// The contents of a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The versions that the sender speaks.
    pub versions: Versions,
    /// The sender's cluster.
    pub cluster: Id,
    /// The sender.
    pub node: Id,
    /// The sender's role.
    pub role: Role,
    /// The largest block that the sender accepts.
    pub block_bytes: u32,
    /// The epoch of its cluster file; 0 without one.
    pub epoch: u64,
}

/// Why a hello cannot be accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// It does not begin with the magic, or is too short.
    #[error("a hello that is none")]
    Garbage,
    /// None of its versions is spoken here.
    #[error(
        "{} {theirs}, where {ours} {} spoken; bring both sides to one version of thalweg",
        if .theirs.first == .theirs.last { "protocol" } else { "protocols" },
        if .ours.first == .ours.last { "is" } else { "are" }
    )]
    Versions {
        /// The versions that it speaks.
        theirs: Versions,
        /// Those that are spoken here.
        ours: Versions,
    },
    /// Its largest block, of this many bytes, is too small.
    #[error("blocks of at most {0} bytes, where {BLOCK_BYTES_MIN} are the least")]
    Blocks(u32),
}

impl Hello {
    /// Whether both ends are in this process: no cluster has the id 0.
    pub fn is_local(&self) -> bool {
        self.cluster == Id(0)
    }

    /// Encodes the payload.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&self.versions.first.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.versions.last.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.cluster.0.to_be_bytes());
        bytes[32..48].copy_from_slice(&self.node.0.to_be_bytes());
        bytes[48..52].copy_from_slice(&(self.role as u32).to_le_bytes());
        bytes[52..56].copy_from_slice(&self.block_bytes.to_le_bytes());
        bytes[56..].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    /// Decodes a payload, where `ours` are spoken. Bytes that a later version has appended are ignored.
    pub fn decode(bytes: &[u8], ours: Versions) -> Result<Hello, HelloError> {
        let number = |at: usize| {
            let four = bytes.get(at..at + 4).ok_or(HelloError::Garbage)?;
            Ok(u32::from_le_bytes(four.try_into().expect("four bytes")))
        };
        if bytes.get(..8) != Some(MAGIC) {
            return Err(HelloError::Garbage);
        }
        let both = number(8)?;
        let versions = Versions { first: both as u16, last: (both >> 16) as u16 };
        if ours.common(versions).is_none() {
            return Err(HelloError::Versions { theirs: versions, ours });
        }
        let id = |at: usize| {
            let sixteen = bytes.get(at..at + 16).ok_or(HelloError::Garbage)?;
            Ok(Id(u128::from_be_bytes(sixteen.try_into().expect("sixteen bytes"))))
        };
        let role = match number(48)? {
            1 => Role::Node,
            2 => Role::Client,
            _ => return Err(HelloError::Garbage),
        };
        let epoch = u64::from(number(56)?) | u64::from(number(60)?) << 32;
        let block_bytes = number(52)?;
        if block_bytes < BLOCK_BYTES_MIN {
            return Err(HelloError::Blocks(block_bytes));
        }
        Ok(Hello { versions, cluster: id(16)?, node: id(32)?, role, block_bytes, epoch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            versions: VERSIONS,
            cluster: Id(1),
            node: Id(u128::MAX - 1),
            role: Role::Client,
            block_bytes: 1 << 20,
            epoch: u64::MAX - 1,
        }
    }

    fn decoded(bytes: &[u8]) -> Result<Hello, HelloError> {
        Hello::decode(bytes, VERSIONS)
    }

    #[test]
    fn a_hello_comes_back_as_it_went_whatever_is_added() {
        let mut bytes = hello().encode().to_vec();
        assert_eq!(decoded(&bytes), Ok(hello()));
        bytes.extend_from_slice(b"of a later version");
        assert_eq!(decoded(&bytes), Ok(hello()));
        for len in 0..HELLO_BYTES {
            assert_eq!(decoded(&bytes[..len]), Err(HelloError::Garbage), "{len} bytes");
        }
        for (least, is_taken) in [(0, false), (4095, false), (4096, true)] {
            let told = decoded(&Hello { block_bytes: least, ..hello() }.encode());
            assert_eq!(told.is_ok(), is_taken, "blocks of {least} bytes");
        }
        bytes[48] = 3;
        assert_eq!(decoded(&bytes), Err(HelloError::Garbage), "a role that there is not");
    }

    #[test]
    fn two_ranges_of_versions_agree_on_the_highest_in_both_or_are_told_apart() {
        let of = |(first, last)| Versions { first, last };
        for (ours, theirs, agreed) in [
            ((7, 7), (7, 7), Some(7)),
            ((7, 8), (7, 7), Some(7)),
            ((7, 8), (8, 9), Some(8)),
            ((7, 9), (1, 20), Some(9)),
            ((7, 8), (9, 10), None),
            ((7, 7), (6, 6), None),
            ((7, 8), (8, 7), None),
        ] {
            let (ours, theirs) = (of(ours), of(theirs));
            assert_eq!((ours.common(theirs), theirs.common(ours)), (agreed, agreed), "{ours:?} {theirs:?}");
            let hello = Hello { versions: theirs, ..hello() };
            let refused = HelloError::Versions { theirs, ours };
            let expected = if agreed.is_some() { Ok(hello) } else { Err(refused) };
            assert_eq!(Hello::decode(&hello.encode(), ours), expected);
        }
        let why = |theirs, ours| HelloError::Versions { theirs: of(theirs), ours: of(ours) }.to_string();
        let remedy = "bring both sides to one version of thalweg";
        // What builds before the range say, and are told.
        assert_eq!(why((5, 5), (7, 7)), format!("protocol 5, where 7 is spoken; {remedy}"));
        assert_eq!(why((7, 8), (9, 10)), format!("protocols 7 to 8, where 9 to 10 are spoken; {remedy}"));
    }

    /// The first frame of a peer, as the build that first said a range wrote it. Every later one has to take it, as long
    /// as it speaks version 7.
    #[test]
    fn a_recorded_hello_is_understood() {
        let recorded = include_bytes!("../tests/recorded/hello-7.bin");
        let told = decoded(recorded).unwrap();
        assert_eq!(told, Hello { versions: Versions { first: 7, last: 7 }, ..hello() });
        assert_eq!(VERSIONS.common(told.versions), Some(7));
    }

    #[test]
    fn ids_are_32_digits() {
        assert_eq!(Id(255).to_string().parse(), Ok(Id(255)));
        for text in ["", "ff", "+0000000000000000000000000000000", "g0000000000000000000000000000000"] {
            assert!(text.parse::<Id>().is_err(), "{text}");
        }
    }
}
