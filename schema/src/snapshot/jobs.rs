//! Which node sees to a job, and what nodes report of it.

use super::{Snapshot, Table, Versioned};
use crate::meta::NamespacedName;
use crate::records::{JobOrder, JobReport};

impl Snapshot {
    /// The orders for a job, each with its node. There are two while it moves.
    pub fn jobs_of<'a>(
        &'a self,
        job: &'a NamespacedName,
    ) -> impl Iterator<Item = (&'a str, &'a Versioned<JobOrder>)> {
        of_nodes(&self.jobs, job)
    }

    /// The order for a job, with its node.
    pub fn job_of<'a>(&'a self, job: &'a NamespacedName) -> Option<(&'a str, &'a JobOrder)> {
        self.jobs_of(job).next().map(|(node, order)| (node, &order.value))
    }

    /// What nodes report of a job, each with its node.
    pub fn job_reports_of<'a>(
        &'a self,
        job: &'a NamespacedName,
    ) -> impl Iterator<Item = (&'a str, &'a JobReport)> {
        of_nodes(&self.job_reports, job).map(|(node, report)| (node, &report.value))
    }
}

/// What a table has under this name at each node. Goes from node to node and not through all entries: controllers ask
/// this for every job at each pass.
pub fn of_nodes<'a, V>(
    table: &'a Table<(String, NamespacedName), V>,
    name: &'a NamespacedName,
) -> impl Iterator<Item = (&'a str, &'a Versioned<V>)> {
    let begin_of = |node: String| (node, NamespacedName::new("", ""));
    let mut next = begin_of(String::new());
    let nodes = std::iter::from_fn(move || {
        let ((node, _), _) = table.range::<_, (String, NamespacedName)>(&next..).next()?;
        // The smallest string greater than `node`.
        next = begin_of(format!("{node}\0"));
        Some(node)
    });
    nodes.filter_map(|node| {
        let (key, found) = table.get_key_value(&(node.clone(), name.clone()))?;
        Some((key.0.as_str(), &**found))
    })
}
