//! Number of pods that one metric asks for. The arithmetic and its number types are those of Kubernetes'
//! `replica_calculator.go`, so that both round alike.

use schema::kinds::autoscaler::{MetricTarget, ResourceMetric, ResourceName};
use schema::kinds::pod::PodPhase;

use super::model::{Pod, Proposal, Sample, Tuning};

/// Rounding error allowed at the edge of the tolerance.
const ROUNDING: f64 = 1e-9;

/// Returns the proposal of the metric for a target of `current` pods.
///
/// # Errors
/// A sentence that says why the metric makes no proposal.
pub(super) fn proposal(
    metric: &ResourceMetric,
    pods: &[Pod],
    current: u32,
    tuning: &Tuning,
) -> Result<Proposal, String> {
    let resource = metric.name;
    let target = Target::of(&metric.target, resource)?;
    let groups = Groups::of(pods, resource, tuning);
    let request = |pod: &Pod| match (target, pod.requests.get(resource)) {
        // Amounts per pod need no requests.
        (Target::AverageValue(_), _) => Ok(0),
        (Target::Utilization(_), Some(request)) => Ok(request),
        (Target::Utilization(_), None) => Err(format!(
            "missing request for {}: a container of pod {} has none; set resources.requests.{0}",
            resource_name(resource),
            pod.name
        )),
    };
    let entries = |pods: &[&Pod], used: &dyn Fn(&Pod, u64) -> u64| {
        let entry = |pod: &&Pod| request(pod).map(|request| UsageShare { used: used(pod, request), request });
        pods.iter().map(entry).collect::<Result<Vec<UsageShare>, String>>()
    };
    if groups.is_empty() {
        return Err("the target has no pods yet".to_owned());
    }
    if groups.counted.is_empty() {
        return Err(format!(
            "no usable {} sample of a pod yet: {}",
            resource_name(resource),
            groups.summary()
        ));
    }
    let as_measured = |pod: &Pod, _| pod.usage.and_then(|usage| usage.used.get(resource)).unwrap_or_default();
    let counted = entries(&groups.counted, &as_measured)?;
    // A request that one pod lacks is missing in every pod of the same template.
    let full = entries(&groups.missing, &|_, request| target.max_usage(request))?;
    let idle = |pods: &[&Pod]| entries(pods, &|_, _| 0);
    let (missing_idle, unready_idle) = (idle(&groups.missing)?, idle(&groups.unready)?);

    let first = target.measure(&counted)?;
    let proposal = |desired| Proposal { desired, utilization: first.utilization, average: first.average };
    let grows_beside_unready = !unready_idle.is_empty() && first.ratio > 1.0;
    if full.is_empty() && !grows_beside_unready {
        return Ok(proposal(match is_within(first.ratio, tuning) {
            true => current,
            false => pods_for(first.ratio, counted.len()),
        }));
    }
    // Be cautious: pods without a sample count as fully used when scaling down and as idle when scaling up.
    let mut all = counted;
    if first.ratio < 1.0 {
        all.extend(full);
    } else if first.ratio > 1.0 {
        all.extend(missing_idle);
    }
    if grows_beside_unready {
        all.extend(unready_idle);
    }
    let second = target.measure(&all)?.ratio;
    let turns = (first.ratio < 1.0 && second > 1.0) || (first.ratio > 1.0 && second < 1.0);
    let wanted = pods_for(second, all.len());
    let goes_against_it = (second < 1.0 && wanted > current) || (second > 1.0 && wanted < current);
    let stays = is_within(second, tuning) || turns || goes_against_it;
    Ok(proposal(if stays { current } else { wanted }))
}

/// Returns `cpu` or `memory`.
pub fn resource_name(resource: ResourceName) -> &'static str {
    match resource {
        ResourceName::Cpu => "cpu",
        ResourceName::Memory => "memory",
    }
}

fn is_within(ratio: f64, tuning: &Tuning) -> bool {
    let distance = ratio - 1.0;
    distance <= tuning.tolerance.up + ROUNDING && -distance <= tuning.tolerance.down + ROUNDING
}

fn pods_for(ratio: f64, pods: usize) -> u32 {
    // `as` saturates; limits are applied later.
    (ratio * pods as f64).ceil() as u32
}

/// Target value of a metric.
#[derive(Clone, Copy)]
enum Target {
    /// Percent of the requests.
    Utilization(u32),
    /// Thousandths of a core, or bytes, per pod.
    AverageValue(u64),
}

/// Usage and request of one pod.
struct UsageShare {
    used: u64,
    request: u64,
}

/// Usage of pods relative to the target.
struct Measure {
    ratio: f64,
    utilization: Option<u32>,
    average: u64,
}

impl Target {
    fn of(target: &MetricTarget, resource: ResourceName) -> Result<Self, String> {
        match (target.average_utilization, &target.average_value) {
            (Some(percent), _) => Ok(Self::Utilization(percent)),
            (None, Some(value)) => {
                value.amount(resource).map(Self::AverageValue).map_err(|error| error.to_string())
            }
            (None, None) => Err("neither averageUtilization nor averageValue is set".to_owned()),
        }
    }

    /// Returns the highest usage to assume for a pod without a sample.
    fn max_usage(self, request: u64) -> u64 {
        match self {
            Self::Utilization(percent) => request.saturating_mul(u64::from(percent.max(100))) / 100,
            Self::AverageValue(value) => value,
        }
    }

    fn measure(self, entries: &[UsageShare]) -> Result<Measure, String> {
        let sum =
            |of: fn(&UsageShare) -> u64| entries.iter().map(|entry| u128::from(of(entry))).sum::<u128>();
        let (used, requested) = (sum(|entry| entry.used), sum(|entry| entry.request));
        let average = used / (entries.len() as u128).max(1);
        let average = u64::try_from(average).unwrap_or(u64::MAX);
        let (ratio, utilization) = match self {
            Self::Utilization(_) if requested == 0 => {
                return Err("the pods request nothing, so utilization is undefined".to_owned());
            }
            Self::Utilization(target) => {
                // Truncate to whole percent before anything else.
                let utilization = u32::try_from(used * 100 / requested).unwrap_or(u32::MAX);
                (f64::from(utilization) / f64::from(target), Some(utilization))
            }
            Self::AverageValue(target) => (average as f64 / target as f64, None),
        };
        Ok(Measure { ratio, utilization, average })
    }
}

/// Pods grouped by the state of their sample. Pods that are ending or have ended are in no group.
#[derive(Default)]
struct Groups<'a> {
    /// Pods whose sample counts.
    counted: Vec<&'a Pod>,
    /// Pods that are not ready, or not for long enough.
    unready: Vec<&'a Pod>,
    /// Pods without a sample.
    missing: Vec<&'a Pod>,
}

impl<'a> Groups<'a> {
    fn of(pods: &'a [Pod], resource: ResourceName, tuning: &Tuning) -> Self {
        let mut groups = Self::default();
        for pod in pods {
            let sample = pod.usage.filter(|usage| usage.used.get(resource).is_some());
            match (pod.phase, sample) {
                (PodPhase::Failed | PodPhase::Succeeded, _) => {}
                _ if pod.is_deleted => {}
                (PodPhase::Pending, _) => groups.unready.push(pod),
                (_, None) => groups.missing.push(pod),
                // CPU used at startup says nothing about the load; memory counts from the start.
                (_, Some(sample)) if resource == ResourceName::Cpu && is_unready(pod, sample, tuning) => {
                    groups.unready.push(pod);
                }
                (_, Some(_)) => groups.counted.push(pod),
            }
        }
        groups
    }

    fn is_empty(&self) -> bool {
        self.counted.is_empty() && self.unready.is_empty() && self.missing.is_empty()
    }

    fn summary(&self) -> String {
        format!("{} not ready, {} without a sample", self.unready.len(), self.missing.len())
    }
}

fn is_unready(pod: &Pod, sample: Sample, tuning: &Tuning) -> bool {
    let (Some(ready), Some(started), Some(since)) = (pod.ready, pod.started, pod.ready_since) else {
        return true;
    };
    // All of these are times of the pod's node, whose clock may differ from ours.
    if sample.at.duration_since(started) < tuning.cpu_initialization_period {
        return !ready || sample.at.duration_since(since) < sample.window;
    }
    !ready && since.duration_since(started) < tuning.initial_readiness_delay
}
