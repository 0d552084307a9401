//! Which images there are to be, which nodes have them, and who builds the others. Pure.

use std::collections::{BTreeMap, BTreeSet};

use schema::files::BlobKind;
use schema::keys::Key;
use schema::kinds::cluster::FunctionDefaults;
use schema::kinds::function::{FunctionSpec, ImageState, built_image, image_hash};
use schema::meta::NamespacedName;
use schema::object::Object;
use schema::records::{BuildOrder, FunctionImage, NodeImage, NodeImageState, RegistryCopy, Template};
use schema::snapshot::Snapshot;

use crate::controllers::reason::Reason;
use crate::controllers::writes::{Expect, Writes};

/// The label of nodes that build images. Where no node has it, all do.
pub(super) const BUILD_LABEL: &str = "minik8s.io/build";

/// A build that failed so often at a node is given to another one, too: it may be the node's fault.
const ATTEMPTS_MAX: u32 = 3;
/// Most nodes that try a failing build. After that the function is at fault, and they try again every few minutes.
const BUILDERS_MAX: usize = 3;

/// What is to become of an image.
pub(super) struct Needed {
    pub(super) reference: String,
    /// How to build it; none: its source is not known any more, or it comes from a registry.
    order: Option<BuildOrder>,
}

impl Needed {
    /// The images that a function needs: the one of the object as it is first.
    pub(super) fn of_function(
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

/// How to build an image of what a template was made of.
fn order(
    image: &str,
    object: &Object,
    spec: &FunctionSpec,
    template: &Template,
    cluster: &FunctionDefaults,
) -> Option<BuildOrder> {
    image_hash(image)?;
    let folders = template.files.iter().filter(|(_, blob)| blob.kind == BlobKind::Folder);
    // The folder may have been another one for a former version.
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

/// What nodes have and build.
pub(super) struct Builds<'a> {
    snapshot: &'a Snapshot,
    /// By image, the nodes that report it.
    reported: BTreeMap<&'a str, Vec<(&'a str, &'a NodeImage)>>,
    /// By image, the nodes that are to build it.
    ordered: BTreeMap<&'a str, Vec<&'a str>>,
    /// Nodes that may be given a build, with how many they have.
    builders: BTreeMap<&'a str, usize>,
    /// Orders of this plan, by image.
    assigned: BTreeMap<String, String>,
    /// Orders that stand, or are new.
    kept: BTreeSet<(String, String)>,
}

impl<'a> Builds<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
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

    /// How far an image is; orders it where no node has it.
    pub(super) fn image(&mut self, needed: Needed, out: &mut Writes) -> FunctionImage {
        let Needed { reference, order } = needed;
        let mut image = FunctionImage {
            reference,
            id: None,
            state: ImageState::Ready,
            nodes: Vec::new(),
            registry: None,
        };
        // Every node pulls it from its registry.
        let Some(hash) = image_hash(&image.reference).map(str::to_owned) else { return image };
        let mut by_id: BTreeMap<&str, Vec<(&str, &NodeImage)>> = BTreeMap::new();
        for (node, found) in self.reported.get(hash.as_str()).into_iter().flatten() {
            if let NodeImageState::Ready { id, .. } = &found.state
                && !self.snapshot.is_evicted(node)
            {
                by_id.entry(id).or_default().push((node, found));
            }
        }
        // Built twice, after the first builder was lost for a while: the one that most nodes have.
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
        living.iter().for_each(|node| self.mend_index(node, hash, &order, out));
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

    /// The Cluster object may name another package index than when the build was assigned: the next try uses it.
    fn mend_index(&self, node: &str, hash: &str, order: &BuildOrder, out: &mut Writes) {
        let Some(standing) = self.snapshot.builds.get(&(node.to_owned(), hash.to_owned())) else { return };
        if standing.value.package_index == order.package_index {
            return;
        }
        let mended = BuildOrder { package_index: order.package_index.clone(), ..standing.value.clone() };
        let reason = Reason::BuildAssigned { node: node.to_owned() };
        let key = Key::Build(node.to_owned(), hash.to_owned());
        out.put(key, &mended, Expect::ModRevision(standing.mod_revision), reason);
    }

    /// The nodes at which the build of an image failed, how often and why.
    fn failures(&self, hash: &str) -> impl Iterator<Item = (&'a str, (u32, &'a str))> {
        let reported = self.reported.get(hash).into_iter().flatten();
        reported.filter_map(|(node, found)| match &found.state {
            NodeImageState::Failed { why, attempts, .. } => Some((*node, (*attempts, why.as_str()))),
            NodeImageState::Building | NodeImageState::Ready { .. } => None,
        })
    }

    /// Gives a build to the node with the fewest that has not tried it.
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
        out.put(key, order, Expect::Absent, reason).then(|| (*node).to_owned())
    }

    /// Takes back what needs no building any more.
    pub(super) fn take_back(self, out: &mut Writes) {
        let Self { snapshot, kept, .. } = self;
        for (place, order) in snapshot.builds.iter().filter(|(place, _)| !kept.contains(place)) {
            let key = Key::Build(place.0.clone(), place.1.clone());
            out.delete(key, order.mod_revision, Reason::BuildOver);
        }
    }
}

/// What the nodes say of the cluster's registry: that it has the image if one does.
fn in_registry<'c>(copies: impl Iterator<Item = &'c RegistryCopy> + Clone) -> Option<RegistryCopy> {
    let is_there = |copy: &&RegistryCopy| matches!(copy, RegistryCopy::Pushed { .. });
    copies.clone().find(is_there).or_else(|| copies.into_iter().next()).cloned()
}

/// The nodes that may build, those with the label if any has it.
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
