//! Runs on workflows in a few lines.
