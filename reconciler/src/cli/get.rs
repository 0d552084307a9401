//! `minik8s get` and `minik8s history`: lists or single objects.

use std::collections::BTreeMap;
use std::time::Duration;

use schema::kinds::Kind;
use schema::meta::DEFAULT_NAMESPACE;
use serde::de::DeserializeOwned;

use super::client::Client;
use super::error::CliError;
use super::print::output::{
    Layout, Screen, TableItem, TableOptions, json, names, note, print_list, table, write_out, yaml,
};
use crate::args::{EventsArgs, Format, GetArgs, HistoryArgs, Resource, ResourceKind, Resources};
use crate::kinds;
use crate::view::{
    AutoscalerDetail, AutoscalerView, EndpointsView, EventView, FunctionDetail, FunctionView, JobDetail,
    JobView, KindPage, List, NodeDetail, NodeView, ObjectDetail, ObjectView, PodDetail, PodView, RequestView,
    RevisionView, RouteView, RunDetail, RunView, Selector, ServiceDetail, ServiceView, SourceView,
    TriggerView, WorkflowDetail, WorkflowView,
};

const WATCH_INTERVAL: Duration = Duration::from_millis(500);

pub(super) async fn run(args: &GetArgs) -> Result<(), CliError> {
    run_filtered(args, None).await
}

/// Runs `get`, with events limited to objects of `kind_of_events` if given.
pub(super) async fn run_filtered(
    args: &GetArgs,
    kind_of_events: Option<ResourceKind>,
) -> Result<(), CliError> {
    let client = Client::new(&args.server.server)?;
    let all = &args.resources.0;
    let several = all.len() > 1;
    if several && (args.watch || matches!(args.output.output, Format::Json | Format::Yaml)) {
        return Err(CliError::Usage(
            "several kinds have no common list; ask for one kind, or leave out -w and -o".to_owned(),
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
    );
    if args.selector.is_some() && !labelled {
        return Err(CliError::Usage(format!("{} have no labels; leave out -l", kind.plural())));
    }
    let about = kind_of_events.map(ResourceKind::singular);
    let what = GetRequest { client, kind, several, namespace, names, about, args };
    match kind {
        ResourceKind::Object(of) => what.print_kind(of).await,
        ResourceKind::Endpoints => what.list::<EndpointsView>(&["endpoints"]).await,
        ResourceKind::Run => what.runs().await,
        ResourceKind::Trigger => what.list::<TriggerView>(&["triggers"]).await,
        ResourceKind::All => what.list::<ObjectView>(&["objects", "all"]).await,
        ResourceKind::Source => what.list::<SourceView>(&["sources"]).await,
        ResourceKind::Revision => what.list::<RevisionView>(&["history"]).await,
        ResourceKind::Request => what.list::<RequestView>(&["requests"]).await,
        ResourceKind::Event => what.list::<EventView>(&["events"]).await,
    }
}

struct GetRequest<'a> {
    client: &'a Client,
    kind: ResourceKind,
    /// Set if other kinds are listed too.
    several: bool,
    namespace: Option<&'a str>,
    /// Names of the objects to show; every object if empty.
    names: Vec<&'a str>,
    /// Kind of the objects whose events are shown.
    about: Option<String>,
    args: &'a GetArgs,
}

/// A list, and the cursor of the next page if there is one.
#[derive(serde::Deserialize)]
struct FetchedPage<T> {
    items: Vec<T>,
    next: Option<i64>,
}

impl GetRequest<'_> {
    /// The name, if exactly one object is requested.
    fn single_name(&self) -> Option<&str> {
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
    async fn paged<D, R>(&self, plural: &str, row: impl Fn(&D) -> &R) -> Result<(), CliError>
    where
        D: DeserializeOwned + serde::Serialize,
        R: TableItem + DeserializeOwned,
    {
        match self.single_name().zip(self.namespace) {
            Some((name, namespace)) => self.one::<D, R>(&[plural, namespace, name], row).await,
            None => self.list::<R>(&[plural]).await,
        }
    }

    /// Prints objects of a kind, with the columns of that kind.
    async fn print_kind(&self, kind: Kind) -> Result<(), CliError> {
        match (kinds::descriptor(kind).page, self.single_name()) {
            (KindPage::Pod, _) => self.paged::<PodDetail, PodView>("pods", |detail| &detail.row).await,
            (KindPage::Service, _) => {
                self.paged::<ServiceDetail, ServiceView>("services", |detail| &detail.row).await
            }
            (KindPage::Autoscaler, _) => {
                self.paged::<AutoscalerDetail, AutoscalerView>("autoscalers", |detail| &detail.row).await
            }
            (KindPage::Function, _) => {
                self.paged::<FunctionDetail, FunctionView>("functions", |detail| &detail.row).await
            }
            (KindPage::Workflow, _) => {
                self.paged::<WorkflowDetail, WorkflowView>("workflows", |detail| &detail.row).await
            }
            (KindPage::Job, _) => self.paged::<JobDetail, JobView>("jobs", |detail| &detail.row).await,
            (KindPage::Node, Some(name)) => self.node(name).await,
            (KindPage::Node, None) => self.list::<NodeView>(&["nodes"]).await,
            (KindPage::Host, None) => self.list::<RouteView>(&["dns"]).await,
            (KindPage::Host | KindPage::Workload | KindPage::Object, Some(name)) => {
                let path = ["objects", kind.as_str(), self.namespace.unwrap_or(DEFAULT_NAMESPACE), name];
                self.one::<ObjectDetail, ObjectView>(&path, |detail| &detail.row).await
            }
            (KindPage::Workload | KindPage::Object, None) => {
                self.list::<ObjectView>(&["objects", kind.as_str()]).await
            }
        }
    }

    /// Prints runs, or one in full if its workflow and id are given.
    async fn runs(&self) -> Result<(), CliError> {
        match self.single_name().and_then(|name| name.split_once('/')) {
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

    async fn list<T: TableItem + DeserializeOwned>(&self, path: &[&str]) -> Result<(), CliError> {
        let kind = self.kind;
        let FetchedPage { items, next } = self.fetch::<T>(path).await?;
        if self.args.watch {
            return self.watch(path, items).await;
        }
        if next.is_some() {
            let plural = kind.plural();
            note(&format!(
                "there are older {plural}, which are not shown; 'minik8s get {plural} WORKFLOW' has those of one workflow"
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
            note(&format!("no {plural}{place}"));
        }
        print_list(&items, self.args.output.output, self.shape())
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

pub(super) async fn history(args: &HistoryArgs) -> Result<(), CliError> {
    let client = Client::new(&args.server.server)?;
    let query: Vec<(&str, &str)> = args.source.as_deref().map(|s| ("source", s)).into_iter().collect();
    let List { mut items } = client.get::<List<RevisionView>>(&["history"], &query).await?;
    items.truncate(args.limit.unwrap_or(usize::MAX));
    let format = args.output.output;
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
    Client::new(&args.server.server)?;
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
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn query(line: &[&str], about: Option<ResourceKind>) -> Vec<(&'static str, String)> {
        let Command::Get(args) = Cli::parse_from(["minik8s", "get"].iter().chain(line)).command else {
            panic!("get is typed")
        };
        let client = Client::new("localhost").unwrap();
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

#[cfg(test)]
mod events_tests {
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
