//! Values and services that several loops share: none of these is a loop.
pub mod control_plane;
pub mod function_calls;
pub mod image_store;
pub mod node_network;
