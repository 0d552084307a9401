//! Contents of the image of a Python function. Only checks which files exist.

use std::path::Path;

use schema::records::BuildOrder;

use super::context::Content;
use crate::worlds::docker::SECRET_VARIABLE;

/// The program that serves a function, in each of its images.
pub(super) const SHIM: &str = include_str!("python/shim.py");

/// Script that makes the base images from Debian packages, see [`super::base`].
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
pub(super) fn host_of(index: &str) -> &str {
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
pub struct Bases {
    pub runtime: String,
    pub packages: String,
}

/// Returns the Dockerfile of a folder with Python code, and whether the build needs the network. With `has_login`,
/// the steps find a login for the index in their environment.
pub(super) fn dockerfile(
    bases: &Bases,
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
                vec!["--index-url", index.as_str(), "--trusted-host", host_of(index)]
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
pub(super) fn content(dockerfile: &str, folder: &Path) -> Vec<Content> {
    let mut content = vec![
        Content::Text { path: "Dockerfile", text: dockerfile.to_owned() },
        Content::Text { path: "shim.py", text: SHIM.to_owned() },
        Content::Folder { path: "source", folder: folder.to_owned() },
    ];
    if Path::new(MACHINE_CAS).is_file() {
        content.push(Content::File { path: "ca.crt", file: MACHINE_CAS.into() });
    }
    content
}
