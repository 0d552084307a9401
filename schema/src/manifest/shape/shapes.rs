//! The compiled shapes of all kinds, each made once, when it is first needed.

use std::sync::OnceLock;

use schemars::{JsonSchema, Schema, SchemaGenerator, schema_for};

use super::Shapes;
use crate::kinds::{
    Kind, cluster, dns, function, horizontal_pod_autoscaler, job, node, pod, replica_set, service, workflow,
};
use crate::meta::ObjectMeta;

/// The shape of `metadata`.
pub(crate) fn metadata() -> &'static Shapes {
    static SHAPES: OnceLock<Shapes> = OnceLock::new();
    SHAPES.get_or_init(|| compiled("ObjectMeta", &schema_for!(ObjectMeta)))
}

/// The shape of a kind's `spec`.
pub(crate) fn of(kind: Kind) -> &'static Shapes {
    static SHAPES: [OnceLock<Shapes>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
    SHAPES[kind as usize].get_or_init(|| compiled(&format!("{kind}Spec"), &schema(kind)))
}

/// The JSON Schema of a kind's `spec`, as schemars writes it.
pub(crate) fn schema(kind: Kind) -> Schema {
    makers(kind).0(SchemaGenerator::default())
}

/// The same as a part of a larger schema: its definitions go into the generator.
pub(crate) fn schema_within(kind: Kind, generator: &mut SchemaGenerator) -> Schema {
    makers(kind).1(generator)
}

type Makers = (fn(SchemaGenerator) -> Schema, fn(&mut SchemaGenerator) -> Schema);

fn makers(kind: Kind) -> Makers {
    fn of<T: JsonSchema>() -> Makers {
        (SchemaGenerator::into_root_schema_for::<T>, SchemaGenerator::subschema_for::<T>)
    }
    match kind {
        Kind::Cluster => of::<cluster::ClusterSpec>(),
        Kind::Node => of::<node::NodeSpec>(),
        Kind::Function => of::<function::FunctionSpec>(),
        Kind::Service => of::<service::ServiceSpec>(),
        Kind::Pod => of::<pod::PodSpec>(),
        Kind::ReplicaSet => of::<replica_set::ReplicaSetSpec>(),
        Kind::HorizontalPodAutoscaler => of::<horizontal_pod_autoscaler::HorizontalPodAutoscalerSpec>(),
        Kind::Dns => of::<dns::DnsSpec>(),
        Kind::Workflow => of::<workflow::WorkflowSpec>(),
        Kind::Job => of::<job::JobSpec>(),
    }
}

fn compiled(name: &str, schema: &Schema) -> Shapes {
    Shapes::compile(name, schema).expect("a test compiles the schema of every kind")
}
