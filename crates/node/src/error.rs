//! What can go wrong with a node or its client. One line each.

use std::fmt;

use thalweg_wire::{IdentityError, LinkError};

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something could not be done.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An identity cannot be read, made or used.
    Identity(IdentityError),
    /// A link broke or was refused.
    Link(LinkError),
    /// A file cannot be read or written.
    Io(thalweg_io::Error),
    /// What was asked for cannot be.
    Asked(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Identity(why) => write!(f, "{why}"),
            Error::Link(why) => write!(f, "{why}"),
            Error::Io(why) => write!(f, "{why}"),
            Error::Asked(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

impl From<IdentityError> for Error {
    fn from(e: IdentityError) -> Error {
        Error::Identity(e)
    }
}

impl From<LinkError> for Error {
    fn from(e: LinkError) -> Error {
        Error::Link(e)
    }
}

impl From<thalweg_io::Error> for Error {
    fn from(e: thalweg_io::Error) -> Error {
        Error::Io(e)
    }
}
