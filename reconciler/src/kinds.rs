//! The reconciler's additions to each kind. Pure.

use schema::kinds::Kind;

use crate::gitops::review::effects::{Effect, EffectCase, other, service, workload};
use crate::view::KindPage;

/// The reconciler's additions to a kind.
pub(crate) struct Descriptor {
    /// The columns of `get` and the page of `describe`.
    pub(crate) page: KindPage,
    /// Computes the effects of a change of an object on running workloads.
    pub(crate) effects: fn(&EffectCase<'_>) -> Vec<Effect>,
}

/// Returns the additions to `kind`.
pub(crate) fn descriptor(kind: Kind) -> Descriptor {
    let (page, effects): (_, fn(&EffectCase<'_>) -> Vec<Effect>) = match kind {
        Kind::Cluster => (KindPage::Object, other::cluster),
        Kind::Node => (KindPage::Node, other::node),
        Kind::ConfigMap => (KindPage::Object, other::config_map),
        Kind::Function => (KindPage::Function, other::function),
        Kind::Service => (KindPage::Service, service::service),
        Kind::Pod => (KindPage::Pod, workload::pod),
        // An object with the status of its pods.
        Kind::ReplicaSet => (KindPage::Workload, workload::replica_set),
        Kind::DaemonSet => (KindPage::Workload, workload::daemon_set),
        Kind::HorizontalPodAutoscaler => (KindPage::Autoscaler, workload::autoscaler),
        Kind::Dns => (KindPage::Host, service::dns),
        Kind::Workflow => (KindPage::Workflow, other::workflow),
        Kind::Job => (KindPage::Job, other::job),
    };
    Descriptor { page, effects }
}
