//! References and exclusive resources: every target must exist, and every exclusive resource has one holder. Pure.
//!
//! A finding puts a file into quarantine, and then its objects are not what other files rely on. So findings are
//! followed until there are no more: each file is quarantined once, which bounds the work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schema::kinds::Resource;
use schema::kinds::exclusive::{ExclusiveResource, ExclusiveUse};
use schema::kinds::links::{Reference, references};
use schema::kinds::pod::PortReference;
use schema::kinds::service::ServicePort;
use schema::meta::ObjectRef;
use schema::violation::rules;

use super::Declaration;
use super::after_apply::{ExpectedObject, Fault, Scene};
use super::cycles::{self, CycleMember, DependencyGraph};

/// Help if the object in the way is due to be removed: then the commit may well be right.
const STAYS_HELD: &str = "its removal is held: the source's status shows why, and how to release it";
/// Limit on names listed in a message.
const NAMED_MAX: usize = 5;

/// An object that has, or wants, an exclusive resource.
#[derive(Debug, Clone)]
pub(super) struct Holder<'a> {
    pub(super) object: &'a ObjectRef,
    /// `None` for a live object that stays as it is.
    pub(super) declared: Option<&'a Declaration<'a>>,
    /// Set if the live object has it already.
    pub(super) has_it: bool,
    pub(super) used: ExclusiveUse,
}

/// A field that names an object.
#[derive(Debug)]
struct Link<'a> {
    from: &'a Declaration<'a>,
    field: Reference<'a>,
    /// Set once the missing target has been reported.
    is_reported: bool,
}

#[derive(Default)]
struct Links<'a> {
    by_target: BTreeMap<ObjectRef, Vec<Link<'a>>>,
    holders: BTreeMap<ExclusiveResource, Vec<Holder<'a>>>,
    /// Files newly in quarantine.
    newly_quarantined: Vec<Arc<str>>,
    /// Objects by file, filled when the first file is quarantined.
    named_in: BTreeMap<&'a str, Vec<&'a ObjectRef>>,
}

/// Finds missing targets, clashes and dependency cycles.
pub(super) fn check(scene: &mut Scene<'_>) {
    let mut links = Links::default();
    links.gather(scene);
    let targets: Vec<ObjectRef> = links.by_target.keys().cloned().collect();
    let exclusives: Vec<ExclusiveResource> = links.holders.keys().cloned().collect();
    for target in &targets {
        links.follow(scene, target);
    }
    for exclusive in &exclusives {
        links.resolve_exclusive(scene, exclusive, false);
    }
    links.settle(scene);
}

/// Decides exclusive resources again, now that nothing leaves. Other findings stand: taking one back could release
/// the very removals that it holds.
pub(super) fn check_staying(scene: &mut Scene<'_>) {
    scene.nothing_leaves();
    let mut links = Links::default();
    links.gather(scene);
    let exclusives: Vec<ExclusiveResource> = links.holders.keys().cloned().collect();
    for exclusive in &exclusives {
        links.resolve_exclusive(scene, exclusive, true);
    }
    links.settle(scene);
}

impl<'a> Links<'a> {
    /// Handles newly quarantined files until there are none. Each file falls once, and after the first round only
    /// cycles through files that have fallen since are new.
    fn settle(&mut self, scene: &mut Scene<'a>) {
        let waits = DependencyGraph::from_scene(scene);
        let mut is_first = true;
        loop {
            let mut changed = Vec::new();
            while let Some(file) = self.newly_quarantined.pop() {
                changed.extend(self.quarantine_file(scene, &file));
            }
            let changed = if is_first { None } else { Some(&*changed) };
            is_first = false;
            for CycleMember { declared, path, message } in
                waits.circles(scene, |object| scene.present(object), changed)
            {
                let (rule, help) = (&rules::DEPENDENCY_CYCLE, cycles::HELP);
                let fault = Fault { rule, path: &path, message: &message, help };
                self.blame(scene, declared, &fault);
            }
            if self.newly_quarantined.is_empty() {
                break;
            }
        }
    }

    fn gather(&mut self, scene: &Scene<'a>) {
        for declared in scene.declarations {
            let (metadata, resource) =
                (&declared.document.object.metadata, &declared.document.object.resource);
            for field in references(metadata, resource) {
                let links = self.by_target.entry(field.target.clone()).or_default();
                links.push(Link { from: declared, field, is_reported: false });
            }
        }
        let is_good = |declared: &Declaration<'_>| !scene.is_quarantined(declared);
        self.holders = holders(scene, is_good, |object| scene.present(object));
    }

    fn stays(&mut self, object: &'a ObjectRef, has: Vec<ExclusiveUse>) {
        for used in has {
            let what = used.resource.clone();
            self.holders.entry(what).or_default().push(Holder { object, declared: None, has_it: true, used });
        }
    }

    fn blame(&mut self, scene: &mut Scene<'a>, declared: &'a Declaration<'a>, fault: &Fault<'_>) {
        if scene.blame(declared, fault) {
            self.newly_quarantined.push(Arc::clone(declared.file));
        }
    }

    /// Checks that all references to `target` find it.
    fn follow(&mut self, scene: &mut Scene<'a>, target: &ObjectRef) {
        let Some(mut links) = self.by_target.remove(target) else { return };
        let present = scene.present(target);
        for link in links.iter_mut().filter(|link| !link.is_reported) {
            let Some(missing) = missing(scene, target, present, &link.field) else { continue };
            // A file that can't be applied anyway is blamed only for faults of its own.
            if scene.is_quarantined(link.from) && missing.home.is_some() {
                continue;
            }
            let rule =
                if missing.home.is_some() { &rules::DEPENDS_ON_QUARANTINED } else { &rules::DANGLING_TARGET };
            let path = if missing.is_port { link.field.port_path() } else { link.field.at.path() };
            let fault = Fault { rule, path: &path, message: &missing.message, help: &missing.help };
            self.blame(scene, link.from, &fault);
            link.is_reported = true;
        }
        self.by_target.insert(target.clone(), links);
    }

    /// Decides who holds an exclusive resource: an object that stays as it is, else the live holder, else the
    /// first. `again`: files already in quarantine have been reported.
    fn resolve_exclusive(&mut self, scene: &mut Scene<'a>, exclusive: &ExclusiveResource, again: bool) {
        let is_shared = |holders: &Vec<Holder<'_>>| holders.iter().all(|holder| holder.used.shares);
        if self.holders.get(exclusive).is_none_or(is_shared) {
            return;
        }
        let Some(holders) = self.holders.remove(exclusive) else { return };
        let place =
            |holder: &Holder<'a>| holder.declared.map(|declared| (declared.file, declared.document.line));
        let rank = |holder: &Holder<'a>| (holder.declared.is_some(), !holder.has_it, place(holder));
        if let Some(winner) = holders.iter().min_by_key(|holder| rank(holder)).cloned() {
            let owner = owner(scene, winner.object, winner.declared);
            let clashes = |holder: &&Holder<'a>| {
                holder.object != winner.object && !(holder.used.shares && winner.used.shares)
            };
            for loser in holders.iter().filter(clashes) {
                let Some(declared) =
                    loser.declared.filter(|declared| !again || !scene.is_quarantined(declared))
                else {
                    continue;
                };
                let message = format!("the {exclusive} belongs to {owner}");
                let (rule, mut help) = (exclusive.rule(), exclusive.help(loser.used.shares).to_owned());
                if winner.declared.is_none() && scene.is_due_for_removal(winner.object) {
                    help = format!("{STAYS_HELD}; or {help}");
                }
                let fault = Fault { rule, path: &loser.used.path, message: &message, help: &help };
                self.blame(scene, declared, &fault);
            }
        }
        self.holders.insert(exclusive.clone(), holders);
    }

    /// Handles a file in quarantine: its objects, which it returns, stay as they are live, or are absent.
    fn quarantine_file(&mut self, scene: &mut Scene<'a>, file: &str) -> BTreeSet<&'a ObjectRef> {
        if self.named_in.is_empty() {
            for declared in scene.declarations {
                self.named_in.entry(declared.file).or_default().push(&declared.document.reference);
            }
        }
        let of_file = self.named_in.get(file).into_iter().chain(scene.absent_of.get(file));
        let objects: BTreeSet<&'a ObjectRef> = of_file.flatten().copied().collect();
        for object in objects.iter().copied() {
            self.follow(scene, object);
            let Some((object, live)) = scene.live.get_key_value(object) else { continue };
            let has = live.value.resource.exclusives(&live.value.metadata);
            let names: Vec<ExclusiveResource> = has.iter().map(|used| used.resource.clone()).collect();
            self.stays(object, has);
            for exclusive in &names {
                self.resolve_exclusive(scene, exclusive, true);
            }
        }
        objects
    }
}

/// Returns the holders of exclusive resources: by documents that count, and by live objects that `present` expects
/// to stay.
pub(super) fn holders<'a>(
    scene: &Scene<'a>,
    counts: impl Fn(&Declaration<'_>) -> bool,
    present: impl Fn(&ObjectRef) -> Option<ExpectedObject<'a>>,
) -> BTreeMap<ExclusiveResource, Vec<Holder<'a>>> {
    let mut found: BTreeMap<ExclusiveResource, Vec<Holder<'a>>> = BTreeMap::new();
    let mut add = |object, declared, has_it, used: ExclusiveUse| {
        let what = used.resource.clone();
        found.entry(what).or_default().push(Holder { object, declared, has_it, used });
    };
    for declared in scene.declarations.iter().filter(|declared| counts(declared)) {
        let uses = declared.document.object.resource.exclusives(&declared.document.object.metadata);
        let live = declared.live.filter(|_| !uses.is_empty());
        let live = live.map(|live| live.value.resource.exclusives(&live.value.metadata));
        for used in uses {
            let has_it = live.iter().flatten().any(|live| live.resource == used.resource);
            add(&declared.document.reference, Some(declared), has_it, used);
        }
    }
    for (object, live) in scene.live {
        let has = live.value.resource.exclusives(&live.value.metadata);
        if !has.is_empty() && matches!(present(object), Some(ExpectedObject::Stays(_))) {
            has.into_iter().for_each(|used| add(object, None, true, used));
        }
    }
    found
}

/// Describes the holder of an exclusive resource by its document or, without one, by its live state.
pub(super) fn owner(scene: &Scene<'_>, object: &ObjectRef, declared: Option<&Declaration<'_>>) -> String {
    match (declared, scene.live.get(object).map(|live| &live.value.provenance)) {
        (Some(declared), _) => format!("{object} ({}:{})", declared.file, declared.document.line),
        (None, Some(place)) if place.source != scene.source => {
            format!("{object} of source `{}` ({}:{})", place.source, place.file, place.line)
        }
        (None, Some(place)) => format!("{object}, which stays as it was ({}:{})", place.file, place.line),
        (None, None) => object.to_string(),
    }
}

/// A missing target.
struct MissingTarget<'s> {
    message: String,
    help: String,
    /// The quarantined file that has the target, if that is the reason.
    home: Option<&'s str>,
    /// Set if the target exists but its port does not.
    is_port: bool,
}

fn missing<'s>(
    scene: &'s Scene<'_>,
    target: &ObjectRef,
    present: Option<ExpectedObject<'_>>,
    field: &Reference<'_>,
) -> Option<MissingTarget<'s>> {
    let home = || scene.quarantined_home(target);
    if let Some(held) = blocked_content(scene, target, present) {
        return Some(held);
    }
    let Some(present) = present else {
        if field.is_optional {
            return None;
        }
        return Some(match home() {
            Some(file) => MissingTarget {
                message: format!("{target} is in {file}, which can't be applied, and is not there yet"),
                help: format!("fix {file} first"),
                home: Some(file),
                is_port: false,
            },
            None if scene.live.contains_key(target) => MissingTarget {
                message: format!("{target} is removed by this commit"),
                help: format!("keep {target}, or remove this reference, too"),
                home: None,
                is_port: false,
            },
            None => match scene.possible_home(target) {
                Some(file) => MissingTarget {
                    message: format!("there is no {target}, unless {file} has it, which can't be read"),
                    help: format!("fix {file} first"),
                    home: Some(file),
                    is_port: false,
                },
                None => MissingTarget {
                    message: format!("there is no {target}"),
                    help: others(scene, target),
                    home: None,
                    is_port: false,
                },
            },
        });
    };
    let (Some(port), Resource::Service(service)) = (field.port, present.resource()) else { return None };
    if service.alias_target().is_some() {
        let message = format!("{target} is of type ExternalName: paths can't route to it");
        let help = "use the name itself in pods, or route to a Service with `addresses`".to_owned();
        return Some(MissingTarget { message, help, home: None, is_port: true });
    }
    if service.ports.iter().any(|served| serves(served, port)) {
        return None;
    }
    // The target's quarantined file may declare the port, in a document with errors or without.
    let comes = scene.declared(target).is_none_or(|declared| {
        scene.is_quarantined(declared)
            && matches!(&declared.document.object.resource, Resource::Service(s) if s.ports.iter().any(|p| serves(p, port)))
    });
    let home = home().filter(|_| comes);
    let ports: Vec<String> = service.ports.iter().take(NAMED_MAX).map(shown_port).collect();
    let port = match port {
        PortReference::Number(number) => number.to_string(),
        PortReference::Name(name) => format!("`{name}`"),
    };
    let help = match home {
        Some(file) => format!("fix {file} first"),
        None if ports.is_empty() => String::new(),
        None => format!("it has {}", ports.join(", ")),
    };
    Some(MissingTarget { message: format!("{target} has no port {port}"), help, home, is_port: true })
}

/// Reports a target whose content differs in a file that can't be applied: objects that name it would be created
/// with that content.
fn blocked_content<'s>(
    scene: &'s Scene<'_>,
    target: &ObjectRef,
    present: Option<ExpectedObject<'_>>,
) -> Option<MissingTarget<'s>> {
    let declared = scene.declared(target).filter(|declared| scene.is_quarantined(declared))?;
    let (content, _) = declared.document.object.resource.content()?;
    let now = present.and_then(|present| present.resource().content().map(|(now, _)| now));
    (now != Some(content)).then(|| MissingTarget {
        message: format!("{target} is in {}, which can't be applied, so its content waits", declared.file),
        help: format!("fix {} first", declared.file),
        home: Some(declared.file),
        is_port: false,
    })
}

fn serves(served: &ServicePort, port: &PortReference) -> bool {
    match port {
        PortReference::Number(number) => served.port == *number,
        PortReference::Name(name) => served.name.as_ref() == Some(name),
    }
}

fn shown_port(port: &ServicePort) -> String {
    match &port.name {
        Some(name) => format!("{} (`{name}`)", port.port),
        None => port.port.to_string(),
    }
}

/// Suggests alternatives: objects of the same kind in the namespace.
fn others(scene: &Scene<'_>, target: &ObjectRef) -> String {
    let alike = |object: &&ObjectRef| object.kind == target.kind && object.namespace == target.namespace;
    let first = ObjectRef { name: String::new(), ..target.clone() };
    let at = scene.declarations.partition_point(|declared| declared.document.reference < first);
    let names =
        scene.declarations[at..].iter().map(|declared| &declared.document.reference).take_while(alike);
    let names: Vec<&str> = names.take(NAMED_MAX + 1).map(|object| object.name.as_str()).collect();
    match names.len() {
        0 if target.kind.is_cluster_scoped() => format!("the repository has no {}", target.kind),
        0 => format!("the repository has no {} in namespace {}", target.kind, target.namespace),
        1..=NAMED_MAX => format!("there is {}", names.join(", ")),
        _ => format!("there is {}, …", names[..NAMED_MAX].join(", ")),
    }
}
