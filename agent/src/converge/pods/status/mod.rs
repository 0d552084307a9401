//! The status of pods, in Kubernetes' words: of one that is wanted (`wanted.rs`), of one that is taken away
//! (`terminating.rs`), how pods ended for good (`finished.rs`), and their way to etcd (`writer.rs`).

pub mod finished;
pub mod statuses;
pub mod terminating;
#[cfg(test)]
mod tests;
pub mod wanted;
pub mod writer;
