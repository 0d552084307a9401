//! The states of a workflow as SVG, with the path of a run. The table of the run's events says the same.

use std::collections::BTreeSet;

use schema::kinds::workflow::RunPhase;
use schema::violation::{plural, visible};

use crate::api::kinds::results::escape_html;
use crate::view::{Graph, GraphEdge, GraphNode, GridPoint};

/// Sizes: a state, the distance of columns and of layers, the edge of the picture, the room for ways back, an arrow.
const WIDTH: usize = 176;
const HEIGHT: usize = 32;
const COLUMN: usize = 104;
const LAYER: usize = 72;
const MARGIN: usize = 8;
const SIDE: usize = 64;
const ARROW: usize = 8;
/// Distance of an edge that leads back from the middle of its states, so that both of its ends are seen.
const OFFSET: usize = 6;
/// Longest name in the picture, and longest title, in letters of the Latin alphabet; others may be twice as wide.
const NAME_MAX: usize = 18;
const TITLE_MAX: usize = 400;

/// Draws a workflow and the path of a run in this phase.
pub(super) fn draw(graph: &Graph, path: &[&str], phase: RunPhase) -> String {
    let index = |name: &&str| graph.nodes.iter().position(|node| node.name == **name);
    let visits: Vec<usize> = path.iter().filter_map(index).collect();
    let taken: BTreeSet<(usize, usize)> = visits.windows(2).map(|pair| (pair[0], pair[1])).collect();
    let is_taken = |edge: &GraphEdge| taken.contains(&(edge.from, edge.to));
    let mut edges: Vec<&GraphEdge> = graph.edges.iter().collect();
    // Those on the path are drawn over the others.
    edges.sort_by_key(|edge| is_taken(edge));
    let edges: String = edges.into_iter().map(|edge| draw_edge(graph, edge, is_taken(edge))).collect();
    let nodes = graph.nodes.iter().enumerate().map(|(at, node)| {
        let count = visits.iter().filter(|visit| **visit == at).count();
        let state = match (phase, count) {
            (_, 0) => ("", ""),
            (RunPhase::Running, _) if visits.last() == Some(&at) => ("taken current", "◐ "),
            (RunPhase::Running | RunPhase::Succeeded, _) => ("taken", "✓ "),
            _ if visits.last() == Some(&at) => ("taken bad", "▲ "),
            _ => ("taken", "✓ "),
        };
        draw_node(node, count, state)
    });
    let nodes: String = nodes.collect();
    let side = if graph.edges.iter().any(|edge| edge.is_back) { SIDE } else { 0 };
    let (width, height) = (2 * MARGIN + graph.columns * COLUMN + side, 2 * MARGIN + graph.layers * LAYER);
    let markers = format!("{}{}", marker("arrow", ""), marker("arrow-taken", "taken"));
    format!(
        "<svg class=\"graph\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
         aria-label=\"States of the workflow with the path of the run, which the text below names\">\
         <defs>{markers}</defs>{edges}{nodes}</svg>"
    )
}

fn marker(id: &str, class: &str) -> String {
    format!(
        "<marker id=\"{id}\" class=\"{class}\" viewBox=\"0 0 8 8\" refY=\"4\" markerWidth=\"{ARROW}\" \
         markerHeight=\"{ARROW}\" markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\"/></marker>"
    )
}

/// Draws a state that was entered `count` times, with its class and its mark.
fn draw_node(node: &GraphNode, count: usize, (class, mark): (&str, &str)) -> String {
    let (x, y) = center(node.at);
    let entered = match count {
        0 => "not entered".to_owned(),
        times => format!("entered {}", plural(times, "time")),
    };
    let title = shortened(&format!("{}: {}, {entered}", node.name, node.kind), TITLE_MAX);
    let name = shortened(&node.name, NAME_MAX);
    let times = if count > 1 { format!(" ×{count}") } else { String::new() };
    let end = if node.is_end {
        format!("<circle cx=\"{x}\" cy=\"{}\" r=\"3\"/>", y + HEIGHT / 2)
    } else {
        String::new()
    };
    format!(
        "<g class=\"{class}\"><title>{}</title><rect x=\"{}\" y=\"{}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\" \
         stroke-width=\"{}\"/>\
         <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{mark}{}{times}</text>{end}</g>",
        escape_html(&title),
        x - WIDTH / 2,
        y - HEIGHT / 2,
        if count > 0 { 2 } else { 1 },
        y + 4,
        escape_html(&name),
    )
}

fn draw_edge(graph: &Graph, edge: &GraphEdge, is_taken: bool) -> String {
    let mut title = format!("{} → {}", graph.nodes[edge.from].name, graph.nodes[edge.to].name);
    if !edge.causes.is_empty() {
        title.push_str(&format!(": {}", edge.causes.join("; ")));
    }
    let (class, arrow, width) = if is_taken { ("taken", "arrow-taken", 2) } else { ("", "arrow", 1) };
    let dashes = if edge.is_catch { " stroke-dasharray=\"4 4\"" } else { "" };
    format!(
        "<g class=\"{class}\"><title>{}</title><path d=\"{}\" stroke-width=\"{width}\"{dashes} \
         marker-end=\"url(#{arrow})\"/></g>",
        escape_html(&shortened(&title, TITLE_MAX)),
        way(graph, edge)
    )
}

/// Returns the commands that draw an edge: down through its points, or back at the right.
fn way(graph: &Graph, edge: &GraphEdge) -> String {
    let (from, to) = (center(graph.nodes[edge.from].at), center(graph.nodes[edge.to].at));
    if edge.is_back {
        let out = MARGIN + graph.columns * COLUMN + SIDE;
        let (begin, end) = (from.0 + WIDTH / 2, to.0 + WIDTH / 2 + ARROW);
        let (lower, upper) = (from.1 - OFFSET, to.1 + OFFSET);
        return format!("M{begin} {lower}C{out} {lower},{out} {upper},{end} {upper}");
    }
    let (mut x, mut y) = (from.0, from.1 + HEIGHT / 2);
    let mut commands = format!("M{x} {y}");
    let via = edge.via.iter().map(|point| center(*point));
    for (next_x, next_y) in via.chain([(to.0, to.1 - HEIGHT / 2 - ARROW)]) {
        let middle = (y + next_y) / 2;
        commands.push_str(&format!("C{x} {middle},{next_x} {middle},{next_x} {next_y}"));
        (x, y) = (next_x, next_y);
    }
    commands
}

/// Returns the center of a place in the grid.
fn center(at: GridPoint) -> (usize, usize) {
    (MARGIN + (at.column + 1) * COLUMN, MARGIN + at.layer * LAYER + LAYER / 2)
}

/// Makes control characters visible, and shortens the text to this width.
pub(super) fn shortened(text: &str, max: usize) -> String {
    let (mut out, mut width) = (String::new(), 0);
    for c in visible(text).chars() {
        width += if c.is_ascii() { 1 } else { 2 };
        if width > max {
            out.push('…');
            break;
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use schema::kinds::workflow::WorkflowSpec;
    use serde_json::json;

    use super::*;
    use crate::view;

    const HOSTILE: &str = "</title><script>alert(1)</script>\"'\u{202e}";

    fn drawn(path: &[&str], phase: RunPhase) -> String {
        let states = json!({
            "a": {"type": "Choice", "default": "b", "choices": [
                {"variable": "$.<script>", "isPresent": true, "next": HOSTILE}]},
            "b": {"type": "Task", "function": "f", "next": "a", "catch": [{"errorEquals": ["<b>"], "next": HOSTILE}]},
            HOSTILE: {"type": "Fail"},
        });
        let spec: WorkflowSpec = serde_json::from_value(json!({"startAt": "a", "states": states})).unwrap();
        draw(&view::graph(spec.machine()).unwrap(), path, phase)
    }

    /// Classes and texts of the states.
    fn states(svg: &str) -> Vec<(&str, &str)> {
        let groups = svg.split("<g class=\"").filter(|group| group.contains("<rect"));
        let state = |group: &'_ str| -> Option<(usize, usize, usize)> {
            let begin = group.find("middle\">")? + "middle\">".len();
            Some((group.find('"')?, begin, begin + group[begin..].find("</text>")?))
        };
        let states = groups.filter_map(|group| {
            let (class, begin, end) = state(group)?;
            Some((&group[..class], &group[begin..end]))
        });
        states.collect()
    }

    #[test]
    fn the_path_is_marked_in_shape_and_color() {
        let svg = drawn(&["a", "b", "a", "b"], RunPhase::Running);
        let name = "&#60;/title&#62;&#60;script&#62;al…";
        assert_eq!(states(&svg), [("", name), ("taken", "✓ a ×2"), ("taken current", "◐ b ×2")]);
        assert_eq!(svg.matches("url(#arrow-taken)").count(), 2, "{svg}");
        assert_eq!(svg.matches("url(#arrow)").count(), 2, "{svg}");
        assert_eq!(svg.matches("stroke-dasharray").count(), 1, "{svg}");
        let failed = drawn(&["a", HOSTILE], RunPhase::Failed);
        assert_eq!(states(&failed)[0], ("taken bad", format!("▲ {name}").as_str()));
        assert_eq!(states(&drawn(&[], RunPhase::Running))[1], ("", "a"));
    }

    #[test]
    fn names_and_conditions_stay_text() {
        let svg = drawn(&["a", HOSTILE], RunPhase::Failed);
        for part in svg.split('<').skip(1) {
            let tag = part.trim_start_matches('/').split([' ', '>']).next().unwrap();
            let known = ["svg", "defs", "marker", "path", "g", "title", "rect", "text", "circle"];
            assert!(known.contains(&tag), "{tag}: {svg}");
        }
        assert!(!svg.contains('\u{202e}') && !svg.contains(" style="), "{svg}");
    }

    #[test]
    fn long_names_are_shortened_by_their_width() {
        assert_eq!(shortened(&"x".repeat(NAME_MAX), NAME_MAX), "x".repeat(NAME_MAX));
        assert_eq!(shortened(&"状".repeat(20), 6), "状状状…");
    }
}
