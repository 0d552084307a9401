//! A workflow as a Mermaid flowchart, which GitHub, GitLab and others draw in Markdown. States are numbered nodes, so that
//! any name can be a label; Parallel and Map are boxes around their machines.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use schema::kinds::workflow::{MachineRef, State, WorkflowSpec};
use schema::violation::is_invisible;

use super::graph::{Cause, transitions};

/// Longest label, in characters.
const LABEL_MAX_CHARS: usize = 80;

/// Draws a workflow as a flowchart.
pub fn mermaid(spec: &WorkflowSpec) -> String {
    let mut chart = Chart { text: "flowchart TD\n".to_owned(), nodes: 0 };
    chart.machine(spec.machine(), 1);
    chart.text
}

struct Chart {
    text: String,
    /// Number of nodes named so far.
    nodes: usize,
}

impl Chart {
    fn line(&mut self, depth: usize, line: &str) {
        // Writing to a string can't fail.
        let _ = writeln!(self.text, "{:width$}{line}", "", width = 2 * depth);
    }

    fn id(&mut self) -> String {
        self.nodes += 1;
        format!("s{}", self.nodes)
    }

    /// Draws the states of a machine, then its transitions.
    fn machine(&mut self, machine: MachineRef<'_>, depth: usize) {
        let (begin, end) = (self.id(), self.id());
        self.line(depth, &format!("{begin}(( ))"));
        let ids: BTreeMap<&str, String> =
            machine.states.keys().map(|name| (name.as_str(), self.id())).collect();
        for (name, state) in machine.states {
            self.state(&ids[name.as_str()], name, state, depth);
        }
        let id = |name: &str| ids.get(name).cloned().unwrap_or_else(|| end.clone());
        self.line(depth, &format!("{begin} --> {}", id(machine.start_at)));
        let mut is_ended = false;
        for (name, state) in machine.states {
            let from = id(name);
            for transition in transitions(state) {
                is_ended |= transition.to.is_none();
                let arrow = if matches!(transition.cause, Cause::Catch(_)) { "-.->" } else { "-->" };
                let text = transition.cause.text().map(|text| format!("|{}|", label(&text)));
                let to = transition.to.map_or_else(|| end.clone(), id);
                self.line(depth, &format!("{from} {arrow}{} {to}", text.unwrap_or_default()));
            }
        }
        if is_ended {
            self.line(depth, &format!("{end}((( )))"));
        }
    }

    fn state(&mut self, id: &str, name: &str, state: &State, depth: usize) {
        let is = |what: &str| label(&format!("{name}: {what}"));
        let node = match state {
            State::Task(task) => format!("{id}[{}]", is(&task.function)),
            State::Pass(_) => format!("{id}[{}]", label(name)),
            State::Choice(_) => format!("{id}{{{}}}", label(name)),
            State::Wait(_) => format!("{id}([{}])", is("wait")),
            State::Succeed(_) => format!("{id}((({})))", label(name)),
            State::Fail(fail) => {
                format!("{id}[/{}/]", is(&format!("fail {}", fail.error.as_deref().unwrap_or_default())))
            }
            State::Parallel(parallel) => {
                self.line(depth, &format!("subgraph {id}[{}]", is("all of")));
                for (number, branch) in parallel.branches.iter().enumerate() {
                    let inner = self.id();
                    let title = label(&format!("branch {}", number + 1));
                    self.line(depth + 1, &format!("subgraph {inner}[{title}]"));
                    self.machine(branch.as_ref(), depth + 2);
                    self.line(depth + 1, "end");
                }
                return self.line(depth, "end");
            }
            State::Map(map) => {
                let items = map.items_path.as_deref().unwrap_or("$");
                self.line(depth, &format!("subgraph {id}[{}]", is(&format!("each of {items}"))));
                self.machine(map.item_processor.as_ref(), depth + 1);
                return self.line(depth, "end");
            }
        };
        self.line(depth, &node);
    }
}

/// A label in quotes. Characters with a meaning in Mermaid, or in HTML around it, become numeric codes.
fn label(text: &str) -> String {
    let mut out = String::from("\"");
    for (count, c) in text.trim().chars().enumerate() {
        if count == LABEL_MAX_CHARS {
            out.push('…');
            break;
        }
        match c {
            c if is_invisible(c) => out.push(' '),
            '"' | '#' | '&' | '<' | '>' | '`' | ';' | '\\' => {
                let _ = write!(out, "#{};", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use schema::kinds::Resource;
    use schema::manifest::load_definition;

    use super::*;

    const FLOW: &str = r#"
StartAt: check "stock"
States:
  check "stock":
    Type: Task
    Resource: function:default/stock
    Catch: [{ErrorEquals: [Sold.Out, Down], Next: sorry}]
    Next: many?
  many?:
    Type: Choice
    Choices:
    - {Variable: $.n, NumericGreaterThan: 5, Next: both}
    - Or: [{Variable: $.vip, BooleanEquals: true}, {Not: {Variable: $.tag, StringEquals: "<b>#1; `x`"}}]
      Next: each
    Default: rest
  both:
    Type: Parallel
    Branches:
    - {StartAt: pack, States: {pack: {Type: Task, Resource: pack, End: true}}}
    - StartAt: all
      States:
        all:
          Type: Map
          ItemsPath: $.bills
          ItemProcessor: {StartAt: bill, States: {bill: {Type: Pass, End: true}}}
          Next: paid
        paid: {Type: Succeed}
    Next: rest
  each:
    Type: Map
    ItemProcessor: {StartAt: one, States: {one: {Type: Task, Resource: one, End: true}}}
    End: true
  rest: {Type: Wait, Seconds: 2, End: true}
  sorry: {Type: Fail, Error: Sorry}
"#;

    #[test]
    fn a_workflow_with_all_there_is_as_a_chart() {
        let loaded = load_definition("flow.yaml", FLOW.as_bytes());
        assert!(!loaded.has_errors(), "{:?}", loaded.violations);
        let Resource::Workflow(spec) = &loaded.documents[0].object.resource else { panic!("no workflow") };
        insta::assert_snapshot!(mermaid(spec));
    }

    #[test]
    fn no_label_ends_early_or_is_endless() {
        assert_eq!(label("a\"]; b\n<script>"), "\"a#34;]#59; b #60;script#62;\"");
        assert_eq!(label(&"x".repeat(200)).chars().count(), LABEL_MAX_CHARS + 3);
    }
}
