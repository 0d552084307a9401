//! Parts of the Amazon States Language that Minik8s lacks, and advice for each.

const ONLY_JSON_PATH: &str =
    "JSONata is not supported: use JSONPath in inputPath, parameters, resultPath and so on";
const NO_VARIABLES: &str =
    "keep the value in the state's data: put it there with resultPath, read it with a path";
const INLINE_MAP: &str = "a Map runs its items inline: let a task read the items, and use itemsPath";

/// Records (any if empty), unsupported fields, advice.
const FIELDS: &Table = &[
    (&[], &["queryLanguage", "arguments", "output", "items", "condition"], ONLY_JSON_PATH),
    (&[], &["assign"], NO_VARIABLES),
    (&["TaskState"], &["credentials"], "functions are called without credentials; remove it"),
    (&["MapState"], &["itemReader", "itemBatcher", "resultWriter", "label"], INLINE_MAP),
    (&["Machine"], &["processorConfig"], "remove it: a Map runs its items inline"),
];

/// Names that the rewriting of older spellings replaces, unless today's name is there as well.
const OTHER_NAMES: &Table = &[
    (&["MapState"], &["iterator"], "it is another name for itemProcessor: keep one of them"),
    (&["MapState"], &["parameters"], "it is another name for itemSelector: keep one of them"),
    (&["TaskState"], &["resource"], "it is another name for function: keep one of them"),
    (&["WorkflowSpec"], &["version"], "the version of the language is 1.0: remove it"),
];

/// Records of workflows; the tables above apply to no others.
const RECORDS: &[&str] = &["WorkflowSpec", "Machine", "Rule", "Retrier", "Catcher"];

/// Returns advice for a missing field `name` of the record.
pub(crate) fn missing(record: &str, name: &str) -> Option<&'static str> {
    match (record, name) {
        ("TaskState", "function") => Some(
            "write `function: NAME` with the name of a Function, or `Resource: function:NAME` in the Amazon States Language",
        ),
        ("MapState", "itemProcessor") => {
            Some("write `itemProcessor: {startAt: …, states: {…}}`, the states that each item goes through")
        }
        _ => None,
    }
}

type Table = [(&'static [&'static str], &'static [&'static str], &'static str)];

/// Returns advice for the field `name` of the record, if it is an unsupported part of the language.
pub(crate) fn unsupported(record: &str, name: &str) -> Option<&'static str> {
    find(FIELDS, record, name)
}

/// Returns advice for the field `name` of the record, if it is another name of a supported one.
pub(crate) fn other_name(record: &str, name: &str) -> Option<&'static str> {
    find(OTHER_NAMES, record, name)
}

fn find(table: &Table, record: &str, name: &str) -> Option<&'static str> {
    let is_state = record.ends_with("State") && record.len() > "State".len();
    if !is_state && !RECORDS.contains(&record) {
        return None;
    }
    let fits = |records: &[&str], names: &[&str]| {
        (records.is_empty() || records.contains(&record)) && names.contains(&name)
    };
    table.iter().find(|(records, names, _)| fits(records, names)).map(|(_, _, help)| *help)
}
