//! Creates the pause container and the link of a pod.

use std::net::Ipv4Addr;
use std::time::Duration;

use schema::kinds::Kind;
use tokio::time::timeout;

use crate::converge::pods::steps::{LinkStep, PauseStep, Up};
use crate::converge::pods::task_reports::TaskReport;
use crate::converge::pods::worker::{PodFailure, Worker};
use crate::worlds::docker::{DockerError, NewContainer};
use crate::worlds::netlink::PodLink;

/// Maximum wait for the rules of a function's pod before the pod is retried.
const RULES_MAX: Duration = Duration::from_secs(5);

impl Worker {
    pub(crate) async fn create_pause(&self, new: &NewContainer) -> Result<String, PodFailure> {
        let failed = |e: DockerError| PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", e);
        match self.create_or_adopt(new).await {
            Err(DockerError::NoSuchImage { .. }) => {
                self.docker.load((self.pause_archive)()).await.map_err(failed)?;
                self.create_or_adopt(new).await.map_err(failed)
            }
            other => other.map_err(failed),
        }
    }

    pub(crate) async fn network(&self, up: &Up, pause: &str) -> Result<(), PodFailure> {
        let failed = |e: DockerError| PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", e);
        if !matches!(up.pause, PauseStep::Runs(_)) {
            self.docker.start(pause).await.map_err(failed)?;
        }
        let Some(link) = &up.link else { return Ok(()) };
        let details = self.docker.inspect(pause).await.map_err(failed)?;
        if details.pid == 0 {
            let message = format!("the pause container {pause} ended at once");
            return Err(PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", message));
        }
        let LinkStep { host_name, bridge, address, gateway, mtu } = link.clone();
        let (pause_pid, pause_id) = (details.pid, Some(pause.to_owned()));
        let link = PodLink { pause_pid, pause_id, host_name, bridge, address, gateway, mtu };
        // Until this succeeds, the link is not known to be complete.
        self.reporter.send(TaskReport::Link(up.pod.uid.clone(), false));
        let ensured = self.netlink.ensure_pod_link(&link).await;
        ensured.map_err(|e| PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", e))?;
        self.reporter.send(TaskReport::Link(up.pod.uid.clone(), true));
        self.rules_stand(up, address.addr()).await
    }

    /// Waits for the packet rules that keep a function's pod away from the cluster's control plane.
    async fn rules_stand(&self, up: &Up, address: Ipv4Addr) -> Result<(), PodFailure> {
        if up.pod.owner.kind != Kind::Function {
            return Ok(());
        }
        let mut sandboxed = self.sandboxed.clone();
        let stand = timeout(RULES_MAX, sandboxed.wait_for(|pods| pods.contains(&address))).await;
        if matches!(stand, Ok(Ok(_))) {
            return Ok(());
        }
        let message = format!(
            "the packet rules that keep {address} from etcd and the APIs of the cluster are not in place yet; a \
             function does not start without them, and the agent's log says what holds them up"
        );
        Err(PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", message))
    }
}
