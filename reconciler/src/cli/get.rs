//! `minik8s get` and `minik8s history`: lists, or one of them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::client::Client;
use super::error::CliError;
use super::output::{Layout, Listed, Screen, Shape, json, names, note, print_list, table, write_out, yaml};
use crate::args::{Format, GetArgs, HistoryArgs, ResourceKind};
use crate::view::{EventView, List, NodeDetail, NodeView, PodDetail, PodView, RevisionView, SourceView};

/// Between two looks of `-w`.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

pub(super) async fn run(args: &GetArgs) -> Result<(), CliError> {
    about(args, None).await
}

/// As [`run`]; of events only those of objects of `kind`, if one is given.
pub(super) async fn about(args: &GetArgs, kind: Option<ResourceKind>) -> Result<(), CliError> {
    let client = Client::new(&args.server.server)?;
    let name = match (&args.resource.name, &args.name) {
        (Some(_), Some(second)) => {
            return Err(CliError::Usage(format!("two names are given; leave out {second}")));
        }
        (first, second) => first.as_deref().or(second.as_deref()),
    };
    let namespace = args.namespace.selected();
    let what = What { client: &client, namespace, name, about: kind, args };
    match args.resource.kind {
        ResourceKind::Pod => match (name, namespace) {
            (Some(_), None) => Err(CliError::Usage("a name needs one namespace; leave out -A".to_owned())),
            (Some(name), Some(namespace)) if !args.watch => {
                what.one::<PodDetail, PodView>(&["pods", namespace, name], |detail| &detail.row).await
            }
            _ => what.list::<PodView>(&["pods"], |pod, name| pod.name == name).await,
        },
        ResourceKind::Node => match name {
            Some(name) if !args.watch => {
                what.one::<NodeDetail, NodeView>(&["nodes", name], |detail| &detail.row).await
            }
            _ => what.list::<NodeView>(&["nodes"], |node, name| node.name == name).await,
        },
        ResourceKind::Source => {
            what.list::<SourceView>(&["sources"], |source, name| source.status.name == name).await
        }
        ResourceKind::Revision => what.list::<RevisionView>(&["history"], names_revision).await,
        ResourceKind::Event => {
            what.list::<EventView>(&["events"], |event, name| event.event.name == name).await
        }
    }
}

/// By its number or by the first digits of its commit.
fn names_revision(revision: &RevisionView, name: &str) -> bool {
    revision.revision.sequence.to_string() == name
        || name.len() >= 4 && revision.revision.commit.starts_with(name)
}

struct What<'a> {
    client: &'a Client,
    namespace: Option<&'a str>,
    name: Option<&'a str>,
    /// Events: of objects of this kind.
    about: Option<ResourceKind>,
    args: &'a GetArgs,
}

impl What<'_> {
    fn shape(&self) -> Shape {
        let namespaced = matches!(self.args.resource.kind, ResourceKind::Pod | ResourceKind::Event);
        Shape {
            wide: self.args.output.output == Format::Wide,
            namespaces: namespaced && self.namespace.is_none(),
        }
    }

    /// What the server is to choose by: always for events, of which it gives only the newest.
    fn query(&self) -> Vec<(&'static str, &str)> {
        let kind = self.args.resource.kind;
        let namespace = self.namespace.filter(|_| matches!(kind, ResourceKind::Pod | ResourceKind::Event));
        let name = self.name.filter(|_| kind == ResourceKind::Event);
        let about = self.about.map(ResourceKind::singular);
        let all = [("namespace", namespace), ("name", name), ("kind", about)];
        all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// One object that has a page of its own: the page as JSON or YAML, its row as a table.
    async fn one<D, R>(&self, path: &[&str], row: impl Fn(&D) -> &R) -> Result<(), CliError>
    where
        D: DeserializeOwned + serde::Serialize,
        R: Listed,
    {
        let detail: D = self.client.get(path, &[]).await?;
        match self.args.output.output {
            Format::Json => write_out(&json(&detail)?),
            Format::Yaml => write_out(&yaml(&detail)?),
            Format::Name => write_out(&names(&[row(&detail)])),
            Format::Table | Format::Wide => {
                write_out(&table(&[row(&detail)], self.shape(), Screen::stdout(), &mut Layout::default()))
            }
        }
    }

    async fn fetch<T>(&self, path: &[&str], named: impl Fn(&T, &str) -> bool) -> Result<Vec<T>, CliError>
    where
        T: DeserializeOwned,
    {
        let List { mut items } = self.client.get::<List<T>>(path, &self.query()).await?;
        if let Some(name) = self.name {
            items.retain(|item| named(item, name));
        }
        Ok(items)
    }

    async fn list<T>(&self, path: &[&str], named: impl Fn(&T, &str) -> bool) -> Result<(), CliError>
    where
        T: Listed + DeserializeOwned,
    {
        let kind = self.args.resource.kind.singular();
        let items = self.fetch::<T>(path, &named).await?;
        if self.args.watch {
            return self.watch(path, named, items).await;
        }
        match (self.name, items.as_slice()) {
            (Some(name), []) => {
                return Err(CliError::NotFound(format!(
                    "there is no {kind} {name}; see 'minik8s get {kind}s'"
                )));
            }
            (Some(_), [only]) if self.args.output.output == Format::Json => return write_out(&json(only)?),
            (Some(_), [only]) if self.args.output.output == Format::Yaml => return write_out(&yaml(only)?),
            _ => {}
        }
        if items.is_empty() && matches!(self.args.output.output, Format::Table | Format::Wide) {
            let place = match self.namespace {
                Some(namespace) if matches!(self.args.resource.kind, ResourceKind::Pod) => {
                    format!(" in namespace {namespace}; -A shows all namespaces")
                }
                _ => String::new(),
            };
            note(&format!("no {kind}s{place}"));
        }
        print_list(&items, self.args.output.output, self.shape())
    }

    /// Prints the rows that changed, for as long as the server answers.
    async fn watch<T>(
        &self,
        path: &[&str],
        named: impl Fn(&T, &str) -> bool,
        first: Vec<T>,
    ) -> Result<(), CliError>
    where
        T: Listed + DeserializeOwned,
    {
        let (mut seen, mut items) = (BTreeMap::new(), first);
        let (mut layout, screen) = (Layout::default(), Screen::stdout());
        loop {
            let changed = only_changed(&items, &mut seen)?;
            match self.args.output.output {
                Format::Json => changed.iter().try_for_each(|item| write_out(&json(item)?))?,
                Format::Yaml => {
                    changed.iter().try_for_each(|item| write_out(&format!("---\n{}", yaml(item)?)))?;
                }
                Format::Name => write_out(&names(&changed))?,
                Format::Table | Format::Wide => {
                    write_out(&table(&changed, self.shape(), screen, &mut layout))?;
                }
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
            items = self.fetch::<T>(path, &named).await?;
        }
    }
}

/// The items that are new or differ from the last look in more than their age.
fn only_changed<'a, T: Listed>(
    items: &'a [T],
    seen: &mut BTreeMap<String, serde_json::Value>,
) -> Result<Vec<&'a T>, CliError> {
    let mut now = BTreeMap::new();
    let mut changed = Vec::new();
    for (position, item) in items.iter().enumerate() {
        let mut value = serde_json::to_value(item).map_err(|e| CliError::Write(e.into()))?;
        let mut key = String::new();
        if let Some(fields) = value.as_object_mut() {
            fields.remove("age");
            // One name may have two rows: a pod that moves, events of one object.
            for field in ["source", "sequence", "namespace", "name", "node", "time", "reason"] {
                key.push_str(&fields.get(field).map(ToString::to_string).unwrap_or_default());
            }
        }
        if key.is_empty() {
            key = position.to_string();
        }
        if seen.get(&key) != Some(&value) {
            changed.push(item);
        }
        now.insert(key, value);
    }
    *seen = now;
    Ok(changed)
}

pub(super) async fn history(args: &HistoryArgs) -> Result<(), CliError> {
    let client = Client::new(&args.server.server)?;
    let query: Vec<(&str, &str)> = args.source.as_deref().map(|s| ("source", s)).into_iter().collect();
    let List { mut items } = client.get::<List<RevisionView>>(&["history"], &query).await?;
    items.truncate(args.limit.unwrap_or(usize::MAX));
    let format = args.output.output;
    if items.is_empty() && matches!(format, Format::Table | Format::Wide) {
        note("no commit is applied yet");
    }
    print_list(&items, format, Shape { wide: format == Format::Wide, namespaces: false })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn query(line: &[&str], about: Option<ResourceKind>) -> Vec<(&'static str, String)> {
        let Command::Get(args) = Cli::parse_from(["minik8s", "get"].iter().chain(line)).command else {
            panic!("get is typed")
        };
        let client = Client::new("localhost").unwrap();
        let (namespace, name) = (args.namespace.selected(), args.name.as_deref());
        let what = What { client: &client, namespace, name, about, args: &args };
        what.query().into_iter().map(|(key, value)| (key, value.to_owned())).collect()
    }

    #[test]
    fn events_are_chosen_by_the_server_because_it_gives_only_the_newest() {
        let all = |rows: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
            rows.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
        };
        assert_eq!(query(&["events", "-A"], None), all(&[]));
        assert_eq!(
            query(&["events", "web", "-n", "shop"], Some(ResourceKind::Pod)),
            all(&[("namespace", "shop"), ("name", "web"), ("kind", "pod")])
        );
        assert_eq!(query(&["pods", "web"], None), all(&[("namespace", "default")]));
        assert_eq!(query(&["nodes", "n1"], None), all(&[]));
    }
}
