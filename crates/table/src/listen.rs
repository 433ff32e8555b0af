//! Where and how a server listens, and the errors of that.
//!
//! Invariant: an address that other machines can reach has TLS and a password. A server that ends removes the file of
//! its socket only if the path still has that socket.
//! Non-goals: the traffic of connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
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
    /// A TCP address of this machine.
    Tcp(SocketAddr),
    /// A socket in the file system, for this user only.
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

    /// Parses `ADDRESS:PORT` or `unix:PATH`.
    fn from_str(typed: &str) -> Result<Place, Error> {
        match typed.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            Some(path) => Ok(Place::Unix(path.into())),
            None => typed.parse().map(Place::Tcp).map_err(|_| Error::NoPlace(typed.into())),
        }
    }
}

/// The most bytes of a password: a client that has not sent it yet may send little.
pub(crate) const PASSWORD_BYTES_MAX: usize = 8 << 10;

/// The options of a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens.
    pub place: Place,
    /// The most bytes of records and their index.
    pub memory: usize,
    /// The password that clients must send, of at most [`PASSWORD_BYTES_MAX`].
    pub password: Option<Vec<u8>>,
    /// The certificate and key with which connections are encrypted.
    pub tls: Option<Tls>,
}

impl Options {
    /// Checks that nobody else can read what clients send, or send requests, and that clients can send the password.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let password_bytes = self.password.as_ref().map_or(0, Vec::len);
        match self.place {
            _ if password_bytes > PASSWORD_BYTES_MAX => Err(Error::LongPassword(password_bytes)),
            Place::Tcp(address)
                if !address.ip().is_loopback() && (self.tls.is_none() || self.password.is_none()) =>
            {
                Err(Error::Reachable(address))
            }
            _ => Ok(()),
        }
    }
}

/// Why a server cannot start, or ended.
#[derive(Debug)]
pub enum Error {
    /// The text is not a place to listen at.
    NoPlace(String),
    /// Other machines could reach this address, and there is no TLS or no password.
    Reachable(SocketAddr),
    /// The password has more than [`PASSWORD_BYTES_MAX`]: this many bytes.
    LongPassword(usize),
    /// There is too little memory: this many bytes.
    LittleMemory(usize),
    /// A process listens there already, or something other than a socket is there.
    Taken(Place),
    /// A system call failed.
    System {
        /// What the server tried to do.
        what: &'static str,
        /// Where.
        place: Place,
        /// The system's error.
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
            Error::LongPassword(bytes) => {
                write!(f, "a password of {bytes} bytes is too long: use at most {PASSWORD_BYTES_MAX}")
            }
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

/// A socket that accepts connections.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

/// The file of a socket, removed when this value is dropped.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode number.
    made: Option<(u64, u64)>,
}

impl Listener {
    /// Listens, and returns the actual place: port 0 is replaced by the port that the system chose.
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

    /// Another listener for the same port, for another thread.
    pub(crate) fn share(&self) -> io::Result<Listener> {
        match self {
            Listener::Tcp(listener) => {
                let shared = std::net::TcpListener::from(listener.as_fd().try_clone_to_owned()?);
                Ok(Listener::Tcp(TcpListener::from_std(shared)))
            }
            Listener::Unix { .. } => Err(io::ErrorKind::Unsupported.into()),
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
                // A reply is small, and should be sent at once.
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
            // If this fails, the next server that listens there removes the file.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    rustix::fs::lstat(path).ok().map(|found| (found.st_dev, found.st_ino))
}

/// A socket in the file system that only this user can connect to, from the moment of its creation.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path.as_os_str().as_bytes())?;
    let bind = || {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        // The file that `bind` creates gets the mode of the socket.
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

/// Whether this is a socket of this user on which no process listens.
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
