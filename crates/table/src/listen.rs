//! Where a server listens, what it is to be, and why it is not.
//!
//! Invariant: an address that other machines can reach has TLS and a password. A socket in the file system is removed at the end
//! only if it is still the one that was made.
//! Non-goals: what comes over connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use mio::event::Source;
use mio::net::{TcpListener, UnixListener};
use rustix::fs::{FileType, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::socket::{Stream, Tls};

const LISTEN_BACKLOG: i32 = 511;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// At an address of this machine.
    Tcp(SocketAddr),
    /// At a socket in the file system, for this user only.
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp(address) => write!(f, "{address}"),
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Place {
    type Err = Error;

    /// `ADDRESS:PORT` or `unix:PATH`.
    fn from_str(typed: &str) -> Result<Place, Error> {
        match typed.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            Some(path) => Ok(Place::Unix(path.into())),
            None => typed.parse().map(Place::Tcp).map_err(|_| Error::NoPlace(typed.into())),
        }
    }
}

/// What a server is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens.
    pub place: Place,
    /// Bytes for records and what orders them.
    pub memory: usize,
    /// What clients have to know.
    pub password: Option<Vec<u8>>,
    /// What connections are encrypted with.
    pub tls: Option<Tls>,
}

impl Options {
    /// Whether nobody else can read what clients send, or ask for anything.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.place {
            Place::Tcp(address)
                if !address.ip().is_loopback() && (self.tls.is_none() || self.password.is_none()) =>
            {
                Err(Error::Reachable(address))
            }
            _ => Ok(()),
        }
    }
}

/// Why there is no server, or no more.
#[derive(Debug)]
pub enum Error {
    /// Not a place.
    NoPlace(String),
    /// Other machines could reach this address, and there is no TLS or no password.
    Reachable(SocketAddr),
    /// Too little memory; so many bytes are given.
    LittleMemory(usize),
    /// Somebody listens there, or something else is there.
    Taken(Place),
    /// The system refused it.
    System {
        /// What was done.
        what: &'static str,
        /// Where.
        place: Place,
        /// Why not.
        why: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoPlace(typed) => {
                write!(
                    f,
                    "'{typed}' is no place to listen: write ADDRESS:PORT, as in 127.0.0.1:6379, or unix:PATH"
                )
            }
            Error::Reachable(address) => write!(
                f,
                "other machines could reach {address}: give --tls-cert, --tls-key and --password-file, or listen on 127.0.0.1 or \
unix:PATH"
            ),
            Error::LittleMemory(bytes) => {
                write!(f, "{bytes} bytes of memory are too little: give at least 1 MiB")
            }
            Error::Taken(place) => {
                write!(f, "{place} is taken: another program listens there, or a file is there")
            }
            Error::System { what, place, why } => write!(f, "cannot {what} {place}: {why}"),
        }
    }
}

impl std::error::Error for Error {}

/// What accepts connections.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

/// The file of a socket, which goes with this value.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and number of its inode.
    made: Option<(u64, u64)>,
}

impl Listener {
    /// Listens; the place has the port that was found if it has port 0.
    pub(crate) fn bind(place: &Place) -> Result<(Listener, Place), Error> {
        let failed = |why: io::Error| match why.kind() {
            io::ErrorKind::AddrInUse => Error::Taken(place.clone()),
            _ => Error::System { what: "listen on", place: place.clone(), why },
        };
        match place {
            Place::Tcp(address) => {
                let listener = TcpListener::bind(*address).map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                Ok((Listener::Tcp(listener), Place::Tcp(address)))
            }
            Place::Unix(path) => {
                let listener = bind_unix(path).map_err(failed)?;
                let _file = SocketFile { path: path.clone(), made: inode(path) };
                Ok((Listener::Unix { listener, _file }, place.clone()))
            }
        }
    }

    pub(crate) fn source(&mut self) -> &mut dyn Source {
        match self {
            Listener::Tcp(listener) => listener,
            Listener::Unix { listener, .. } => listener,
        }
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| {
                // A reply is small, and waits for nothing.
                let _ = stream.set_nodelay(true);
                Stream::Tcp(stream)
            }),
            Listener::Unix { listener, .. } => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.made.is_some() && inode(&self.path) == self.made {
            // Whoever listens there next removes it otherwise.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    rustix::fs::lstat(path).ok().map(|found| (found.st_dev, found.st_ino))
}

/// A socket in the file system that only this user can connect to, from its first moment on.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path.as_os_str().as_bytes())?;
    let bind = || {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        // The file that bind makes has the mode of the socket.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &address)?;
        Ok(socket)
    };
    let socket = match bind() {
        Err(rustix::io::Errno::ADDRINUSE) if is_left_over(path, &address) => {
            rustix::fs::unlink(path)?;
            bind()?
        }
        bound => bound?,
    };
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(UnixListener::from_std(socket.into()))
}

/// Whether this is a socket of this user that nobody listens on.
fn is_left_over(path: &Path, address: &SocketAddrUnix) -> bool {
    let is_own_socket = rustix::fs::lstat(path).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::Socket
            && found.st_uid == rustix::process::geteuid().as_raw()
    });
    let connect = || {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        rustix::net::connect(&socket, address)
    };
    is_own_socket && connect() == Err(rustix::io::Errno::CONNREFUSED)
}
