//! `<state>/agent/catalog.json`: the catalog of the last agent, for one that starts without etcd.

use std::io;
use std::path::Path;

use schema::control::{DiskRecord, Fsync};

use super::Catalog;
use crate::desired::KnownFrom;

/// File that holds the catalog.
#[derive(Debug, Clone)]
pub struct CatalogDisk(DiskRecord);

impl CatalogDisk {
    /// Reads the file. An unreadable file counts as empty, with a warning in the log.
    pub fn open(agent_dir: &Path) -> (Self, Option<Catalog>) {
        // If a power failure loses the directory entry, etcd still has the content.
        let record = DiskRecord::new(agent_dir.join("catalog.json")).fsync(Fsync::Content);
        let loaded: Option<Catalog> = record.read_or_warn("what was known of the cluster");
        let catalog = loaded.map(|known| Catalog { known_from: KnownFrom::Disk, ..known });
        (Self(record), catalog)
    }

    /// Replaces the content of the file.
    pub fn store(&self, catalog: &Catalog) -> io::Result<()> {
        self.0.write(catalog)
    }
}
