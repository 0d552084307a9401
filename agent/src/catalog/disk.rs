//! `<state>/agent/catalog.json`: the catalog of the last agent, for one that starts without etcd.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schema::meta::NamespacedName;
use schema::records::{RouteRecord, ServiceRecord};
use schema::snapshot::{Table, Versioned};
use serde::{Deserialize, Serialize};

use super::{Catalog, Peer};
use crate::desired::{DiskError, Source, replace};

/// The file's form.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Saved {
    services: Vec<(NamespacedName, ServiceRecord)>,
    routes: Vec<(NamespacedName, RouteRecord)>,
    peers: BTreeMap<String, Peer>,
    /// Files of before have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    own_address: Option<Ipv4Addr>,
}

/// Where the catalog lies.
#[derive(Debug, Clone)]
pub struct CatalogDisk {
    path: PathBuf,
}

impl CatalogDisk {
    /// Reads what is there. Of a file that can't be read nothing is known, which is said.
    pub fn open(agent_dir: &Path) -> (Self, Option<Catalog>) {
        let path = agent_dir.join("catalog.json");
        let loaded = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice::<Saved>(&bytes)
                .inspect_err(|error| {
                    let path = path.display();
                    tracing::warn!(%path, %error, "what was known of the cluster can't be read");
                })
                .ok(),
            Err(_) => None,
        };
        let catalog = loaded.map(|saved| Catalog {
            source: Source::Disk,
            services: table(saved.services),
            routes: table(saved.routes),
            peers: saved.peers,
            own_address: saved.own_address,
            revision: 0,
        });
        (Self { path }, catalog)
    }

    /// Makes the file hold this.
    pub fn store(&self, catalog: &Catalog) -> Result<(), DiskError> {
        let saved = Saved {
            services: rows(&catalog.services),
            routes: rows(&catalog.routes),
            peers: catalog.peers.clone(),
            own_address: catalog.own_address,
        };
        let bytes = serde_json::to_vec(&saved).map_err(|error| DiskError::Write {
            path: self.path.clone(),
            source: std::io::Error::other(error),
        })?;
        replace(&self.path, &bytes)
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
