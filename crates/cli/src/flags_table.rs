//! The flags of `table` in the table of flags.

use std::path::PathBuf;

use crate::commands::Command::Table;
use crate::flag::{At, Flag, Value};
use crate::values;

const TABLES: At = At::Commands(&[Table]);

pub(crate) const RESP: Flag = Flag {
    long: "resp",
    short: None,
    value: Value::Any("WHERE"),
    at: TABLES,
    about: "where Redis clients connect",
    doc: "\
Where Redis clients connect: ADDRESS:PORT, with port 0 for any that is free, or unix:PATH, which only this user can connect to. \
An address that other machines can reach needs --tls-cert, --tls-key and --password-file.",
    set: |args, value| values::parsed(value).map(|place| args.resp = Some(place)),
};

pub(crate) const PASSWORD_FILE: Flag = Flag {
    long: "password-file",
    short: None,
    value: Value::File("FILE"),
    at: TABLES,
    about: "a file with the password that clients have to give",
    doc: "\
A file with the password that clients have to give with AUTH, in its first line. Without this flag they give none: whoever is on \
this machine can connect to a port of its.",
    set: |args, value| {
        args.password_file = Some(PathBuf::from(value));
        Ok(())
    },
};

pub(crate) const TLS_CERT: Flag = Flag {
    long: "tls-cert",
    short: None,
    value: Value::File("FILE"),
    at: TABLES,
    about: "the certificate of the server, in PEM",
    doc: "\
A file with the certificate that the server shows, in PEM, perhaps with those that lead to its authority behind it. With it and \
--tls-key, connections are encrypted with TLS 1.3.",
    set: |args, value| {
        args.tls_cert = Some(PathBuf::from(value));
        Ok(())
    },
};

pub(crate) const TLS_KEY: Flag = Flag {
    long: "tls-key",
    short: None,
    value: Value::File("FILE"),
    at: TABLES,
    about: "the key of the certificate, in PEM",
    doc: "A file with the key of the certificate in --tls-cert, in PEM. Only its owner may be able to read it.",
    set: |args, value| {
        args.tls_key = Some(PathBuf::from(value));
        Ok(())
    },
};
