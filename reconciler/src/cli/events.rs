//! `minik8s events`: what happened, oldest first; with `-w` also what happens next.

use super::client::Client;
use super::error::CliError;
use super::get;
use crate::args::{EventsArgs, GetArgs, Resource, ResourceKind};

pub(super) async fn run(args: &EventsArgs) -> Result<(), CliError> {
    // Wrong addresses are told before anything else, as everywhere.
    Client::new(&args.server.server)?;
    let name = args.object.as_deref().map(|object| object.rsplit('/').next().unwrap_or(object).to_owned());
    get::run(&GetArgs {
        resource: Resource { kind: ResourceKind::Event, name: None },
        name,
        watch: args.watch,
        namespace: args.namespace.clone(),
        output: args.output,
        server: args.server.clone(),
    })
    .await
}
