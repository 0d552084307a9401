//! Other spellings of a workflow, each with an example, for `minik8s explain workflow` and docs/manifests.md.

/// Another spelling of a workflow.
#[derive(Debug)]
pub(crate) struct Spelling {
    /// Title of the spelling.
    pub(crate) title: &'static str,
    /// Description of the differences.
    pub(crate) what: &'static str,
    /// Complete example of a manifest.
    pub(crate) example: &'static str,
}

/// Every other spelling, the most common ones first.
pub(crate) const SPELLINGS: &[Spelling] = &[
    Spelling {
        title: "Amazon States Language",
        what: "The language's own names may be used in `spec`, or below `spec.definition` as fields or as text in JSON \
               or YAML. `Resource: function:NAMESPACE/NAME` names a Function; the last part of a Lambda function's ARN \
               is the name of the Function.",
        example: "\
apiVersion: minik8s.io/v1
kind: Workflow
metadata: {name: order}
spec:
  definition: |
    {\"StartAt\": \"price\",
     \"States\": {\"price\": {\"Type\": \"Task\", \"Resource\": \"function:default/price\", \"End\": true}}}
",
    },
    Spelling {
        title: "State machine in its own file",
        what: "`definitionPath` is the path of a file, from the root of the repository, that contains only a state machine \
               in the Amazon States Language.",
        example: "\
apiVersion: minik8s.io/v1
kind: Workflow
metadata: {name: order}
spec:
  definitionPath: flows/order.asl.json
  params: {items: []}
",
    },
    Spelling {
        title: "Older form: `startAt`, `params`, `nodes`",
        what: "All next to `metadata`. A task calls the Function with the same name. Each node's output is the next one's \
               input; without `next`, or if no choice matches, the run ends.",
        example: "\
kind: Workflow
metadata: {name: order}
startAt: price
params: {total: 120}
nodes:
  price: {type: task, next: large}
  large:
    type: choice
    choices:
      - {variable: total, numericGreaterThan: 100, next: discount}
  discount: {type: task}
",
    },
    Spelling {
        title: "Older form: `entryParams`, `entryNodeName`, `workflowNodes`",
        what: "`entryParams` is JSON as text. `checkType` is `numEqual`, `numNotEqual`, `numGreaterThan`, `numLessThan`, \
               `numGreaterAndEqualThan`, `numLessAndEqualThan`, or the same with `str`. A variable of another type fails \
               the run with `TypeMismatch`. A node without a next one ends it.",
        example: "\
kind: Workflow
metadata: {name: order}
spec:
  entryParams: '{\"total\": 120}'
  entryNodeName: price
  workflowNodes:
    - name: price
      type: func
      funcData: {funcName: price, funcNamespace: default, nextNodeName: large}
    - name: large
      type: choice
      choiceData:
        checkType: numGreaterThan
        checkVarName: total
        compareValue: 100
        trueNextNodeName: discount
        falseNextNodeName: \"\"
    - name: discount
      type: func
      funcData: {funcName: discount}
",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Resource;
    use crate::manifest::load_file;
    use crate::violation::Severity;

    #[test]
    fn each_example_is_a_workflow_without_errors_or_warnings() {
        for Spelling { title, example, .. } in SPELLINGS {
            let loaded = load_file("order.yaml", example.as_bytes());
            let notes = loaded.violations.iter().all(|violation| violation.severity == Severity::Note);
            assert!(notes, "{title}: {:#?}", loaded.violations);
            let [document] = loaded.documents.as_slice() else { panic!("{title}: {loaded:#?}") };
            let Resource::Workflow(spec) = &document.object.resource else { panic!("{title}") };
            assert!(spec.is_undefined() || spec.states.contains_key("price"), "{title}: {spec:#?}");
        }
    }
}
