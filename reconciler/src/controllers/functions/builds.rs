//! Images that functions need: which nodes have them, and which nodes build the missing ones. Pure.

use std::collections::{BTreeMap, BTreeSet};

use schema::content_refs::BlobKind;
use schema::keys::Key;
use schema::kinds::cluster::FunctionDefaults;
use schema::kinds::function::{FunctionSpec, ImageState, built_image, image_hash};
use schema::meta::NamespacedName;
use schema::object::Object;
use schema::records::{BuildOrder, FunctionImage, NodeImage, NodeImageState, RegistryCopy, Template};
use schema::snapshot::Snapshot;

use crate::controllers::reason::Reason;
use crate::controllers::writes::{Precondition, Writes};

/// Label of nodes that build images. If no node has it, all nodes do.
pub(super) const BUILD_LABEL: &str = "minik8s.io/build";

/// Failed attempts after which a build is assigned to another node too: the first node may be at fault.
const ATTEMPTS_MAX: u32 = 3;
/// Maximum number of nodes that try a failing build. After that the function is at fault, and they retry every few
/// minutes.
const BUILDERS_MAX: usize = 3;

/// An image that a function needs.
pub(super) struct NeededImage {
    pub(super) reference: String,
    /// Build order; `None` if the source is no longer known, or the image comes from a registry.
    order: Option<BuildOrder>,
}

impl NeededImage {
    /// Returns the images that a function needs, beginning with that of the current object.
    pub(super) fn for_function(
        snapshot: &Snapshot,
        object: &Object,
        spec: &FunctionSpec,
        cluster: &FunctionDefaults,
    ) -> Vec<Self> {
        let mut needed: Vec<Self> = Vec::new();
        let of_object = Template { files: object.files.clone(), ..empty_template() };
        let wanted = match &spec.image {
            Some(image) => Some(image.clone()),
            None => built_image(spec, &object.files, cluster).map(|(reference, _)| reference),
        };
        let reference = object.reference();
        let stored = snapshot.templates.range((reference.clone(), String::new())..);
        let stored = stored.take_while(|((of, _), _)| *of == reference).map(|(_, template)| &template.value);
        let of_template = |template: &Template| template.spec.containers.first().map(|one| one.image.clone());
        let former = stored.filter_map(|template| Some((of_template(template)?, template)));
        for (image, template) in wanted.map(|image| (image, &of_object)).into_iter().chain(former) {
            if needed.iter().all(|there| there.reference != image) {
                let order = order(&image, object, spec, template, cluster);
                needed.push(Self { reference: image, order });
            }
        }
        needed
    }
}

fn empty_template() -> Template {
    Template {
        commit: String::new(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        spec: Default::default(),
        files: BTreeMap::new(),
    }
}

/// Returns the order that builds `image` from the files of a template.
fn order(
    image: &str,
    object: &Object,
    spec: &FunctionSpec,
    template: &Template,
    cluster: &FunctionDefaults,
) -> Option<BuildOrder> {
    image_hash(image)?;
    let folders = template.files.iter().filter(|(_, blob)| blob.kind == BlobKind::Folder);
    // An earlier version may have had another folder.
    folders.into_iter().find_map(|(path, _)| {
        let with_path = FunctionSpec { source: Some(path.clone()), ..spec.clone() };
        let (reference, source) = built_image(&with_path, &template.files, cluster)?;
        (reference == image).then(|| BuildOrder {
            reference,
            function: NamespacedName::new(&object.metadata.namespace, &object.metadata.name),
            path: path.clone(),
            source: source.clone(),
            runtime: spec.runtime,
            base: cluster.python_base.clone(),
            package_index: cluster.package_index.clone(),
        })
    })
}

/// Images that nodes have and build.
pub(super) struct Builds<'a> {
    snapshot: &'a Snapshot,
    /// Nodes that report an image, by image.
    reported: BTreeMap<&'a str, Vec<(&'a str, &'a NodeImage)>>,
    /// Nodes that have an order to build an image, by image.
    ordered: BTreeMap<&'a str, Vec<&'a str>>,
    /// Nodes that may be assigned a build, with the number they have.
    builders: BTreeMap<&'a str, usize>,
    /// Nodes assigned by this plan, by image.
    assigned: BTreeMap<String, String>,
    /// Orders that stay or are new, as node and image.
    kept: BTreeSet<(String, String)>,
}

impl<'a> Builds<'a> {
    pub(super) fn from_snapshot(snapshot: &'a Snapshot) -> Self {
        let mut reported: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for ((node, image), found) in &snapshot.node_images {
            reported.entry(image).or_default().push((node.as_str(), &found.value));
        }
        let (mut ordered, mut builders) = (BTreeMap::<&str, Vec<&str>>::new(), builders(snapshot));
        for (node, image) in snapshot.builds.keys() {
            ordered.entry(image).or_default().push(node);
            if let Some(load) = builders.get_mut(node.as_str()) {
                *load += 1;
            }
        }
        Self { snapshot, reported, ordered, builders, assigned: BTreeMap::new(), kept: BTreeSet::new() }
    }

    /// Returns the state of an image; orders a build if no node has it.
    pub(super) fn image(&mut self, needed: NeededImage, out: &mut Writes) -> FunctionImage {
        let NeededImage { reference, order } = needed;
        let mut image = FunctionImage {
            reference,
            id: None,
            state: ImageState::Ready,
            nodes: Vec::new(),
            registry: None,
        };
        // Not a built image: every node pulls it from its registry.
        let Some(hash) = image_hash(&image.reference).map(str::to_owned) else { return image };
        let mut by_id: BTreeMap<&str, Vec<(&str, &NodeImage)>> = BTreeMap::new();
        for (node, found) in self.reported.get(hash.as_str()).into_iter().flatten() {
            if let NodeImageState::Ready { id, .. } = &found.state
                && !self.snapshot.is_evicted(node)
            {
                by_id.entry(id).or_default().push((node, found));
            }
        }
        // An image may be built twice if its first builder was lost for a while; take the one that most nodes have.
        if let Some((id, nodes)) = by_id.into_iter().max_by_key(|(_, nodes)| nodes.len()) {
            image.id = Some(id.to_owned());
            image.registry = in_registry(nodes.iter().filter_map(|(_, found)| found.registry.as_ref()));
            image.nodes = nodes.into_iter().map(|(node, _)| node.to_owned()).collect();
        }
        if image.id.is_none() {
            image.state = self.build(&hash, order, out);
        }
        image
    }

    fn build(&mut self, hash: &str, order: Option<BuildOrder>, out: &mut Writes) -> ImageState {
        let Some(order) = order else {
            return ImageState::Failed { why: "no node has it any more, and its source is gone".to_owned() };
        };
        let ordered = self.ordered.get(hash).into_iter().flatten().map(|node| (*node).to_owned());
        let living: Vec<String> = ordered.filter(|node| !self.snapshot.is_evicted(node)).collect();
        living.iter().for_each(|node| self.update_index(node, hash, &order, out));
        let mut nodes: Vec<String> = living.into_iter().chain(self.assigned.get(hash).cloned()).collect();
        let failed: BTreeMap<&str, (u32, &str)> = self.failures(hash).collect();
        let gave_up =
            |node: &String| failed.get(node.as_str()).is_some_and(|(times, _)| *times >= ATTEMPTS_MAX);
        if nodes.len() < BUILDERS_MAX && nodes.iter().all(gave_up) {
            nodes.extend(self.assign(hash, &order, &nodes, out));
        }
        self.kept.extend(nodes.iter().map(|node| (node.clone(), hash.to_owned())));
        let why = nodes.iter().find_map(|node| failed.get(node.as_str())).map(|(_, why)| (*why).to_owned());
        match (nodes.into_iter().find(|node| !failed.contains_key(node.as_str())), why) {
            (Some(node), _) => ImageState::Building { node },
            (None, Some(why)) => ImageState::Failed { why },
            (None, None) => ImageState::Waiting,
        }
    }

    /// Updates an assigned build if the Cluster object names another package index by now: the next attempt uses it.
    fn update_index(&self, node: &str, hash: &str, order: &BuildOrder, out: &mut Writes) {
        let Some(standing) = self.snapshot.builds.get(&(node.to_owned(), hash.to_owned())) else { return };
        if standing.value.package_index == order.package_index {
            return;
        }
        let mended = BuildOrder { package_index: order.package_index.clone(), ..standing.value.clone() };
        let reason = Reason::BuildAssigned { node: node.to_owned() };
        let key = Key::Build(node.to_owned(), hash.to_owned());
        out.put(key, &mended, Precondition::ModRevision(standing.mod_revision), reason);
    }

    /// Returns the nodes where the build of an image failed, with the number of attempts and the reason.
    fn failures(&self, hash: &str) -> impl Iterator<Item = (&'a str, (u32, &'a str))> {
        let reported = self.reported.get(hash).into_iter().flatten();
        reported.filter_map(|(node, found)| match &found.state {
            NodeImageState::Failed { why, attempts, .. } => Some((*node, (*attempts, why.as_str()))),
            NodeImageState::Building | NodeImageState::Ready { .. } => None,
        })
    }

    /// Assigns a build to the node with the fewest builds among those that have not tried it.
    fn assign(
        &mut self,
        hash: &str,
        order: &BuildOrder,
        tried: &[String],
        out: &mut Writes,
    ) -> Option<String> {
        let others = self.builders.iter_mut().filter(|(name, _)| tried.iter().all(|it| it != *name));
        let (node, load) = others.min_by_key(|(name, load)| (**load, **name))?;
        *load += 1;
        let key = Key::Build((*node).to_owned(), hash.to_owned());
        let reason = Reason::BuildAssigned { node: (*node).to_owned() };
        self.assigned.insert(hash.to_owned(), (*node).to_owned());
        out.put(key, order, Precondition::Absent, reason).then(|| (*node).to_owned())
    }

    /// Deletes the orders of builds that are no longer needed.
    pub(super) fn delete_unneeded(self, out: &mut Writes) {
        let Self { snapshot, kept, .. } = self;
        for (place, order) in snapshot.builds.iter().filter(|(place, _)| !kept.contains(place)) {
            let key = Key::Build(place.0.clone(), place.1.clone());
            out.delete(key, order.mod_revision, Reason::BuildOver);
        }
    }
}

/// Returns the state of the image in the cluster's registry: pushed if any node reports so.
fn in_registry<'c>(copies: impl Iterator<Item = &'c RegistryCopy> + Clone) -> Option<RegistryCopy> {
    let is_there = |copy: &&RegistryCopy| matches!(copy, RegistryCopy::Pushed { .. });
    copies.clone().find(is_there).or_else(|| copies.into_iter().next()).cloned()
}

/// Returns the nodes that may build: those with the label if any node has it.
fn builders(snapshot: &Snapshot) -> BTreeMap<&str, usize> {
    let may = |node: &str| {
        let is_cordoned = snapshot.node_spec(node).is_some_and(|spec| spec.unschedulable || spec.drain);
        snapshot.node_is_ready(node) && !is_cordoned && !snapshot.is_gone(node)
    };
    let able = || snapshot.nodes.keys().map(String::as_str).filter(|node| may(node));
    let is_labelled =
        |node: &&str| snapshot.node_labels(node).get(BUILD_LABEL).is_some_and(|it| it != "false");
    let mut chosen: BTreeMap<&str, usize> = able().filter(is_labelled).map(|node| (node, 0)).collect();
    if chosen.is_empty() {
        chosen = able().map(|node| (node, 0)).collect();
    }
    chosen
}
