//! Values of an object whose content travels by digest, reread from its manifest when a node requests them.

use super::document::{self, object_name};
use super::parse::node::Node;
use super::parse::{Format, parse, text};
use super::problems::{Faults, Problems};
use super::{dialects, expand_list};
use crate::kinds::content::Values;
use crate::kinds::{Kind, KindSpec, Resource, SpecVisitor};
use crate::meta::ObjectRef;

/// Returns the values of `object` in the file `path` with these bytes; `None` if it has no such object with content.
pub fn values_of(path: &str, bytes: &[u8], object: &ObjectRef) -> Option<Values> {
    let parsed = parse(Format::of(path)?, text::read(bytes).ok()?);
    let (mut left, name) = (parsed.left, object.to_string());
    for mut root in parsed.roots.into_iter().flat_map(expand_list) {
        dialects::rewrite(&mut root.node, &mut left, &mut Problems::default());
        if object_name(&root.node).is_some_and(|found| found == name) {
            return object.kind.visit(Written(&root.node, object.kind));
        }
    }
    None
}

struct Written<'a>(&'a Node, Kind);

impl SpecVisitor for Written<'_> {
    type Output = Option<Values>;

    fn visit<S: KindSpec>(self, _: fn(S) -> Resource) -> Option<Values> {
        let content = S::LINKS.content?;
        let spec: S = document::spec(self.0, self.1, &mut Problems::default(), &mut Faults::default())?;
        Some((content.written)(&spec))
    }
}
