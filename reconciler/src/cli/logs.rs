//! `minik8s logs`: bytes of a container's output, as they come.

use futures::StreamExt;

use super::client::Client;
use super::error::CliError;
use super::output::{note, write_bytes};
use crate::args::{LogsArgs, Resource, ResourceKind};
use crate::view::root_cause;

pub(super) async fn run(args: &LogsArgs) -> Result<(), CliError> {
    let client = Client::new(&args.server.server)?;
    let pod = pod_name(&args.pod)?;
    let since = args.since.map(|since| since.to_string());
    let tail = args.tail.map(|n| n.to_string());
    let mut query = Vec::new();
    if let Some(container) = &args.container {
        query.push(("container", container.as_str()));
    }
    if let Some(tail) = &tail {
        query.push(("tail", tail));
    }
    if args.follow {
        query.push(("follow", "true"));
    }
    if args.previous {
        query.push(("previous", "true"));
    }
    if let Some(since) = &since {
        query.push(("since", since));
    }
    if args.timestamps {
        query.push(("timestamps", "true"));
    }
    let answer = client.stream(&["logs", &args.namespace, &pod], &query).await?;
    let mut chunks = answer.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk =
            chunk.map_err(|e| client.unreachable(format!("the log broke off: {}", root_cause(&e))))?;
        write_bytes(&chunk)?;
    }
    if args.follow {
        // As kubectl: what follows is the log of another start.
        note("minik8s: the container has ended, and its log with it; once it is started again, ask again");
    }
    Ok(())
}

fn pod_name(text: &str) -> Result<String, CliError> {
    if !text.contains('/') {
        return Ok(text.to_owned());
    }
    match text.parse::<Resource>() {
        Ok(Resource { kind: ResourceKind::Pod, name: Some(name) }) => Ok(name),
        Ok(_) => Err(CliError::Usage(format!("{text}: only pods have logs; write pod/NAME"))),
        Err(why) => Err(CliError::Usage(format!("{text}: {why}"))),
    }
}
