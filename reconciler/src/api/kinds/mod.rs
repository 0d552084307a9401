//! What is asked of single kinds.

pub(super) mod autoscalers;
pub(super) mod functions;
pub(super) mod jobs;
pub(super) mod results;
pub(super) mod services;
pub(super) mod workflows;
