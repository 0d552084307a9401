//! "A parse error is never a deletion": whatever happens to a byte of a manifest, the file never seems to declare
//! nothing. (A byte may well rename an object: that is a legal change.)

use proptest::prelude::*;
use schema::manifest::load_file;

use super::{container, with};

/// The same pod in each spelling that a repository may contain.
fn spellings() -> Vec<(&'static str, String)> {
    let flow = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}"#;
    let compact = flow.replace(": ", ":").replace(", ", ",");
    let lines = compact.replace("\"metadata\"", "\n\"metadata\"");
    let block = container("command: [sh, -c, \"x\"]\nargs: ['y']");
    vec![
        ("a.yaml", block.clone()),
        ("a.yaml", format!("---\n{block}")),
        ("a.yaml", block.lines().map(|line| format!("  {line}\n")).collect()),
        ("a.yaml", block.replace('\n', "\r\n")),
        ("a.yaml", format!("\u{feff}{block}")),
        (
            "a.yaml",
            format!(
                "kind: Pod\nspec:{}metadata: {{name: a}}\napiVersion: v1\n",
                &with("").split_once("spec:").map_or("", |(_, spec)| spec)
            ),
        ),
        ("a.yaml", format!("{flow}\n")),
        ("a.yaml", compact.clone()),
        ("a.yaml", lines.clone()),
        ("a.yaml", format!("{flow}\n---\n{flow}\n")),
        ("a.yaml", format!("--- {flow}\n--- {flow}\n")),
        ("a.yaml", format!("{block}---\n{block}")),
        ("a.json", format!("{flow}\n{flow}\n")),
        ("a.json", format!("{flow}\n")),
        ("a.json", compact),
        ("a.json", lines),
        ("a.yaml", format!("apiVersion: v1\nkind: List\nitems:\n- {flow}\n")),
    ]
}

#[test]
fn no_single_byte_turns_a_manifest_into_no_manifest() {
    // Every byte that is significant in YAML or JSON, and some that are not.
    let bytes = b"\0\t\n\r !\"#%&'*,-.0:<>?@[\\]`a{|}~\x80\xff";
    for (path, text) in spellings() {
        let objects = load_file(path, text.as_bytes()).documents.len();
        assert!(objects > 0, "{text}");
        for at in 0..text.len() {
            for byte in bytes {
                let mut broken = text.clone().into_bytes();
                broken[at] = *byte;
                let loaded = load_file(path, &broken);
                let shown = String::from_utf8_lossy(&broken);
                assert!(loaded.is_manifest, "byte {at} as {byte:#04x} makes it no manifest:\n{shown}");
                assert!(
                    loaded.has_errors() || loaded.documents.len() >= objects,
                    "byte {at} as {byte:#04x} loses the object without an error:\n{shown}"
                );
            }
        }
    }
}

#[test]
fn no_single_byte_left_out_or_cut_off_goes_unnoticed() {
    for (path, text) in spellings() {
        for at in 0..text.len() {
            let mut broken = text.clone().into_bytes();
            broken.remove(at);
            assert!(
                load_file(path, &broken).is_manifest,
                "without byte {at}: {}",
                String::from_utf8_lossy(&broken)
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = load_file("a.yaml", &bytes);
        let _ = load_file("a.json", &bytes);
    }

    #[test]
    fn random_yaml_like_text_never_panics(text in "[-a:\\[\\]{},&*!|>'\"%@` \n\t?#0~<]{0,80}") {
        let _ = load_file("a.yaml", text.as_bytes());
        let _ = load_file("a.json", text.as_bytes());
    }

    #[test]
    fn mutated_manifests_never_panic(
        which in 0usize..17,
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let (path, text) = spellings().swap_remove(which);
        let mut bytes = text.into_bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let loaded = load_file(path, &bytes);
        // Errors always mark the file as one that may have been a manifest.
        prop_assert!(loaded.is_manifest || !loaded.has_errors());
    }
}
