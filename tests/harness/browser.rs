//! Chromium as people use it, driven by chromedriver: sizes, colours, what it asked for and what it complained about.
//!
//! Both run in their own PID namespace, so that no process of the browser outlives its driver.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fantoccini::error::CmdError;
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::process::{Daemon, run};
use crate::slot::root;
use crate::wait::{eventually, secs};

/// Longest time of one command.
const COMMAND_MAX: Duration = Duration::from_secs(60);
/// Rules of accessibility that a page must keep.
const WCAG: [&str; 5] = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
/// The package of axe-core, as npm names it.
const AXE: &str = "axe-core@4.10.3";

/// A running browser.
#[derive(Debug)]
pub struct Browser {
    client: Client,
    runtime: Runtime,
    _driver: Daemon,
}

/// Size of the window in CSS pixels, and its colours.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    pub width: u32,
    pub height: u32,
    pub dark: bool,
}

impl Browser {
    /// True if the browser and its driver are installed.
    pub fn is_installed() -> bool {
        run("chromedriver", &["--version"]).is_ok()
    }

    /// Starts one, with its files below `dir` and its driver at `port`.
    pub fn start(dir: &Path, port: u16) -> Result<Self> {
        let profile = dir.join("browser");
        fs::create_dir_all(&profile)?;
        let driver = format!("--port={port}");
        let command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "chromedriver", &driver];
        let mut driver = Daemon::new("chromedriver", dir, command.map(str::to_owned).to_vec());
        driver.start()?;
        let address = format!("127.0.0.1:{port}");
        eventually("chromedriver answers", secs(30), || {
            TcpStream::connect(&address).map(drop).with_context(|| driver.log_tail())
        })?;
        let runtime = Runtime::new()?;
        let options = json!({
            "goog:chromeOptions": {"args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                "--no-first-run", "--disable-background-networking", "--disable-component-update",
                format!("--user-data-dir={}", profile.display()),
            ]},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        });
        let Value::Object(capabilities) = options else { unreachable!("an object") };
        let client = runtime.block_on(async {
            let mut builder = ClientBuilder::new(HttpConnector::new());
            builder.capabilities(capabilities);
            timeout(COMMAND_MAX, builder.connect(&format!("http://{address}"))).await
        });
        let client = client.context("the browser did not start")?.with_context(|| driver.log_tail())?;
        Ok(Self { client, runtime, _driver: driver })
    }

    fn command<T>(&self, command: impl Future<Output = Result<T, CmdError>>) -> Result<T> {
        let answer = self.runtime.block_on(async { timeout(COMMAND_MAX, command).await });
        Ok(answer.context("the browser did not answer")??)
    }

    /// Sends a command of the browser's own protocol.
    pub fn devtools(&self, name: &str, parameters: &Value) -> Result<Value> {
        let body = json!({"cmd": name, "params": parameters});
        self.command(self.client.issue_cmd(Extension { path: "goog/cdp/execute", body }))
    }

    /// Opens an address in the present tab.
    pub fn open(&self, url: &str) -> Result<()> {
        self.command(self.client.goto(url)).with_context(|| url.to_owned())
    }

    /// Sets the size and the colours of the present tab.
    pub fn look(&self, look: Look) -> Result<()> {
        let Look { width, height, dark } = look;
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &size)?;
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", &media).map(drop)
    }

    /// Switches scripts of pages off or on, from the next page on.
    pub fn scripts(&self, on: bool) -> Result<()> {
        self.devtools("Emulation.setScriptExecutionDisabled", &json!({"value": !on})).map(drop)
    }

    /// Opens another tab, and goes to it.
    pub fn new_tab(&self) -> Result<()> {
        let tab = self.command(self.client.new_window(true))?;
        self.command(self.client.switch_to_window(tab.handle))
    }

    /// Runs a function's body in the page, and returns its result.
    pub fn run(&self, script: &str) -> Result<Value> {
        self.command(self.client.execute(script, Vec::new()))
    }

    /// Visible text of the page.
    pub fn text(&self) -> Result<String> {
        let text = self.run("return document.body.innerText")?;
        text.as_str().map(str::to_owned).context("the page has no text")
    }

    /// Names that a screen reader would say, without any script of the page.
    pub fn spoken(&self) -> Result<String> {
        let tree = self.devtools("Accessibility.getFullAXTree", &json!({}))?;
        let nodes = tree["nodes"].as_array().context("no nodes")?;
        let names = nodes.iter().filter(|node| node["ignored"] != true);
        Ok(names.filter_map(|node| node["name"]["value"].as_str()).collect::<Vec<_>>().join("\n"))
    }

    /// Waits until the page shows a text.
    pub fn shows(&self, wanted: &str) -> Result<()> {
        eventually(&format!("the page shows {wanted}"), secs(60), || {
            let text = self.text()?;
            ensure!(text.contains(wanted), "{text}");
            Ok(())
        })
    }

    /// Width of what the page needs beyond the window's.
    pub fn overflow(&self) -> Result<i64> {
        let width =
            self.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")?;
        width.as_i64().context("no width")
    }

    /// Errors and warnings since the last call: of scripts, of the policy of the page, of what did not load.
    pub fn complaints(&self) -> Result<Vec<String>> {
        let all = self.log("browser")?;
        let bad = all.iter().filter(|entry| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING")));
        Ok(bad.map(|entry| entry["message"].to_string()).collect())
    }

    /// Addresses that were asked for since the last call.
    pub fn requested(&self) -> Result<Vec<String>> {
        let mut addresses = Vec::new();
        for entry in self.log("performance")? {
            let message: Value = serde_json::from_str(entry["message"].as_str().unwrap_or_default())?;
            let message = &message["message"];
            if message["method"] == "Network.requestWillBeSent" {
                addresses.extend(message["params"]["request"]["url"].as_str().map(str::to_owned));
            }
        }
        Ok(addresses)
    }

    fn log(&self, kind: &'static str) -> Result<Vec<Value>> {
        let body = json!({"type": kind});
        let entries = self.command(self.client.issue_cmd(Extension { path: "se/log", body }))?;
        entries.as_array().cloned().context("no log")
    }

    /// Violations of WCAG 2.2 AA on the page, as axe-core finds them: one line for each element.
    pub fn violations(&self, axe: &str) -> Result<Vec<String>> {
        let tags = json!(WCAG);
        let script = format!(
            "{axe}; const done = arguments[arguments.length - 1]; \
             axe.run(document, {{runOnly: {{type: 'tag', values: {tags}}}}}).then(r => done(r.violations), e => done('' + e));"
        );
        let found = self.command(self.client.execute_async(&script, Vec::new()))?;
        let rules = found.as_array().with_context(|| format!("axe failed: {found}"))?;
        let lines = rules.iter().flat_map(|rule| {
            let nodes = rule["nodes"].as_array().into_iter().flatten();
            nodes.map(|node| format!("{}: {}: {}", rule["id"], node["html"], node["failureSummary"]))
        });
        Ok(lines.collect())
    }

    /// Picture of the window as PNG.
    pub fn picture(&self) -> Result<Vec<u8>> {
        self.command(self.client.screenshot())
    }
}

/// Source of axe-core, fetched by npm once and kept with the other files of the tests; `None` without npm.
pub fn axe() -> Result<Option<String>> {
    let dir = root()?.join("axe");
    let script = dir.join("package/axe.min.js");
    if !script.exists() {
        fs::create_dir_all(&dir)?;
        let to = dir.display().to_string();
        if run("npm", &["--version"]).is_err() {
            return Ok(None);
        }
        let packed = run("npm", &["pack", AXE, "--silent", "--pack-destination", &to])?;
        let archive = dir.join(packed.trim()).display().to_string();
        let part = dir.join("part");
        fs::create_dir_all(&part)?;
        run("tar", &["-x", "-z", "-f", &archive, "-C", &part.display().to_string()])?;
        // Whole or not at all, if this is interrupted.
        fs::rename(part.join("package"), dir.join("package"))?;
    }
    Ok(Some(fs::read_to_string(script)?))
}

/// A command of chromedriver that WebDriver does not have.
#[derive(Debug)]
struct Extension {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Extension {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.path))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.body.to_string()))
    }
}
