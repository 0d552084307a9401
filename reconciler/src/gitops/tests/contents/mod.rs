//! Content referenced by manifests: files, secrets, definitions, values of objects.

mod config_maps;
mod definitions;
mod files;
mod readers;
mod secrets;
mod truncated;
