//! Places of the fields of a file's documents, for messages about them.

use super::classify::expand_list;
use super::dialects;
use crate::document;
use crate::document::node::{Mark, Node};
use crate::document::problems::Problems;
use crate::document::{Format, parse};
use crate::violation::OwnedStep;

/// The documents of a file, each key and value with its place.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    /// Documents by the line of their first key, with older spellings rewritten.
    documents: Vec<(u32, Node)>,
}

impl Layout {
    /// Reads the layout of a file that is not loaded. Empty if it can't be read.
    pub fn read(path: &str, bytes: &[u8]) -> Self {
        let (Ok(text), Some(format)) = (document::read(bytes), Format::from_path(path)) else {
            return Self::default();
        };
        let parsed = parse(format, text);
        let (mut left, mut layout) = (parsed.left, Self::default());
        for mut root in parsed.roots.into_iter().flat_map(expand_list) {
            // Before the rewrite, as for a document that is loaded.
            let line = root.node.first_mark().line;
            dialects::rewrite(&mut root.node, &mut left, &mut Problems::default());
            layout.add(line, root.node);
        }
        layout
    }

    pub(crate) fn add(&mut self, line: u32, node: Node) {
        self.documents.push((line, node));
    }

    /// Returns the place of a field: 1-based line and column, in characters. `line` is that of the document's first
    /// key, as in [`Document::line`](super::Document::line). `None` if there is no such document; the nearest
    /// written place if the field is a default.
    pub fn find(&self, line: u32, field: &[OwnedStep]) -> Option<(u32, u32)> {
        let (_, node) = self.documents.iter().find(|(first, _)| *first == line)?;
        let Mark { line, column } = node.locate(field, false);
        Some((line, column))
    }

    /// Returns the place of a field in a file of one document.
    pub fn place(&self, field: &[OwnedStep]) -> Option<(u32, u32)> {
        self.find(self.documents.first()?.0, field)
    }
}
