//! `minik8s get` and `minik8s history`: lists or single objects.

use super::client::Client;
use super::describe::one_revision;
use super::error::CliError;
use super::kinds;
use super::listing::GetRequest;
use super::output::{TableOptions, note, print_list, write_out};
use super::timeline;
use crate::args::{EventsArgs, Format, GetArgs, HistoryArgs, Resource, ResourceKind, Resources};
use crate::view::{
    EndpointsView, EventView, List, NotificationView, ObjectView, RequestView, RevisionView, SourceView,
    TriggerView,
};

pub(super) async fn run(args: &GetArgs) -> Result<(), CliError> {
    run_filtered(args, None).await
}

/// Runs `get`, with events limited to objects of `kind_of_events` if given.
pub(super) async fn run_filtered(
    args: &GetArgs,
    kind_of_events: Option<ResourceKind>,
) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    let all = &args.resources.0;
    let several = all.len() > 1;
    if several && (args.watch || matches!(args.output.output, Format::Json | Format::Yaml)) {
        return Err(CliError::Usage(
            "-w, -o json and -o yaml take a single kind; ask for one kind, or leave them out".to_owned(),
        ));
    }
    for (number, resource) in all.iter().enumerate() {
        if number > 0 && matches!(args.output.output, Format::Table | Format::Wide) {
            write_out("\n")?;
        }
        one_kind(&client, args, (resource, several), kind_of_events).await?;
    }
    Ok(())
}

async fn one_kind(
    client: &Client,
    args: &GetArgs,
    (resource, several): (&Resource, bool),
    kind_of_events: Option<ResourceKind>,
) -> Result<(), CliError> {
    let kind = resource.kind;
    let names: Vec<&str> = resource.name.iter().chain(&args.names).map(String::as_str).collect();
    if let (Some(_), Some(second)) = (&resource.name, args.names.first()) {
        return Err(CliError::Usage(format!("two names are given; leave out {second}")));
    }
    let namespace = args.namespace.selected();
    if !names.is_empty() && namespace.is_none() && kind.is_namespaced() && kind != ResourceKind::Event {
        return Err(CliError::Usage("a name needs one namespace; leave out -A".to_owned()));
    }
    let labelled = !matches!(
        kind,
        ResourceKind::Source
            | ResourceKind::Revision
            | ResourceKind::Event
            | ResourceKind::Run
            | ResourceKind::Trigger
            | ResourceKind::Notification
    );
    if args.selector.is_some() && !labelled {
        return Err(CliError::Usage(format!("{} have no labels; leave out -l", kind.plural())));
    }
    let about = kind_of_events.map(ResourceKind::singular);
    let what = GetRequest { client, kind, several, namespace, names, about, args };
    match kind {
        ResourceKind::Object(of) => (kinds::of(of).get)(&what, of).await,
        ResourceKind::Endpoints => what.list::<EndpointsView>(&["endpoints"]).await,
        ResourceKind::Run => what.runs().await,
        ResourceKind::Trigger => what.list::<TriggerView>(&["triggers"]).await,
        ResourceKind::All => what.list::<ObjectView>(&["objects", "all"]).await,
        ResourceKind::Source => what.list::<SourceView>(&["sources"]).await,
        ResourceKind::Revision => what.list::<RevisionView>(&["history"]).await,
        ResourceKind::Notification => what.list::<NotificationView>(&["notifications"]).await,
        ResourceKind::Request => what.list::<RequestView>(&["requests"]).await,
        ResourceKind::Event => what.list::<EventView>(&["events"]).await,
    }
}

pub(super) async fn history(args: &HistoryArgs) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    let query: Vec<(&str, &str)> = args.source.as_deref().map(|s| ("source", s)).into_iter().collect();
    let List { mut items } = client.get::<List<RevisionView>>(&["history"], &query).await?;
    let format = args.output.output;
    if args.timeline {
        return timeline::print(&items, args.commit.as_deref().unwrap_or("HEAD"), format);
    }
    if let Some(name) = &args.commit {
        if name != "HEAD" {
            items = vec![one_revision(&items, name)?.clone()];
        }
        items.truncate(1);
    }
    items.truncate(args.limit.unwrap_or(usize::MAX));
    if items.is_empty() && matches!(format, Format::Table | Format::Wide) {
        note("no commit is applied yet");
    }
    print_list(
        &items,
        format,
        TableOptions { wide: format == Format::Wide, namespaces: false, ..TableOptions::default() },
    )
}

// `minik8s events`: events, oldest first; with `-w` also new ones.

pub(super) async fn events(args: &EventsArgs) -> Result<(), CliError> {
    // A wrong address is reported before anything else, as in every command.
    Client::new(args.server.given())?;
    let (kind, name) = match args.object.as_deref() {
        Some(object) => parse_object(object).map(|(kind, name)| (kind, Some(name)))?,
        None => (None, None),
    };
    let wanted = GetArgs {
        resources: Resources(vec![Resource { kind: ResourceKind::Event, name: None }]),
        names: name.into_iter().collect(),
        selector: None,
        no_headers: false,
        watch: args.watch,
        namespace: args.namespace.clone(),
        output: args.output,
        server: args.server.clone(),
    };
    run_filtered(&wanted, kind).await
}

fn parse_object(text: &str) -> Result<(Option<ResourceKind>, String), CliError> {
    if !text.contains('/') {
        return Ok((None, text.to_owned()));
    }
    match text.parse::<Resource>() {
        Ok(Resource { kind, name: Some(name) }) => Ok((Some(kind), name)),
        Ok(_) => Err(CliError::Usage(format!("--for {text}: a name is missing; write KIND/NAME"))),
        Err(why) => Err(CliError::Usage(format!("--for {text}: {why}"))),
    }
}

#[cfg(test)]
mod tests {
    use schema::kinds::Kind;

    use super::*;

    #[test]
    fn the_kind_of_an_object_counts() {
        assert_eq!(parse_object("web").unwrap(), (None, "web".to_owned()));
        assert_eq!(
            parse_object("pod/web").unwrap(),
            (Some(ResourceKind::Object(Kind::Pod)), "web".to_owned())
        );
        assert_eq!(parse_object("no/n1").unwrap(), (Some(ResourceKind::Object(Kind::Node)), "n1".to_owned()));
        for wrong in ["nonsense/web", "pod/"] {
            let error = parse_object(wrong).unwrap_err();
            assert!(matches!(&error, CliError::Usage(line) if line.contains(wrong)), "{error}");
        }
    }
}
