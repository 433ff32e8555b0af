//! TLS 1.3 with certificates on both sides.
//!
//! Model: rustls does the handshake; then its keys go to this crate's own encryption, which works in place where rustls
//! copies. A handshake is read record by record, so that no byte after it remains in rustls's buffers.
//! Invariant: a peer is accepted only after both certificates were verified; a handshake takes at most
//! [`HANDSHAKE_SECONDS`].
//! Non-goals: earlier versions of TLS, resumed sessions, servers without client certificates.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct,
    DistinguishedName, ExtractedSecrets, ServerConfig, SignatureScheme,
};
use thalweg_base::clock::Stopwatch;
use thalweg_block::Pool;
use thalweg_io::socket;

use crate::carrier::{TcpReceive, TcpTransmit};
use crate::core::Timeouts;
use crate::error::{LinkError, Result, What};
use crate::export::Exporter;
use crate::hello::{Hello, Id, VERSIONS};
use crate::identity::{Identity, IdentityError, Named};
use crate::link::{Link, PeerInfo};
use crate::members::{Members, Standing};
use crate::renew::Agreed;
use crate::seal::{Opening, RECORDS_PER_KEY, Sealing};
use crate::stream::Incoming;

/// The ALPN name of links.
pub const ALPN_LINK: &[u8] = b"thalweg/1";
/// The ALPN name of HTTP.
pub const ALPN_HTTP: &[u8] = b"http/1.1";
/// The time limit for connecting and the handshake.
pub const HANDSHAKE_SECONDS: u64 = 5;

/// The terms of this side's links.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// The largest block that this side accepts.
    pub block_bytes: u32,
    /// The timeouts of this side.
    pub patience: Timeouts,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms { block_bytes: 1 << 20, patience: Timeouts::default() }
    }
}

/// An identity, prepared for TLS handshakes.
#[derive(Debug, Clone)]
pub struct Credentials {
    identity: Identity,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    records_per_key: u64,
}

impl Credentials {
    /// The credentials of this identity.
    pub fn of(identity: Identity) -> std::result::Result<Credentials, IdentityError> {
        let ours = |e: rustls::Error| match e {
            rustls::Error::InconsistentKeys(_) => IdentityError::Mismatch,
            // rustls has no other general error for an identity.
            rustls::Error::General(_) => IdentityError::Certificate("the key cannot be read".into()),
            other => IdentityError::Certificate(other.to_string()),
        };
        let provider = Arc::new(CryptoProvider {
            // The shorter key first: it takes a fifth less time with current processors.
            cipher_suites: vec![
                provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
                provider::cipher_suite::TLS13_AES_256_GCM_SHA384,
                provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
            ],
            ..provider::default_provider()
        });
        let key = || identity.key.clone_key();
        let (roots, members) = (identity.roots.clone(), identity.members.clone());
        let inner = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let inner = inner.map_err(|e| IdentityError::Certificate(e.to_string()))?;
        let servers = Arc::new(Servers { inner, members: members.clone() });
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(ours)?
            .dangerous()
            .with_custom_certificate_verifier(servers)
            .with_client_auth_cert(identity.chain.clone(), key())
            .map_err(ours)?;
        client.alpn_protocols = vec![ALPN_LINK.to_vec()];
        client.enable_secret_extraction = true;
        client.resumption = Resumption::disabled();
        let inner = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build();
        let inner = inner.map_err(|e| IdentityError::Certificate(e.to_string()))?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(ours)?
            .with_client_cert_verifier(Arc::new(Clients { inner, members }))
            .with_single_cert(identity.chain.clone(), key())
            .map_err(ours)?;
        server.alpn_protocols = vec![ALPN_LINK.to_vec(), ALPN_HTTP.to_vec()];
        server.enable_secret_extraction = true;
        // A ticket would be a record after the handshake, and sessions are not resumed.
        server.send_tls13_tickets = 0;
        Ok(Credentials {
            identity,
            client: Arc::new(client),
            server: Arc::new(server),
            records_per_key: RECORDS_PER_KEY,
        })
    }

    /// The identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The configuration for accepting one connection, and the place for its secrets.
    pub fn server(&self) -> (Arc<ServerConfig>, Agreed) {
        let agreed = Agreed::default();
        let mut config = (*self.server).clone();
        config.key_log = Arc::new(agreed.clone());
        (Arc::new(config), agreed)
    }

    /// The configuration for opening one connection, and the place for its secrets.
    pub(crate) fn client(&self) -> (Arc<ClientConfig>, Agreed) {
        let agreed = Agreed::default();
        let mut config = (*self.client).clone();
        config.key_log = Arc::new(agreed.clone());
        (Arc::new(config), agreed)
    }

    /// Takes new keys after this many records.
    #[cfg(test)]
    pub(crate) fn renewing_after(self, records_per_key: u64) -> Credentials {
        Credentials { records_per_key, ..self }
    }

    /// The configuration for HTTP requests to another node.
    pub fn http_client(&self) -> Arc<ClientConfig> {
        let mut config = (*self.client).clone();
        config.alpn_protocols = vec![ALPN_HTTP.to_vec()];
        Arc::new(config)
    }

    /// Opens a link with the node of this name at this address.
    pub fn connect(&self, name: &str, address: SocketAddr, terms: Terms) -> Result<Link> {
        let link = self.reach(name, address, terms)?;
        link.exchange_hellos().map_err(|error| LinkError { peer: at(name, address), ..error })?;
        Ok(link)
    }

    /// Opens a link and sends a request ([`Link::ask`]) in the same write as the hello, which saves a round trip.
    pub fn connect_and_ask(
        &self,
        (name, address): (&str, SocketAddr),
        terms: Terms,
        request: &[u8],
        takes: Option<(&Pool, usize)>,
    ) -> Result<(Link, Incoming)> {
        let link = self.reach(name, address, terms)?;
        let named = |error| LinkError { peer: at(name, address), ..error };
        let inc = link.ask(request, takes).map_err(named)?;
        link.exchange_hellos().map_err(named)?;
        Ok((link, inc))
    }

    /// A link before the peer's hello.
    fn reach(&self, name: &str, address: SocketAddr, terms: Terms) -> Result<Link> {
        let watch = Stopwatch::start();
        let failed = |what| LinkError::new(at(name, address), what);
        let unreachable = |e: std::io::Error| failed(What::Unreachable(unreachable(&e)));
        let patience = Duration::from_secs(HANDSHAKE_SECONDS);
        let socket = socket::connect(&address, patience).map_err(unreachable)?;
        socket.set_nodelay(true).map_err(unreachable)?;
        socket::resend_soon(&socket);
        let server = ServerName::try_from(name.to_string())
            .map_err(|_| failed(What::Refused(format!("'{name}' is not a name for a host"))))?;
        let (config, agreed) = self.client();
        let connection =
            ClientConnection::new(config, server).map_err(|e| failed(What::Refused(e.to_string())))?;
        let connection = shake(&socket, connection.into(), watch).map_err(failed)?;
        self.before_hello(socket, (connection, agreed), terms)
            .map_err(|error| LinkError { peer: at(name, address), ..error })
    }

    /// The other side of [`Credentials::connect`], for a socket that was accepted.
    pub fn accept(&self, socket: TcpStream, terms: Terms) -> Result<Link> {
        let peer = peer_of(&socket);
        socket::resend_soon(&socket);
        let failed = |what| LinkError::new(peer.clone(), what);
        let (config, agreed) = self.server();
        let connection =
            rustls::ServerConnection::new(config).map_err(|e| failed(What::Refused(e.to_string())))?;
        let connection = shake(&socket, connection.into(), Stopwatch::start()).map_err(failed)?;
        self.adopt(socket, (connection, agreed), terms)
    }

    /// A link over a connection after its handshake. Records after the handshake may have been read, if they were read
    /// completely.
    pub fn adopt(&self, socket: TcpStream, shook: (Connection, Agreed), terms: Terms) -> Result<Link> {
        let link = self.before_hello(socket, shook, terms)?;
        link.exchange_hellos()?;
        Ok(link)
    }

    fn before_hello(
        &self,
        socket: TcpStream,
        (mut connection, agreed): (Connection, Agreed),
        terms: Terms,
    ) -> Result<Link> {
        let began = matches!(connection, Connection::Client(_));
        let address = peer_of(&socket);
        let failed = |what| LinkError::new(address.clone(), what);
        let named = connection.peer_certificates().and_then(|chain| Named::of(chain.first()?));
        let Some(named) = named.filter(|named| named.cluster == self.identity.cluster) else {
            return Err(failed(What::Refused("its certificate does not say which node it is".into())));
        };
        if connection.alpn_protocol() != Some(ALPN_LINK) {
            return Err(failed(What::Refused("it did not ask for a link".into())));
        }
        let mut early = Vec::new();
        // It ends with "would block", because the connection stays open.
        let _ = connection.reader().read_to_end(&mut early);
        let secrets = match connection {
            Connection::Client(client) => client.dangerous_extract_secrets(),
            Connection::Server(server) => server.dangerous_extract_secrets(),
        };
        let ExtractedSecrets { tx, rx } = secrets.map_err(|e| failed(What::Refused(e.to_string())))?;
        let cut = |e: std::io::Error| failed(What::Cut(e.to_string()));
        socket::be_impatient(&socket, Duration::from_millis(terms.patience.dead_ms)).map_err(cut)?;
        let socket = Arc::new(socket);
        let sealing = Sealing::new(tx, &agreed.secret(began), self.records_per_key);
        let sealing = sealing.map_err(|e| failed(e.into()))?;
        let opening = Opening::new(rx, &agreed.secret(!began), sealing.asked());
        let opening = opening.map_err(|e| failed(e.into()))?;
        let transmit = TcpTransmit { socket: socket.clone(), sealing, staged: Vec::new() };
        // The reader wakes with each frame of the peer, and in time to send this side's next sign of life.
        let moment = Duration::from_millis(terms.patience.ping_ms);
        let receive = TcpReceive::new(socket, opening, early, moment).map_err(cut)?;
        let (proved, exporter) = (Some((named.node, named.role)), Exporter::new(&agreed.exporter_secret()));
        let far = PeerInfo { name: named.host.clone(), proved, exporter };
        let carrier = (Box::new(transmit) as _, Box::new(receive) as _);
        let link = Link::before_hello(self.hello(terms), far, began, carrier, terms.patience);
        self.identity.members.watch(&named, link.watch());
        Ok(link)
    }

    fn hello(&self, terms: Terms) -> Hello {
        let Identity { cluster, node, role, .. } = self.identity;
        let epoch = self.identity.members.epoch();
        Hello { versions: VERSIONS, cluster, node, role, block_bytes: terms.block_bytes, epoch }
    }
}

/// The peer's name for messages.
fn at(name: &str, address: SocketAddr) -> String {
    format!("{name} at {address}")
}

fn peer_of(socket: &TcpStream) -> String {
    socket.peer_addr().map_or_else(|_| "a peer that has gone".into(), |address| address.to_string())
}

/// Does the handshake, reading no byte after it.
fn shake(
    socket: &TcpStream,
    mut connection: Connection,
    watch: Stopwatch,
) -> std::result::Result<Connection, What> {
    let mut record = Vec::new();
    loop {
        while connection.wants_write() {
            connection.write_tls(&mut &*socket).map_err(|e| What::Cut(e.to_string()))?;
        }
        if !connection.is_handshaking() {
            return Ok(connection);
        }
        read_record(socket, &mut record, watch)?;
        let mut rest = &record[..];
        while !rest.is_empty() {
            connection.read_tls(&mut rest).map_err(|e| What::Refused(e.to_string()))?;
            if let Err(why) = connection.process_new_packets() {
                // Lets the peer know why.
                let _ = connection.write_tls(&mut &*socket);
                return Err(What::Refused(refusal(&why)));
            }
        }
    }
}

/// Reads one TLS record, within the rest of the handshake's time.
fn read_record(socket: &TcpStream, record: &mut Vec<u8>, watch: Stopwatch) -> std::result::Result<(), What> {
    /// The most bytes after a record's header (RFC 8446, 5.2).
    const RECORD_BYTES_MAX: usize = (16 << 10) + 256;
    record.resize(5, 0);
    read_exact(socket, record, watch)?;
    let len = usize::from(u16::from_be_bytes([record[3], record[4]]));
    if !(20..=23).contains(&record[0]) || record[1] != 3 || len > RECORD_BYTES_MAX {
        return Err(What::Refused("what it sent is not TLS; is it a thalweg node?".into()));
    }
    record.resize(5 + len, 0);
    read_exact(socket, &mut record[5..], watch)
}

fn read_exact(
    mut socket: &TcpStream,
    mut into: &mut [u8],
    watch: Stopwatch,
) -> std::result::Result<(), What> {
    while !into.is_empty() {
        let left = Duration::from_secs(HANDSHAKE_SECONDS).saturating_sub(Duration::from_nanos(watch.ns()));
        let late = || What::Unreachable(format!("no handshake within {HANDSHAKE_SECONDS} s"));
        if left.is_zero() {
            return Err(late());
        }
        socket.set_read_timeout(Some(left)).map_err(|e| What::Cut(e.to_string()))?;
        match socket.read(into) {
            Ok(0) => return Err(What::Cut("it ended in the middle of the handshake".into())),
            Ok(n) => into = &mut into[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(late()),
            Err(e) => return Err(What::Cut(e.to_string())),
        }
    }
    Ok(())
}

/// Why there is no answer at an address, and the remedy.
pub fn unreachable(why: &std::io::Error) -> String {
    let remedy = match why.kind() {
        ErrorKind::ConnectionRefused => {
            "no node listens there; thalweg cluster up starts it, or Ray if it hosts the cluster"
        }
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            "see that the host is on and the network between lets its port through"
        }
        _ => return why.to_string(),
    };
    format!("{why}: {remedy}")
}

/// What went wrong with a handshake, and the remedy.
pub fn refusal(why: &rustls::Error) -> String {
    use CertificateError as C;
    match why {
        rustls::Error::InvalidCertificate(C::Revoked) => {
            "it was dropped from the cluster; thalweg cluster add takes it in again".into()
        }
        rustls::Error::InvalidCertificate(C::ApplicationVerificationFailure) => {
            "it is not in the cluster file here; if it was renewed since, bring the owner's cluster.json here, and if it is new, thalweg cluster add or client takes it in".into()
        }
        rustls::Error::InvalidCertificate(C::Expired | C::ExpiredContext { .. }) => {
            "its certificate has expired; thalweg cluster renew makes a new one".into()
        }
        rustls::Error::InvalidCertificate(C::NotValidYet | C::NotValidYetContext { .. }) => {
            "its certificate is not valid yet; see the clocks of both hosts".into()
        }
        rustls::Error::InvalidCertificate(C::UnknownIssuer | C::BadSignature) => {
            "its certificate is of another cluster; check that the identity and the address belong to one cluster"
                .into()
        }
        rustls::Error::InvalidCertificate(C::NotValidForName | C::NotValidForNameContext { .. }) => {
            "its certificate names another host; see the addresses in the cluster file".into()
        }
        // The same text as for the encrypted alerts of a link.
        rustls::Error::AlertReceived(alert @ AlertDescription::CertificateRevoked) => {
            crate::seal::alert(u8::from(*alert)).into()
        }
        rustls::Error::NoCertificatesPresented => "it showed no certificate".into(),
        rustls::Error::PeerIncompatible(_) => "it speaks no TLS 1.3 that both know".into(),
        rustls::Error::NoApplicationProtocol => "it speaks another protocol".into(),
        rustls::Error::InvalidMessage(_) => "what it sent is not TLS; is it a thalweg node?".into(),
        other => other.to_string(),
    }
}

/// An error if the cluster file does not list the owner of the certificate.
fn welcome(certificate: &CertificateDer<'_>, members: &Members) -> std::result::Result<(), rustls::Error> {
    match members.standing(certificate) {
        Standing::Listed => Ok(()),
        Standing::Dropped => Err(CertificateError::Revoked.into()),
        Standing::Unlisted => Err(CertificateError::ApplicationVerificationFailure.into()),
    }
}

/// Accepts servers that the cluster file lists as the wanted host.
#[derive(Debug)]
struct Servers {
    inner: Arc<WebPkiServerVerifier>,
    members: Members,
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let verified = self.inner.verify_server_cert(certificate, above, name, ocsp, now)?;
        welcome(certificate, &self.members)?;
        match self.members.is_host(certificate, name) {
            true => Ok(verified),
            false => Err(CertificateError::NotValidForName.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Accepts clients that the cluster file lists.
#[derive(Debug)]
struct Clients {
    inner: Arc<dyn ClientCertVerifier>,
    members: Members,
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> std::result::Result<ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(certificate, above, now)?;
        welcome(certificate, &self.members).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// The id of the node in a peer's certificate.
pub fn node_of(connection: &rustls::CommonState) -> Option<Id> {
    connection.peer_certificates().and_then(|chain| Named::of(chain.first()?)).map(|named| named.node)
}
