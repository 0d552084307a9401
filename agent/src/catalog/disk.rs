//! `<state>/agent/catalog.json`: the catalog of the last agent, for one that starts without etcd.

use std::io;
use std::path::Path;

use schema::control::{DiskRecord, Fsync};

use super::Catalog;
use crate::desired::KnownFrom;

/// Where the catalog lies.
#[derive(Debug, Clone)]
pub struct CatalogDisk(DiskRecord);

impl CatalogDisk {
    /// Reads what is there. Of a file that can't be read nothing is known, which is said.
    pub fn open(agent_dir: &Path) -> (Self, Option<Catalog>) {
        // A name that a power failure loses costs what etcd has anyway.
        let record = DiskRecord::new(agent_dir.join("catalog.json")).fsync(Fsync::Content);
        let loaded: Option<Catalog> = record.read_or_warn("what was known of the cluster");
        let catalog = loaded.map(|known| Catalog { known_from: KnownFrom::Disk, ..known });
        (Self(record), catalog)
    }

    /// Makes the file hold this.
    pub fn store(&self, catalog: &Catalog) -> io::Result<()> {
        self.0.write(catalog)
    }
}
