//! Carries out the plan: listens, sets upstreams, changes the machine's resolver. A failed step does not stop the
//! others.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::forward::Forwarder;
use super::listen::{self, Running, Sockets};
use super::plan::{
    DOMAINS_MAX, DnsPlan, HOSTS_MAX, LinkConfig, NodeStep, Observed, ResolvedState, split_hosts,
};
use super::resolv::PORT;
use super::{DnsLoop, Handler, host};
use crate::standby::{Role, copy};
use schema::control::publish;

/// Result of carrying out a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    pub failed: Vec<String>,
    /// Set if this run opened the port: the machine's resolver may be pointed at the server now.
    pub is_bound: bool,
}

/// Maximum number of domains named in one line of the log.
const NAMED_MAX: usize = 6;

fn named(split: &LinkConfig) -> String {
    let first: Vec<&str> = split.domains.iter().take(NAMED_MAX).map(String::as_str).collect();
    match split.domains.len() - first.len() {
        0 => first.join(" "),
        more => format!("{} and {more} more", first.join(" ")),
    }
}

impl DnsLoop {
    pub(super) async fn carry_out(&mut self, observed: &Observed, plan: DnsPlan) -> Outcome {
        let mut outcome = Outcome::default();
        publish(&self.deps.pods, plan.pods);
        if let Some(upstreams) = plan.upstreams {
            let names: Vec<String> = upstreams.iter().map(ToString::to_string).collect();
            match names.is_empty() {
                true => tracing::info!("no upstream name server known; other names get SERVFAIL"),
                false => tracing::info!(upstreams = ?names, "upstream name servers changed"),
            }
            self.forwarders.send_replace(Arc::new(Forwarder::new(upstreams)));
        }
        if let Some(address) = plan.bind {
            match self.bind(address).await {
                Ok(()) => {
                    outcome.is_bound = true;
                    tracing::info!(%address, port = PORT, "name server listening");
                }
                Err(why) => outcome.failed.push(why),
            }
        }
        self.change_machine(observed, plan.node, &mut outcome).await;
        outcome
    }

    async fn bind(&mut self, address: Ipv4Addr) -> Result<(), String> {
        // Stop the former server first: it may hold the port.
        self.running = None;
        let at = SocketAddr::from((address, PORT));
        let inherited = self.deps.handover.take([(Role::DnsUdp, at), (Role::DnsTcp, at)]).await;
        let sockets = match inherited {
            Some([udp, tcp]) => Sockets { udp, tcp },
            None => match listen::bind_at(at) {
                Ok(sockets) => sockets,
                Err(error) => {
                    return Err(listen::explain(address, &error, self.deps.netlink.as_ref()).await);
                }
            },
        };
        let copies = copy(&sockets.udp).and_then(|udp| Ok((udp, copy(&sockets.tcp)?)));
        let handler = Handler::new(self.deps.zone.clone(), self.forwarders.subscribe());
        let running = Running::start(address, sockets, handler);
        self.running = Some(running.map_err(|error| format!("cannot serve DNS at {address}:53: {error}"))?);
        match copies {
            Ok((udp, tcp)) => {
                self.deps.handover.hold(Role::DnsUdp, udp);
                self.deps.handover.hold(Role::DnsTcp, tcp);
            }
            Err(error) => {
                tracing::warn!(%error, "sockets not kept; names get no answer while the agent restarts");
            }
        }
        Ok(())
    }

    async fn change_machine(&mut self, observed: &Observed, step: NodeStep, outcome: &mut Outcome) {
        let link = host::link(&self.deps.instance);
        let path = &observed.path;
        let (what, result) = match step {
            NodeStep::Nothing => return,
            NodeStep::Wait(why) => {
                outcome.failed.push(format!(
                    "{path} points to systemd-resolved, which can't be queried and does not know the cluster's \
                     names yet: {why}"
                ));
                return;
            }
            NodeStep::Write { keep, text } => {
                let result = self.files.write(keep.as_ref(), &text);
                (format!("this machine's {path} names the cluster's server first"), result)
            }
            NodeStep::Restore(former) => {
                (format!("this machine's {path} is as it was before"), self.files.restore(&former))
            }
            NodeStep::Forget => {
                (format!("{path} was changed by others and is left alone"), self.files.forget())
            }
            NodeStep::Split(split) => {
                let what = format!("systemd-resolved asks the cluster's server for {}", named(&split));
                let more = split_hosts(observed).count().saturating_sub(HOSTS_MAX);
                if more > 0 {
                    tracing::warn!(
                        left_out = more,
                        limit = DOMAINS_MAX,
                        "systemd-resolved takes no more domains; this machine does not find the last hosts by name, \
                         pods do"
                    );
                }
                let now = match &observed.resolved {
                    ResolvedState::Configured(now) => now,
                    _ => &LinkConfig::default(),
                };
                (what, host::set_link_config(host::RESOLVECTL, &link, now, &split).await)
            }
            NodeStep::Unsplit => (
                "systemd-resolved does not ask the cluster's server".to_owned(),
                host::revert_link(&link).await,
            ),
        };
        match result {
            Ok(()) => tracing::info!(change = what, "machine's resolver changed"),
            Err(error) => outcome.failed.push(format!("failed: {what}: {error}")),
        }
    }
}
