//! Which node sees to a job.

use super::Snapshot;
use crate::meta::NamespacedName;
use crate::records::JobOrder;

impl Snapshot {
    /// The orders for a job, each with its node. There are two while it moves.
    pub fn jobs_of<'a>(&'a self, job: &'a NamespacedName) -> impl Iterator<Item = (&'a str, &'a JobOrder)> {
        let nodes = self.job_nodes();
        nodes.into_iter().filter_map(move |node| {
            let (key, order) = self.jobs.get_key_value(&(node.to_owned(), job.clone()))?;
            Some((key.0.as_str(), &order.value))
        })
    }

    /// The order for a job, with its node.
    pub fn job_of<'a>(&'a self, job: &'a NamespacedName) -> Option<(&'a str, &'a JobOrder)> {
        self.jobs_of(job).next()
    }

    /// The nodes that have orders, once each.
    fn job_nodes(&self) -> Vec<&str> {
        let mut nodes: Vec<&str> = Vec::new();
        for (node, _) in self.jobs.keys() {
            if nodes.last() != Some(&node.as_str()) {
                nodes.push(node);
            }
        }
        nodes
    }
}
