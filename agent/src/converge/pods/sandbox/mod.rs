//! Pod sandbox: the pause container with its address, host ports, link and names, and the drain before it goes away.

pub mod allocate;
pub mod drain;
pub mod name_files;
pub mod render;
