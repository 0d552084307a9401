//! A real image registry (Debian's docker-registry) on a loopback port, with or without login, and a
//! gate in front of one that lets a download begin and hardly go on.
//!
//! What Docker takes from it goes with the slot: the sweep removes images of the slot's ports.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::spawn;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::docker_world::DockerWorld;
use crate::image::archive;
use crate::process::{Daemon, run};
use crate::slot::Slot;
use crate::wait::{eventually, secs};

/// What a download may bring before the gate holds it: manifests pass, layers do not.
const GATE_BYTES: usize = 512 * 1024;
/// What a held download still gets in each [`DRIP_EVERY`]. Something must come: Docker 20.10 sees that
/// a pull was given up only when the next byte arrives.
const DRIP_BYTES: usize = 2 * 1024;
const DRIP_EVERY: Duration = Duration::from_millis(100);

/// The registry. All registries of a slot serve the same images.
#[derive(Debug)]
pub struct Registry {
    /// Its process, to stop and start.
    pub daemon: Daemon,
    port: u16,
    folder: PathBuf,
}

impl Registry {
    /// Starts one on the slot's port `offset`; with a user and a password it asks for them.
    pub fn start(slot: &Slot, offset: u16, login: Option<(&str, &str)>) -> Result<Self> {
        let port = slot.port(offset);
        let folder = slot.dir().join("registry");
        fs::create_dir_all(&folder)?;
        let mut config = format!(
            "version: 0.1\nlog: {{level: info}}\nhttp: {{addr: '127.0.0.1:{port}', secret: test}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}}}\n",
            folder.join("data").display()
        );
        if let Some((user, password)) = login {
            let users = folder.join(format!("{port}.htpasswd"));
            // The registry takes bcrypt only.
            fs::write(&users, run("htpasswd", &["-Bbn", user, password])?)?;
            config.push_str(&format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", users.display()));
        }
        let file = folder.join(format!("{port}.yml"));
        fs::write(&file, config)?;
        let command = ["docker-registry", "serve", &file.to_string_lossy()].map(str::to_owned);
        let daemon = Daemon::new(format!("registry-{offset}"), slot.dir(), command.to_vec());
        let mut registry = Self { daemon, port, folder };
        registry.start_again()?;
        Ok(registry)
    }

    /// Starts it after it was stopped, and waits until it answers.
    pub fn start_again(&mut self) -> Result<()> {
        self.daemon.start()?;
        let url = format!("http://127.0.0.1:{}/v2/", self.port);
        eventually("the registry answers", secs(20), || {
            let code = run("curl", &["-s", "-o", "/dev/null", "-w", "%{http_code}", "-m", "2", &url])?;
            ensure!(matches!(code.trim(), "200" | "401"), "{code}");
            Ok(())
        })
        .with_context(|| self.daemon.log_tail())
    }

    /// `127.0.0.1:port/NAME`.
    pub fn image(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }

    /// Makes busybox with this `/version` and so many MiB of noise, pushes it as `name` and takes it
    /// away from Docker again. Gives the digest, `sha256:…`.
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

    /// How often Docker asked for this manifest: once or twice for a pull, the same for each.
    pub fn asked_for(&self, repository: &str, tag: &str) -> Result<usize> {
        let log = fs::read_to_string(self.daemon.log_path())?;
        let path = format!("/v2/{repository}/manifests/{tag} HTTP");
        Ok(log.lines().filter(|line| line.contains(&path)).count())
    }
}

/// A port in front of a registry that slows every download of more than half a MiB down.
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
                // A connection that breaks is the client's trouble.
                spawn(move || drop(pass(&shared, client, target)));
            }
        });
        Ok(Self { port, shared })
    }

    /// `127.0.0.1:port/NAME`, through the gate.
    pub fn image(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }

    /// Downloads that were held.
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// Held downloads whose client hung up.
    pub fn given_up(&self) -> usize {
        self.shared.given_up.load(Ordering::SeqCst)
    }

    /// Lets everything pass from now on.
    pub fn open(&self) {
        let (open, changed) = &self.shared.open;
        *open.lock().unwrap_or_else(PoisonError::into_inner) = true;
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
        // The client hung up: only now, as it sends nothing while it waits.
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
    let is_open = open.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_open {
        is_held.store(false, Ordering::SeqCst);
        return;
    }
    if !is_held.swap(true, Ordering::SeqCst) {
        shared.held.fetch_add(1, Ordering::SeqCst);
    }
    drop(changed.wait_timeout(is_open, DRIP_EVERY));
}
