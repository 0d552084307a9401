//! Status of pods, in Kubernetes' words: of a wanted pod (`wanted.rs`), of a pod being removed (`terminating.rs`),
//! of pods that ended for good, and the writer to etcd (both in `statuses.rs`).

pub mod statuses;
pub mod terminating;
#[cfg(test)]
mod tests;
pub mod wanted;
