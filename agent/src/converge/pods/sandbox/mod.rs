//! Pod sandbox: the pause container with its address, host ports, link and names, and the drain before it goes away.

pub mod act;
pub mod allocate;
pub mod drain;
pub mod drain_book;
pub mod name_files;
pub mod port_taken;
pub mod render;
pub mod resolver;
