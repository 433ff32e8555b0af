//! The digest of a file: 128 bits of XXH3 over its bytes in order. It is not for secrets.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use crate::Result;
use crate::failed;

/// The digest of a file.
pub fn of_file(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(|e| failed("open", path, &e))?;
    let mut hash = Xxh3::new();
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes).map_err(|e| failed("read", path, &e))? {
            0 => return Ok(written(&hash)),
            read => hash.update(&bytes[..read]),
        }
    }
}

/// A digest as reports show it.
pub(crate) fn written(hash: &Xxh3) -> String {
    format!("xxh3:{:032x}", hash.digest128())
}
