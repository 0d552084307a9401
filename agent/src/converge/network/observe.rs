//! Reads what the network loop decides on: rules, bridge, links, and the pods of this node.

use std::collections::{BTreeMap, BTreeSet};

use schema::control::LoopError;
use schema::records::Subnet;

use super::NetworkLoop;
use super::parse::{SavedRules, Words, saved_rules, words};
use super::plan::{Observed, first_claims};
use super::render::{ChainRef, Model, gateway_of};
use crate::converge::pod_table::PodNet;
use crate::worlds::netlink::Bridge;

impl NetworkLoop {
    pub(super) async fn look(
        &mut self,
        subnet: &Subnet,
        pods: &BTreeMap<String, PodNet>,
    ) -> Result<Observed, LoopError> {
        let model = self.model(subnet, pods).await?;
        let bridge = Bridge {
            name: model.names.bridge.clone(),
            address: gateway_of(subnet.cidr),
            mtu: self.settings.pod_mtu,
        };
        let bridge_is_whole = self.netlink.bridge_is_whole(&bridge).await;
        let bridge_is_whole = bridge_is_whole.map_err(|e| LoopError::new("cannot look at the bridge", e))?;
        let text = self.iptables.save().await;
        let text = text.map_err(|e| LoopError::new("cannot read the packet rules", e))?;
        let bases: BTreeSet<ChainRef> = model.names.jumps().into_iter().map(|jump| jump.base).collect();
        let ours: BTreeSet<ChainRef> = model.names.chains().into_iter().cloned().collect();
        let saved = saved_rules(&text, |chain| bases.contains(chain) || ours.contains(chain));
        self.learn_spellings(&saved);
        Ok(Observed { model, bridge, bridge_is_whole, saved, spellings: self.spellings.clone() })
    }

    async fn model(&mut self, subnet: &Subnet, pods: &BTreeMap<String, PodNet>) -> Result<Model, LoopError> {
        let random_fully = match self.random_fully {
            Some(known) => known,
            None => {
                let has = self.iptables.has_random_fully().await;
                let has = has.map_err(|e| LoopError::new("cannot ask iptables for its version", e))?;
                *self.random_fully.insert(has)
            }
        };
        let names: Vec<(&PodNet, String)> = pods.values().map(|pod| (pod, pod.pod.to_string())).collect();
        let claims = names.iter().flat_map(|(pod, name)| {
            pod.ports.iter().map(move |port| {
                let key = (port.protocol.into(), port.host_port);
                (key, pod.address, port.container_port, name.as_str())
            })
        });
        Ok(Model {
            names: self.settings.names.clone(),
            node_cidr: subnet.cidr,
            cluster_cidr: subnet.cluster_cidr,
            random_fully,
            host_ports: first_claims(claims),
        })
    }

    /// Versions of iptables print some rules otherwise than they were written. What is printed right
    /// after we wrote is another spelling of the same, if it has as many rules; without this the loop
    /// would write for ever.
    fn learn_spellings(&mut self, saved: &SavedRules) {
        for (chain, rules) in std::mem::take(&mut self.written) {
            let written: Vec<Words> = rules.iter().map(|rule| words(rule)).collect();
            let Some(printed) = saved.get(&chain) else { continue };
            if *printed != written && printed.len() == written.len() {
                tracing::info!(%chain, "this iptables prints the rules of the chain in another spelling");
                self.spellings.insert(chain, (written, printed.clone()));
            }
        }
    }
}
