//! The reconciler's row of each kind: its view and columns, its page, and the effects of its changes.
//!
//! The rooms below get what they need of a row as an argument: `minik8s plan` gives the effects to the review.

use std::pin::Pin;

use schema::kinds::Kind;

use super::describe::objects::{Subject, host};
use super::describe::workloads;
use super::error::CliError;
use super::listing::GetRequest;
use super::output::Detail;
use crate::gitops::review::effects::{EffectsOf, other, service, workload};
use crate::view::{
    AutoscalerDetail, FunctionDetail, JobDetail, PodDetail, RouteView, ServiceDetail, WorkflowDetail,
};

type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, CliError>> + 'a>>;

/// The reconciler's row of a kind.
pub(crate) struct Row {
    /// Prints objects for `get`: fetches their view, which has the kind's columns.
    pub(super) get: for<'a> fn(&'a GetRequest<'a>, Kind) -> Pending<'a, ()>,
    /// Returns the page of an object for `describe`.
    pub(super) describe: for<'a> fn(&'a Subject<'a>) -> Pending<'a, String>,
    /// Computes the effects of a change of an object on what runs.
    effects: EffectsOf,
}

impl Row {
    /// Row of a kind whose objects have neither a view nor a page of their own.
    const fn of_objects(effects: EffectsOf) -> Self {
        Self {
            get: |what, kind| Box::pin(what.objects(kind)),
            describe: |what| Box::pin(what.object(|_, _, _| ())),
            effects,
        }
    }

    /// Row of a workload: an object with the status of its pods.
    const fn of_workload(effects: EffectsOf) -> Self {
        Self { describe: |what| Box::pin(what.object(workloads::sections)), ..Self::of_objects(effects) }
    }

    /// Row of a kind with a view and a page of its own.
    const fn of<D: Detail + 'static>(effects: EffectsOf) -> Self {
        Self {
            get: |what, _| Box::pin(what.paged::<D>()),
            describe: |what| Box::pin(what.own::<D>()),
            effects,
        }
    }
}

/// Returns the row of `kind`.
pub(super) fn of(kind: Kind) -> Row {
    match kind {
        Kind::Cluster => Row::of_objects(other::cluster),
        Kind::Node => Row {
            get: |what, _| Box::pin(what.nodes()),
            describe: |what| Box::pin(what.node()),
            effects: other::node,
        },
        Kind::ConfigMap => Row::of_objects(other::config_map),
        Kind::Function => Row::of::<FunctionDetail>(other::function),
        Kind::Service => Row::of::<ServiceDetail>(service::service),
        Kind::Pod => Row::of::<PodDetail>(workload::pod),
        Kind::ReplicaSet => Row::of_workload(workload::replica_set),
        Kind::DaemonSet => Row::of_workload(workload::daemon_set),
        Kind::HorizontalPodAutoscaler => Row::of::<AutoscalerDetail>(workload::autoscaler),
        Kind::PodDisruptionBudget => Row {
            describe: |what| Box::pin(what.object(workloads::budget)),
            ..Row::of_objects(other::disruption_budget)
        },
        Kind::Dns => Row {
            get: |what, kind| Box::pin(what.objects_or::<RouteView>(kind, &["dns"])),
            describe: |what| Box::pin(what.object(host)),
            effects: service::dns,
        },
        Kind::Workflow => Row::of::<WorkflowDetail>(other::workflow),
        Kind::Job => Row::of::<JobDetail>(other::job),
    }
}

/// Returns what computes the effects of changes of `kind`.
pub(crate) fn effects(kind: Kind) -> EffectsOf {
    of(kind).effects
}
