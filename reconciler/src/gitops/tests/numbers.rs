//! in work
