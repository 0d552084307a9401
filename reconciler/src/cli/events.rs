//! `minik8s events`: events, oldest first; with `-w` also new ones.

use super::client::Client;
use super::error::CliError;
use super::get;
use crate::args::{EventsArgs, GetArgs, Resource, ResourceKind, Resources};

pub(super) async fn run(args: &EventsArgs) -> Result<(), CliError> {
    // A wrong address is reported before anything else, as in every command.
    Client::new(&args.server.server)?;
    let (kind, name) = match args.object.as_deref() {
        Some(object) => object_of(object).map(|(kind, name)| (kind, Some(name)))?,
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
    get::about(&wanted, kind).await
}

fn object_of(text: &str) -> Result<(Option<ResourceKind>, String), CliError> {
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
        assert_eq!(object_of("web").unwrap(), (None, "web".to_owned()));
        assert_eq!(object_of("pod/web").unwrap(), (Some(ResourceKind::Object(Kind::Pod)), "web".to_owned()));
        assert_eq!(object_of("no/n1").unwrap(), (Some(ResourceKind::Object(Kind::Node)), "n1".to_owned()));
        for wrong in ["nonsense/web", "pod/"] {
            let error = object_of(wrong).unwrap_err();
            assert!(matches!(&error, CliError::Usage(line) if line.contains(wrong)), "{error}");
        }
    }
}
