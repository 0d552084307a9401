//! Malicious files: loading them is bounded, in memory and in work.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use schema::manifest::{ManifestFile, limits, load_file};

use super::{container, load, rules, with};

/// A list of `count` equal items.
fn repeated(item: &str, count: usize) -> String {
    format!("{item}\n").repeat(count)
}

/// Processor time that this thread spends on `work`.
fn cost(work: impl FnOnce()) -> Duration {
    let now =
        || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock"));
    let before = now();
    work();
    now() - before
}

#[test]
fn text_counts_as_often_as_aliases_repeat_it() {
    let long = "x".repeat(200_000);
    let nested: String = (0..60).map(|level| format!("&a{level} [")).collect();
    for text in [
        format!("a: &a \"{long}\"\nb:\n{}", repeated("- *a", 1000)),
        format!("? &a \"{long}\"\n: 1\nb:\n{}", repeated("- *a : 1", 1000)),
        format!("a: &a {{x: \"{long}\"}}\nb:\n{}", repeated("- <<: *a", 1000)),
        // Each anchor keeps a copy.
        format!("a: {nested}\"{long}\"{}\n", "]".repeat(60)),
    ] {
        let loaded = load(&text);
        let start: String = text.chars().take(20).collect();
        assert_eq!(loaded.violations.len(), 1, "{start}");
        assert_eq!(loaded.violations[0].rule, "too-many-nodes", "{start}");
        assert!(loaded.violations[0].message.contains("bytes of text"), "{}", loaded.violations[0]);
    }
}

#[test]
fn a_large_file_without_aliases_is_within_the_bounds() {
    let text = format!("a: &a\n  b: &b\n    c: &c [\"{}\"]\n", "x".repeat(limits::FILE_MAX_BYTES - 100));
    assert_eq!(rules(&load(&text)), Vec::<String>::new());
}

/// Several equal workflows with this spec.
fn workflows(spec: &str) -> ManifestFile {
    let head = "apiVersion: v1\nkind: List\nitems:\n- &w\n  apiVersion: minik8s.io/v1\n  kind: Workflow\n";
    load(&format!("{head}  metadata: {{name: w}}\n  spec:\n{spec}{}", repeated("- *w", 7)))
}

#[test]
fn what_a_file_holds_as_text_shares_the_bounds_of_the_file() {
    let ones = "1,".repeat(1000);
    let bomb = format!("    definition: |\n      x: &x [{ones}]\n      y: [{}]\n", "*x,".repeat(100));
    let json = format!("    workflowNodes: []\n    entryParams: '[{}1]'\n", "1,".repeat(80_000));
    for spec in [bomb, json] {
        let loaded = workflows(&spec);
        let too_many =
            loaded.violations.iter().filter(|violation| violation.message.contains("250000 values"));
        assert!(too_many.count() >= 4, "{:?}", loaded.violations.iter().take(5).collect::<Vec<_>>());
    }
}

// Seen red with each violation compared with each.
#[test]
fn very_many_mistakes_take_no_more_time_than_their_number() {
    let mistakes = |count| container(&format!("env: [{}]", "1,".repeat(count)));
    let (few, many) = (mistakes(1_000), mistakes(40_000));
    let mut loaded = ManifestFile::default();
    let together = cost(|| loaded = load(&many));
    assert!(loaded.has_errors());
    assert_eq!(loaded.violations.len(), limits::VIOLATIONS_MAX + 1);
    // The remaining items, and the object, which is too large with their placeholders.
    assert!(loaded.violations[0].message.starts_with("39001 more"), "{}", loaded.violations[0]);
    // As many mistakes in files of a thousand. In one file, comparing each with each would cost 40 times as much.
    let apart = cost(|| (0..40).for_each(|_| drop(load(&few))));
    assert!(together < apart * 4, "{together:?}, and {apart:?} in many files");
}

#[test]
fn very_many_warnings_do_not_hide_an_error() {
    let loaded = load(&container(&format!("args: [{}]\ntt: 1", "yes,".repeat(10_000))));
    assert!(loaded.has_errors());
    assert!(rules(&loaded).contains(&"unknown-field 10:5".to_owned()));
}

/// Total number of characters in a file's messages.
fn reported(loaded: &ManifestFile) -> usize {
    assert!(loaded.has_errors());
    let lengths = loaded.violations.iter().map(|violation| {
        violation.message.len() + violation.help.len() + violation.object.as_deref().map_or(0, str::len)
    });
    lengths.sum()
}

#[test]
fn long_names_are_not_repeated_with_every_mistake() {
    let long = "k".repeat(400_000);
    let choices = format!("{{\"type\": \"Choice\", \"choices\": [{}1]}}", "1,".repeat(300));
    let states = format!("{{\"startAt\": \"a\", \"states\": {{\"{long}\": {choices}}}}}");
    let head = "{\"apiVersion\": \"minik8s.io/v1\", \"kind\": \"Workflow\", \"metadata\": {\"name\": \"a\"}";
    let loaded = load_file("a.json", format!("{head}, \"spec\": {states}}}").as_bytes());
    assert!(rules(&loaded).contains(&"too-large 1:116".to_owned()), "{:?}", rules(&loaded));
    assert!(reported(&loaded) < 300_000, "{}", reported(&loaded));

    let named = container(&format!("env: [{}]", "1,".repeat(300)))
        .replace("name: web\nspec", &format!("name: {long}\nspec"));
    assert!(reported(&load(&named)) < 300_000, "{}", reported(&load(&named)));

    let volume = |index: usize| format!("- {{name: {}{index}, emptyDir: {{}}}}\n", "v".repeat(1000));
    let volumes: String = (0..300).map(volume).collect();
    let mounts = "{name: w, mountPath: a}, ".repeat(100);
    let mounted = with(&format!("  volumeMounts: [{mounts}]\nvolumes:\n{volumes}"));
    assert!(reported(&load(&mounted)) < 1_500_000, "{}", reported(&load(&mounted)));
}

#[test]
fn long_keys_are_of_no_concern_in_other_files() {
    let text = format!("{{\"{}\": \"Satz\"}}", "sentence ".repeat(1000));
    let loaded = load_file("i18n.json", text.as_bytes());
    assert_eq!((loaded.is_manifest, loaded.violations), (false, vec![]));
}

// Seen red with each field looked up among all.
#[test]
fn a_definition_of_very_many_fields_is_read_in_time_that_grows_as_they_do() {
    let definition = |fields: usize| {
        let fields: String = (0..fields).map(|index| format!("\"f{index}\": 1, ")).collect();
        let head = "apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {name: a}\nspec:\n";
        format!("{head}  definition: '{{{fields}\"startAt\": \"a\"}}'\n")
    };
    let (few, many) = (definition(1_000), definition(60_000));
    let together = cost(|| assert!(load(&many).has_errors()));
    let apart = cost(|| (0..60).for_each(|_| assert!(load(&few).has_errors())));
    assert!(together < apart * 4, "{together:?}, and {apart:?} in many files");
}
