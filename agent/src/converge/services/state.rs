//! Dependencies of the services loop, and its state between runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use jiff::Timestamp;
use schema::meta::NamespacedName;
use schema::records::{RulesStatus, ServiceRecord, Subnet};
use schema::snapshot::VersionedValue;
use schema::store::events::EventRecorder;
use tokio::sync::watch;

use super::names::ServiceNames;
use super::plan::{DesiredRules, UdpCheck};
use super::present::{ExistingRules, Fingerprint, present};
use super::refused::Refusals;
use super::render::{RenderContext, ServiceRules};
use crate::catalog::Catalog;
use crate::converge::shared::control_plane::ControlPlane;
use crate::metrics::METRICS;
use crate::node_address::NodeAddress;
use crate::packet_rules::reader::{Repairs, RulesReader};
use crate::packet_rules::saved::Spellings;
use crate::worlds::iptables::Iptables;

/// Dependencies of the loop.
pub struct ServicesDeps {
    pub node: String,
    pub address: NodeAddress,
    pub instance: String,
    pub iptables: Arc<dyn Iptables>,
    pub subnet: watch::Receiver<Option<Subnet>>,
    pub catalog: watch::Receiver<Arc<Catalog>>,
    pub control: watch::Receiver<ControlPlane>,
    /// Status for other nodes; a `StatusWriter` writes it.
    pub status: watch::Sender<Option<RulesStatus>>,
    pub events: EventRecorder,
    /// Set if the node's own restrictions forbid external IPs.
    pub forbids_external_ips: bool,
    /// Newest revision of etcd's services that the rules reflect: drains wait for it.
    pub programmed: watch::Sender<i64>,
}

/// Loop that programs the services' rules.
pub struct ServicesLoop {
    pub(super) deps: ServicesDeps,
    pub(super) names: ServiceNames,
    pub(super) rendered: RenderCache,
    /// Reader of our chains and the kernel's.
    pub(super) rules: RulesReader<ExistingRules>,
    pub(super) repairs: Repairs<Arc<DesiredRules>>,
    pub(super) spellings: Spellings<Fingerprint>,
    pub(super) udp_settled: Option<UdpCheck>,
    /// Time at which the rules reached the reported revision.
    pub(super) programmed_at: Option<Timestamp>,
    pub(super) was_refused: bool,
    /// Withheld external IPs that events tell of.
    pub(super) withheld_reported: BTreeSet<Ipv4Addr>,
}

/// Cached rules of the last catalog: unchanged services are not rendered again.
#[derive(Default)]
pub(super) struct RenderCache {
    pub(super) place: Option<RenderContext>,
    pub(super) catalog: Option<Arc<Catalog>>,
    pub(super) services: BTreeMap<NamespacedName, (Arc<VersionedValue<ServiceRecord>>, Arc<ServiceRules>)>,
    pub(super) wanted: Arc<DesiredRules>,
    pub(super) refused: Refusals,
}

impl ServicesLoop {
    /// Creates a loop that has not observed anything yet.
    pub fn new(deps: ServicesDeps) -> Self {
        let names = ServiceNames::for_instance(&deps.instance);
        let ours = names.clone();
        let rules = RulesReader::new(Arc::clone(&deps.iptables), move |text| present(text, &ours));
        Self {
            names,
            rules,
            repairs: Repairs::new(METRICS.repairs.clone()),
            deps,
            rendered: RenderCache::default(),
            spellings: Spellings::default(),
            udp_settled: None,
            programmed_at: None,
            was_refused: false,
            withheld_reported: BTreeSet::new(),
        }
    }
}
