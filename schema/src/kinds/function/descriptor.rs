//! The `Function` kind: names, links, defaults.

use super::super::pod::content_uses::{content_use, env_uses, login_key};
use super::super::{Descriptor, KindSpec, Links, OlderSpellings, Pods};
use super::{DEFAULT_HANDLER, FunctionSpec, Runtime};
use crate::content_refs::{ContentRef, ContentUse, normalize_path};
use crate::document::edit::{below, rename};
use crate::kinds::trigger::Trigger;
use crate::kinds::{pod, trigger};
use crate::manifest::dialects::{Node, Notes};
use crate::quantity::Memory;
use crate::violation::{Findings, OwnedStep, Path, field_path, indexed, rules};
use crate::{image, names};

impl KindSpec for FunctionSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "functions",
        short_names: &["fn"],
        failure_is_final: true,
        pods: Pods::Replicas,
        labels_propagate: true,
        older: OlderSpellings::for_own_kind(rewrite),
        ..Descriptor::DEFAULT
    };

    const LINKS: Links<Self> =
        Links { files: Self::files, extra_position_paths: Self::extra_position_paths, ..Links::NONE };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        if let Some(source) = &mut self.source {
            *source = normalize_path(source);
        }
        if self.runtime != Some(Runtime::Dockerfile) && self.image.is_none() {
            self.handler.get_or_insert_with(|| DEFAULT_HANDLER.to_owned());
        }
        for variable in &mut self.env {
            match variable.value_from {
                None => _ = variable.value.get_or_insert_default(),
                Some(_) => variable.value = None,
            }
        }
    }

    fn is_replaced_by(&self, after: &Self) -> bool {
        let pods = |spec: &Self| spec.pod("", "");
        self.is_rebuilt_by(after) || self.image != after.image || pods(self) != pods(after)
    }

    fn triggers(&self) -> &[Trigger] {
        &self.triggers
    }
}

impl FunctionSpec {
    /// Fields that the files of the folder contradict.
    fn extra_position_paths(&self) -> Vec<Vec<OwnedStep>> {
        let handler = self.handler.as_deref().is_some_and(|handler| handler != DEFAULT_HANDLER);
        let typed = [("handler", handler), ("runtime", self.runtime.is_some())];
        typed
            .iter()
            .filter(|(_, is_typed)| *is_typed)
            .map(|(field, _)| field_path(&["spec", field]))
            .collect()
    }

    fn files(&self) -> Vec<ContentUse> {
        let folder = self.source.iter().map(|path| ContentRef::Path(normalize_path(path)));
        let source = folder.map(|folder| content_use(field_path(&["spec", "source"]), folder));
        let env = env_uses(&self.env, |number| indexed(&["spec", "env"], number, &[]));
        // Replicas keep running when the token changes: only gateways read it.
        let token = self.auth.iter().map(|auth| {
            login_key(&["spec", "auth", "tokenFrom", "secretKeyRef"], &auth.token_from.secret_key_ref)
        });
        source.chain(env).chain(token).collect()
    }
}

// Older Function manifests: `userUploadFilePath` named a folder that a client uploaded; the folder is now in the
// repository.

pub(super) fn rewrite(node: &mut Node, notes: &mut Notes<'_>) {
    let Some(spec) = below(node, &["spec"]) else { return };
    if let Some(mark) = rename(spec, "userUploadFilePath", "source") {
        notes.older(mark, "spec.userUploadFilePath", "spec.source");
    }
}

// Checks of a function beyond the schema.

/// Maximum body of a call or answer, which the gateway holds in memory.
const BODY_LIMIT_MAX: Memory = Memory { bytes: 64 << 20 };
/// Maximum size of `/tmp`, which is in memory.
const TMP_SIZE_MAX: Memory = Memory { bytes: 16 << 30 };

/// Checks a spec as written.
pub(super) fn validate(function: &FunctionSpec, at: &Path<'_>, findings: &mut Findings) {
    match (&function.source, &function.image) {
        (Some(source), None) => names::check(source, &at.field("source"), findings),
        (None, Some(image)) => {
            if let Err(why) = image::check(image) {
                findings.add(&rules::INVALID_IMAGE, &at.field("image"), why);
            }
        }
        (Some(_), Some(_)) => {
            let message = "Forbidden: may not be set together with `source`, from which the image is built";
            findings.add(&rules::EXCLUSIVE, &at.field("image"), message).on_key();
        }
        (None, None) => {
            let help = "write the folder with `main.py` or a `Dockerfile`, for example `functions/hello`, or an `image`";
            findings.add(&rules::REQUIRED, &at.field("source"), "Required value").help(help);
        }
    }
    if let (Some(_), Some(_)) = (&function.image, function.runtime) {
        let message = "Forbidden: may not be set together with `image`, which is not built";
        findings.add(&rules::EXCLUSIVE, &at.field("runtime"), message).on_key();
    }
    handler(function, &at.field("handler"), findings);
    pod::check_env(&function.env, None, &at.field("env"), findings);
    pod::check_resources(&function.resources, &at.field("resources"), findings);
    if let Some(most) = function.max_scale
        && function.min_scale > most
    {
        let message = format!(
            "Invalid value: {}: must be less than or equal to maxScale of {most}",
            function.min_scale
        );
        findings.add(&rules::SCALING, &at.field("minScale"), message);
    }
    let sizes = [
        ("requestBodyLimit", function.request_body_limit),
        ("responseBodyLimit", function.response_body_limit),
    ];
    for (field, size) in sizes {
        size_between(size, BODY_LIMIT_MAX, &at.field(field), findings);
    }
    if let Some(auth) = &function.auth {
        if function.public {
            let message = "Forbidden: may not be set together with `public`, which lets anyone call";
            findings.add(&rules::EXCLUSIVE, &at.field("auth"), message).on_key();
        }
        let (auth_at, token) = (at.field("auth"), &auth.token_from);
        let from = auth_at.field("tokenFrom");
        let here = from.field("secretKeyRef");
        for (field, value) in [("name", &token.secret_key_ref.name), ("key", &token.secret_key_ref.key)] {
            if value.is_empty() {
                findings.add(&rules::REQUIRED, &here.field(field), "Required value");
            }
        }
    }
    let sandbox = at.field("sandbox");
    size_between(function.sandbox.tmp_size_limit, TMP_SIZE_MAX, &sandbox.field("tmpSizeLimit"), findings);
    trigger::validate(&function.triggers, at, findings);
}

fn size_between(size: Memory, most: Memory, at: &Path<'_>, findings: &mut Findings) {
    if size.bytes == 0 || size > most {
        let message = format!("Invalid value: `{size}`: must be more than 0 and at most {most}");
        findings.add(&rules::OUT_OF_RANGE, at, message);
    }
}

/// Checks for `name` or `module.name`, in Python's spelling.
fn handler(function: &FunctionSpec, at: &Path<'_>, findings: &mut Findings) {
    let Some(handler) = &function.handler else { return };
    if function.runtime == Some(Runtime::Dockerfile) || function.image.is_some() {
        let message =
            "Forbidden: may not be set with the runtime `dockerfile` or an `image`, which answers by itself";
        findings.add(&rules::EXCLUSIVE, at, message).on_key();
    } else if handler.len() > 255 || !handler.split('.').all(is_identifier) {
        let message = format!(
            "Invalid value: `{handler}`: must be a Python name, or module names and a name joined by '.'"
        );
        findings.add(&rules::INVALID_NAME, at, message).help("for example `main`, or `handlers.on_order`");
    }
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !text.starts_with(|c: char| c.is_ascii_digit())
}
