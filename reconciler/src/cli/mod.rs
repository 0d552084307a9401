//! (in work)
pub mod down;
pub mod up;
