//! Assigns jobs to nodes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use schema::content_refs::{Files, find_secret};
use schema::keys::{Key, prefix};
use schema::kinds::cluster::ClusterSpec;
use schema::kinds::job::{JobPhase, JobSpec};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::{FormerJob, JobDependencyState, JobOrder, JobReport};
use schema::snapshot::{Snapshot, VersionedValue};

use crate::controllers::note::{Note, NoteKind};
use crate::controllers::reason::Reason;
use crate::controllers::writes::{Precondition, Writes};
use crate::last_known::LastKnown;

/// Label of nodes that handle jobs. If no node has it, all nodes do.
const JOBS_LABEL: &str = "minik8s.io/slurm";
/// Time a node may fail to reach the login host before another node tries: longer than a reboot of the host.
const UNREACHABLE_MAX: SignedDuration = SignedDuration::from_mins(3);
/// Time the nodes of a new etcd have to report the jobs that they hold, counted from the first node. The
/// reconciler's disk may be lost as well, and then only the nodes know what was submitted.
const REPORT_GRACE: SignedDuration = SignedDuration::from_secs(15);
/// Minimum of that time if etcd is known to have been lost: a node whose link was down takes about 20 s to be back.
const REPORT_GRACE_AFTER_LOSS: SignedDuration = SignedDuration::from_secs(60);

pub(super) fn plan(snapshot: &Snapshot, last_known: &LastKnown, now: Timestamp) -> Writes {
    let mut out = Writes::default();
    let cluster = snapshot.cluster();
    // An unreadable object may be that of an existing order.
    let is_job = |key: &String| key.starts_with(&format!("{}{}/", prefix::OBJECTS, Kind::Job));
    let blind = snapshot.malformed.keys().any(is_job);
    let (loads, reports_due) = (loads(snapshot), reports_due(snapshot, &cluster, now));
    let mut planner = Planner { snapshot, last_known, cluster: &cluster, now, loads, reports_due };
    let mut wanted = BTreeSet::new();
    for object in snapshot.objects.values().map(|object| &object.value) {
        let Resource::Job(spec) = &object.resource else { continue };
        let id = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
        planner.place(object, spec, &id, &mut out);
        wanted.insert(id);
    }
    if !blind {
        planner.delete_unwanted(&wanted, &mut out);
    }
    out
}

/// Returns the nodes that may be assigned a job, those with the label if any has it, with the number of jobs they
/// have.
fn loads(snapshot: &Snapshot) -> BTreeMap<String, usize> {
    let may = |node: &str| {
        let is_cordoned = snapshot.node_spec(node).is_some_and(|spec| spec.unschedulable || spec.drain);
        snapshot.node_is_ready(node) && !is_cordoned && !snapshot.is_gone(node)
    };
    let able: Vec<&String> = snapshot.nodes.keys().filter(|node| may(node)).collect();
    let is_labelled =
        |node: &&String| snapshot.node_labels(node).get(JOBS_LABEL).is_some_and(|it| it != "false");
    let labelled: Vec<&String> = able.iter().copied().filter(is_labelled).collect();
    let chosen = if labelled.is_empty() { able } else { labelled };
    let has = |node: &String| snapshot.jobs.keys().filter(|(at, _)| at == node).count();
    chosen.into_iter().map(|node| (node.clone(), has(node))).collect()
}

/// Returns the time until which nodes may still report what they hold; `None` once it has passed. A job older than
/// the first node shows that etcd was lost: then nodes get as long to come back as silent nodes get, and at least a
/// minute.
fn reports_due(snapshot: &Snapshot, cluster: &ClusterSpec, now: Timestamp) -> Option<Timestamp> {
    let first = snapshot.nodes.values().map(|node| node.value.registered_at).min()?.min(now);
    let is_older = |report: &JobReport| report.created_at.is_some_and(|created_at| created_at < first);
    let was_lost = snapshot.job_reports.values().any(|report| is_older(&report.value));
    let patience = SignedDuration::from_secs(cluster.nodes.evict_after_seconds.into());
    let wait = if was_lost { patience.max(REPORT_GRACE_AFTER_LOSS) } else { REPORT_GRACE };
    first.checked_add(wait).ok().filter(|until| *until > now)
}

struct Planner<'a> {
    snapshot: &'a Snapshot,
    last_known: &'a LastKnown,
    cluster: &'a ClusterSpec,
    now: Timestamp,
    loads: BTreeMap<String, usize>,
    reports_due: Option<Timestamp>,
}

impl Planner<'_> {
    fn place(&mut self, object: &Object, spec: &JobSpec, id: &NamespacedName, out: &mut Writes) {
        let there: Vec<(&str, &VersionedValue<JobOrder>)> = self.snapshot.jobs_of(id).collect();
        let stays =
            there.iter().find(|(node, _)| self.may_stay(node, id)).map(|(node, _)| (*node).to_owned());
        let former = there.first().map(|(node, order)| ((*node).to_owned(), order.value.clone()));
        let former =
            former.or_else(|| self.last_known.job(id).map(|(node, order)| (node.to_owned(), order.clone())));
        let former = former.or_else(|| self.order_from_report(object, spec, id));
        if let Some(until) = self.reports_due.filter(|_| former.is_none()) {
            return out.plan_again_by(until);
        }
        let mut order = self.order(object, spec, id, former.as_ref().map(|(_, order)| order));
        let node = match stays.or_else(|| self.node_before_loss(&there, former.as_ref())) {
            Some(node) => node,
            None => {
                let away: BTreeSet<&str> = there.iter().map(|(node, _)| *node).collect();
                match self.least_loaded(&away) {
                    Some(node) => node,
                    // A node that can't reach the host now is better than none.
                    None => match there.first() {
                        Some((node, _)) => (*node).to_owned(),
                        None => return out.note(self.no_node_note(object)),
                    },
                }
            }
        };
        if let Some((_, former)) = former.filter(|(at, former)| *at != node && former.uid == order.uid) {
            order.reached = self.may_have_reached(id, &former);
        }
        let key = Key::Job(node.clone(), id.clone());
        let current = there.iter().find(|(at, _)| *at == node).map(|(_, order)| *order);
        let assigned = Reason::JobAssigned { node: node.clone() };
        match current {
            Some(current) if current.value == order => {}
            Some(current) => {
                _ = out.put(key, &order, Precondition::ModRevision(current.mod_revision), Reason::JobUpdated);
            }
            None => _ = out.put(key, &order, Precondition::Absent, assigned),
        }
        // A node that no longer has the order leaves the job alone: nothing is cancelled.
        for (other, order) in there.iter().filter(|(at, _)| *at != node) {
            let key = Key::Job((*other).to_owned(), id.clone());
            out.delete(key, order.mod_revision, Reason::JobMoved { to: node.clone() });
        }
    }

    /// Orders the deletion of jobs that are no longer in Git; deletes an order once its node has deleted the job.
    fn delete_unwanted(&mut self, wanted: &BTreeSet<NamespacedName>, out: &mut Writes) {
        for ((node, id), order) in self.snapshot.jobs.iter().filter(|((_, id), _)| !wanted.contains(id)) {
            let key = Key::Job(node.clone(), id.clone());
            let report =
                self.snapshot.job_reports.get(&(node.clone(), id.clone())).map(|report| &report.value);
            if order.value.deleting
                && report.is_some_and(|report| report.uid == order.value.uid && report.is_gone)
            {
                out.delete(key, order.mod_revision, Reason::JobOver);
                continue;
            }
            let reached = self.may_have_reached(id, &order.value);
            let deleting = JobOrder { deleting: true, reached, ..order.value.clone() };
            let other = if self.may_stay(node, id) {
                None
            } else {
                self.least_loaded(&BTreeSet::from([node.as_str()]))
            };
            if let Some(other) = other {
                let to = Key::Job(other.clone(), id.clone());
                out.delete(key, order.mod_revision, Reason::JobMoved { to: other.clone() });
                out.put(to, &deleting, Precondition::Absent, Reason::OwnerGone);
                out.join_last();
            } else if !order.value.deleting {
                out.put(key, &deleting, Precondition::ModRevision(order.mod_revision), Reason::OwnerGone);
            }
        }
    }

    fn no_node_note(&self, object: &Object) -> Note {
        let key = Key::Object(object.reference());
        Note::about_key(&key, NoteKind::NotWritten { why: "no node is ready for it".to_owned() })
    }

    /// True if the node may keep its job: the node is not lost, and reaches the login host.
    fn may_stay(&self, node: &str, id: &NamespacedName) -> bool {
        let snapshot = self.snapshot;
        // Nodes come back after etcd was lost; what they know of the job is worth the wait.
        let is_lost = snapshot.is_gone(node) || snapshot.is_evicted(node) && !snapshot.settled.is_empty();
        let report = snapshot.job_reports.get(&(node.to_owned(), id.clone()));
        let unreachable = report.and_then(|report| report.value.unreachable_since);
        !is_lost && unreachable.is_none_or(|since| self.now.duration_since(since) < UNREACHABLE_MAX)
    }

    /// Returns the node that had the job before etcd was lost.
    fn node_before_loss(
        &self,
        there: &[(&str, &VersionedValue<JobOrder>)],
        former: Option<&(String, JobOrder)>,
    ) -> Option<String> {
        let (node, _) = former.filter(|_| there.is_empty())?;
        (!self.snapshot.is_gone(node)).then(|| node.clone())
    }

    fn least_loaded(&mut self, not: &BTreeSet<&str>) -> Option<String> {
        let fit = self.loads.iter_mut().filter(|(node, _)| !not.contains(node.as_str()));
        let (node, load) = fit.min_by_key(|(name, load)| (**load, (*name).clone()))?;
        *load += 1;
        Some(node.clone())
    }

    fn order(
        &self,
        object: &Object,
        spec: &JobSpec,
        id: &NamespacedName,
        former: Option<&JobOrder>,
    ) -> JobOrder {
        // An unchanged job keeps its incarnation wherever it runs, unless it is being deleted.
        let same = former.filter(|former| former.hash == object.hash && !former.deleting);
        let mut login = spec.login.or(&self.cluster.slurm.login);
        let mut files = object.files.clone();
        if let Some(cluster) = self.snapshot.cluster_object() {
            let of_login = [&login.ssh_key, &login.password].into_iter().flatten();
            let own: Files = of_login
                .filter(|secret| find_secret(&files, &secret.name).is_none())
                .filter_map(|secret| find_secret(&cluster.value.files, &secret.name))
                .map(|(path, blob)| (path.to_owned(), blob.clone()))
                .collect();
            files.extend(own);
        }
        // A submitted job stays on its host: another host in the Cluster object is for future jobs.
        let has_it = |former: &&JobOrder| {
            !former.spec.login.is_same_account(&login)
                && self.reports(id, &former.uid).any(|report| report.status.slurm_id.is_some())
        };
        if let Some(stays) = same.filter(has_it) {
            login = stays.spec.login.clone();
            files = stays.files.clone();
        }
        let created_at = same.map_or(self.now, |former| former.created_at);
        JobOrder {
            uid: match same {
                Some(former) => former.uid.clone(),
                None => JobOrder::uid_of(id, &object.hash, self.now),
            },
            hash: object.hash.clone(),
            dependency: self.dependency(spec, &object.metadata.namespace),
            spec: JobSpec { login, ..spec.clone() },
            files,
            created_at,
            reached: same
                .is_some_and(|same| same.reached || self.reports(id, &same.uid).any(|report| report.reached)),
            former: former.map(|former| self.former(id, former, same.is_some())).unwrap_or_default(),
            deleting: false,
        }
    }

    /// Rebuilds the order of a job that neither etcd nor the reconciler's disk knows of from a node's report.
    fn order_from_report(
        &self,
        object: &Object,
        spec: &JobSpec,
        id: &NamespacedName,
    ) -> Option<(String, JobOrder)> {
        let of_job = self.snapshot.job_reports_of(id);
        let alive = of_job.filter(|(_, report)| report.status.phase != JobPhase::Deleting);
        let (node, report) = alive.max_by_key(|(_, report)| {
            let JobReport { hash, status, since, .. } = report;
            (*hash == object.hash, status.slurm_id.is_some(), *since)
        })?;
        let order = JobOrder {
            uid: report.uid.clone(),
            hash: report.hash.clone(),
            spec: JobSpec { login: spec.login.or(&self.cluster.slurm.login), ..spec.clone() },
            files: object.files.clone(),
            created_at: report.created_at.unwrap_or(report.since),
            dependency: JobDependencyState::None,
            reached: report.reached,
            former: Vec::new(),
            deleting: false,
        };
        Some((node.to_owned(), order))
    }

    /// Returns the incarnations to remove first. They stay listed until a node reports the job itself, which begins
    /// only then.
    fn former(&self, id: &NamespacedName, former: &JobOrder, is_same: bool) -> Vec<FormerJob> {
        let has_begun = self.reports(id, &former.uid).next().is_some();
        let mut all = if has_begun { Vec::new() } else { former.former.clone() };
        if !is_same && self.may_have_reached(id, former) {
            all.push(FormerJob::from_order(former));
        }
        all
    }

    /// Returns the nodes' reports on one incarnation of a job.
    fn reports<'b>(&'b self, id: &'b NamespacedName, uid: &'b str) -> impl Iterator<Item = &'b JobReport> {
        self.snapshot.job_reports_of(id).map(|(_, report)| report).filter(move |report| report.uid == uid)
    }

    /// True if something of the job may be on a login host; assumed if no node has reported.
    fn may_have_reached(&self, id: &NamespacedName, order: &JobOrder) -> bool {
        let mut reports = self.reports(id, &order.uid).peekable();
        order.reached || reports.peek().is_none() || reports.any(|report| report.reached)
    }

    fn dependency(&self, spec: &JobSpec, namespace: &str) -> JobDependencyState {
        let Some(dependency) = &spec.dependency else { return JobDependencyState::None };
        let other = NamespacedName::new(namespace, &dependency.job);
        let object =
            ObjectRef { kind: Kind::Job, namespace: other.namespace.clone(), name: other.name.clone() };
        let Some(object) = self.snapshot.objects.get(&object) else {
            return JobDependencyState::Waiting(format!("there is no job {}", dependency.job));
        };
        let order = self.snapshot.job_of(&other).filter(|(_, order)| order.hash == object.value.hash);
        let report = order.and_then(|(node, order)| {
            let report = self.snapshot.job_reports.get(&(node.to_owned(), other.clone()))?;
            (report.value.uid == order.uid).then_some((order, &report.value))
        });
        let Some((order, JobReport { status, .. })) = report else {
            return JobDependencyState::Waiting(format!("job {} is not submitted yet", dependency.job));
        };
        let own = spec.login.or(&self.cluster.slurm.login);
        match (status.phase, status.slurm_id) {
            (phase, _) if phase.is_final() && dependency.kind.is_met_by(phase) => JobDependencyState::None,
            (phase, _) if phase.is_final() => {
                JobDependencyState::Never(format!("job {} ended as {phase:?}", dependency.job))
            }
            // Slurm knows only its own jobs: the end of another cluster's job is awaited here.
            (JobPhase::Fetching, _) => {
                JobDependencyState::Waiting(format!("job {} is ending", dependency.job))
            }
            // A failed node leads to another attempt, which Slurm would not connect with the first.
            (_, Some(number))
                if order.spec.login.host == own.host && order.spec.node_failure_retries == 0 =>
            {
                JobDependencyState::Submitted(number)
            }
            _ => JobDependencyState::Waiting(format!("job {} has not ended yet", dependency.job)),
        }
    }
}
