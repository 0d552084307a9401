//! Counters of the reconciler: requests to etcd and to the API, and deliveries of notifications.
//!
//! Everything else is read from state at each scrape, in `view/metrics/`.

use std::sync::LazyLock;

use schema::metrics::{CODE_CLASSES, Counters, FamilyInfo, MetricSet, StateFamily, StoreMetrics};

static API_REQUESTS: FamilyInfo = FamilyInfo::counter(
    "minik8s_api_requests",
    "Answered requests to the API and the page, by class of the status code: 1xx, 2xx, 3xx, 4xx, 5xx",
    &["code"],
);
static DELIVERIES: FamilyInfo = FamilyInfo::counter(
    "minik8s_deliveries",
    "Deliveries of commit statuses and notifications. Kinds: commit-status, webhook, slack, matrix, smtp. Outcomes: \
     sent, failed, already (the forge had the status)",
    &["kind", "outcome"],
);

/// Counters of this process. For the whole process, because they would otherwise be threaded through every
/// constructor.
pub static METRICS: LazyLock<ReconcilerMetrics> = LazyLock::new(ReconcilerMetrics::new);

/// Counters of a reconciler.
#[derive(Debug)]
pub struct ReconcilerMetrics {
    set: MetricSet,
    pub store: StoreMetrics,
    /// By class of the status code, see [`schema::metrics::code_class`].
    pub api_requests: Counters,
    /// By kind and outcome.
    pub deliveries: Counters,
}

impl ReconcilerMetrics {
    fn new() -> Self {
        let mut set = MetricSet::default();
        Self {
            store: StoreMetrics::new(&mut set),
            api_requests: set.counters(&API_REQUESTS).at_zero(CODE_CLASSES.map(|class| [class])),
            deliveries: set.counters(&DELIVERIES),
            set,
        }
    }

    /// Returns the descriptions of the families.
    pub fn infos(&self) -> &[&'static FamilyInfo] {
        self.set.infos()
    }

    /// Writes the counters and what was read from state as text.
    pub fn text(&self, state: Vec<StateFamily>) -> String {
        self.set.text(state)
    }
}
