//! Compiled shapes of all kinds, each compiled when first needed.

use std::sync::OnceLock;

use schemars::{Schema, SchemaGenerator, schema_for};

use super::Shapes;
use crate::kinds::{Kind, KindSpec, Resource, SpecVisitor};
use crate::meta::ObjectMeta;

/// Returns the shape of `metadata`.
pub(crate) fn metadata() -> &'static Shapes {
    static SHAPES: OnceLock<Shapes> = OnceLock::new();
    SHAPES.get_or_init(|| compiled("ObjectMeta", &schema_for!(ObjectMeta)))
}

/// Returns the shape of a kind's `spec`.
pub(crate) fn of(kind: Kind) -> &'static Shapes {
    static SHAPES: [OnceLock<Shapes>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
    SHAPES[kind as usize].get_or_init(|| compiled(&format!("{kind}Spec"), &schema(kind)))
}

/// Returns the JSON Schema of a kind's `spec`, as schemars writes it.
pub(crate) fn schema(kind: Kind) -> Schema {
    kind.visit(RootSchema)
}

/// Returns the same as part of a larger schema: its definitions go into the generator.
pub(crate) fn schema_within(kind: Kind, generator: &mut SchemaGenerator) -> Schema {
    kind.visit(Subschema(generator))
}

struct RootSchema;

impl SpecVisitor for RootSchema {
    type Output = Schema;

    fn visit<S: KindSpec>(self, _: fn(S) -> Resource) -> Schema {
        schema_for!(S)
    }
}

struct Subschema<'g>(&'g mut SchemaGenerator);

impl SpecVisitor for Subschema<'_> {
    type Output = Schema;

    fn visit<S: KindSpec>(self, _: fn(S) -> Resource) -> Schema {
        self.0.subschema_for::<S>()
    }
}

fn compiled(name: &str, schema: &Schema) -> Shapes {
    Shapes::compile(name, schema).expect("a test compiles the schema of every kind")
}
