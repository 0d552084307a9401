//! `<state>/agent/catalog.json`: the catalog of the last agent, for one that starts without etcd.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use schema::control::{DiskRecord, Fsync};
use schema::meta::NamespacedName;
use schema::records::{ClusterSettings, FunctionRecord, RouteRecord, ServiceRecord};
use schema::snapshot::{Table, Versioned};
use serde::{Deserialize, Serialize};

use super::{Catalog, Peer};
use crate::desired::KnownFrom;

/// The file's form.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Saved {
    services: Vec<(NamespacedName, ServiceRecord)>,
    routes: Vec<(NamespacedName, RouteRecord)>,
    #[serde(default)]
    functions: Vec<(NamespacedName, FunctionRecord)>,
    #[serde(default)]
    settings: ClusterSettings,
    peers: BTreeMap<String, Peer>,
    /// Files of before have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    own_address: Option<Ipv4Addr>,
}

/// Where the catalog lies.
#[derive(Debug, Clone)]
pub struct CatalogDisk(DiskRecord);

impl CatalogDisk {
    /// Reads what is there. Of a file that can't be read nothing is known, which is said.
    pub fn open(agent_dir: &Path) -> (Self, Option<Catalog>) {
        // A name that a power failure loses costs what etcd has anyway.
        let record = DiskRecord::new(agent_dir.join("catalog.json")).fsync(Fsync::Content);
        let loaded: Option<Saved> = record.read_or_warn("what was known of the cluster");
        let catalog = loaded.map(|saved| Catalog {
            known_from: KnownFrom::Disk,
            services: table(saved.services),
            routes: table(saved.routes),
            functions: table(saved.functions),
            settings: saved.settings,
            peers: saved.peers,
            own_address: saved.own_address,
            revision: 0,
        });
        (Self(record), catalog)
    }

    /// Makes the file hold this.
    pub fn store(&self, catalog: &Catalog) -> io::Result<()> {
        let saved = Saved {
            services: rows(&catalog.services),
            routes: rows(&catalog.routes),
            functions: rows(&catalog.functions),
            settings: catalog.settings.clone(),
            peers: catalog.peers.clone(),
            own_address: catalog.own_address,
        };
        self.0.write(&saved)
    }
}

/// Values as the disk knows them: of no revision.
fn table<V: Clone>(rows: Vec<(NamespacedName, V)>) -> Table<NamespacedName, V> {
    let versioned = |value| Arc::new(Versioned { value, create_revision: 0, mod_revision: 0 });
    rows.into_iter().map(|(id, value)| (id, versioned(value))).collect()
}

fn rows<V: Clone>(table: &Table<NamespacedName, V>) -> Vec<(NamespacedName, V)> {
    table.iter().map(|(id, value)| (id.clone(), value.value.clone())).collect()
}
