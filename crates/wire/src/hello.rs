//! Hello: the first frame of each side, with its identity, cluster and versions.
//!
//! Invariant: the magic and the two version numbers have the same place in every version, so peers of any two versions
//! at least notice that they are incompatible.

use std::fmt;

/// The first eight bytes of a hello's payload.
const MAGIC: &[u8; 8] = b"thalweg\0";
/// The version of this program, and the oldest that it understands.
pub const VERSION: u16 = 6;
/// The smallest block size that a peer must accept.
const BLOCK_BYTES_MIN: u32 = 4096;
/// Bytes of a hello's payload; later versions may append more.
pub(crate) const HELLO_BYTES: usize = 64;

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
    /// It has versions that are not understood here.
    #[error(
        "{}, where {VERSION} is spoken; bring both sides to one version of thalweg",
        if .0 == .1 { format!("protocol {}", .0) } else { format!("protocols {} to {}", .0, .1) }
    )]
    Version(u16, u16),
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
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.cluster.0.to_be_bytes());
        bytes[32..48].copy_from_slice(&self.node.0.to_be_bytes());
        bytes[48..52].copy_from_slice(&(self.role as u32).to_le_bytes());
        bytes[52..56].copy_from_slice(&self.block_bytes.to_le_bytes());
        bytes[56..].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    /// Decodes a payload. Bytes that a later version has appended are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Hello, HelloError> {
        let number = |at: usize| {
            let four = bytes.get(at..at + 4).ok_or(HelloError::Garbage)?;
            Ok(u32::from_le_bytes(four.try_into().expect("four bytes")))
        };
        if bytes.get(..8) != Some(MAGIC) {
            return Err(HelloError::Garbage);
        }
        let versions = number(8)?;
        let (first, last) = (versions as u16, (versions >> 16) as u16);
        if !(first..=last).contains(&VERSION) {
            return Err(HelloError::Version(first, last));
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
        Ok(Hello { cluster: id(16)?, node: id(32)?, role, block_bytes, epoch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            cluster: Id(1),
            node: Id(u128::MAX - 1),
            role: Role::Client,
            block_bytes: 1 << 20,
            epoch: u64::MAX - 1,
        }
    }

    #[test]
    fn a_hello_comes_back_as_it_went_whatever_is_added() {
        let mut bytes = hello().encode().to_vec();
        assert_eq!(Hello::decode(&bytes), Ok(hello()));
        bytes.extend_from_slice(b"of a later version");
        assert_eq!(Hello::decode(&bytes), Ok(hello()));
    }

    #[test]
    fn another_version_is_told_by_its_numbers() {
        let mut bytes = hello().encode();
        (bytes[8], bytes[10]) = (0, 0);
        let why = Hello::decode(&bytes).unwrap_err();
        assert_eq!(why, HelloError::Version(0, 0));
        assert!(why.to_string().starts_with(&format!("protocol 0, where {VERSION} is spoken")), "{why}");
        (bytes[8], bytes[10]) = (1, 9);
        assert_eq!(Hello::decode(&bytes), Ok(hello()), "a later one that knows ours too");
        for len in 0..HELLO_BYTES {
            assert_eq!(Hello::decode(&bytes[..len]), Err(HelloError::Garbage), "{len} bytes");
        }
        for (least, is_taken) in [(0, false), (4095, false), (4096, true)] {
            let told = Hello::decode(&Hello { block_bytes: least, ..hello() }.encode());
            assert_eq!(told.is_ok(), is_taken, "blocks of {least} bytes");
        }
        bytes[48] = 3;
        assert_eq!(Hello::decode(&bytes), Err(HelloError::Garbage), "a role that there is not");
    }

    #[test]
    fn ids_are_32_digits() {
        assert_eq!(Id(255).to_string().parse(), Ok(Id(255)));
        for text in ["", "ff", "+0000000000000000000000000000000", "g0000000000000000000000000000000"] {
            assert!(text.parse::<Id>().is_err(), "{text}");
        }
    }
}
