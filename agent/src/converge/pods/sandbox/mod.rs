//! What holds a pod's namespaces: the pause container with its address, host ports, link and names, and how
//! long clients may still be led to it.

pub mod act;
pub mod allocate;
pub mod drain;
pub mod drain_book;
pub mod name_files;
pub mod port_taken;
pub mod render;
pub mod resolver;
