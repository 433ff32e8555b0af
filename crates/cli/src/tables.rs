//! The command `table serve`.

use std::path::Path;

use thalweg::table::{Options, Server, Tls};
use thalweg_api::{TableServer, to_json};
use thalweg_base::units::Bytes;
use thalweg_io::{process, small};

use crate::failure::{DONE, Failure};
use crate::interpret::Show;
use crate::interpret::table::TableAsk;
use crate::print::report;
use crate::signals::{self, Runs};

/// Serves tables until a signal asks the process to end.
pub(crate) fn serve(asked: TableAsk, how: Show) -> Result<u8, Failure> {
    let memory = asked.memory.of(process::available_memory_bytes());
    let password = asked.password_file.as_deref().map(first_line).transpose()?;
    let said = password.is_some();
    let tls = asked.tls.map(|(certificate, key)| tls_of(&certificate, &key)).transpose()?;
    let options = Options { place: asked.resp, memory: memory as usize, password, tls };
    let server = Server::bind(options)?;
    let stop = server.stop();
    signals::on_signals(Runs::Server, move |_| stop.stop()).map_err(Failure::Signals)?;
    let ready = TableServer { resp: server.place().to_string(), memory_bytes: memory, password: said };
    let text = || format!("tables in {} of memory, for Redis clients at {}\n", Bytes(memory), ready.resp);
    report(how, || to_json(&ready), text)?;
    server.run()?;
    Ok(DONE)
}

fn first_line(path: &Path) -> Result<Vec<u8>, Failure> {
    check_closed("password", path)?;
    let text = small::read_named(path).map_err(Failure::Served)?;
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return Err(Failure::NoPassword(path.into()));
    }
    Ok(line.to_vec())
}

/// Refuses a secret that others may read.
fn check_closed(secret: &'static str, path: &Path) -> Result<(), Failure> {
    match small::is_open_to_others(path) {
        false => Ok(()),
        // Nobody should close a device or a directory to others for this.
        true if !path.is_file() => Err(Failure::NoFile(secret, path.into())),
        true => Err(Failure::Open(secret, path.into())),
    }
}

fn tls_of(certificate: &Path, key: &Path) -> Result<Tls, Failure> {
    check_closed("key", key)?;
    let [certificates, of_it] =
        [certificate, key].map(|path| small::read_named(path).map_err(Failure::Served));
    Tls::from_pem(&certificates?, &of_it?).map_err(|why| Failure::Tls(certificate.into(), key.into(), why))
}
