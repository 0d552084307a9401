//! Form B: `spec.{entryParams, entryNodeName, workflowNodes}`. A node without a next one ends the run.

use super::definition::{EndState, free_name, into_entries, merge, names_a_state, parse_json, take_non_null};
use crate::document::edit;
use crate::document::edit::{below, entry, list, mapping, number, plain, put, rename, take, text};
use crate::kinds::workflow::JsonPath;
use crate::manifest::dialects::{Entry, Mark, Node, Notes, Value};
use crate::violation::rules;

/// `checkType`, the operator, and true if the rule is negated. `Then` is an older spelling.
const CHECKS: &[(&[&str], &str, bool)] = &[
    (&["numEqual"], "numericEquals", false),
    (&["numNotEqual"], "numericEquals", true),
    (&["numGreaterThan", "numGreaterThen"], "numericGreaterThan", false),
    (&["numLessThan", "numLessThen"], "numericLessThan", false),
    (&["numGreaterAndEqualThan", "numGreaterAndEqualThen"], "numericGreaterThanEquals", false),
    (&["numLessAndEqualThan", "numLessAndEqualThen"], "numericLessThanEquals", false),
    (&["strEqual"], "stringEquals", false),
    (&["strNotEqual"], "stringEquals", true),
    (&["strGreaterThan", "strGreaterThen"], "stringGreaterThan", false),
    (&["strLessThan", "strLessThen"], "stringLessThan", false),
    (&["strGreaterAndEqualThan", "strGreaterAndEqualThen"], "stringGreaterThanEquals", false),
    (&["strLessAndEqualThan", "strLessAndEqualThen"], "stringLessThanEquals", false),
    // Without `num` or `str`, the value decides.
    (&["equal"], "Equals", false),
    (&["notEqual"], "Equals", true),
];

/// Error of a run whose variable has another type than its check.
const MISMATCH: &str = "TypeMismatch";

/// Rewrites the spec of form B.
pub(super) fn convert(spec: &mut Node, namespace: &str, notes: &mut Notes<'_>) {
    let Some(mark) = ["workflowNodes", "entryNodeName", "entryParams"]
        .iter()
        .find_map(|key| spec.entry(key).map(|entry| entry.mark))
    else {
        return;
    };
    notes.older(mark, "entryParams, entryNodeName, workflowNodes", "params, startAt, states");
    rename(spec, "entryNodeName", "startAt");
    if let Some(written) = take(spec, "entryParams").filter(names_a_state) {
        let value = params(written.value, notes);
        put(spec, Entry { key: "params".to_owned(), value, ..written });
    }
    if let Some(nodes) = take_non_null(spec, "workflowNodes") {
        let Value::Sequence(items) = nodes.value.value else {
            let message = "spec.workflowNodes: expected a list".to_owned();
            put(spec, entry("states", nodes.mark, mapping(nodes.mark, [])));
            return notes.error(nodes.mark, &rules::WRONG_TYPE, message, "begin each node with `- `");
        };
        let value = Node { mark: nodes.value.mark, value: Value::Mapping(states(items, namespace, notes)) };
        put(spec, entry("states", nodes.mark, value));
    }
}

/// Parses JSON text; a mapping stays as it is.
fn params(value: Node, notes: &mut Notes<'_>) -> Node {
    let Some(text) = value.text() else { return value };
    parse_json(text, value.mark, notes.budget).unwrap_or_else(|why| {
        let message = format!("spec.entryParams: {why}");
        notes.error(value.mark, &rules::JSON_SYNTAX, message, "for example '{\"x\": 1}'");
        value
    })
}

fn states(items: Vec<Node>, namespace: &str, notes: &mut Notes<'_>) -> Vec<Entry> {
    let name_of = |item: &Node| item.entry("name").and_then(|entry| entry.value.text()).map(str::to_owned);
    let names: Vec<String> = items.iter().filter_map(name_of).collect();
    let taken = names.iter().map(String::as_str);
    let mut end = EndState::new(&taken);
    let mut states: Vec<Entry> = Vec::new();
    let mut mismatches: Vec<Entry> = Vec::new();
    for (index, mut item) in items.into_iter().enumerate() {
        let mark = item.first_mark();
        let name = take_non_null(&mut item, "name")
            .and_then(|name| Some((name.value.mark, name.value.text()?.to_owned())));
        let Some((name_mark, name)) = name else {
            let message = format!("spec.workflowNodes[{index}].name: Required value: the node has no name");
            notes.error(mark, &rules::MISSING_FIELD, message, "other nodes refer to it by name");
            continue;
        };
        if states.iter().any(|state| state.key == name) {
            let message = format!("spec.workflowNodes[{index}].name: Duplicate value: `{name}`");
            notes.error(name_mark, &rules::DUPLICATE_NAME, message, "each node needs a unique name");
            continue;
        }
        match item.entry("type").and_then(|entry| entry.value.text()) {
            Some("func") => func(&mut item, mark, namespace, notes),
            Some("choice") => {
                let mismatch = free_name(&mismatch_name(&name), &taken);
                mismatches.extend(choice(&mut item, mark, (&mut end, &mismatch), notes));
            }
            _ => {}
        }
        states.push(entry(&name, mark, item));
    }
    end.add_to(&mut states);
    states.append(&mut mismatches);
    states
}

/// Returns the name of the state in which a run fails if its choice compares another type. The choice's name is
/// shortened, because names have a maximum length.
fn mismatch_name(choice: &str) -> String {
    format!("{}-mismatch", choice.chars().take(60).collect::<String>())
}

/// Moves the fields of `data` into the node itself, and sets its current type.
fn unfold(node: &mut Node, data: &str, unused: &str, kind: &str) {
    let is_empty =
        |entry: &Entry| entry.value.is_null() || entry.value.entries().is_some_and(<[_]>::is_empty);
    if node.entry(unused).is_some_and(is_empty) {
        take(node, unused);
    }
    if let Some(entry) = take_non_null(node, data) {
        // Duplicate fields go back, so that the schema walk reports them.
        let (mark, twice) = (entry.mark, merge(into_entries(entry.value), node));
        if !twice.is_empty() {
            put(node, edit::entry(data, mark, Node { mark, value: Value::Mapping(twice) }));
        }
    }
    if let Some(entry) = take(node, "type") {
        let mark = entry.value.mark;
        put(node, Entry { value: text(mark, kind), ..entry });
    }
}

fn func(node: &mut Node, mark: Mark, namespace: &str, notes: &mut Notes<'_>) {
    unfold(node, "funcData", "choiceData", "Task");
    rename(node, "funcName", "function");
    if let Some(other) = take_non_null(node, "funcNamespace")
        && let Some(text) = other.value.text()
        && !text.is_empty()
        && text != namespace
    {
        let (mark, namespace) = (other.value.mark, text.to_owned());
        if let Some(function) = below(node, &["function"])
            && let Value::Scalar { text, .. } = &mut function.value
            && !text.is_empty()
        {
            notes.older(mark, "funcNamespace", &format!("function: {namespace}/{text}"));
            *text = format!("{namespace}/{text}");
        }
    }
    match take_non_null(node, "nextNodeName").filter(names_a_state) {
        // Next to a `next` the field stays, and is reported as unknown.
        Some(next) if node.entry("next").is_some() => put(node, next),
        Some(next) => put(node, Entry { key: "next".to_owned(), ..next }),
        None => put(node, entry("end", mark, plain(mark, true))),
    }
}

/// Rewrites a choice. Returns the state `mismatch`, to which the choice leads if the variable has another type than
/// the compared value: in older systems that ended a run with an error, whatever the comparison.
fn choice(
    node: &mut Node,
    mark: Mark,
    (end, mismatch): (&mut EndState, &str),
    notes: &mut Notes<'_>,
) -> Option<Entry> {
    unfold(node, "choiceData", "funcData", "Choice");
    let mut towards = |node: &mut Node, key: &str| match take_non_null(node, key).filter(names_a_state) {
        Some(written) => written.value,
        None => text(mark, end.name(mark)),
    };
    let (fits, default) = (towards(node, "trueNextNodeName"), towards(node, "falseNextNodeName"));
    put(node, entry("default", mark, default));
    let mut wanted = |key: &str, help: &str| {
        let found = take_non_null(node, key);
        if found.is_none() {
            let message = format!("choiceData.{key}: Required value: the field is missing");
            notes.error(mark, &rules::MISSING_FIELD, message, help);
        }
        found
    };
    let (check, variable, value) = (
        wanted("checkType", "for example `numEqual`"),
        wanted("checkVarName", "the name of a field of the last result"),
        wanted("compareValue", "what the field is compared with"),
    );
    let rule = match (check, variable, value) {
        (Some(check), Some(variable), Some(value)) => rule(&check, &variable, &value, notes),
        _ => None,
    };
    let mut rules = Vec::new();
    let failed = rule.map(|(mut guard, mut rule, cause)| {
        put(&mut guard, entry("next", mark, text(mark, mismatch)));
        put(&mut rule, entry("next", fits.mark, fits));
        rules.extend([guard, rule]);
        let fields =
            [("type", text(mark, "Fail")), ("error", text(mark, MISMATCH)), ("cause", text(mark, &cause))];
        entry(mismatch, mark, mapping(mark, fields))
    });
    put(node, entry("choices", mark, list(mark, rules)));
    failed
}

/// Returns the rule that matches a variable of another type, the rule itself, and the cause for the former.
fn rule(
    check: &Entry,
    variable: &Entry,
    value: &Entry,
    notes: &mut Notes<'_>,
) -> Option<(Node, Node, String)> {
    let word = check.value.text().unwrap_or_default();
    let Some((_, operator, is_negated)) = CHECKS.iter().find(|(words, _, _)| words.contains(&word)) else {
        let message = format!("checkType: Unsupported value: `{word}`");
        let words = CHECKS.iter().flat_map(|(words, _, _)| words.first().copied());
        let help = crate::document::nearest::suggestion(word, words);
        notes.error(check.value.mark, &rules::UNKNOWN_VALUE, message, &help);
        return None;
    };
    let operator = match (*operator, number(&value.value).is_some()) {
        ("Equals", true) => "numericEquals",
        ("Equals", false) => "stringEquals",
        (operator, _) => operator,
    };
    let value_mark = value.value.mark;
    let Some(written) = value.value.text() else {
        let message = "compareValue: expected a number or text".to_owned();
        notes.error(value_mark, &rules::WRONG_TYPE, message, "");
        return None;
    };
    let operand = if operator.starts_with("string") {
        text(value_mark, written)
    } else if number(&value.value).is_some() {
        plain(value_mark, written)
    } else {
        let message = format!("compareValue: `{written}` is not a number, but checkType is `{word}`");
        notes.error(
            value_mark,
            &rules::WRONG_TYPE,
            message,
            "write a number, or a checkType that begins with `str`",
        );
        return None;
    };
    let name = variable.value.text().unwrap_or_default();
    let path = JsonPath::from_field(name).to_string();
    let of_variable = |operator: &str, operand: Node| {
        mapping(check.mark, [("variable", text(variable.value.mark, &path)), (operator, operand)])
    };
    let (is_type, type_) = match operator.starts_with("string") {
        true => ("isString", "string"),
        false => ("isNumeric", "number"),
    };
    let guard = mapping(check.mark, [("not", of_variable(is_type, plain(check.mark, true)))]);
    let comparison = of_variable(operator, operand);
    let rule = if *is_negated { mapping(check.mark, [("not", comparison)]) } else { comparison };
    Some((guard, rule, format!("{name} is not a {type_}, but checkType is {word}")))
}
