//! Serialized form of a table: pairs of name and value, without revisions.

use std::sync::Arc;

use schema::meta::NamespacedName;
use schema::snapshot::{Table, VersionedValue};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(super) fn serialize<V: Serialize, S: Serializer>(
    table: &Table<NamespacedName, V>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_seq(table.iter().map(|(id, found)| (id, &found.value)))
}

pub(super) fn deserialize<'de, V: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Table<NamespacedName, V>, D::Error> {
    let rows: Vec<(NamespacedName, V)> = Vec::deserialize(from)?;
    let versioned = |value| Arc::new(VersionedValue { value, create_revision: 0, mod_revision: 0 });
    Ok(rows.into_iter().map(|(id, value)| (id, versioned(value))).collect())
}
