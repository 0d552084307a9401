//! Nodes and reports of jobs.

use super::{Snapshot, Table, Versioned};
use crate::meta::NamespacedName;
use crate::records::{JobOrder, JobReport};

impl Snapshot {
    /// Iterates over the orders for a job, each with its node. There are two while the job moves.
    pub fn jobs_of<'a>(
        &'a self,
        job: &'a NamespacedName,
    ) -> impl Iterator<Item = (&'a str, &'a Versioned<JobOrder>)> {
        of_nodes(&self.jobs, job)
    }

    /// Returns the order for a job, with its node.
    pub fn job_of<'a>(&'a self, job: &'a NamespacedName) -> Option<(&'a str, &'a JobOrder)> {
        self.jobs_of(job).next().map(|(node, order)| (node, &order.value))
    }

    /// Iterates over the reports about a job, each with its node.
    pub fn job_reports_of<'a>(
        &'a self,
        job: &'a NamespacedName,
    ) -> impl Iterator<Item = (&'a str, &'a JobReport)> {
        of_nodes(&self.job_reports, job).map(|(node, report)| (node, &report.value))
    }
}

/// Iterates over a table's entries of this name, each with its node. Skips from node to node instead of visiting
/// all entries: controllers do this for every job in each pass.
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
