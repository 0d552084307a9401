//! A real image registry (Debian's docker-registry) on a loopback port, with or without login, and a
//! gate in front of it that lets a download start and then slows it to a drip.
//!
//! Images that Docker pulled from it are removed with the slot: the sweep removes images of the slot's ports.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::spawn;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::docker_world::DockerWorld;
use crate::image::archive;
use crate::process::{Daemon, run};
use crate::slot::Slot;
use crate::wait::{eventually, secs};
use schema::control::lock;

/// Bytes of a download before the gate holds it: manifests pass, layers do not.
const GATE_BYTES: usize = 512 * 1024;
/// Bytes that a held download still gets in each [`DRIP_EVERY`]. They are needed because Docker 20.10 notices
/// a cancelled pull only when the next byte arrives.
const DRIP_BYTES: usize = 2 * 1024;
const DRIP_EVERY: Duration = Duration::from_millis(100);

/// The registry. Every registry of a slot serves the same images.
#[derive(Debug)]
pub struct Registry {
    /// Process, to stop and restart.
    pub daemon: Daemon,
    host: String,
    offset: u16,
    port: u16,
    folder: PathBuf,
}

/// Options of a registry.
#[derive(Debug, Clone, Copy, Default)]
pub struct RegistryOptions<'o> {
    /// User and password that it requires.
    pub login: Option<(&'o str, &'o str)>,
    /// Serves at the machine's address among the nodes instead of loopback, over TLS with its own CA.
    pub is_for_nodes: bool,
    /// Allows the deletion of images.
    pub deletes: bool,
}

impl Registry {
    /// Starts a registry on the slot's port `offset`; with `login` it requires that user and password.
    pub fn start(slot: &Slot, offset: u16, login: Option<(&str, &str)>) -> Result<Self> {
        Self::start_with(slot, offset, RegistryOptions { login, ..RegistryOptions::default() })
    }

    /// Starts a registry on the slot's port `offset` with these options.
    pub fn start_with(slot: &Slot, offset: u16, options: RegistryOptions<'_>) -> Result<Self> {
        let certificate = |folder: &Path, host: &str| {
            crate::tls::files(host, &folder.join("ca.crt"), &folder.join("tls.crt"), &folder.join("tls.key"))
        };
        Self::begin(slot, offset, options, certificate)
    }

    /// Restarts it with other options, and with the same certificate and images.
    pub fn start_as(mut self, slot: &Slot, options: RegistryOptions<'_>) -> Result<Self> {
        self.daemon.kill()?;
        Self::begin(slot, self.offset, options, |_, _| Ok(()))
    }

    fn begin(
        slot: &Slot,
        offset: u16,
        options: RegistryOptions<'_>,
        certificate: impl FnOnce(&Path, &str) -> Result<()>,
    ) -> Result<Self> {
        let port = slot.port(offset);
        let folder = slot.dir().join("registry");
        fs::create_dir_all(&folder)?;
        let host = if options.is_for_nodes { slot.underlay(1) } else { "127.0.0.1".to_owned() };
        let mut config = format!(
            "version: 0.1\nlog: {{level: info}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}, delete: {{enabled: {}}}}}\n",
            folder.join("data").display(),
            options.deletes
        );
        let mut tls = String::new();
        if options.is_for_nodes {
            certificate(&folder, &host)?;
            let file = |name: &str| folder.join(name).display().to_string();
            tls = format!(", tls: {{certificate: {}, key: {}}}", file("tls.crt"), file("tls.key"));
        }
        config.push_str(&format!("http: {{addr: '{host}:{port}', secret: test{tls}}}\n"));
        if let Some((user, password)) = options.login {
            let users = folder.join(format!("{port}.htpasswd"));
            // The registry accepts bcrypt only.
            fs::write(&users, run("htpasswd", &["-Bbn", user, password])?)?;
            config.push_str(&format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", users.display()));
        }
        let file = folder.join(format!("{port}.yml"));
        fs::write(&file, config)?;
        let command = ["docker-registry", "serve", &file.to_string_lossy()].map(str::to_owned);
        let daemon = Daemon::new(format!("registry-{offset}"), slot.dir(), command.to_vec());
        let mut registry = Self { daemon, host, offset, port, folder };
        registry.start_again()?;
        Ok(registry)
    }

    /// Restarts it after a stop, and waits until it answers.
    pub fn start_again(&mut self) -> Result<()> {
        self.daemon.start()?;
        eventually("the registry answers", secs(20), || {
            let (code, _) = self.ask("GET", "/v2/", None)?;
            ensure!(matches!(code, 200 | 401), "{code}");
            Ok(())
        })
        .with_context(|| self.daemon.log_tail())
    }

    /// Sends a request as this user; returns status and body.
    pub fn ask(&self, method: &str, path: &str, login: Option<(&str, &str)>) -> Result<(u16, String)> {
        let ca = self.ca();
        let scheme = if ca.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}:{}{path}", self.host, self.port);
        let ca = ca.map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
        let login = login.map(|(user, password)| format!("{user}:{password}")).unwrap_or_default();
        let mut args = vec!["-s", "-m", "5", "-w", "\n%{http_code}", "-X", method, &url];
        args.extend(["-H", "Accept: application/vnd.docker.distribution.manifest.v2+json"]);
        if !ca.is_empty() {
            args.extend(["--cacert", &ca]);
        }
        if !login.is_empty() {
            args.extend(["-u", &login]);
        }
        let said = run("curl", &args)?;
        let (body, code) = said.rsplit_once('\n').context("curl said nothing")?;
        Ok((code.parse()?, body.to_owned()))
    }

    /// CA of its certificate, if it has one.
    pub fn ca(&self) -> Option<PathBuf> {
        Some(self.folder.join("ca.crt")).filter(|_| self.host != "127.0.0.1")
    }

    /// Address as `host:port`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Image reference `host:port/NAME`.
    pub fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.address())
    }

    /// Builds busybox with this `/version` and this many MiB of noise, pushes it as `name` and removes it
    /// from Docker again. Returns the digest, `sha256:…`.
    pub fn publish(&self, docker: &DockerWorld, name: &str, version: &str, noise_mib: u64) -> Result<String> {
        let image = self.image(name);
        let tar = archive(&self.folder, version, noise_mib)?;
        docker.run(&["import", &tar.to_string_lossy(), &image])?;
        let said = docker.run(&["push", &image])?;
        docker.run(&["rmi", &image])?;
        fs::remove_file(tar)?;
        let digest = said.split_whitespace().find(|word| word.starts_with("sha256:"));
        Ok(digest.with_context(|| format!("no digest in {said}"))?.to_owned())
    }

    /// Number of Docker's requests for this manifest: once or twice per pull, the same for each.
    pub fn asked_for(&self, repository: &str, tag: &str) -> Result<usize> {
        let log = fs::read_to_string(self.daemon.log_path())?;
        let path = format!("/v2/{repository}/manifests/{tag} HTTP");
        Ok(log.lines().filter(|line| line.contains(&path)).count())
    }
}

/// A port in front of a registry that slows down every download of more than half a MiB.
#[derive(Debug)]
pub struct Gate {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    ended: AtomicBool,
    held: AtomicUsize,
    given_up: AtomicUsize,
    open: (Mutex<bool>, Condvar),
}

impl Gate {
    /// Listens on the slot's port `offset`.
    pub fn before(registry: &Registry, slot: &Slot, offset: u16) -> Result<Self> {
        let port = slot.port(offset);
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let shared = Arc::new(Shared::default());
        let (seen, target) = (Arc::clone(&shared), registry.port);
        spawn(move || {
            for client in listener.incoming().flatten() {
                if seen.ended.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&seen);
                // A broken connection concerns only its client.
                spawn(move || drop(pass(&shared, client, target)));
            }
        });
        Ok(Self { port, shared })
    }

    /// Image reference `127.0.0.1:port/NAME`, through the gate.
    pub fn image(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }

    /// Number of held downloads.
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// Number of held downloads whose client hung up.
    pub fn given_up(&self) -> usize {
        self.shared.given_up.load(Ordering::SeqCst)
    }

    /// Lets every download pass from now on.
    pub fn open(&self) {
        let (open, changed) = &self.shared.open;
        *lock(open) = true;
        changed.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.open();
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn pass(shared: &Arc<Shared>, client: TcpStream, target: u16) -> Result<()> {
    let server = TcpStream::connect(("127.0.0.1", target))?;
    let is_held = Arc::new(AtomicBool::new(false));
    let (mut up_from, mut up_to) = (client.try_clone()?, server.try_clone()?);
    let (noticed, counted) = (Arc::clone(&is_held), Arc::clone(shared));
    spawn(move || {
        let _ = std::io::copy(&mut up_from, &mut up_to);
        // The client hung up, which is noticed only now, because it sends nothing while it waits.
        if noticed.load(Ordering::SeqCst) {
            counted.given_up.fetch_add(1, Ordering::SeqCst);
        }
        let _ = up_to.shutdown(Shutdown::Both);
    });
    let (mut server, mut client) = (server, client);
    let (mut passed, mut piece) = (0, vec![0; 16 * 1024]);
    loop {
        let size = if is_held.load(Ordering::SeqCst) { DRIP_BYTES } else { piece.len() };
        let read = server.read(&mut piece[..size])?;
        if read == 0 {
            client.shutdown(Shutdown::Write)?;
            return Ok(());
        }
        passed += read;
        if passed > GATE_BYTES {
            hold(shared, &is_held);
        }
        client.write_all(&piece[..read])?;
    }
}

fn hold(shared: &Shared, is_held: &AtomicBool) {
    let (open, changed) = &shared.open;
    let is_open = lock(open);
    if *is_open {
        is_held.store(false, Ordering::SeqCst);
        return;
    }
    if !is_held.swap(true, Ordering::SeqCst) {
        shared.held.fetch_add(1, Ordering::SeqCst);
    }
    drop(changed.wait_timeout(is_open, DRIP_EVERY));
}
