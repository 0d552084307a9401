//! Flags of `minik8s secrets`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
pub struct SecretsArgs {
    /// Folder that contains `secrets/`: the root of the repository, or the folder that its source reads
    #[arg(long, value_name = "DIR", default_value = ".", global = true)]
    pub dir: PathBuf,
    /// Your own age identity, which decrypts the cluster's; 'init' creates it
    #[arg(short, long, env = "MINIK8S_AGE_IDENTITY", value_name = "FILE", global = true)]
    pub identity: Option<PathBuf>,
    #[command(subcommand)]
    pub command: SecretsCommand,
}

#[derive(Debug, Subcommand)]
pub enum SecretsCommand {
    /// Create the cluster's identity, and a personal one if you have none
    #[command(after_help = "Example: minik8s secrets init --node node-1=age1… --node node-2=age1…")]
    Init {
        /// A node that may decrypt secrets; 'minik8s get nodes -o wide' shows its recipient
        #[arg(long = "node", value_name = "NAME=RECIPIENT")]
        nodes: Vec<String>,
    },
    /// Encrypt a secret; without --from, re-encrypt the existing one with its namespace and name recorded inside
    #[command(
        after_help = "Examples: minik8s secrets seal db --from db.env\n          printf 'password: x\\n' | minik8s secrets seal db -n shop --from -\n          \
                            minik8s secrets seal registry --shared --from config.json\n          \
                            minik8s secrets seal --from apps/secret.yaml --remove\n          \
                            minik8s secrets seal --from-env apps/web.yaml:12"
    )]
    Seal(SealArgs),
    /// Change a secret in your editor; it is decrypted in memory only
    #[command(after_help = "Example: minik8s secrets edit db -n shop")]
    Edit(SecretSelector),
    /// Create a new cluster identity and re-encrypt all secrets to it, after a node was lost or removed
    #[command(after_help = "Example: minik8s secrets rotate")]
    Rotate,
    /// Check that every intended recipient can read the secrets
    #[command(after_help = "Examples: minik8s secrets check\n          minik8s secrets check --server\n\n\
                            Exit code: 0 all well, 1 problems found.")]
    Check {
        /// Compare with what the nodes of a cluster report; without URL that which 'minik8s status' shows
        #[arg(long, value_name = "URL")]
        server: Option<Option<String>>,
    },
    /// List or change the recipients that can decrypt the cluster's identity
    #[command(
        after_help = "Examples: minik8s secrets recipients\n          minik8s secrets recipients add node-4 age1…"
    )]
    Recipients {
        #[command(subcommand)]
        change: Option<RecipientsChange>,
    },
}

#[derive(Debug, Clone, Args)]
pub struct SecretSelector {
    /// The secret's name
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub place: SecretPlace,
}

/// Namespace and recipients of a secret.
#[derive(Debug, Clone, Args)]
pub struct SecretPlace {
    /// The namespace of the pods that use it; .sources for the credentials of the source NAME, .notifications for those
    /// of a target of notifications
    #[arg(short, long, value_name = "NS", default_value = "default")]
    pub namespace: String,
    /// Share with all namespaces
    #[arg(long, conflicts_with = "namespace")]
    pub shared: bool,
    /// Encrypt only to this recipient, given by value or by name, instead of the cluster (with -n .sources and
    /// -n .notifications: instead of all reconcilers); may be repeated; `cluster` stands for the cluster
    #[arg(long = "to", value_name = "RECIPIENT")]
    pub to: Vec<String>,
}

#[derive(Debug, Args)]
pub struct SealArgs {
    /// The secret's name; by default that of each Secret in the file, or of the object with the variable
    #[arg(value_name = "NAME", required_unless_present_any = ["from", "from_env"])]
    pub name: Option<String>,
    #[command(flatten)]
    pub place: SecretPlace,
    /// The file with the values, or with Kubernetes Secrets, also such that SOPS encrypted to your age key; - for
    /// standard input
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Take the Secrets out of the file once they are sealed
    #[arg(long, requires = "from", conflicts_with = "format")]
    pub remove: bool,
    /// The line of a variable's value (`env`) in a manifest: the value becomes a key of a secret named after the object,
    /// and the line refers to it
    #[arg(long, value_name = "FILE:LINE", conflicts_with_all = ["from", "format", "shared"], value_parser = line_in_file)]
    pub from_env: Option<LineInFile>,
    /// Format of the values; by default from the file extension
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<SecretFormat>,
    /// Source that may use the secret, if not that of the Cluster object or the first one; * for all
    #[arg(long, value_name = "NAME")]
    pub source: Option<String>,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineInFile {
    pub file: PathBuf,
    /// From 1.
    pub line: u32,
}

/// Parses `FILE:LINE`, or `FILE:LINE:COLUMN` as messages show it.
fn line_in_file(text: &str) -> Result<LineInFile, String> {
    let split = |text: &str| {
        text.rsplit_once(':').and_then(|(file, number)| Some((file.to_owned(), number.parse().ok()?)))
    };
    let (file, line) = split(text).ok_or("write it as FILE:LINE")?;
    let (file, line) = split(&file).unwrap_or((file, line));
    Ok(LineInFile { file: file.into(), line })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SecretFormat {
    /// A map from keys to strings in YAML or JSON.
    Map,
    /// Lines of NAME=value.
    Dotenv,
    /// Arbitrary bytes, stored under the single key `value`.
    Opaque,
}

#[derive(Debug, Subcommand)]
pub enum RecipientsChange {
    /// Let a node or a person decrypt the cluster's identity
    Add {
        /// Name of the recipient
        name: String,
        /// Age recipient: age1…
        recipient: String,
        /// Mark the recipient as a reconciler, which decrypts credentials of sources (-n .sources) and of notifications
        /// (-n .notifications) but no secret of a pod
        #[arg(long)]
        reconciler: bool,
    },
    /// Remove a node or a person from the list; 'rotate' then keeps new secrets from it
    Remove {
        /// Name of the recipient
        name: String,
    },
}
