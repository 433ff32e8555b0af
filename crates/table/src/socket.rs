//! The socket of a client, with TLS or without.
//!
//! Model: nothing here blocks. Bytes that TLS has yet to send are sent before anything else is read or written.
//! Invariant: one call reads from the socket at most once, so that no client delays the others.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

/// A server's certificate and private key.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// From PEM: the server's certificate, optionally followed by the chain to its authority, and its private key.
    ///
    /// # Errors
    /// If the certificate or the key cannot be used.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Tls, String> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(|_| "the certificate is not PEM")?;
        if chain.is_empty() {
            return Err("there is no certificate in the file".into());
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| "the key is not PEM")?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map(|builder| builder.with_no_client_auth());
        let config = config.and_then(|builder| builder.with_single_cert(chain, key));
        config.map(|config| Tls(Arc::new(config))).map_err(|why| why.to_string())
    }
}

/// A connection, without TLS.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(from),
            Stream::Unix(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The socket of a client.
pub(crate) struct Socket {
    stream: Stream,
    tls: Option<Box<ServerConnection>>,
}

impl Socket {
    /// Wraps an accepted connection.
    pub(crate) fn new(stream: Stream, tls: Option<&Tls>) -> io::Result<Socket> {
        let connection = tls.map(|Tls(config)| ServerConnection::new(config.clone())).transpose();
        let tls = connection.map_err(io::Error::other)?.map(Box::new);
        Ok(Socket { stream, tls })
    }

    pub(crate) fn source(&mut self) -> &mut dyn Source {
        match &mut self.stream {
            Stream::Tcp(stream) => stream,
            Stream::Unix(stream) => stream,
        }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads available bytes. 0 bytes mean the end; after an interruption there may be more.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.stream.read(into) };
        match tls.reader().read(into) {
            Err(why) if why.kind() == ErrorKind::WouldBlock => {}
            Err(why) if why.kind() == ErrorKind::UnexpectedEof => return Ok(0),
            read => return read,
        }
        let came = tls.read_tls(&mut self.stream);
        if came? == 0 {
            return Ok(0);
        }
        if let Err(why) = tls.process_new_packets() {
            // Sends an alert that tells the client why, if the socket takes it.
            let _ = self.flush();
            return Err(io::Error::other(why));
        }
        match self.flush() {
            Err(why) if why.kind() != ErrorKind::WouldBlock => Err(why),
            _ => Err(ErrorKind::Interrupted.into()),
        }
    }

    /// Takes as many bytes as fit. They are sent once [`flush`](Socket::flush) has succeeded.
    pub(crate) fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.stream.write(from) };
        let n = tls.writer().write(from)?;
        match self.flush() {
            Err(why) if why.kind() == ErrorKind::WouldBlock && n > 0 => Ok(n),
            Err(why) => Err(why),
            // The bytes that did not fit before fit now.
            Ok(()) if n == 0 => Err(ErrorKind::Interrupted.into()),
            Ok(()) => Ok(n),
        }
    }

    /// Sends the bytes that were taken.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            match tls.write_tls(&mut self.stream) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Err(why) if why.kind() != ErrorKind::Interrupted => return Err(why),
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends the closing alert of TLS, if the socket takes it.
    pub(crate) fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = self.flush();
        }
    }
}
