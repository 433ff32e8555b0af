//! Interprets the arguments and flags of `table serve`.

use std::path::PathBuf;

use thalweg::table::Place;
use thalweg_base::units::Size;

use thalweg_verbs::Usage;

use crate::typed::TypedArgs;

/// A server of tables.
#[derive(Debug)]
pub(crate) struct TableAsk {
    pub(crate) resp: Place,
    pub(crate) memory: Size,
    pub(crate) password_file: Option<PathBuf>,
    /// The files of the certificate and its key.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
}

/// `table serve`.
pub(super) fn served(args: TypedArgs) -> Result<TableAsk, Usage> {
    if let Some(word) = args.ask.words.first() {
        return Err(Usage(format!("table serve takes flags only, not '{}'", word.to_string_lossy())));
    }
    let TypedArgs { ask, resp, password_file, tls_cert, tls_key, .. } = args;
    let tls = match (tls_cert, tls_key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(Usage("--tls-cert and --tls-key go together: a certificate and its key".into())),
    };
    let resp = resp.ok_or_else(|| {
        Usage("table serve needs --resp, where Redis clients connect, as in --resp 127.0.0.1:6379".into())
    })?;
    let memory = ask.work.memory.unwrap_or(Size::Percent(50.0));
    Ok(TableAsk { resp, memory, password_file, tls })
}
