//! What the reconciler adds to a kind: one row each. Pure.

use schema::kinds::Kind;

use crate::gitops::review::effects::{Case, Effect, other, service, workload};
use crate::view::KindPage;

/// One row.
pub(crate) struct Descriptor {
    /// The table of `get` and the page of `describe`.
    pub(crate) page: KindPage,
    /// What a change of an object does to what runs.
    pub(crate) effects: fn(&Case<'_>) -> Vec<Effect>,
}

/// The row of a kind.
pub(crate) fn of(kind: Kind) -> Descriptor {
    let row = |page, effects| Descriptor { page, effects };
    match kind {
        Kind::Cluster => row(KindPage::Object, other::cluster),
        Kind::Node => row(KindPage::Node, other::node),
        // What its users do says all.
        Kind::ConfigMap => row(KindPage::Object, |_| Vec::new()),
        Kind::Function => row(KindPage::Object, other::function),
        Kind::Service => row(KindPage::Service, service::service),
        Kind::Pod => row(KindPage::Pod, workload::pod),
        Kind::ReplicaSet => row(KindPage::Object, workload::replica_set),
        Kind::HorizontalPodAutoscaler => row(KindPage::Object, workload::autoscaler),
        Kind::Dns => row(KindPage::Host, service::dns),
        Kind::Workflow => row(KindPage::Object, other::workflow),
        Kind::Job => row(KindPage::Object, other::job),
    }
}
