//! Effects of ConfigMaps, disruption budgets, functions, workflows, jobs, nodes and the cluster's settings.

use schema::content_refs::normalize_path;
use schema::kinds::Resource;
use schema::kinds::cluster::PodSecurity;
use schema::kinds::function::FunctionSpec;
use schema::kinds::job::{Submission, script};
use schema::kinds::node::NodeSpec;
use schema::kinds::pod::TaintEffect;
use schema::meta::ObjectRef;
use schema::object::Object;

use super::case::EffectCase;
use super::effect::Effect;
use crate::gitops::check::forbidden;
use crate::gitops::review::change::Action;

/// Limit on the lines of a script in a review.
const SCRIPT_LINES_MAX: usize = 60;
/// Limit on named objects that new restrictions on pods would refuse.
const REFUSED_MAX: usize = 20;

fn says<const N: usize>(lines: [&str; N]) -> Vec<Effect> {
    lines.into_iter().map(|line| Effect::Sentence(line.to_owned())).collect()
}

/// Refers to the objects that use the ConfigMap: their own changes say more.
pub(crate) fn config_map(case: &EffectCase<'_>) -> Vec<Effect> {
    if case.action == Action::Update && case.fields.iter().any(|field| field.path.starts_with("spec.content"))
    {
        return says(["each object that uses it is replaced: see its own lines"]);
    }
    Vec::new()
}

pub(crate) fn disruption_budget(case: &EffectCase<'_>) -> Vec<Effect> {
    match case.action {
        Action::Create => says(["drains take the pods that it covers only as far as it allows"]),
        Action::Delete => says(["drains no longer heed it"]),
        Action::Update | Action::Replace => Vec::new(),
    }
}

pub(crate) fn function(case: &EffectCase<'_>) -> Vec<Effect> {
    let (before, after) = case.specs(|resource| match resource {
        Resource::Function(spec) => Some(&**spec),
        _ => None,
    });
    let image = after.and_then(|after| after.image.as_ref());
    match case.action {
        Action::Create => match image {
            Some(image) => vec![Effect::Sentence(format!("the function answers calls with image {image}"))],
            None => says(["the function is built"]),
        },
        Action::Replace => match (before.and_then(|before| before.image.as_ref()), image) {
            (former, Some(image)) if former != Some(image) => {
                vec![Effect::Sentence(format!(
                    "the function's replicas are replaced by those of image {image}"
                ))]
            }
            (Some(_), Some(_)) => says(["the function's replicas are replaced, its image stays"]),
            _ if is_built_anew(case, before.zip(after)) => {
                says(["the function is built again, then its replicas are replaced"])
            }
            _ => says(["the function's replicas are replaced, its image stays"]),
        },
        Action::Delete => says(["the function stops answering, its replicas and images are removed"]),
        Action::Update => Vec::new(),
    }
}

/// True if the function's folder is another one, or differs.
fn is_built_anew(case: &EffectCase<'_>, specs: Option<(&FunctionSpec, &FunctionSpec)>) -> bool {
    let Some((before, after)) = specs else { return true };
    let folder = after.source.as_deref().map(normalize_path);
    before.is_rebuilt_by(after) || folder.is_none_or(|folder| case.file_differs(&folder))
}

pub(crate) fn workflow(case: &EffectCase<'_>) -> Vec<Effect> {
    let runs = matches!(case.after, Some(Resource::Workflow(spec)) if spec.params.is_some());
    match case.action {
        Action::Create if runs => says(["a run of the workflow is started"]),
        Action::Replace if runs => says(["a run of the changed workflow is started"]),
        Action::Create | Action::Replace => Vec::new(),
        Action::Delete => says(["active runs of the workflow end"]),
        Action::Update => Vec::new(),
    }
}

pub(crate) fn job(case: &EffectCase<'_>) -> Vec<Effect> {
    let mut effects = match case.action {
        Action::Create => says(["the Slurm job is submitted, with this script:"]),
        Action::Replace => {
            says(["the Slurm job is cancelled if it runs, and submitted again, with this script:"])
        }
        Action::Delete => {
            return says(["the Slurm job is cancelled if it runs, and its results are removed"]);
        }
        Action::Update => return Vec::new(),
    };
    let Some(Resource::Job(spec)) = case.after else { return effects };
    // The job's name gets an id once a node has it, and so does the job that it depends on.
    let (name, job) = (format!("{}.{}.ID.1", case.object.namespace, case.object.name), case.object);
    let script = script(
        spec,
        Submission { name: &name, job: &format!("{}/{}", job.namespace, job.name), after: None },
    );
    let (shown, more) =
        (script.lines().take(SCRIPT_LINES_MAX), script.lines().count().saturating_sub(SCRIPT_LINES_MAX));
    effects.extend(shown.map(|line| Effect::Script(line.to_owned())));
    if let Some(dependency) = &spec.dependency {
        effects.push(Effect::Sentence(format!(
            "it waits for job {}: {}",
            dependency.job,
            dependency.kind.as_str()
        )));
    }
    if more > 0 {
        effects.push(Effect::Sentence(format!("the script has {more} more lines")));
    }
    effects
}

pub(crate) fn node(case: &EffectCase<'_>) -> Vec<Effect> {
    let (before, after) = case.specs(|resource| match resource {
        Resource::Node(spec) => Some(&**spec),
        _ => None,
    });
    let cordoned = |node: Option<&NodeSpec>| node.is_some_and(|node| node.unschedulable);
    let mut effects = match (cordoned(before), cordoned(after)) {
        (false, true) => says(["the node takes no new pods"]),
        (true, false) => says(["the node takes new pods again"]),
        _ => Vec::new(),
    };
    let drained = |node: Option<&NodeSpec>| node.is_some_and(|node| node.drain);
    effects.extend(match (drained(before), drained(after)) {
        (false, true) => says(["the node takes no new pods, and its pods move to other nodes"]),
        (true, false) => says(["the node takes pods again"]),
        _ => Vec::new(),
    });
    let drives_out = |node: Option<&NodeSpec>| {
        let taints = node.map(|node| node.taints.clone()).unwrap_or_default();
        taints.into_iter().filter(|taint| taint.effect == TaintEffect::NoExecute).collect::<Vec<_>>()
    };
    let old = drives_out(before);
    if drives_out(after).iter().any(|taint| !old.contains(taint)) {
        effects.extend(says(["pods that do not tolerate the new taint leave the node"]));
    }
    effects
}

/// Besides, names the live objects that new restrictions on pods would refuse.
pub(crate) fn cluster(case: &EffectCase<'_>) -> Vec<Effect> {
    let mut effects = match case.action {
        Action::Create => says(["these settings apply to the whole cluster"]),
        Action::Delete => says(["the whole cluster goes back to default settings"]),
        Action::Update | Action::Replace => says(["settings of the whole cluster change"]),
    };
    let (before, after) = case.specs(|resource| match resource {
        Resource::Cluster(spec) => Some(&spec.pod_security),
        _ => None,
    });
    let Some(after) = after.filter(|after| Some(*after) != before) else { return effects };
    let refusal = |policy: &PodSecurity, Object { metadata, resource, .. }: &Object| {
        let found = forbidden(policy, "the Cluster object", metadata, resource);
        found.into_iter().next().map(|finding| finding.message)
    };
    let refused = |(id, object): (&ObjectRef, &Object)| {
        // A new object was checked against the new settings.
        case.planned.before(id)?;
        let why = refusal(after, object)?;
        let is_news = before.is_none_or(|before| refusal(before, object).is_none());
        is_news.then(|| format!("{id} runs on, and a push that changes it is refused: {why}"))
    };
    let refused: Vec<String> = case.planned.after().filter_map(refused).collect();
    let more = refused.len().saturating_sub(REFUSED_MAX);
    effects.extend(refused.into_iter().take(REFUSED_MAX).map(Effect::Sentence));
    let others = || format!("{more} more objects run on, and a push that changes them is refused");
    effects.extend((more > 0).then(|| Effect::Sentence(others())));
    effects
}
