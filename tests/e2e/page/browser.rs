//! The page in Chromium: how it looks at several sizes, what it asks for, what it complains about, what it shows after
//! a push, a crash and a rollout without a reload, and that text of others stays text.
//!
//! A check opens it on one node with a few objects. `just soak page` opens it on three nodes with all kinds, in all
//! sizes, with 200 hostile names and lines; with `MINIK8S_UPDATE` it writes the pictures of docs/ui.md.

use std::fs;
use std::path::Path;

use harness::manifests::web;
use harness::{
    Browser, Change, Cluster, ClusterOptions, ContainerView, Context, Daemon, DockerWorld, IMAGE, Look,
    Result, Slurm, Where, axe, encrypted_to, ensure, eventually, http_get, minik8s_binary, recipient_of,
    rounds, secs,
};
use serde_json::Value;

/// Rounds of a soak.
const FULL: usize = 100;
const DESK: Look = Look { width: 1280, height: 800, dark: false };
const PHONE: Look = Look { width: 360, height: 740, dark: true };
/// Sizes and colours of a soak.
const LOOKS: [Look; 4] = [
    Look { width: 360, height: 740, dark: false },
    PHONE,
    Look { width: 3840, height: 2160, dark: false },
    Look { width: 3840, height: 2160, dark: true },
];
/// Texts that would do something if they did not stay text.
const HOSTILE: [&str; 8] = [
    "<script>window.owned=1</script>",
    "<img src=x onerror=window.owned=1>",
    "\"><svg onload=window.owned=1>",
    "'-window.owned=1-'",
    "javascript:window.owned=1",
    "{{window.owned=1}}",
    "\u{202e}desrever\u{202c}",
    "&lt;b&gt; <!-- ",
];

/// A cluster with a browser that looks at it, through `minik8s ui`.
struct Visit<'c> {
    cluster: &'c Cluster,
    /// Address of the proxy.
    address: String,
    _ui: Daemon,
    browser: Browser,
    axe: Option<String>,
}

#[test]
fn the_page_in_a_browser_follows_the_cluster_and_keeps_to_itself() -> Result<()> {
    if !Browser::is_installed() {
        println!("the page is not opened: chromedriver is not installed");
        return Ok(());
    }
    let is_full = rounds(1, FULL) == FULL;
    let place = if is_full { Where::Namespaces(3) } else { Where::Host };
    let options = ClusterOptions { place, python: is_full, ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        cluster.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open the shop")?;
        cluster.running("shop", &["web"])?;
        let browser = Browser::start(&cluster.dir("browser"), cluster.slot().port(13))?;
        let axe = axe()?;
        if axe.is_none() {
            println!("accessibility is not judged: npm, which fetches axe-core, is not installed");
        }
        let (ui, url) = ui(cluster)?;
        let address = url.split('/').nth(2).context("a URL without an address")?.to_owned();
        let (code, _) = http_get(&address, "/")?;
        ensure!(code == 403, "without the key: {code}");
        // From here on the browser has a cookie.
        browser.open(&url)?;
        let visit = Visit { cluster, address, _ui: ui, browser, axe };
        visit.follows_a_push_a_crash_and_a_log()?;
        visit.judge_all(&[PHONE, DESK])?;
        visit.says_all_without_script()?;
        if is_full {
            let slurm = Slurm::start(&cluster.dir(""), cluster.slot().port(14))?;
            // The nodes reach the machine at its address on their network.
            let host = cluster.slot().underlay(1);
            let mut login = slurm.sshd_at(&host);
            login.start()?;
            visit.all_kinds(&slurm, &host)?;
            visit.pictures()?;
            visit.stays_text()?;
            visit.judge_all(&LOOKS)?;
            visit.many_tabs()?;
        }
        Ok(())
    })
}

/// Starts `minik8s ui`; returns the URL that it prints.
fn ui(cluster: &Cluster) -> Result<(Daemon, String)> {
    let listen = format!("127.0.0.1:{}", cluster.slot().port(10));
    let command = [&*minik8s_binary().to_string_lossy(), "ui", "--listen", &listen].map(str::to_owned);
    let mut ui =
        Daemon::new("ui", &cluster.dir(""), command.into()).env("MINIK8S_SERVER", &cluster.server(0));
    ui.start()?;
    let url = eventually("it prints its URL", secs(20), || {
        let said = ui.log_tail();
        let url = said.split_whitespace().find(|word| word.starts_with(&format!("http://{listen}")));
        url.map(str::to_owned).with_context(|| said.clone())
    })?;
    Ok((ui, url))
}

impl Visit<'_> {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Opens a page, and marks its document, so that a reload would be noticed.
    fn open(&self, path: &str) -> Result<()> {
        self.browser.open(&self.url(path))?;
        self.browser.run("window.mark = 1").map(drop)
    }

    /// Waits until the stream of the page is open.
    fn is_live(&self) -> Result<()> {
        eventually("the page is live", secs(30), || {
            let word = self.browser.run("return document.getElementById('live').textContent")?;
            ensure!(word == "live", "it is {word}");
            Ok(())
        })
    }

    fn is_same_document(&self) -> Result<()> {
        ensure!(self.browser.run("return window.mark")? == 1, "the page was loaded again");
        Ok(())
    }

    fn follows_a_push_a_crash_and_a_log(&self) -> Result<()> {
        self.browser.look(DESK)?;
        self.open("/")?;
        self.browser.shows("Every object is healthy")?;
        self.is_live()?;
        self.cluster.push(&[Change::write("second.yaml", web("second").to_string())], "Open another")?;
        self.browser.shows("Open another")?;
        self.is_same_document()?;
        let pod = self.cluster.running("second", &["web"])?;
        self.open("/object/Pod/default/second")?;
        let docker = self.docker_of(pod.container("web")?)?;
        docker.run(&["kill", &pod.container("web")?.id])?;
        self.browser.shows("1 restart")?;
        self.is_same_document()?;
        self.open("/logs/default/second?container=web")?;
        let web = self.cluster.running("second", &["web"])?;
        let say = |web: &ContainerView, line: &str| {
            docker.exec(web, &["sh", "-c", &format!("echo '{line}' > /proc/1/fd/1")])?;
            self.browser.shows(line)
        };
        for line in ["one line", HOSTILE[0]] {
            say(web.container("web")?, line)?;
        }
        // The log goes on with the container's next run.
        docker.run(&["kill", &web.container("web")?.id])?;
        let again = self.cluster.running("second", &["web"])?;
        say(again.container("web")?, "in the next run")?;
        self.is_same_document()?;
        self.nothing_ran()
    }

    /// Docker that has a container.
    fn docker_of(&self, container: &ContainerView) -> Result<&DockerWorld> {
        let instance = self.cluster.slot().instance();
        let mut all = self.cluster.nodes.iter().map(|node| &node.docker);
        let has_it = |docker: &&DockerWorld| {
            docker.containers(&instance).is_ok_and(|all| all.iter().any(|one| one.id == container.id))
        };
        all.find(has_it).context("no node has the container")
    }

    fn nothing_ran(&self) -> Result<()> {
        ensure!(self.browser.run("return window.owned === undefined")? == true, "text of others was run");
        Ok(())
    }

    /// Addresses of pages, one of each kind of object that there is.
    fn pages(&self) -> Result<Vec<String>> {
        let list: Value = serde_json::from_str(&self.cluster.cli(&["tree", "-o", "json"])?.ok()?)?;
        let mut pages: Vec<String> =
            ["/", "/tree", "/tree?health=unhealthy", "/network", "/history", "/history/main/2", "/nowhere"]
                .map(str::to_owned)
                .to_vec();
        pages.push(format!("/nodes/{}", self.cluster.nodes[0].name));
        pages.push("/logs/default/shop?container=web".to_owned());
        let mut kinds = Vec::new();
        let objects = list["items"].as_array().into_iter().flatten();
        for object in objects.flat_map(|source| source["children"].as_array().into_iter().flatten()) {
            let id = object["id"].as_str().unwrap_or_default();
            let parts: Vec<&str> = id.split('/').collect();
            let address = match parts.as_slice() {
                [kind, name] => format!("/object/{kind}/default/{name}"),
                [_, _, _] => format!("/object/{id}"),
                _ => continue,
            };
            if !kinds.contains(&parts[0].to_owned()) {
                kinds.push(parts[0].to_owned());
                pages.push(address);
            }
        }
        if kinds.iter().any(|kind| kind == "Workflow") {
            pages.push(self.run_page()?);
        }
        Ok(pages)
    }

    /// Opens every page in each size: nothing runs out of it, nothing is asked of others, nothing is complained about.
    fn judge_all(&self, looks: &[Look]) -> Result<()> {
        let pages = self.pages()?;
        println!("pages: {pages:?}");
        self.browser.complaints()?;
        self.browser.requested()?;
        let mut faults = Vec::new();
        for look in looks {
            self.browser.look(*look)?;
            for path in &pages {
                self.open(path)?;
                let at = format!("{path} at {look:?}");
                if path != "/nowhere" {
                    self.is_live()?;
                }
                let overflow = self.browser.overflow()?;
                if overflow > 0 {
                    faults.push(format!("{at} is {overflow} px too wide"));
                }
                let complaints = self.browser.complaints()?;
                // The browser itself reports the answer 404.
                let complaints = complaints.iter().filter(|line| path != "/nowhere" || !line.contains("404"));
                faults.extend(complaints.map(|line| format!("{at}: {line}")));
                if let Some(axe) = &self.axe {
                    faults.extend(self.browser.violations(axe)?.iter().map(|line| format!("{at}: {line}")));
                }
            }
        }
        let own = self.url("/");
        let foreign = self.browser.requested()?.into_iter().filter(|url| !url.starts_with(&own));
        faults.extend(foreign.map(|url| format!("{url} was asked for")));
        ensure!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
        Ok(())
    }

    fn says_all_without_script(&self) -> Result<()> {
        self.browser.scripts(false)?;
        let facts = [
            ("/", vec!["Open another", "Every object is healthy", "pods"]),
            ("/tree", vec!["Pod/default/shop", "shop.yaml"]),
            ("/object/Pod/default/shop", vec!["Healthy", "shop.yaml:1", "container/web"]),
            ("/history", vec!["Open the shop", "Good"]),
            ("/logs/default/second?container=web", vec!["in the next run"]),
        ];
        for (path, wanted) in facts {
            eventually(&format!("{path} says all without script"), secs(60), || {
                self.browser.open(&self.url(path))?;
                let spoken = self.browser.spoken()?;
                let missing: Vec<_> = wanted.iter().filter(|text| !spoken.contains(**text)).collect();
                ensure!(missing.is_empty(), "{missing:?} are missing: {spoken}");
                Ok(())
            })?;
        }
        self.browser.scripts(true)
    }

    /// Pushes the sample repository, with a login for its job and a rollout that is seen step by step.
    fn all_kinds(&self, slurm: &Slurm, host: &str) -> Result<()> {
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sample-repo");
        let mut changes = Vec::new();
        files_below(&sample, &sample, &mut changes)?;
        let key: String = slurm.key()?.lines().map(|line| format!("  {line}\n")).collect();
        let nodes = [1, 2, 3].map(|node| recipient_of(self.cluster, node));
        let nodes = nodes.into_iter().collect::<Result<Vec<_>>>()?;
        let secret = encrypted_to(&nodes, &format!("namespace: \"*\"\nname: slurm\n---\nid: |\n{key}"))?;
        let login = slurm.login(slurm.ssh_port())?.replace("127.0.0.1", host);
        let work = slurm.jobs();
        let cluster = format!(
            "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {{name: cluster}}\nspec:\n  slurm:\n    login: {{{login}, \
             sshKey: {{name: slurm, key: id}}}}\n"
        );
        let job = format!(
            "apiVersion: minik8s.io/v1\nkind: Job\nmetadata: {{name: count}}\nspec:\n  workDir: {}\n  runCommands: \
             [\"seq 3 > count.txt; echo counted\"]\n  outputs: [count.txt]\n",
            work.display()
        );
        changes.push(Change::write("secrets/slurm.age", secret));
        changes.push(Change::write("cluster.yaml", cluster));
        changes.push(Change::write("extra/count.yaml", job));
        self.cluster.push(&changes, "The samples")?;
        self.browser.look(DESK)?;
        self.open("/object/ReplicaSet/default/web")?;
        self.browser.shows("Pod/default/web-")?;
        self.browser.shows("2 wanted, 2 in total, 2 of the new template, 2 ready, 2 available")?;
        let before = fs::read_to_string(sample.join("apps/web.yaml"))?.replace(SAMPLE_IMAGE, IMAGE);
        let after = before.replace("hostname > /tmp", "uname -n > /tmp");
        ensure!(before != after, "nothing to change: {before}");
        let commit = self.cluster.push(&[Change::write("apps/web.yaml", after)], "Say it otherwise")?;
        self.browser.shows(&format!("by commit {}", &commit[..12]))?;
        self.browser.shows("2 wanted, 2 in total, 2 of the new template, 2 ready, 2 available")?;
        self.browser.shows(&format!("Changed by commit {}", &commit[..7]))?;
        self.is_same_document()?;
        self.open("/logs/default/clock?container=*")?;
        self.browser.shows("server")?;
        self.is_live()?;
        self.open("/object/Job/default/count")?;
        self.browser.shows("Succeeded")?;
        self.browser.shows("count.txt")?;
        self.open(&self.run_page()?)?;
        self.browser.shows("Succeeded")?;
        self.browser.shows("price → large? → discount → receipt")?;
        self.open("/object/HorizontalPodAutoscaler/default/load")?;
        self.browser.shows("Lowest")?;
        self.open("/tree")?;
        for fact in ["Source main", "calls under way", "runs under way", "Succeeded, Slurm job 1", "2 pods"] {
            self.browser.shows(fact)?;
        }
        Ok(())
    }

    /// Address of the run that the push of the samples started.
    fn run_page(&self) -> Result<String> {
        eventually("the push started a run", secs(120), || {
            let workflow = self.cluster.cli(&["get", "workflow", "order", "-o", "json"])?.ok()?;
            let workflow: Value = serde_json::from_str(&workflow)?;
            let id = workflow["lastRun"]["id"].as_str().context("none yet")?;
            Ok(format!("/runs/default/order/{id}"))
        })
    }

    /// Pushes 200 files with hostile names and values, and prints as many lines.
    fn stays_text(&self) -> Result<()> {
        let text = |number: usize| HOSTILE[number % HOSTILE.len()];
        let map = |number: usize| {
            let value = Value::from(text(number));
            let manifest = format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: hostile-{number}\n  annotations: {{note: {value}}}\n\
                 data: {{key: {value}}}\n"
            );
            let name: String = text(number).chars().map(|c| if c == '/' { '_' } else { c }).collect();
            Change::write(format!("hostile/{number}{name}.yaml"), manifest)
        };
        let changes: Vec<Change> = (0..200).map(map).collect();
        self.cluster.push(&changes, HOSTILE[1])?;
        let pod = self.cluster.running("shop", &["web"])?;
        let web = pod.container("web")?;
        let docker = self.docker_of(web)?;
        let lines: String = (0..200).map(|number| format!("{number} {}\n", text(number))).collect();
        let command = format!("cat > /proc/1/fd/1 <<'END'\n{lines}END\n");
        docker.exec(web, &["sh", "-c", &command])?;
        let pages = [
            "/",
            "/history",
            "/history/main/6",
            "/tree?kind=ConfigMap",
            "/tree?kind=ConfigMap&page=2",
            "/object/ConfigMap/default/hostile-0",
            "/object/ConfigMap/default/hostile-1",
            "/object/ConfigMap/default/hostile-2",
            "/logs/default/shop?container=web",
            "/logs/default/shop?container=web&grep=%3Cscript%3E",
        ];
        for path in pages {
            self.open(path)?;
            self.nothing_ran()?;
            let made = "return document.querySelectorAll('main img, main script, main [onload], main [onerror]').length";
            ensure!(self.browser.run(made)? == 0, "{path} has elements of others");
            let complaints = self.browser.complaints()?;
            ensure!(complaints.is_empty(), "{path}: {complaints:?}");
        }
        self.open("/logs/default/shop?container=web")?;
        self.browser.shows("199 &lt;b&gt; <!--")?;
        self.open("/tree?kind=ConfigMap")?;
        self.browser.shows("<img src=x onerror=window.owned=1>")
    }

    /// Opens seven more tabs, each with a live page; the last one loads and is live, too.
    fn many_tabs(&self) -> Result<()> {
        for _ in 0..7 {
            self.browser.new_tab()?;
            self.open("/")?;
        }
        self.browser.new_tab()?;
        self.open("/network")?;
        self.browser.shows("Services")?;
        self.is_live()
    }

    /// Writes the pictures of docs/ui.md.
    fn pictures(&self) -> Result<()> {
        if std::env::var_os("MINIK8S_UPDATE").is_none() {
            return Ok(());
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ui");
        fs::create_dir_all(&folder)?;
        let dark = Look { dark: true, ..DESK };
        let run = self.run_page()?;
        let shots = [
            ("overview", "/", DESK),
            ("tree", "/tree", dark),
            ("object", "/object/ReplicaSet/default/web", DESK),
            ("autoscaler", "/object/HorizontalPodAutoscaler/default/load", dark),
            ("run", &run, DESK),
            ("commit", "/history/main/5", DESK),
            ("logs", "/logs/default/shop?container=web", dark),
            ("phone", "/", PHONE),
        ];
        for (name, path, look) in shots {
            self.browser.look(look)?;
            self.open(path)?;
            fs::write(folder.join(format!("{name}.png")), self.browser.picture()?)?;
        }
        Ok(())
    }
}

/// Image of the samples.
const SAMPLE_IMAGE: &str = "minik8s-sample/busybox:1";

fn files_below(root: &Path, folder: &Path, changes: &mut Vec<Change>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files_below(root, &path, changes)?;
        } else {
            let text = fs::read_to_string(&path)?.replace(SAMPLE_IMAGE, IMAGE);
            changes.push(Change::write(path.strip_prefix(root)?.display().to_string(), text));
        }
    }
    Ok(())
}
