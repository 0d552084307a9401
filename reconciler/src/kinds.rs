//! What the reconciler adds to a kind: one row each. Pure.

use schema::kinds::Kind;

use crate::cli::print::tables::KindView;
use crate::gitops::review::effects::{Case, Effect, daemon_set, other, service, workload};
use crate::view::{
    AutoscalerView, FunctionView, JobView, KindPage, NodeView, ObjectView, PodView, RouteView, ServiceView,
    WorkflowView,
};

/// One row.
pub(crate) struct Descriptor {
    /// The columns of `get` and the page of `describe`.
    pub(crate) page: KindPage,
    /// What a change of an object does to what runs.
    pub(crate) effects: fn(&Case<'_>) -> Vec<Effect>,
}

/// The row of a kind.
pub(crate) fn of(kind: Kind) -> Descriptor {
    match kind {
        Kind::Cluster => row::<ObjectView>(other::cluster),
        Kind::Node => row::<NodeView>(other::node),
        // What its users do says all.
        Kind::ConfigMap => row::<ObjectView>(|_| Vec::new()),
        Kind::Function => row::<FunctionView>(other::function),
        Kind::Service => row::<ServiceView>(service::service),
        Kind::Pod => row::<PodView>(workload::pod),
        // An object with what is reported of its pods.
        Kind::ReplicaSet => Descriptor { page: KindPage::Workload, effects: workload::replica_set },
        Kind::DaemonSet => Descriptor { page: KindPage::Workload, effects: daemon_set::daemon_set },
        Kind::HorizontalPodAutoscaler => row::<AutoscalerView>(workload::autoscaler),
        Kind::Dns => row::<RouteView>(service::dns),
        Kind::Workflow => row::<WorkflowView>(other::workflow),
        Kind::Job => row::<JobView>(other::job),
    }
}

/// A row whose objects are shown as `V`, which has the columns.
fn row<V: KindView>(effects: fn(&Case<'_>) -> Vec<Effect>) -> Descriptor {
    Descriptor { page: V::PAGE, effects }
}
