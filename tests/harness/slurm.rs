//! A real Slurm with accounting, and a login host in front of it: munge, MariaDB, slurmdbd, slurmctld, slurmd and
//! sshd, all on loopback, with their own sockets, keys and state below one folder.
//!
//! They end with their starter (see `Daemon`); nothing of the machine's own Slurm is read or written.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Daemon, last_lines, run, tail};
use crate::wait::{eventually, secs};

/// Required programs, with the package of each.
const PROGRAMS: [(&str, &str); 6] = [
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("sbatch", "slurm-client"),
    ("slurmdbd", "slurmdbd"),
    ("mariadbd", "mariadb-server"),
    ("munged", "munge"),
];

/// Memory hierarchy of cgroups v1.
const MEMORY_CGROUPS: &str = "/sys/fs/cgroup/memory";

/// A Slurm of one node with one partition, `debug`.
#[derive(Debug)]
pub struct Slurm {
    dir: PathBuf,
    ports: Ports,
    munged: Daemon,
    mariadbd: Daemon,
    slurmdbd: Daemon,
    slurmctld: Daemon,
    slurmd: Daemon,
    sshd: Daemon,
    /// Second login host of the same cluster, at 127.0.0.2; not started.
    second_sshd: Daemon,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    ssh: u16,
    database: u16,
    accounts: u16,
    controller: u16,
    node: u16,
}

impl Slurm {
    /// Starts it, with five ports from `port` on.
    pub fn start(dir: &Path, port: u16) -> Result<Self> {
        Self::start_as(dir, port, false)
    }

    /// Like `start`, with memory limits for jobs if this machine has cgroups v1, which Slurm 22.05 can use
    /// without systemd.
    pub fn start_with_memory_limits(dir: &Path, port: u16) -> Result<Self> {
        Self::start_as(dir, port, Path::new(MEMORY_CGROUPS).join("memory.limit_in_bytes").exists())
    }

    /// True if jobs have memory limits.
    pub fn has_memory_limits(&self) -> bool {
        self.dir.join("cgroup.conf").exists()
    }

    fn start_as(dir: &Path, port: u16, memory_limits: bool) -> Result<Self> {
        for (program, package) in PROGRAMS {
            let found = run("sh", &["-c", &format!("command -v {program}")]);
            ensure!(found.is_ok(), "there is no {program}; install it (Debian: 'apt-get install {package}')");
        }
        let dir = dir.join("slurm");
        for folder in ["", "munge", "db", "state", "spool", "log", "home", "jobs", "bin", "calls"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        let [ssh, database, accounts, controller, node] = [0, 1, 2, 3, 4].map(|offset| port + offset);
        let ports = Ports { ssh, database, accounts, controller, node };
        let at = |file: &str| dir.join(file).display().to_string();
        let daemon = |name: &str, command: &[&str]| {
            let command = command.iter().map(|&word| word.to_owned()).collect();
            Daemon::new(name, &dir.join("log"), command).env("SLURM_CONF", &at("slurm.conf"))
        };
        let munged = daemon(
            "munged",
            &[
                "munged",
                "--force",
                "--foreground",
                &format!("--key-file={}", at("munge/key")),
                &format!("--socket={}", at("munge/socket")),
                &format!("--pid-file={}", at("munge/pid")),
                &format!("--log-file={}", at("munge/log")),
                &format!("--seed-file={}", at("munge/seed")),
            ],
        );
        let mariadbd = daemon(
            "mariadbd",
            &[
                "mariadbd",
                "--no-defaults",
                "--user=root",
                "--bind-address=127.0.0.1",
                "--innodb-buffer-pool-size=64M",
                "--innodb-flush-log-at-trx-commit=0",
                &format!("--datadir={}", at("db")),
                &format!("--tmpdir={}", at("db-tmp")),
                &format!("--socket={}", at("db.sock")),
                &format!("--port={database}"),
                &format!("--pid-file={}", at("db.mysqld-pid")),
            ],
        );
        let listen = |host: &str| format!("ListenAddress={host}");
        let sshd = |name, host| {
            let config = at("sshd_config");
            daemon(name, &["/usr/sbin/sshd", "-D", "-e", "-f", &config, "-o", &listen(host)])
        };
        let (sshd, second_sshd) = (sshd("sshd", "127.0.0.1"), sshd("second_sshd", "127.0.0.2"));
        let [slurmdbd, slurmctld] = ["slurmdbd", "slurmctld"].map(|name| daemon(name, &[name, "-D"]));
        // A unique name: it names the cgroups, and several Slurms may run at the same time.
        let slurmd = daemon("slurmd", &["slurmd", "-D", "-N", &format!("node{node}")]);
        let mut slurm = Self { dir, ports, munged, mariadbd, slurmdbd, slurmctld, slurmd, sshd, second_sshd };
        slurm.write_settings(memory_limits)?;
        slurm.start_all()?;
        Ok(slurm)
    }

    /// Folder of the jobs' folders.
    pub fn jobs(&self) -> PathBuf {
        self.dir.join("jobs")
    }

    /// Lines of a manifest's `login` at a port, without the secret.
    pub fn login(&self, port: u16) -> Result<String> {
        let key = self.host_key()?;
        Ok(format!("host: 127.0.0.1, port: {port}, username: root, hostKeys: [{key}]"))
    }

    /// Public key of the login hosts.
    pub fn host_key(&self) -> Result<String> {
        Ok(fs::read_to_string(self.dir.join("host_key.pub"))?.trim().to_owned())
    }

    /// Authorized private key.
    pub fn key(&self) -> Result<String> {
        Ok(fs::read_to_string(self.dir.join("user_key"))?)
    }

    /// Options that lead ssh and sftp to the login host, as the user of the key.
    pub fn ssh_options(&self) -> Vec<String> {
        let key = self.dir.join("user_key");
        let options = [
            format!("Port={}", self.ports.ssh),
            format!("IdentityFile={}", key.display()),
            "User=root".to_owned(),
            "BatchMode=yes".to_owned(),
            "StrictHostKeyChecking=no".to_owned(),
            "UserKnownHostsFile=/dev/null".to_owned(),
            "LogLevel=ERROR".to_owned(),
        ];
        let options = options.into_iter().flat_map(|option| ["-o".to_owned(), option]);
        ["-F".to_owned(), "none".to_owned()].into_iter().chain(options).collect()
    }

    /// Runs a Slurm program.
    pub fn slurm(&self, program: &str, args: &[&str]) -> Result<String> {
        let output =
            Command::new(program).args(args).env("SLURM_CONF", self.dir.join("slurm.conf")).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{program}: {}{text}", String::from_utf8_lossy(&output.stderr));
        Ok(text)
    }

    /// Jobs of this name in Slurm's accounting, each with its state.
    pub fn accounts(&self, name: &str) -> Result<Vec<String>> {
        let name = format!("--name={name}");
        let text = self.slurm("sacct", &["-nPX", &name, "-o", "JobID,State"])?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Slurm's controller, to be stopped and restarted.
    pub fn controller(&mut self) -> &mut Daemon {
        &mut self.slurmctld
    }

    /// Daemon of the accounting.
    pub fn accounting(&mut self) -> &mut Daemon {
        &mut self.slurmdbd
    }

    /// Daemon of Slurm's node.
    pub fn node(&mut self) -> &mut Daemon {
        &mut self.slurmd
    }

    /// Name of Slurm's node.
    pub fn node_name(&self) -> Result<String> {
        Ok(self.slurm("sinfo", &["-h", "-o", "%N"])?.trim().to_owned())
    }

    /// Second login host, at 127.0.0.2 and the same port.
    pub fn second_sshd(&mut self) -> &mut Daemon {
        &mut self.second_sshd
    }

    /// Another login host of the same cluster, at an address of this machine; not started.
    pub fn sshd_at(&self, host: &str) -> Daemon {
        let (config, listen) = (self.dir.join("sshd_config"), format!("ListenAddress={host}"));
        let command = ["/usr/sbin/sshd", "-D", "-e", "-f", &config.to_string_lossy(), "-o", &listen];
        Daemon::new("sshd_at", &self.dir.join("log"), command.map(str::to_owned).to_vec())
    }

    /// Port of the login hosts.
    pub fn ssh_port(&self) -> u16 {
        self.ports.ssh
    }

    /// Prints the ends of the logs of Slurm's daemons, for a story that failed.
    pub fn show_logs(&self) {
        for name in ["slurmd.txt", "slurmctld.txt"] {
            let path = self.dir.join("log").join(name);
            let text = tail(&path, 16 * 1024).unwrap_or_else(|error| format!("{error:#}"));
            eprintln!("---- end of {} ----\n{}", path.display(), last_lines(&text, 40));
        }
    }

    /// Calls of a Slurm program on the login hosts: lines of `begin FOLDER` and `end FOLDER`.
    pub fn calls(&self, program: &str) -> Vec<String> {
        let text = fs::read_to_string(self.dir.join("calls").join(program)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Delays a Slurm program before and after its work, so that a fault can hit the call.
    pub fn slow_down(&self, program: &str) -> Result<()> {
        Ok(fs::write(self.dir.join("calls").join(format!("{program}.slow")), "")?)
    }

    /// First login host.
    pub fn sshd(&mut self) -> &mut Daemon {
        &mut self.sshd
    }

    fn start_all(&mut self) -> Result<()> {
        // As root, sshd requires this directory, which its service usually creates.
        fs::create_dir_all("/run/sshd")?;
        self.sshd.start()?;
        self.munged.start()?;
        self.mariadbd.start()?;
        let socket = format!("--socket={}", self.dir.join("db.sock").display());
        let sql = "create database slurm_acct_db; \
                   grant all on slurm_acct_db.* to 'slurm'@'localhost' identified by 'slurm'; \
                   grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1' identified by 'slurm';";
        eventually("MariaDB answers", secs(60), || {
            run("mariadb", &["--no-defaults", &socket, "-u", "root", "-e", "select 1"]).map(drop)
        })?;
        run("mariadb", &["--no-defaults", &socket, "-u", "root", "-e", sql])?;
        self.slurmdbd.start()?;
        let accounts = self.ports.accounts;
        eventually("slurmdbd answers", secs(60), || {
            TcpStream::connect(("127.0.0.1", accounts)).context("not yet").map(drop)
        })?;
        self.slurmctld.start()?;
        self.slurmd.start()?;
        eventually("Slurm's node is idle", secs(60), || {
            if !self.slurmctld.is_running() {
                // Without its accounting it exits at its first start.
                self.slurmctld.kill()?;
                self.slurmctld.start()?;
            }
            let state = self.slurm("sinfo", &["-h", "-o", "%T"])?;
            if state.trim() == "idle" { Ok(()) } else { bail!("{state}") }
        })
    }

    fn write_settings(&self, memory_limits: bool) -> Result<()> {
        let (dir, host) = (self.dir.display(), run("hostname", &["-s"])?);
        let (host, Ports { ssh, database, accounts, controller, node }) = (host.trim(), self.ports);
        // They listen on the address of the machine's name: on loopback alone if that is it, else everywhere.
        let is_loopback = run("getent", &["ahostsv4", host])?.starts_with("127.0.0.1 ");
        let loopback = if is_loopback { "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n" } else { "" };
        let secret = |file: &str, text: &[u8]| -> Result<()> {
            fs::write(self.dir.join(file), text)?;
            Ok(fs::set_permissions(self.dir.join(file), fs::Permissions::from_mode(0o400))?)
        };
        fs::set_permissions(self.dir.join("munge"), fs::Permissions::from_mode(0o755))?;
        secret("munge/key", &[b'k'; 1024])?;
        secret(
            "slurmdbd.conf",
            format!(
                "AuthType=auth/munge\nAuthInfo=socket={dir}/munge/socket\nDbdAddr=127.0.0.1\nDbdHost=localhost\n\
                 DbdPort={accounts}\nSlurmUser=root\nLogFile={dir}/log/slurmdbd.txt\nPidFile={dir}/slurmdbd.its-pid\n\
                 StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort={database}\n\
                 StorageUser=slurm\nStoragePass=slurm\nStorageLoc=slurm_acct_db\n{loopback}"
            )
            .as_bytes(),
        )?;
        fs::set_permissions(self.dir.join("slurmdbd.conf"), fs::Permissions::from_mode(0o600))?;
        let (task, cores) = match memory_limits {
            true => ("task/cgroup", "CR_Core_Memory\nDefMemPerCPU=10"),
            false => ("task/none", "CR_Core"),
        };
        if memory_limits {
            let text =
                "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\nAllowedSwapSpace=0\n";
            fs::write(self.dir.join("cgroup.conf"), text)?;
        }
        let settings = format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\nSlurmdPort={node}\n\
             AuthType=auth/munge\nAuthInfo=socket={dir}/munge/socket\nSlurmUser=root\nSlurmdUser=root\n\
             StateSaveLocation={dir}/state\nSlurmdSpoolDir={dir}/spool\n\
             SlurmctldPidFile={dir}/slurmctld.its-pid\nSlurmdPidFile={dir}/slurmd.its-pid\n\
             SlurmctldLogFile={dir}/log/slurmctld.txt\nSlurmdLogFile={dir}/log/slurmd.txt\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin={task}\nJobAcctGatherType=jobacct_gather/linux\n\
             {loopback}\
             SelectType=select/cons_tres\nSelectTypeParameters={cores}\nReturnToService=2\nKillWait=2\n\
             AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n\
             AccountingStoragePort={accounts}\nAccountingStoragePass={dir}/munge/socket\n\
             SchedulerParameters=batch_sched_delay=0,sched_interval=1\n\
             NodeName=node{node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 State=UNKNOWN\n\
             PartitionName=debug Nodes=ALL Default=YES MaxTime=60 State=UP OverSubscribe=FORCE:4\n\
             SlurmdParameters=config_overrides\n"
        );
        fs::write(self.dir.join("slurm.conf"), settings)?;
        self.write_login_host(ssh)?;
        // Another one may be set up at the same time: names in /tmp would collide.
        fs::create_dir_all(self.dir.join("db-tmp"))?;
        let (datadir, tmpdir) = (format!("--datadir={dir}/db"), format!("--tmpdir={dir}/db-tmp"));
        run(
            "mariadb-install-db",
            &[
                "--no-defaults",
                &datadir,
                &tmpdir,
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--user=root",
            ],
        )?;
        Ok(())
    }

    /// Writes the files of the login host: programs that log their calls, keys, and sshd's configuration. `HOME` is
    /// an empty folder: a shell runs its startup files before each command, and those of this machine may take
    /// longer than Slurm.
    fn write_login_host(&self, ssh: u16) -> Result<()> {
        let dir = self.dir.display();
        for program in ["sbatch", "sacct"] {
            let (path, calls) = (self.dir.join("bin").join(program), self.dir.join("calls").join(program));
            let (real, calls) = (run("sh", &["-c", &format!("command -v {program}")])?, calls.display());
            let text = format!(
                "#!/bin/sh\nslow() {{ [ ! -e {calls}.slow ] || sleep 0.2; }}\necho \"begin $PWD\" >> {calls}\nslow\n\
                 {} \"$@\"; code=$?\nslow\necho \"end $PWD\" >> {calls}\nexit $code\n",
                real.trim()
            );
            fs::write(&path, text)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        }
        for file in ["host_key", "user_key"] {
            let path = self.dir.join(file).display().to_string();
            run("ssh-keygen", &["-q", "-N", "", "-C", "", "-t", "ed25519", "-f", &path])?;
        }
        fs::copy(self.dir.join("user_key.pub"), self.dir.join("authorized_keys"))?;
        let settings = format!(
            "Port {ssh}\nHostKey {dir}/host_key\nAuthorizedKeysFile {dir}/authorized_keys\n\
             PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\n\
             SetEnv SLURM_CONF={dir}/slurm.conf HOME={dir}/home PATH={dir}/bin:/usr/local/bin:/usr/bin:/bin\nPrintMotd no\n"
        );
        Ok(fs::write(self.dir.join("sshd_config"), settings)?)
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // The processes of jobs are slurmd's grandchildren and would outlive it.
        let _ = self.slurm("scancel", &["--user=root"]);
        let none_left = || -> Result<()> {
            ensure!(self.slurm("squeue", &["-h"])?.trim().is_empty(), "jobs are left");
            Ok(())
        };
        let _ = eventually("no job is left", secs(15), none_left);
        if self.has_memory_limits() {
            let _ = self.slurmd.kill();
            let own = format!("{MEMORY_CGROUPS}/slurm_node{}", self.ports.node);
            let _ = run("find", &[&own, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";"]);
        }
    }
}
