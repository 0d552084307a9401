//! Fetches and prints lists for `minik8s get`.

use std::collections::BTreeMap;
use std::time::Duration;

use schema::kinds::Kind;
use schema::meta::DEFAULT_NAMESPACE;
use serde::de::DeserializeOwned;

use super::client::Client;
use super::error::CliError;
use super::output::{
    Detail, Layout, Screen, TableItem, TableOptions, json, names, note, print_list, table, write_out, yaml,
};
use crate::args::{Format, GetArgs, ResourceKind};
use crate::view::{
    List, NodeDetail, NodeView, ObjectDetail, ObjectView, RunDetail, RunView, Selector, SourceView,
};

const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Request of one `get`: kind, names and filters.
pub(super) struct GetRequest<'a> {
    pub(super) client: &'a Client,
    pub(super) kind: ResourceKind,
    /// Set if other kinds are listed too.
    pub(super) several: bool,
    pub(super) namespace: Option<&'a str>,
    /// Names of the objects to show; every object if empty.
    pub(super) names: Vec<&'a str>,
    /// Kind of the objects whose events are shown.
    pub(super) about: Option<String>,
    pub(super) args: &'a GetArgs,
}

/// A list, and the cursor of the next page if there is one.
#[derive(serde::Deserialize)]
struct FetchedPage<T> {
    items: Vec<T>,
    next: Option<i64>,
}

impl GetRequest<'_> {
    /// The name, if exactly one object is requested.
    fn only(&self) -> Option<&str> {
        match self.names.as_slice() {
            [only] if !self.args.watch && self.args.selector.is_none() => Some(only),
            _ => None,
        }
    }

    fn shape(&self) -> TableOptions {
        TableOptions {
            wide: self.args.output.output == Format::Wide,
            namespaces: self.kind.is_namespaced() && self.namespace.is_none(),
            kinds: self.kind == ResourceKind::All,
            ids: self.several,
            bare: self.args.no_headers,
        }
    }

    /// Workflow whose runs are requested, unless a run is named by `WORKFLOW/ID`.
    fn workflow(&self) -> Option<&str> {
        match self.names.as_slice() {
            [only] if self.kind == ResourceKind::Run && !only.contains('/') => self.namespace.map(|_| *only),
            _ => None,
        }
    }

    /// Filters applied by the server. Events are always filtered there, because the server returns only the newest.
    fn query(&self) -> Vec<(&'static str, &str)> {
        let kind = self.kind;
        let namespace = self.namespace.filter(|_| kind.is_namespaced());
        let name = match self.names.as_slice() {
            [only] if kind == ResourceKind::Event => Some(*only),
            _ => None,
        };
        let selector = self.args.selector.as_ref().map(Selector::as_str);
        let all = [
            ("namespace", namespace),
            ("workflow", self.workflow()),
            ("name", name),
            ("kind", self.about.as_deref()),
            ("selector", selector),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// Prints one object that has its own page: the page as JSON or YAML, its row as a table.
    async fn one<D, R>(&self, path: &[&str], row: impl Fn(&D) -> &R) -> Result<(), CliError>
    where
        D: DeserializeOwned + serde::Serialize,
        R: TableItem,
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

    /// Prints objects that have their own pages: the requested one, or a list.
    pub(super) async fn paged<D: Detail>(&self) -> Result<(), CliError> {
        match self.only().zip(self.namespace) {
            Some((name, namespace)) => self.one::<D, D::Row>(&[D::PLURAL, namespace, name], D::row).await,
            None => self.list::<D::Row>(&[D::PLURAL]).await,
        }
    }

    /// Prints objects without a page of their own: the requested one, or a list.
    pub(super) async fn objects(&self, kind: Kind) -> Result<(), CliError> {
        self.objects_or::<ObjectView>(kind, &["objects", kind.as_str()]).await
    }

    /// Like [`Self::objects`], with a list of its own at the path `list`.
    pub(super) async fn objects_or<R>(&self, kind: Kind, list: &[&str]) -> Result<(), CliError>
    where
        R: TableItem + DeserializeOwned,
    {
        let Some(name) = self.only() else { return self.list::<R>(list).await };
        let path = ["objects", kind.as_str(), self.namespace.unwrap_or(DEFAULT_NAMESPACE), name];
        self.one::<ObjectDetail, ObjectView>(&path, |detail| &detail.row).await
    }

    /// Prints nodes, or one of them.
    pub(super) async fn nodes(&self) -> Result<(), CliError> {
        match self.only() {
            Some(name) => self.node(name).await,
            None => self.list::<NodeView>(&["nodes"]).await,
        }
    }

    /// Prints runs, or one in full if its workflow and id are given.
    pub(super) async fn runs(&self) -> Result<(), CliError> {
        match self.only().and_then(|name| name.split_once('/')) {
            Some((workflow, id)) => {
                let path = ["runs", self.namespace.unwrap_or(DEFAULT_NAMESPACE), workflow, id];
                self.one::<RunDetail, RunView>(&path, |detail| &detail.row).await
            }
            None => self.list::<RunView>(&["runs"]).await,
        }
    }

    /// Prints a node, or its object from Git if its agent has not registered yet.
    async fn node(&self, name: &str) -> Result<(), CliError> {
        let registered = self.one::<NodeDetail, NodeView>(&["nodes", name], |detail| &detail.row).await;
        match registered {
            Err(error) if error.is_not_found() => {
                let path = ["objects", Kind::Node.as_str(), DEFAULT_NAMESPACE, name];
                let wanted = self.one::<ObjectDetail, ObjectView>(&path, |detail| &detail.row).await;
                wanted.map_err(|second| if second.is_not_found() { error } else { second })
            }
            other => other,
        }
    }

    async fn fetch<T: TableItem + DeserializeOwned>(
        &self,
        path: &[&str],
    ) -> Result<FetchedPage<T>, CliError> {
        let mut query = self.query();
        let mut fetched = self.client.get::<FetchedPage<T>>(path, &query).await?;
        if fetched.items.is_empty() && self.workflow().is_some() {
            // The name may be the id of a run.
            query.retain(|(key, _)| *key != "workflow");
            fetched = self.client.get::<FetchedPage<T>>(path, &query).await?;
        }
        if !self.names.is_empty() {
            fetched.items.retain(|item| self.names.iter().any(|name| item.is_named(name)));
        }
        Ok(fetched)
    }

    pub(super) async fn list<T: TableItem + DeserializeOwned>(&self, path: &[&str]) -> Result<(), CliError> {
        let kind = self.kind;
        let FetchedPage { items, next } = self.fetch::<T>(path).await?;
        if self.args.watch {
            return self.watch(path, items).await;
        }
        if next.is_some() {
            let plural = kind.plural();
            note(&format!(
                "older {plural} are not shown; 'minik8s get {plural} WORKFLOW' lists those of one workflow"
            ));
        }
        let missing: Vec<&str> =
            self.names.iter().copied().filter(|name| !items.iter().any(|item| item.is_named(name))).collect();
        if !missing.is_empty() {
            // Existing objects are still shown, as kubectl does.
            if !items.is_empty() {
                print_list(&items, self.args.output.output, self.shape())?;
            }
            let (word, plural) = (kind.singular(), kind.plural());
            let missing = missing.join(", ");
            return Err(CliError::NotFound(format!(
                "there is no {word} {missing}; see 'minik8s get {plural}'"
            )));
        }
        match (self.names.as_slice(), items.as_slice()) {
            ([_], [only]) if self.args.output.output == Format::Json => return write_out(&json(only)?),
            ([_], [only]) if self.args.output.output == Format::Yaml => return write_out(&yaml(only)?),
            _ => {}
        }
        if items.is_empty() && matches!(self.args.output.output, Format::Table | Format::Wide) {
            let plural = if kind == ResourceKind::All { "objects".to_owned() } else { kind.plural() };
            let place = match self.namespace {
                Some(namespace) if kind.is_namespaced() && kind != ResourceKind::Event => {
                    format!(" in namespace {namespace}; -A shows all namespaces")
                }
                _ => String::new(),
            };
            let early = match kind.is_namespaced() && self.is_early().await {
                true => "; no commit is applied yet",
                false => "",
            };
            note(&format!("no {plural}{place}{early}"));
        }
        print_list(&items, self.args.output.output, self.shape())
    }

    /// True before the first commit is applied: an empty list then means nothing.
    async fn is_early(&self) -> bool {
        let sources = self.client.get::<List<SourceView>>(&["sources"], &[]).await;
        sources.is_ok_and(|list| list.items.iter().all(|source| source.status.applied_commit.is_none()))
    }

    /// Prints the rows that changed, for as long as the server answers.
    async fn watch<T: TableItem + DeserializeOwned>(
        &self,
        path: &[&str],
        mut items: Vec<T>,
    ) -> Result<(), CliError> {
        let mut seen = BTreeMap::new();
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
            items = self.fetch::<T>(path).await?.items;
        }
    }
}

/// Items that are new, or differ from the last poll in more than their age.
fn only_changed<'a, T: TableItem>(
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
            for field in ["id", "source", "sequence", "kind", "namespace", "name", "node", "time", "reason"] {
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn query(line: &[&str], about: Option<ResourceKind>) -> Vec<(&'static str, String)> {
        let Command::Get(args) = Cli::parse_from(["minik8s", "get"].iter().chain(line)).command else {
            panic!("get is typed")
        };
        let client = Client::new(Some("localhost")).unwrap();
        let namespace = args.namespace.selected();
        let names = args.names.iter().map(String::as_str).collect();
        let (kind, about) = (args.resources.0[0].kind, about.map(ResourceKind::singular));
        let what = GetRequest { client: &client, kind, several: false, namespace, names, about, args: &args };
        what.query().into_iter().map(|(key, value)| (key, value.to_owned())).collect()
    }

    #[test]
    fn events_are_chosen_by_the_server_because_it_gives_only_the_newest() {
        let all = |rows: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
            rows.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
        };
        assert_eq!(query(&["events", "-A"], None), all(&[]));
        assert_eq!(
            query(&["events", "web", "-n", "shop"], Some(ResourceKind::Object(Kind::Pod))),
            all(&[("namespace", "shop"), ("name", "web"), ("kind", "pod")])
        );
        assert_eq!(query(&["pods", "web"], None), all(&[("namespace", "default")]));
        assert_eq!(query(&["nodes", "n1"], None), all(&[]));
    }
}
