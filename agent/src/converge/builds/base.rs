//! Base images of Python functions: the Cluster's own, or made from this machine's Debian packages.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use schema::codec::hex;
use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use tokio::time::timeout;

use super::context::{Content, tar};
use super::python::{BASE_SCRIPT, Bases};
use crate::worlds::docker::{Docker, ImageBuild};

/// Maximum time to fetch and unpack packages.
const MAKE_MAX: Duration = Duration::from_secs(900);

/// Interpreter of the script that makes the root file systems.
const SHELL: &str = "sh";
/// Settings of Python in a replica.
const RUNTIME: &str = "ENV PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 HOME=/tmp PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1\nUSER 65532:65532\nCMD [\"python3\"]\n";
/// Settings of pip in a build. The pip of Ubuntu 22.04 builds packages from source only with `PIP_USE_PEP517`.
const PACKAGES: &str = "ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    PIP_NO_COMPILE=1 PIP_USE_PEP517=1 PIP_NO_INPUT=1\n";

/// Returns the names of the images that this version makes, derived from the script that makes them.
pub fn own() -> Bases {
    let digest = hex(&Sha256::digest(BASE_SCRIPT));
    let name = |kind: &str| format!("minik8s.local/{kind}:{}", &digest[..12]);
    Bases { runtime: name("python"), packages: name("python-pip") }
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
) -> Result<Bases, String> {
    if let Some(named) = named {
        return Ok(Bases { runtime: named.to_owned(), packages: named.to_owned() });
    }
    let own = own();
    let mut is_here = true;
    for image in [&own.runtime, &own.packages] {
        is_here &= docker.image(image).await.map_err(|error| error.to_string())?.is_some();
    }
    if !is_here {
        log("makes the Python base image of Debian's packages\n");
        make(docker, &own, scratch, log).await?;
    }
    Ok(own)
}

async fn make(
    docker: &dyn Docker,
    own: &Bases,
    scratch: &Path,
    log: &(dyn for<'t> Fn(&'t str) + Send + Sync),
) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot write below {}: {error}", scratch.display());
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
        return Err(format!("cannot make the Python base image: {}", said.trim()));
    }
    let layers = [
        (&own.runtime, "runtime.tar", format!("FROM scratch\nADD runtime.tar /\n{RUNTIME}")),
        (&own.packages, "pip.tar", format!("FROM {}\nUSER 0\nADD pip.tar /\n{PACKAGES}", own.runtime)),
    ];
    for (reference, layer, dockerfile) in layers {
        let parts = [
            Content::Text { path: "Dockerfile", text: dockerfile },
            Content::File { path: layer, file: dir.path().join(layer) },
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
