//! Creates a container, or finds the one that a former attempt created.

use std::time::Duration;

use crate::converge::names;
use crate::converge::pods::worker::Worker;
use crate::worlds::docker::{DockerError, ListedContainer, NewContainer};

/// Number of attempts to find a container whose name is taken, and their interval.
const LISTED_TRIES: u32 = 5;

const LISTED_WAIT: Duration = Duration::from_millis(200);

impl Worker {
    /// Creates a container, or finds the one that a former attempt created.
    pub(crate) async fn create_or_adopt(&self, new: &NewContainer) -> Result<String, DockerError> {
        match self.docker.create(new).await {
            Err(DockerError::NameTaken { name }) => {
                let Some(row) = self.listed(&name).await? else {
                    let message = format!(
                        "the container name {name} is taken by a container that is not ours; remove it with docker rm"
                    );
                    return Err(DockerError::Refused { act: "to create a container", status: 409, message });
                };
                let same = |label: &str| row.labels.get(label) == new.labels.get(label);
                // The last two are a pause container's: one created for another address is of no use.
                let labels = [names::UID, names::HASH, names::SANDBOX, names::IP, names::PORTS];
                if labels.into_iter().all(same) {
                    return Ok(row.id);
                }
                // In other namespaces: it can't be used, and its name is needed.
                self.docker.remove(&row.id).await?;
                self.docker.create(new).await
            }
            other => other,
        }
    }

    /// Finds a container of this instance by name. A container being created has its name before it is listed.
    pub(crate) async fn listed(&self, name: &str) -> Result<Option<ListedContainer>, DockerError> {
        for again in (0..LISTED_TRIES).rev() {
            let rows = self.docker.list(&self.node.instance).await?;
            let found = rows.into_iter().find(|row| row.name == name);
            if found.is_some() || again == 0 {
                return Ok(found);
            }
            tokio::time::sleep(LISTED_WAIT).await;
        }
        Ok(None)
    }
}
