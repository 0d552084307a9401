//! Contents of the image of a Python function. Only checks which files exist.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use schema::codec::hex;
use schema::records::BuildOrder;
use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::worlds::docker::{Docker, ImageBuild, SECRET_VARIABLE};

/// The program that serves a function, in each of its images.
pub(super) const SHIM: &str = include_str!("python/shim.py");

/// Script that makes the base images from Debian packages.
pub(super) const BASE_SCRIPT: &str = include_str!("python/base.sh");

/// Compiles all modules, because nothing can be written at run time; a failure is an error only in a module where
/// calls begin.
const COMPILE: &str = "import compileall, os, py_compile; mode = py_compile.PycInvalidationMode.UNCHECKED_HASH; \
    py_compile.compile('/minik8s/shim.py', '/minik8s/shim.pyc', doraise=True, invalidation_mode=mode); \
    [compileall.compile_dir(d, quiet=2, force=True, invalidation_mode=mode) \
    for d in ('/function-packages', '/function') if os.path.isdir(d)]; \
    [py_compile.compile(f, doraise=True, invalidation_mode=mode) \
    for f in ('/function/main.py', '/function/func.py') if os.path.exists(f)]";
/// Returns the program that runs pip with the index login in memory: a layer would keep any other file, and a log
/// the contents of a URL.
fn with_login() -> String {
    format!(
        "import os, runpy, sys; os.environ['NETRC'] = '/dev/shm/netrc'; \
         f = os.open('/dev/shm/netrc', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600); \
         os.write(f, os.environ.pop('{SECRET_VARIABLE}').encode()); os.close(f); sys.argv[0] = 'pip'; \
         runpy.run_module('pip', run_name='__main__', alter_sys=True)"
    )
}

/// Returns the host of an index.
pub(super) fn index_host(index: &str) -> &str {
    let rest = index.split_once("://").map_or(index, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

/// Returns a value as a word that all Pythons read alike in a netrc file: 3.11 interprets backslashes and quotes,
/// 3.10 splits at letters beyond ASCII. `None` if it is no such word.
pub(super) fn netrc_word(value: &[u8]) -> Option<String> {
    let word = value.trim_ascii();
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'"');
    let word = Some(word).filter(|word| !word.is_empty() && word.iter().all(is_plain))?;
    String::from_utf8(word.to_vec()).ok()
}

/// The machine's own CAs, for an index whose certificate is from a local CA.
const MACHINE_CAS: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Base images: for replicas, and for the step that installs packages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseImages {
    pub runtime: String,
    pub packages: String,
}

/// Returns the Dockerfile of a folder with Python code, and whether the build needs the network. With `has_login`,
/// the steps find a login for the index in their environment.
pub(super) fn dockerfile(
    bases: &BaseImages,
    order: &BuildOrder,
    folder: &Path,
    has_login: bool,
) -> (String, bool) {
    let has_packages = folder.join("requirements.txt").is_file();
    let has_wheels = folder.join("wheels").is_dir();
    let mut text = String::new();
    if has_packages {
        let from = match (&order.package_index, has_wheels) {
            (_, true) => vec!["--no-index", "--find-links", "/build/wheels"],
            // An index without TLS is a deliberate choice.
            (Some(index), false) if index.starts_with("http://") => {
                vec!["--index-url", index.as_str(), "--trusted-host", index_host(index)]
            }
            (Some(index), false) => vec!["--index-url", index.as_str()],
            (None, false) => Vec::new(),
        };
        let with_login = with_login();
        let pip = if has_login && !has_wheels { ["-c", &with_login] } else { ["-m", "pip"] };
        let mut install = vec!["python3", pip[0], pip[1], "install", "--no-cache-dir"];
        install.extend(["--disable-pip-version-check", "--no-warn-script-location", "--target", "/packages"]);
        if !has_wheels && Path::new(MACHINE_CAS).is_file() {
            install.extend(["--cert", "/build/ca.crt"]);
        }
        install.extend(from);
        install.extend(["-r", "/build/requirements.txt"]);
        text.push_str(&format!("FROM {} AS packages\nUSER 0\n", bases.packages));
        text.push_str("COPY source/requirements.txt /build/requirements.txt\n");
        if has_wheels {
            text.push_str("COPY source/wheels /build/wheels\n");
        } else if Path::new(MACHINE_CAS).is_file() {
            text.push_str("COPY ca.crt /build/ca.crt\n");
        }
        text.push_str(&format!("RUN {}\n", exec_form(&install)));
    }
    text.push_str(&format!("FROM {}\n", bases.runtime));
    if has_packages {
        text.push_str("COPY --from=packages /packages /function-packages\n");
    }
    text.push_str("USER 0\nCOPY shim.py /minik8s/shim.py\nCOPY source /function\n");
    text.push_str(&format!("RUN {}\n", exec_form(&["python3", "-c", COMPILE])));
    text.push_str("WORKDIR /function\nUSER 65532:65532\n");
    text.push_str(&format!("ENTRYPOINT {}\n", exec_form(&["python3", "/minik8s/shim.pyc"])));
    (text, has_packages && !has_wheels)
}

fn exec_form(words: &[&str]) -> String {
    serde_json::to_string(words).unwrap_or_default()
}

/// Returns the files of the build.
pub(super) fn content(dockerfile: &str, folder: &Path) -> Vec<ContextPart> {
    let mut content = vec![
        ContextPart::Text { path: "Dockerfile", text: dockerfile.to_owned() },
        ContextPart::Text { path: "shim.py", text: SHIM.to_owned() },
        ContextPart::Folder { path: "source", folder: folder.to_owned() },
    ];
    if Path::new(MACHINE_CAS).is_file() {
        content.push(ContextPart::File { path: "ca.crt", file: MACHINE_CAS.into() });
    }
    content
}

// Base images of Python functions: the Cluster's own, or made from this machine's Debian packages.

/// Maximum time to fetch and unpack packages.
const MAKE_MAX: Duration = Duration::from_secs(900);

/// Held while the images are made.
static MAKING: Mutex<()> = Mutex::const_new(());

/// Interpreter of the script that makes the root file systems.
const SHELL: &str = "sh";
/// Settings of Python in a replica.
const RUNTIME: &str = "ENV PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 HOME=/tmp PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1\nUSER 65532:65532\nCMD [\"python3\"]\n";
/// Settings of pip in a build. The pip of Ubuntu 22.04 builds packages from source only with `PIP_USE_PEP517`.
const PACKAGES: &str = "ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    PIP_NO_COMPILE=1 PIP_USE_PEP517=1 PIP_NO_INPUT=1\n";

/// Returns the names of the images that this version makes, derived from the script that makes them.
pub fn own_bases() -> BaseImages {
    let digest = hex(&Sha256::digest(BASE_SCRIPT));
    let name = |kind: &str| format!("minik8s.local/{kind}:{}", &digest[..12]);
    BaseImages { runtime: name("python"), packages: name("python-pip") }
}

/// Returns the images to build on. Makes them if no image is named and they don't exist yet.
///
/// # Errors
/// A sentence that names the missing part and the remedy.
pub async fn bases(
    docker: &dyn Docker,
    named: Option<&str>,
    scratch: &Path,
    log: &(dyn for<'t> Fn(&'t str) + Send + Sync),
) -> Result<BaseImages, String> {
    if let Some(named) = named {
        return Ok(BaseImages { runtime: named.to_owned(), packages: named.to_owned() });
    }
    let own = own_bases();
    // One of two builds makes them.
    let _alone = MAKING.lock().await;
    let mut is_here = true;
    for image in [&own.runtime, &own.packages] {
        is_here &= docker.image(image).await.map_err(|error| error.to_string())?.is_some();
    }
    if !is_here {
        log("building the Python base image from Debian's packages\n");
        make(docker, &own, scratch, log).await?;
    }
    Ok(own)
}

async fn make(
    docker: &dyn Docker,
    own: &BaseImages,
    scratch: &Path,
    log: &(dyn for<'t> Fn(&'t str) + Send + Sync),
) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot write below {}: {error}", scratch.display());
    std::fs::create_dir_all(scratch).map_err(failed)?;
    let dir = tempfile::Builder::new().prefix("python-base-").tempdir_in(scratch).map_err(failed)?;
    let script = dir.path().join("base.sh");
    std::fs::write(&script, BASE_SCRIPT).map_err(failed)?;
    let mut command = Command::new(SHELL);
    command.arg(&script).arg(dir.path()).stdin(Stdio::null()).kill_on_drop(true);
    let ran = timeout(MAKE_MAX, command.output()).await;
    let ran = ran.map_err(|_| format!("fetching Python's packages took longer than {MAKE_MAX:?}"))?;
    let output = ran.map_err(|error| format!("cannot run {SHELL}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    log(&said);
    if !output.status.success() {
        return Err(format!("cannot build the Python base image: {}", said.trim()));
    }
    let layers = [
        (&own.runtime, "runtime.tar", format!("FROM scratch\nADD runtime.tar /\n{RUNTIME}")),
        (&own.packages, "pip.tar", format!("FROM {}\nUSER 0\nADD pip.tar /\n{PACKAGES}", own.runtime)),
    ];
    for (reference, layer, dockerfile) in layers {
        let parts = [
            ContextPart::Text { path: "Dockerfile", text: dockerfile },
            ContextPart::File { path: layer, file: dir.path().join(layer) },
        ];
        let context = tokio::task::spawn_blocking(move || tar(&parts)).await;
        let context = context.map_err(|error| error.to_string())?.map_err(failed)?;
        let build = ImageBuild {
            reference: reference.clone(),
            context: context.into(),
            dockerfile: "Dockerfile".to_owned(),
            ..ImageBuild::default()
        };
        docker.build(build, log).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

// The tar that a build gets as its context. Blocking.

/// A part of the context.
#[derive(Debug, Clone)]
pub(super) enum ContextPart {
    /// A file with this text.
    Text { path: &'static str, text: String },
    /// A file on this node.
    File { path: &'static str, file: PathBuf },
    /// A folder on this node, with everything below it; the root if `path` is empty.
    Folder { path: &'static str, folder: PathBuf },
}

/// Builds the tar of these parts.
pub(super) fn tar(parts: &[ContextPart]) -> io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    // Links are kept: one that leads out of the folder stays a link.
    builder.follow_symlinks(false);
    builder.mode(tar::HeaderMode::Deterministic);
    for part in parts {
        match part {
            ContextPart::Text { path, text } => {
                let mut header = tar::Header::new_gnu();
                header.set_size(text.len() as u64);
                header.set_mode(0o644);
                builder.append_data(&mut header, path, text.as_bytes())?;
            }
            ContextPart::File { path, file } => builder.append_path_with_name(file, path)?,
            ContextPart::Folder { path, folder } => builder.append_dir_all(path, folder)?,
        }
    }
    builder.into_inner()
}
