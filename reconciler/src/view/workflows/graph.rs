//! A state machine as a graph: the transitions of its states, their places in a picture, and a run's path. Pure.
//!
//! Layers are those of Sugiyama's method: transitions that lead back are left out, each state is one layer below the
//! lowest that leads to it, and within a layer states are below the average of these.

use std::iter;

use schema::kinds::workflow::{Catcher, MachineRef, Rule, State};

use crate::workflows::machine::HistoryEvent;

/// Largest machine with a picture; nobody can read a larger one.
const STATES_MAX: usize = 100;
/// Most transitions of a machine with a picture.
const EDGES_MAX: usize = 300;
/// Maximum number of layers that all edges pass: a picture of more is as large as a page may be.
const POINTS_MAX: usize = 1_000;
/// Most causes named for one transition.
const CAUSES_MAX: usize = 8;

/// A transition of a state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transition<'a> {
    /// The next state; `None` at the end of the machine.
    pub(super) to: Option<&'a str>,
    pub(super) cause: Cause<'a>,
}

/// Cause of a transition.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cause<'a> {
    /// The end of the state's work.
    Next,
    /// A rule of a Choice that matches.
    Rule(&'a Rule),
    /// No rule of a Choice that matches.
    Otherwise,
    /// An error.
    Catch(&'a Catcher),
}

/// Returns the transitions of a state, errors last.
pub(super) fn transitions(state: &State) -> Vec<Transition<'_>> {
    let next = state.transition().map(|(to, _)| Transition { to, cause: Cause::Next });
    let mut all: Vec<Transition<'_>> = next.into_iter().collect();
    if let State::Choice(choice) = state {
        for rule in &choice.choices {
            all.push(Transition { to: rule.next.as_deref(), cause: Cause::Rule(rule) });
        }
        if let Some(to) = choice.default.as_deref() {
            all.push(Transition { to: Some(to), cause: Cause::Otherwise });
        }
    }
    for catcher in state.handlers().1 {
        all.push(Transition { to: Some(catcher.next.as_str()), cause: Cause::Catch(catcher) });
    }
    all
}

impl Cause<'_> {
    /// Formats the cause; `None` if nothing else can happen.
    pub(super) fn text(self) -> Option<String> {
        match self {
            Self::Next => None,
            Self::Rule(rule) => Some(condition(rule)),
            Self::Otherwise => Some("else".to_owned()),
            Self::Catch(catcher) => Some(catcher.error_equals.join(", ")),
        }
    }
}

/// Formats a condition as `$.n numericGreaterThan 5`, joined by and, or, not.
fn condition(rule: &Rule) -> String {
    let joined = |rules: &[Rule], word: &str| {
        let all: Vec<String> = rules.iter().map(|rule| format!("({})", condition(rule))).collect();
        all.join(word)
    };
    match (&rule.and, &rule.or, &rule.not) {
        (Some(all), ..) => joined(all, " and "),
        (_, Some(any), _) => joined(any, " or "),
        (.., Some(not)) => format!("not ({})", condition(not)),
        (None, None, None) => {
            let compared = rule.comparisons.iter();
            let compared: Vec<String> =
                compared.map(|(operator, value)| format!("{} {value}", operator.as_str())).collect();
            format!("{} {}", rule.variable.as_deref().unwrap_or_default(), compared.join(" "))
        }
    }
}

/// The outermost machine of a workflow, laid out in layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    pub nodes: Vec<GraphNode>,
    pub edges: Vec<GraphEdge>,
    /// Number of columns; a node is two columns wide.
    pub columns: usize,
    pub layers: usize,
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphNode {
    pub name: String,
    /// Type of the state.
    pub kind: &'static str,
    pub at: GridPoint,
    /// True if the machine may end in the state.
    pub is_end: bool,
}

/// A place in the grid, counted from the upper left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GridPoint {
    pub column: usize,
    pub layer: usize,
}

/// The transitions from one state to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphEdge {
    /// Indexes of the two nodes.
    pub from: usize,
    pub to: usize,
    /// Points in the layers between the two, from above.
    pub via: Vec<GridPoint>,
    /// True if it leads to the same state, or to one that came before.
    pub is_back: bool,
    /// True if only errors lead this way.
    pub is_catch: bool,
    /// Conditions and errors that lead this way, the first ones.
    pub causes: Vec<String>,
}

/// Lays out a machine; `None` if it is empty or too large for a picture.
pub fn graph(machine: MachineRef<'_>) -> Option<Graph> {
    let names: Vec<&str> = machine.states.keys().map(String::as_str).collect();
    if names.is_empty() || names.len() > STATES_MAX {
        return None;
    }
    let mut edges = edges(machine, &names)?;
    let start = names.binary_search(&machine.start_at).unwrap_or_default();
    let order = order(start, names.len(), &mut edges);
    let mut layers = vec![0_usize; names.len()];
    for state in &order {
        for edge in edges.iter().filter(|edge| edge.from == *state && !edge.is_back) {
            layers[edge.to] = layers[edge.to].max(layers[*state] + 1);
        }
    }
    let (points, columns) = place(&order, &layers, &mut edges);
    let nodes = machine.states.iter().zip(&points).map(|((name, state), at)| GraphNode {
        name: name.clone(),
        kind: state.kind(),
        at: *at,
        is_end: state.is_terminal(),
    });
    let layers = layers.iter().max().map_or(0, |last| last + 1);
    let passed: usize = edges.iter().map(|edge| edge.via.len()).sum();
    if passed > POINTS_MAX {
        return None;
    }
    Some(Graph { nodes: nodes.collect(), edges, columns, layers })
}

/// Returns one edge for each pair of states; `None` if these are too many. `names` are sorted.
fn edges(machine: MachineRef<'_>, names: &[&str]) -> Option<Vec<GraphEdge>> {
    let mut edges: Vec<GraphEdge> = Vec::new();
    for (from, state) in machine.states.values().enumerate() {
        for transition in transitions(state) {
            let Some(to) = transition.to.and_then(|to| names.binary_search(&to).ok()) else { continue };
            let known = edges.iter().position(|edge| (edge.from, edge.to) == (from, to));
            let at = known.unwrap_or(edges.len());
            if known.is_none() {
                let (via, causes) = (Vec::new(), Vec::new());
                edges.push(GraphEdge { from, to, via, is_back: false, is_catch: true, causes });
            }
            let edge = &mut edges[at];
            edge.is_catch &= matches!(transition.cause, Cause::Catch(_));
            if edge.causes.len() < CAUSES_MAX {
                edge.causes.extend(transition.cause.text());
            }
            if edges.len() > EDGES_MAX {
                return None;
            }
        }
    }
    Some(edges)
}

/// Marks the edges that lead back, and returns the states in an order in which all others lead forward: the reverse of
/// the order in which a depth-first search leaves them.
fn order(start: usize, count: usize, edges: &mut [GraphEdge]) -> Vec<usize> {
    let mut outgoing: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (at, edge) in edges.iter().enumerate() {
        outgoing[edge.from].push(at);
    }
    let (mut is_known, mut is_open) = (vec![false; count], vec![false; count]);
    let mut left = Vec::with_capacity(count);
    for root in iter::once(start).chain(0..count) {
        // States on the way from the root, each with the number of its edges that are not followed yet.
        let mut way: Vec<(usize, usize)> = Vec::new();
        let mut entered = Some(root).filter(|root| !is_known[*root]);
        loop {
            if let Some(state) = entered.take() {
                (is_known[state], is_open[state]) = (true, true);
                way.push((state, outgoing[state].len()));
            }
            let Some((state, rest)) = way.last_mut() else { break };
            if *rest == 0 {
                is_open[*state] = false;
                left.push(*state);
                way.pop();
                continue;
            }
            // The last edge first: reversed, states are in the order of the edges.
            *rest -= 1;
            let edge = &mut edges[outgoing[*state][*rest]];
            edge.is_back = is_open[edge.to];
            entered = Some(edge.to).filter(|to| !is_known[*to]);
        }
    }
    left.reverse();
    left
}

/// A state, or the point where an edge passes a layer.
struct Place {
    layer: usize,
    /// Places in the layer above that lead here.
    above: Vec<usize>,
}

/// Returns the points of the states and the number of columns, and sets the points of edges that pass layers.
fn place(order: &[usize], layers: &[usize], edges: &mut [GraphEdge]) -> (Vec<GridPoint>, usize) {
    let state = |layer: &usize| Place { layer: *layer, above: Vec::new() };
    let mut places: Vec<Place> = layers.iter().map(state).collect();
    let mut passed: Vec<Vec<usize>> = Vec::with_capacity(edges.len());
    for edge in edges.iter() {
        let (mut above, mut passes) = (edge.from, Vec::new());
        if !edge.is_back {
            for layer in layers[edge.from] + 1..layers[edge.to] {
                passes.push(places.len());
                places.push(Place { layer, above: vec![above] });
                above = places.len() - 1;
            }
            places[edge.to].above.push(above);
        }
        passed.push(passes);
    }
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); layers.iter().max().map_or(0, |last| last + 1)];
    for at in order.iter().copied().chain(layers.len()..places.len()) {
        rows[places[at].layer].push(at);
    }
    let widest = rows.iter().map(Vec::len).max().unwrap_or(1);
    let mut points = vec![GridPoint::default(); places.len()];
    for (layer, row) in rows.iter_mut().enumerate() {
        row.sort_by_key(|at| {
            let above = &places[*at].above;
            let sum: usize = above.iter().map(|above| points[*above].column).sum();
            // Hundredths of a column.
            sum * 100 / above.len().max(1)
        });
        for (number, at) in row.iter().enumerate() {
            points[*at] = GridPoint { column: widest - row.len() + 2 * number, layer };
        }
    }
    for (edge, passes) in edges.iter_mut().zip(passed) {
        edge.via = passes.into_iter().map(|at| points[at]).collect();
    }
    points.truncate(layers.len());
    (points, 2 * widest)
}

/// Returns the states of the outermost machine that a run entered, in order. Names of states are unique in a workflow,
/// so all other states are in branches.
pub fn run_path<'a>(machine: MachineRef<'_>, history: &'a [HistoryEvent]) -> Vec<&'a str> {
    let entered = history.iter().filter(|event| event.kind.ends_with("StateEntered"));
    let states = entered.filter_map(|event| event.state.as_deref());
    states.filter(|state| machine.states.contains_key(*state)).collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use schema::kinds::workflow::WorkflowSpec;
    use serde_json::json;

    use super::*;

    fn spec(start: &str, states: &serde_json::Value) -> WorkflowSpec {
        serde_json::from_value(json!({"startAt": start, "states": states})).unwrap()
    }

    /// The picture of a machine as text: each state with its column and layer, then the edges.
    fn drawn(spec: &WorkflowSpec) -> String {
        let graph = graph(spec.machine()).unwrap();
        let name = |at: usize| &graph.nodes[at].name;
        let nodes = graph.nodes.iter().map(|node| {
            let end = if node.is_end { " end" } else { "" };
            format!("{} {},{}{end}\n", node.name, node.at.column, node.at.layer)
        });
        let edges = graph.edges.iter().map(|edge| {
            let via = edge.via.iter().map(|point| format!(" via {},{}", point.column, point.layer));
            let back = if edge.is_back { " back" } else { "" };
            let catch = if edge.is_catch { " catch" } else { "" };
            let causes = edge.causes.iter().map(|cause| format!(" [{cause}]"));
            let more: String = via.chain(causes).collect();
            format!("{} > {}{back}{catch}{more}\n", name(edge.from), name(edge.to))
        });
        format!(
            "{}x{}\n{}{}",
            graph.columns,
            graph.layers,
            nodes.collect::<String>(),
            edges.collect::<String>()
        )
    }

    #[test]
    fn a_line_is_one_column() {
        let line = json!({"c": {"type": "Pass", "next": "a"}, "a": {"type": "Pass", "next": "b"},
                          "b": {"type": "Pass", "end": true}});
        assert_eq!(drawn(&spec("c", &line)), "2x3\na 0,1\nb 0,2 end\nc 0,0\na > b\nc > a\n");
    }

    #[test]
    fn branches_of_a_choice_are_side_by_side_and_a_longer_way_passes_them() {
        let choice = json!({
            "which": {"type": "Choice", "default": "join", "choices": [
                {"variable": "$.x", "isPresent": true, "next": "right"},
                {"variable": "$.y", "isPresent": true, "next": "left"}]},
            "left": {"type": "Task", "function": "f", "next": "join",
                     "catch": [{"errorEquals": ["Down"], "next": "sorry"}]},
            "right": {"type": "Pass", "next": "join"},
            "join": {"type": "Succeed"},
            "sorry": {"type": "Fail"},
        });
        assert_eq!(
            drawn(&spec("which", &choice)),
            "6x3\njoin 3,2 end\nleft 2,1\nright 0,1\nsorry 1,2 end\nwhich 2,0\nleft > join\nleft > sorry catch \
             [Down]\nright > join\nwhich > right [$.x isPresent true]\nwhich > left [$.y isPresent true]\nwhich > join \
             via 4,1 [else]\n"
        );
    }

    #[test]
    fn a_loop_leads_back_and_moves_no_state_down() {
        let states = json!({
            "begin": {"type": "Pass", "next": "try"},
            "try": {"type": "Pass", "next": "again"},
            "again": {"type": "Choice", "default": "done", "choices": [
                {"variable": "$.x", "isPresent": true, "next": "try"},
                {"variable": "$.y", "isPresent": true, "next": "again"}]},
            "done": {"type": "Succeed"},
        });
        assert_eq!(
            drawn(&spec("begin", &states)),
            "2x4\nagain 0,2\nbegin 0,0\ndone 0,3 end\ntry 0,1\nagain > try back [$.x isPresent true]\nagain > again back \
             [$.y isPresent true]\nagain > done [else]\nbegin > try\ntry > again\n"
        );
    }

    #[test]
    fn a_machine_that_is_empty_or_too_large_has_no_picture() {
        let chain = |count: usize| -> serde_json::Value {
            let state = |n: usize| (format!("s{n}"), json!({"type": "Pass", "next": format!("s{}", n + 1)}));
            serde_json::Value::Object((0..count).map(state).collect())
        };
        assert!(graph(spec("s0", &chain(STATES_MAX)).machine()).is_some());
        assert_eq!(graph(spec("s0", &chain(STATES_MAX + 1)).machine()), None);
        assert_eq!(graph(spec("s0", &json!({})).machine()), None);
        // Each of 20 states leads to all of them.
        let rules: Vec<_> =
            (0..20).map(|n| json!({"variable": "$.x", "isPresent": true, "next": format!("s{n}")})).collect();
        let all = (0..20).map(|n| (format!("s{n}"), json!({"type": "Choice", "choices": rules})));
        assert_eq!(graph(spec("s0", &serde_json::Value::Object(all.collect())).machine()), None);
    }

    #[test]
    fn the_path_is_that_of_the_outermost_machine() {
        let spec = spec("all", &json!({"all": {"type": "Pass", "next": "end"}, "end": {"type": "Succeed"}}));
        let event = |kind: &'static str, state: Option<&str>| HistoryEvent {
            id: 1,
            previous_event_id: 0,
            timestamp: Timestamp::UNIX_EPOCH,
            kind: kind.into(),
            state: state.map(str::to_owned),
            detail: Default::default(),
        };
        let history = [
            event("ExecutionStarted", None),
            event("MapStateEntered", Some("all")),
            event("PassStateEntered", Some("inside")),
            event("PassStateExited", Some("inside")),
            event("MapStateExited", Some("all")),
            event("SucceedStateEntered", Some("end")),
        ];
        assert_eq!(run_path(spec.machine(), &history), ["all", "end"]);
    }
}
