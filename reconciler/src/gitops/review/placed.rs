//! Nodes that new pods would get, in readable form. Pure.

use std::collections::BTreeMap;

use crate::simulate::placements::Placement;

/// Limit on pods that are named one by one.
const NAMED_MAX: usize = 40;

/// Formats a line per pod, those that fit nowhere first; pods beyond the limit are counted by node.
pub(super) fn lines(placements: &[Placement]) -> Vec<String> {
    let (placed, unplaced): (Vec<_>, Vec<_>) = placements.iter().partition(|one| one.node.is_some());
    let all = || unplaced.iter().chain(&placed);
    let mut lines: Vec<String> = all().take(NAMED_MAX).map(|one| line(one)).collect();
    let mut more: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for one in all().skip(NAMED_MAX) {
        *more.entry(one.node.as_deref()).or_default() += 1;
    }
    if !more.is_empty() {
        let count = |(node, count): (&Option<&str>, &usize)| match node {
            Some(node) => format!("{count} on {node}"),
            None => format!("{count} without a node"),
        };
        let counts: Vec<String> = more.iter().map(count).collect();
        lines.push(format!("{} more: {}", more.values().sum::<usize>(), counts.join(", ")));
    }
    lines
}

fn line(Placement { namespace, pod, node, why }: &Placement) -> String {
    match node {
        Some(node) => format!("{namespace}/{pod} -> {node}"),
        None => format!("{namespace}/{pod}: no node: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(pod: usize, node: Option<&str>) -> Placement {
        let (namespace, pod) = ("default".to_owned(), format!("web-{pod}"));
        Placement { namespace, pod, node: node.map(str::to_owned), why: "0/2 nodes fit".to_owned() }
    }

    #[test]
    fn what_fits_nowhere_comes_first_and_many_are_counted() {
        let mut all: Vec<Placement> = (0..50).map(|number| placement(number, Some("n1"))).collect();
        all.push(placement(50, None));
        let lines = lines(&all);
        assert_eq!(lines.len(), NAMED_MAX + 1);
        assert_eq!(lines[0], "default/web-50: no node: 0/2 nodes fit");
        assert_eq!(lines[1], "default/web-0 -> n1");
        assert_eq!(lines[NAMED_MAX], "11 more: 11 on n1");
        assert!(super::lines(&[]).is_empty());
    }
}
