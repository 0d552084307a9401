//! A host outside of the cluster: a network namespace with one address on a link to the machine, and
//! an HTTP server in it that records its clients.

use std::fs;

use anyhow::Result;

use crate::process::{Daemon, run};
use crate::slot::Slot;
use crate::wait::{eventually, secs};

const PORT: u16 = 9000;

/// Creates a network namespace and a link of the same name from the machine (`gateway`) to it (`address`).
/// The sweep of the slot that the name belongs to removes both.
pub(crate) fn linked_namespace(name: &str, gateway: &str, address: &str) -> Result<()> {
    run("ip", &["netns", "add", name])?;
    run("ip", &["link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name])?;
    run("ip", &["addr", "add", &format!("{gateway}/30"), "dev", name])?;
    run("ip", &["link", "set", name, "up"])?;
    run("ip", &["-n", name, "addr", "add", &format!("{address}/30"), "dev", "eth0"])?;
    run("ip", &["-n", name, "link", "set", "eth0", "up"])?;
    Ok(())
}

/// The host with its server. The sweep of the slot removes link and namespace.
#[derive(Debug)]
pub struct Outside {
    server: Daemon,
    address: String,
    gateway: String,
}

impl Outside {
    /// Creates the host and starts its server.
    pub fn start(slot: &Slot) -> Result<Self> {
        let name = format!("{}x", slot.instance());
        let (gateway, address) = (slot.underlay(253), slot.underlay(254));
        linked_namespace(&name, &gateway, &address)?;
        // No route back to the pods: an answer reaches them only if the machine masqueraded the request.
        let home = slot.dir().join("outside-www");
        fs::create_dir_all(&home)?;
        fs::write(home.join("index.html"), "from outside\n")?;
        let listen = format!("{address}:{PORT}");
        let namespace = format!("--net=/var/run/netns/{name}");
        let command = ["nsenter", &namespace, "busybox", "httpd", "-f", "-v", "-p", &listen, "-h"];
        let mut command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        command.push(home.to_string_lossy().into_owned());
        let mut server = Daemon::new("outside", slot.dir(), command);
        server.start()?;
        let outside = Self { server, address, gateway };
        eventually("the host outside answers", secs(10), || {
            run("curl", &["-sf", "-m", "1", &outside.url()]).map(|_| ())
        })?;
        Ok(outside)
    }

    /// URL at which its server answers `from outside`.
    pub fn url(&self) -> String {
        format!("http://{}:{PORT}/", self.address)
    }

    /// Machine's own address on the link.
    pub fn machine_address(&self) -> &str {
        &self.gateway
    }

    /// Clients recorded by the server.
    pub fn clients(&self) -> String {
        self.server.log_tail()
    }
}
